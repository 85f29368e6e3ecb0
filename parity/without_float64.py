"""Where a side cannot run in float64: the other side's is the truth for both, or the reference's twins give the floor.

A kernel that takes nothing but float32, a model that refuses the rest. Nothing then proves that the two are the same
function: the result has no rung, and its reason says by what they were held against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from .accuracy import TWINS, single_operations, stream_accuracy, working_precision
from .compare import error_of
from .errors import NoFloat64Error, NotRunError, ParityUsageError
from .judge import Judge
from .kinds import all_same_bits, kinds_of
from .localise import Localised, localise
from .result import Row
from .rows import Batches
from .runners import Around, Runner
from .runs import Arrays, Run, is_float
from .same_function import Judged, first_of
from .sides import neighbours, rounded
from .stages import Stages, is_narrow
from .ties import without_ties
from .yardsticks import ByTwins, bound_by_twins


@dataclass
class Borrowing(Around):
    """A side whose model runs in float64 on the other side, and in anything else itself."""

    other: Runner

    def model_at(self, precision: str) -> Runner:
        """The other side's in float64."""
        return self.other if precision == "float64" else self.runner


def without_float64(stages: Stages, unpaired: Sequence[Row], error: NoFloat64Error) -> Judged:
    """What can be said before the working precisions: the optimizers alone, whose float64 does not depend on the model.

    `stages` are made ready for the working precisions.

    Raises:
        ParityUsageError: what the error says, where it is not the model that fails, or that fails in all else as well.
    """
    unable = stages.refusing_float64(error) if stages.options.precisions else ()
    if not unable:
        raise ParityUsageError(str(error)) from error.__cause__
    sides, why = stages.sides, f"no float64: {error.said}"
    _steady(stages)
    if len(unable) == 1:
        (role,) = unable
        able, without = sides.reference, sides.candidate
        if role == "reference":
            able, without = without, able
        setattr(sides, role, Borrowing(without, able))
        stages.instead = f"{able.label}'s float64 is the truth for both, {without.label} having {why}"
        stages.outputs_and_gradients()  # of one and the same side: what they leave behind is what is wanted
        stages.model_steps()
    else:
        stages.instead = f"twins of {sides.reference.label} give the bounds, both sides having {why}"
        stages.by_twins = True
        if stages.optimizes:
            stages.notes += ("optimizer steps on the model's gradients: left out, for the model has no float64",)
    judged = Judged([*unpaired, *stages.optimizer_streams()], "PASS", None, stages.instead)
    failed = first_of(judged.rows, "FAIL")
    if failed is not None:
        why = failed.derivation if not failed.compared else f"{failed.measured:.2g}, bound {failed.bound:.2g}"
        judged.judge("FAIL", None, f"{failed.name} in float64: {why}; {stages.instead}")
    return judged


def _steady(stages: Stages) -> None:
    """Neither side is a matter of chance, in the first working precision that both run in."""
    for precision in stages.options.precisions:
        with suppress(NotRunError):
            weights, batch = rounded(stages.weights, precision), rounded(stages.pooled[0], precision)
            return stages.steady(stages.sides.run(weights, [batch], precision), precision)


def twin_precision(stages: Stages, precision: str) -> list[Row]:
    """Outputs and gradients of one side against the other's, then the optimizers and the operations alone."""
    stages.progress(f"{precision}: outputs and gradients")
    weights, pooled = rounded(stages.weights, precision), [rounded(batch, precision) for batch in stages.pooled]
    rows = stages.judge.in_range(stages.weights, weights, precision)
    low = stages.sides.run(weights, pooled, precision)
    stages.bitwise &= all_same_bits(low)
    twins = []
    for index, near in enumerate(neighbours(weights, pooled, precision, stages.options.seed, TWINS)):
        stages.progress(f"{precision}: twin {index + 1} of {TWINS}, one unit in the last place away")
        twins.append(stages.sides.reference_run(*near, precision))
    by_kind = zip(*(kinds_of((twin, twin)) for twin in twins), strict=True)
    for kind, moved in zip(kinds_of(low), by_kind, strict=True):
        if stages.options.grads or kind.kind != "gradient":
            rows += like_twins(stages.judge, kind, [twin.reference for twin in moved], precision)
    if stages.optimizes:
        stages.progress(f"{precision}: optimizers on synthetic gradients")
        rows += stream_accuracy(stages, precision)
    if precision == "float32":
        rows += _choices(stages, low, weights, pooled)
    return rows + (single_operations(stages, precision) if is_narrow(precision) else [])


def look_inside(stages: Stages, judged: Judged) -> None:
    """Where it begins, if a float32 output or gradient differs; how far points may be apart the twins say."""
    failed = [row for row in judged.rows if row.verdict == "FAIL" and row.stage == "float32" and row.compared]
    failed = [row for row in failed if not row.group.startswith("step ") and not row.group.endswith("stream")]
    if not failed:
        return
    stages.progress("float32: looking inside for where it begins")
    sides = stages.sides
    weights, batch = rounded(stages.weights, "float32"), rounded(stages.pooled[0], "float32")

    def by_twins() -> ByTwins:
        near = neighbours(weights, [batch], "float32", stages.options.seed, TWINS)
        twins = [sides.capture(sides.reference, moved, close, "float32")[1] for moved, (close,) in near]
        return ByTwins(twins, "float32", stages.judge.roundings)

    bare = [first.outputs for first, *_ in sides.run(weights, [batch], "float32")]
    backward = all(row.name.startswith("gradient ") for row in failed)
    points = stages.prepared.pair.points
    try:
        judged.inside = localise(sides, weights, batch, points, by_twins, bare, (), backward, "float32")
    except ParityUsageError as error:
        if points:
            raise
        judged.inside = Localised(unseen=(f"could not look inside: {error}",))
    judged.rows = [*judged.inside.rows, *judged.rows]
    judged.reason += judged.inside.begins


def like_twins(judge: Judge, low: Batches, twins: Sequence[Sequence[Arrays]], precision: str) -> list[Row]:
    """One side against the other at a precision, bounded by how far the reference's twins are from it.

    `twins` has, for each, what the reference gave on weights and inputs one unit in the last place away, batch by
    batch.
    """
    rows = judge.broken(low, precision)
    for name in low.names():
        mine, theirs, *near = ([batch[name] for batch in each] for each in (low.reference, low.candidate, *twins))
        bound = bound_by_twins(mine, near, precision, judge.roundings, error_of)
        rows.append(judge.row(low, name, precision, error_of(theirs, mine), bound, theirs))
    return rows


def borrowed_precision(stages: Stages, precision: str) -> list[Row]:
    """A working precision by one side's float64; in float32 whole numbers of one side are held against the other's.

    Each against a truth of its own is for float64 stages that have compared the two.
    """
    floats = precision != "float32" or all(map(is_float, stages.exact[0][0].outputs.values()))
    rows = working_precision(stages, precision)
    if floats:
        return rows
    weights, pooled = rounded(stages.weights, precision), [rounded(batch, precision) for batch in stages.pooled]
    chosen = _choices(stages, stages.sides.run(weights, pooled, precision), weights, pooled)
    names = {row.name for row in chosen}
    return [*(row for row in rows if row.name not in names), *chosen]


def _choices(stages: Stages, low: tuple[list[Run], list[Run]], weights: Arrays, pooled: Sequence[Arrays]) -> list[Row]:
    """Whole numbers and truth values of both sides in float32; what rounding may tip abstains."""
    rows = stages.judge.choices(kinds_of(low)[0], "float32")
    return without_ties(rows, low, stages.sides, weights, pooled, stages.options.seed, "float32")
