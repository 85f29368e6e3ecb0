"""From a pair to a verdict: the same function in float64, as accurate at each working precision, the same work."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from .accuracy import working_precision
from .environment import environment
from .errors import NoFloat64Error, NotRunError, ParityUsageError
from .findings import KILLED
from .mutation import planted
from .options import Options
from .pair import Pair
from .preparation import prepare, unpaired_rows
from .result import Result, Row
from .rows import some
from .same_function import Judged, first_of, is_misfit, narrow_on_both, same_function
from .stages import Progress, Stages
from .thorough import thorough_rows, wrong_alike
from .ties import is_tied
from .without_float64 import borrowed_precision, look_inside, twin_precision, without_float64
from .work import FORWARD_BACKWARD, Work


def check(
    pair: Pair, options: Options | None = None, progress: Progress = lambda message: None, **changes: Any
) -> Result:
    """Judges whether the two sides of a pair are the same function; `changes` are fields of Options, such as `steps=0`.

    Raises:
        ParityUsageError: the pair or the options cannot be run.
    """
    if unknown := changes.keys() - {field.name for field in fields(Options)}:
        known = ", ".join(field.name for field in fields(Options))
        raise ParityUsageError(f"check: options are {known}, got {', '.join(sorted(unknown))}; use one of them")
    options = replace(options or Options(), **changes)
    started = time.perf_counter()
    prepared = prepare(pair, options)
    stages = Stages(prepared, options, progress, started=started)
    unpaired = unpaired_rows(prepared)
    try:
        judged = same_function(stages, unpaired)
    except NoFloat64Error as error:
        judged = without_float64(stages, unpaired, error)
    for later in LATER:
        later(stages, judged)
    work = _work(stages, judged)
    _mutate(stages, judged)
    _left_out(stages, judged)
    inside = judged.inside
    return Result(
        target=pair.name,
        verdict=judged.verdict,
        rung=None if judged.verdict == "ABSTAIN" else judged.rung,
        reason=judged.reason,
        seed=options.seed,
        rows=tuple(judged.rows),
        islands=tuple(judged.islands),
        findings=inside.findings,
        unmatched=inside.unmatched,
        unseen=inside.unseen,
        zero_gradients=tuple(sorted(stages.zero)),
        work=work,
        planted=tuple(judged.planted),
        without_float64=stages.instead,
        notes=(*pair.notes, *prepared.notes, *stages.notes),
        environment=environment(options.device),
        seconds=time.perf_counter() - started,
    )


def _precisions(stages: Stages, judged: Judged) -> None:
    """As accurate at every working precision, the functions being the same."""
    if not judged.passes:
        return
    complete = bool(stages.options.precisions)
    refused: list[NotRunError] = []
    for precision in stages.options.precisions:
        try:
            if stages.in_time(precision):
                judged.rows += _judged_at(precision, stages)
            else:
                complete = False
        except NoFloat64Error:
            raise
        except NotRunError as error:
            refused.append(error)
            stages.unable += (f"{precision}, in which {error.label} raises {error.said}",)
    if refused and not any(row.stage in stages.options.precisions for row in judged.rows):
        raise refused[0]
    complete &= not refused
    for verdict in ("FAIL", "VACUOUS"):
        row = first_of(judged.rows, verdict)
        if row is not None:
            why = _failing(stages, row)
            may_round = row.compared and not stages.instead
            if may_round and (narrow := narrow_on_both(stages.sides.islands(stages.weights, stages.pooled[0]))):
                return judged.judge("ABSTAIN", None, f"{why}; {narrow}: how they round is not judged")
            return judged.judge(verdict, judged.rung, why)
    if all(row.verdict == "ABSTAIN" for row in judged.rows):
        return judged.judge("ABSTAIN", None, "no bound was smaller than the tensors themselves")
    bitwise = judged.rung == "same-function" and complete and stages.bitwise
    judged.judge("PASS", "bitwise" if bitwise else judged.rung, stages.instead or judged.reason)


def _judged_at(precision: str, stages: Stages) -> list[Row]:
    """The rows of a working precision."""
    if stages.by_twins:
        return twin_precision(stages, precision)
    return borrowed_precision(stages, precision) if stages.instead else working_precision(stages, precision)


def _failing(stages: Stages, row: Row) -> str:
    """Why a working precision fails, or is vacuous."""
    if not stages.instead:
        return f"the functions agree in float64, but {row.name} in {row.stage}: {row.derivation}"
    differs = row.verdict == "FAIL" and row.compared and math.isfinite(row.measured)
    why = f"differs: {row.measured:.2g}, bound {row.bound:.2g}" if differs else row.derivation
    return f"{row.name} in {row.stage}: {why}; {stages.instead}"


def _inside(stages: Stages, judged: Judged) -> None:
    """Where it begins, if that could not be asked in float64."""
    if stages.instead and judged.verdict == "FAIL":
        look_inside(stages, judged)


def _thorough(stages: Stages, judged: Judged) -> None:
    """A function that is another one on some input is another function."""
    if stages.options.thorough and not judged.passes:
        stages.notes += ("thorough: left out, for the check has not passed without it",)
    if not (judged.passes and stages.options.thorough) or _asks_float64("thorough", stages):
        return
    if not stages.in_time("thorough"):
        return
    found = [*(stages.derivatives() if stages.options.grads else ()), *thorough_rows(stages)]
    judged.rows += found
    failed = first_of(found, "FAIL")
    tied = next((row for row in found if is_tied(row)), None)
    stages.beside += tuple(wrong_alike(found))
    if failed is not None:
        if failed.stage == "float64":
            what = f"{failed.name} differs in float64: {failed.measured:.2g}, bound {failed.bound:.2g}"
            judged.judge("FAIL", "different", f"the same on the pair's own inputs, but {what}: {failed.derivation}")
        else:  # the functions agree there as well
            what = f"{failed.name} in {failed.stage}: {failed.derivation}"
            judged.judge("FAIL", judged.rung, f"the same on the pair's own inputs, but {what}")
    elif tied is not None:
        judged.judge("ABSTAIN", None, f"the same on the pair's own inputs, but {tied.name}: {tied.derivation}")


def _trainings(stages: Stages, judged: Judged) -> None:
    """A training that differs fails what has passed, and one without a finite number makes it vacuous.

    To what has failed it adds what it found. An undecided row leaves a PASS what it is, and says so.
    """
    if not stages.options.curve or any(map(is_misfit, judged.rows)):
        return
    for found in stages.trainings():
        judged.rows += found
        row = first_of(found, "FAIL") or first_of(found, "VACUOUS") or first_of(found, "ABSTAIN")
        if row is None or (row.verdict == "ABSTAIN" and not judged.passes):
            continue
        what = f"{row.name} {row.derivation.partition(':')[0]}"
        reason = f"{judged.reason}; {what}" if judged.reason else f"the functions agree, but {what}"
        kept = row.verdict == "ABSTAIN" or judged.verdict == "FAIL"
        judged.judge(judged.verdict if kept else row.verdict, judged.rung, reason)


def _unpaired(stages: Stages, judged: Judged) -> None:
    """Weights that are not the same numbers on both sides: what is the same function may train otherwise."""
    unpaired = [name for names in stages.prepared.unpaired for name in names]
    if not stages.options.grads or not unpaired:
        return
    sides = zip(stages.sides.labels, stages.prepared.unpaired, strict=True)
    alone = [f"{label}'s {some(names)}" for label, names in sides if names]
    what = f"weights that only one side has, by value: {' and '.join(alone)}"
    if judged.passes:
        advice = "give a WeightMap, or one dict to both"
        judged.judge("ABSTAIN", judged.rung, f"all that can be compared agrees, but there are {what}; {advice}")
    else:
        judged.reason = f"{what}; {judged.reason}"  # the likely cause of all else


#: What comes after the first question, in this order; each sees what was judged before.
LATER: tuple[Callable[[Stages, Judged], None], ...] = (_precisions, _inside, _thorough, _trainings, _unpaired)


def _left_out(stages: Stages, judged: Judged) -> None:
    """A PASS of less than was asked for says so where it is read; of a precision that does not run every verdict."""
    left_out = [f"; left out: {each}" for each in stages.unable]
    if judged.passes:
        left_out += [f"; {each}" for each in stages.beside]
    if judged.passes and stages.left_out:
        left_out.append(f"; left out, the budget being over: {', '.join(stages.left_out)}")
    if left_out:
        judged.reason = "".join([judged.reason or "what was compared agrees", *left_out])


def _work(stages: Stages, judged: Judged) -> Work:
    """The FLOP counts; two sides that do not do the same work are no parity."""
    if not stages.options.flops or not stages.in_time("FLOP counts"):
        return Work()
    stages.progress("counting the work")
    work = stages.sides.count(stages.weights, stages.pooled[0], stages.prepared.pair.formula)
    if judged.passes and work.equal is False:
        judged.judge(
            "FAIL", judged.rung, f"the two sides do not do the same matmul work: the FLOP counts differ{_where(work)}"
        )
    return work


def _where(work: Work) -> str:
    """What it may mean that forward passes do the same work and backward passes do not."""
    if work.differing != {FORWARD_BACKWARD}:
        return ""
    return (
        ", of the backward pass alone: one of them may compute its forward pass again (checkpoint, remat); "
        "Options(flops=False) leaves the counts out"
    )


def _asks_float64(stage: str, stages: Stages) -> bool:
    """Whether a stage that asks in float64 is left out, for there is none; a note then says so."""
    if stages.instead:
        stages.notes += (f"{stage}: left out, for it asks in float64",)
    return bool(stages.instead)


def _mutate(stages: Stages, judged: Judged) -> None:
    """A check that no fault can fail proves nothing."""
    if not stages.options.mutate:
        return
    if not judged.passes:
        stages.notes += ("mutation: left out, for faults show only in a check that passes",)
    elif not _asks_float64("mutation", stages) and stages.in_time("mutation"):
        judged.planted = planted(stages)
        if judged.planted and not any(fault.outcome == KILLED for fault in judged.planted):
            none = f"none of {len(judged.planted)} faults that were planted into this check makes it fail"
            judged.judge("VACUOUS", None, none)
