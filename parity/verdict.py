"""From a pair to a verdict: the same function in float64, as accurate at each working precision, the same work."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from .constants import elsewhere, excused
from .derivative import suspects
from .environment import environment
from .errors import ParityUsageError
from .findings import BORN
from .islands import Island
from .localise import Localised
from .options import Options
from .pair import Pair
from .preparation import WEIGHTS, prepare, unpaired_rows
from .result import Result, Row
from .stages import Progress, Stages
from .thorough import thorough_rows
from .work import Work

#: Places that the reason of a verdict names.
MOST_BORN = 3

Verdict = tuple[str, str | None, str]


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
    sides = prepared.sides
    stages = Stages(prepared, options, progress, started=started)
    rows = [*unpaired_rows(prepared), *stages.same_function()]
    islands: list[Island] = []
    verdict, rung, reason = _judge_float64(rows)
    if rung == "different" and not any(_misfit(row) for row in rows):
        progress("float64: looking for float32 inside the float64 runs")
        islands = stages.islands()
        rung, reason, rows = _prove_island(rows, islands, stages, reason)
        verdict = "FAIL" if rung == "different" else "PASS"
    inside = Localised()
    agreeing = verdict == "PASS"
    if (agreeing and options.points) or (
        rung == "different" and stages.in_model and not any(_misfit(row) for row in rows)
    ):
        progress("float64: looking inside for where it begins")
        inside = stages.localise()
        rows = [*inside.rows, *rows]
        if agreeing and inside.findings:
            verdict, rung, difference = _judge_float64(inside.rows)
            reason = f"the outputs agree, but {difference}"
        born = [finding.name for finding in inside.findings if finding.birth == BORN]
        reason += f"; it begins at {' and at '.join(born[:MOST_BORN])}" if born else ""
        if not any(finding.what == "value" for finding in inside.findings) and _failed_in_gradients_alone(rows):
            found = stages.derivatives()
            rows, reason = [*rows, *found], reason + suspects(found)
    if verdict == "PASS":
        for precision in options.precisions:
            rows += stages.working_precision(precision) if stages.in_time(precision) else []
        verdict, rung, reason = _judge_all(rows, rung, stages)
    if verdict == "PASS" and options.thorough and stages.in_time("thorough"):
        found = [*stages.derivatives(), *thorough_rows(stages)]
        rows += found
        verdict, rung, reason = _judge_variants(found, rung)
    if options.curve and not any(map(_misfit, rows)) and stages.in_time("training curves"):
        found = stages.curves()
        rows += found
        verdict, rung, reason = _judge_curves(found, (verdict, rung, reason))
    if options.grads and (unpaired := [name for names in prepared.unpaired for name in names]):
        verdict, reason = _with_unpaired(verdict, reason, unpaired)
    work = Work()
    if options.flops and stages.in_time("FLOP counts"):
        progress("counting the work")
        work = sides.count(stages.weights, stages.pooled[0], pair.formula)
    if verdict == "PASS" and work.equal is False:
        verdict, reason = "FAIL", "the two sides do not do the same matmul work: the FLOP counts differ"
    return Result(
        target=pair.name,
        verdict=verdict,
        rung=None if verdict == "ABSTAIN" else rung,
        reason=reason,
        seed=options.seed,
        rows=tuple(rows),
        islands=tuple(islands),
        findings=inside.findings,
        unmatched=inside.unmatched,
        unseen=inside.unseen,
        zero_gradients=tuple(sorted(stages.zero)),
        work=work,
        notes=(*pair.notes, *stages.notes),
        environment=environment(options.device),
        seconds=time.perf_counter() - started,
    )


def _judge_float64(rows: Sequence[Row]) -> Verdict:
    """Same function, different, or nothing compared."""
    failed = _first(rows, "FAIL")
    if failed is not None:
        if failed.group == WEIGHTS:
            return "FAIL", "different", f"{failed.name}: {failed.derivation}"
        if not failed.compared:
            what = f"{failed.name}: {failed.derivation}; both sides need the same names, shapes and types"
            return "FAIL", "different", what
        difference = f"{failed.name} differs in float64: {failed.measured:.2g}, bound {failed.bound:.2g}"
        return "FAIL", "different", difference
    vacuous = _first(rows, "VACUOUS")
    if vacuous is not None or not rows:
        what = f"{vacuous.name}: {vacuous.derivation}" if vacuous else "there is no float output to compare"
        return "VACUOUS", None, what
    return "PASS", "same-function", ""


def _prove_island(
    rows: list[Row], islands: Sequence[Island], stages: Stages, difference: str
) -> tuple[str, str, list[Row]]:
    """`float32-island` only with its proof: float32 was seen in a float64 run, and widening it closes the gap."""
    if not islands:
        where = "outputs and gradients" if stages.in_model else "optimizer steps"
        return "different", f"{difference}; no lower precision was seen in the float64 {where}", rows
    lower = next((island for island in islands if island.dtype not in ("float32", "float64")), None)
    if lower is not None:
        return "different", f"{difference}; {lower.dtype} was seen in {lower.side}, which is less than float32", rows
    stages.progress("float64: widening the float32 that was seen")
    stages.sides.lifted = True
    widened = stages.same_function()
    if _judge_float64(widened)[1] != "same-function":
        widened = _with_tables(widened, islands, stages)
    if _judge_float64(widened)[1] != "same-function":
        return "different", f"{difference}; widening the float32 that was seen does not close the gap", rows
    before = [replace(row, verdict="ISLAND") for row in rows if row.verdict == "FAIL"]
    return "float32-island", "", [*before, *widened]


def _with_tables(widened: list[Row], islands: Sequence[Island], stages: Stages) -> list[Row]:
    """Float32 tables cannot be widened: the rows with what they explain, if all that is left is born where they are."""
    if not stages.in_model or all(island.operation != "constant" for island in islands):
        return widened
    stages.progress("float64: float32 tables, which cannot be widened")
    inside = stages.localise()
    if not any(finding.birth == BORN for finding in inside.findings) or elsewhere(
        inside.findings, islands, inside.unmatched
    ):
        return widened
    return excused(widened, stages.exact, stages.sides, stages.weights, stages.pooled, stages.options.seed)


def _judge_variants(rows: Sequence[Row], rung: str | None) -> Verdict:
    """A function that is another one on some input is another function."""
    failed = _first(rows, "FAIL")
    if failed is None:
        return "PASS", rung, ""
    what = f"{failed.name} differs in float64: {failed.measured:.2g}, bound {failed.bound:.2g}"
    return "FAIL", "different", f"the same on the pair's own inputs, but {what}: {failed.derivation}"


def _judge_curves(rows: Sequence[Row], before: Verdict) -> Verdict:
    """A training that leaves its envelope fails what has passed; to what has failed it adds the step."""
    verdict, rung, reason = before
    failed = _first(rows, "FAIL")
    if failed is None:
        return before
    what = f"{failed.name} {failed.derivation.partition(':')[0]}"
    if verdict == "FAIL":
        return verdict, rung, f"{reason}; {what}"
    return "FAIL", rung, f"the functions agree, but {what}"


def _judge_all(rows: Sequence[Row], rung: str | None, stages: Stages) -> Verdict:
    """The verdict over every precision, the float64 rows having passed."""
    for verdict in ("FAIL", "VACUOUS"):
        row = _first(rows, verdict)
        if row is not None:
            return verdict, rung, f"the functions agree in float64, but {row.name} in {row.stage}: {row.derivation}"
    if all(row.verdict == "ABSTAIN" for row in rows):
        return "ABSTAIN", None, "no bound was smaller than the tensors themselves"
    if rung == "same-function" and stages.options.precisions and stages.bitwise:
        rung = "bitwise"
    return "PASS", rung, ""


def _with_unpaired(verdict: str, reason: str, unpaired: Sequence[str]) -> tuple[str, str]:
    """Weights that are not the same numbers on both sides: what is the same function may train otherwise."""
    what = f"weights that only one side has, by value: {', '.join(unpaired)}"
    if verdict == "PASS":
        return (
            "ABSTAIN",
            f"all that can be compared agrees, but there are {what}; give a WeightMap, or one dict to both",
        )
    return verdict, f"{reason}; {what}"


def _failed_in_gradients_alone(rows: Sequence[Row]) -> bool:
    """Whether all that fails is a gradient."""
    failed = [row.name for row in rows if row.verdict == "FAIL"]
    return bool(failed) and all(name.startswith("gradient") for name in failed)


def _misfit(row: Row) -> bool:
    """Names, shapes or weights that differ, which no precision explains; a type may be an island."""
    return (row.group == WEIGHTS and row.verdict == "FAIL") or (
        not row.compared and not row.derivation.startswith("type ")
    )


def _first(rows: Sequence[Row], verdict: str) -> Row | None:
    return next((row for row in rows if row.verdict == verdict), None)
