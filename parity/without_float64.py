"""Where a side cannot run in float64: the other side's is the truth for both, or the reference's twins give the floor.

A kernel that takes nothing but float32, a model that refuses the rest. Nothing then proves that the two are the same
function: the result has no rung, and its reason says by what they were held against each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .accuracy import TWINS, single_operations, stream_accuracy
from .bounds import Bound, path_floor, twin_bound
from .capture import Capture
from .compare import different, error_of, independent_errors
from .compare import pooled as pooled_share
from .draws import Shape
from .errors import NoFloat64Error, ParityUsageError
from .formats import FORMATS
from .kinds import all_same_bits, kinds_of
from .localise import Localised, localise
from .result import Row
from .rows import Batches, RowMaker
from .runners import Around, Runner
from .runs import Arrays, Run, Step
from .same_function import NAMELESS, Judged, first_of
from .sides import perturbed, rounded
from .stages import Stages, is_narrow
from .ties import without_ties
from .yardsticks import ByTwins


@dataclass
class Borrowing(Around):
    """A side whose model runs in float64 on the other side, and in anything else itself."""

    other: Runner

    @property
    def draws(self) -> Sequence[Shape]:
        """The shapes of the shared random draws of the other side's last run, which was in float64."""
        return self.other.draws

    def run(self, weights: Arrays, batch: Arrays, precision: str, *, lifted: bool = False) -> Run:
        """Outputs and gradients of one batch."""
        return self._at(precision).run(weights, batch, precision, lifted=lifted)

    def steps(
        self, points: Sequence[Arrays], batches: Sequence[Arrays], precision: str, *, lifted: bool = False
    ) -> Iterator[Step]:
        """One optimizer step per batch."""
        return self._at(precision).steps(points, batches, precision, lifted=lifted)

    def capture(
        self,
        weights: Arrays,
        batch: Arrays,
        precision: str,
        *,
        feed: Arrays | None = None,
        back: Arrays | None = None,
        lifted: bool = False,
    ) -> tuple[Arrays, Capture]:
        """A run of one batch whose points are seen."""
        return self._at(precision).capture(weights, batch, precision, feed=feed, back=back, lifted=lifted)

    def _at(self, precision: str) -> Runner:
        return self.other if precision == "float64" else self.runner


def without_float64(stages: Stages, unpaired: Sequence[Row], error: NoFloat64Error) -> Judged:
    """What can be said before the working precisions: the optimizers alone, whose float64 does not depend on the model.

    `stages` are made ready for the working precisions.

    Raises:
        ParityUsageError: what the error says, where it is not the model that fails, or that fails in all else as well.
    """
    slip = isinstance(error.__cause__, NAMELESS) or not stages.options.precisions
    unable = [] if stages.exact[0] or slip else stages.without_float64()
    if not unable:
        raise ParityUsageError(str(error)) from error.__cause__
    sides = stages.sides
    runners = {"reference": sides.reference, "candidate": sides.candidate}
    why = f"no float64: {error.said}"
    if len(unable) == 1:
        (role,) = unable
        able = sides.candidate if role == "reference" else sides.reference
        label = runners[role].label
        setattr(sides, role, Borrowing(runners[role], able))
        stages.instead = f"{able.label}'s float64 is the truth for both, {label} having {why}"
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


def twin_precision(stages: Stages, precision: str) -> list[Row]:
    """Outputs and gradients of one side against the other's, then the optimizers and the operations alone."""
    stages.progress(f"{precision}: outputs and gradients")
    weights, pooled = rounded(stages.weights, precision), [rounded(batch, precision) for batch in stages.pooled]
    rows = stages.judge.in_range(stages.weights, weights, precision)
    low = stages.sides.run(weights, pooled, precision)
    stages.bitwise &= all_same_bits(low)
    twins = []
    for index in range(TWINS):
        stages.progress(f"{precision}: twin {index + 1} of {TWINS}, one unit in the last place away")
        seed = [stages.options.seed, index]
        near = [perturbed(batch, precision, [*seed, 1]) for batch in pooled]
        twins.append(stages.sides.reference_run(perturbed(weights, precision, seed), near, precision))
    kinds = kinds_of(low)
    by_kind = zip(*(kinds_of((twin, twin)) for twin in twins), strict=True)
    for kind, moved in zip(kinds, by_kind, strict=True):
        if stages.options.grads or kind.kind != "gradient":
            references = [twin.reference for twin in moved]
            rows += like_twins(stages.judge, kind, references, precision, stages.judge.roundings)
    if stages.optimizes:
        stages.progress(f"{precision}: optimizers on synthetic gradients")
        rows += stream_accuracy(stages, precision)
    return rows + (single_operations(stages, precision) if is_narrow(precision) else [])


def look_inside(stages: Stages, judged: Judged) -> None:
    """Where it begins, if a float32 output or gradient differs; how far points may be apart the twins say."""
    failed = [row for row in judged.rows if row.verdict == "FAIL" and row.stage == "float32" and row.compared]
    failed = [row for row in failed if not row.group.startswith("step ") and not row.group.endswith("stream")]
    if not failed:
        return
    stages.progress("float32: looking inside for where it begins")
    sides, seed = stages.sides, stages.options.seed
    weights, batch = rounded(stages.weights, "float32"), rounded(stages.pooled[0], "float32")

    def by_twins() -> ByTwins:
        twins = []
        for index in range(TWINS):
            near = perturbed(batch, "float32", [seed, index, 1])
            moved = perturbed(weights, "float32", [seed, index])
            twins.append(sides.capture(sides.reference, moved, near, "float32")[1])
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


def like_twins(
    maker: RowMaker, low: Batches, twins: Sequence[Sequence[Arrays]], precision: str, roundings: int
) -> list[Row]:
    """One side against the other at a precision, bounded by how far the reference's twins are from it.

    `twins` has, for each, what the reference gave on weights and inputs one unit in the last place away, batch by
    batch.
    """
    rows = maker.broken(low, precision)
    for name in low.names():
        mine, theirs, near = _of(name, low.reference, low.candidate, *twins)
        moved = [error_of(twin, mine) for twin in near]
        # relative to the power of two below, a rounding error is anywhere between -u and u
        once = FORMATS[precision].unit_roundoff / math.sqrt(3)
        count = independent_errors(near[int(np.argmax(moved))], mine)
        bound = twin_bound(once, count, path_floor(precision, roundings), max(moved))
        rows.append(maker.row(low, name, precision, error_of(theirs, mine), bound, theirs))
    return rows


def compare_choices(stages: Stages, rows: Sequence[Row]) -> list[Row]:
    """The rows of a float32 stage with whole numbers and truth values of one side held against the other's.

    Each against a truth of its own is for float64 stages that have compared the two. What rounding may tip abstains.
    """
    weights, pooled = rounded(stages.weights, "float32"), [rounded(batch, "float32") for batch in stages.pooled]
    low = stages.sides.run(weights, pooled, "float32")
    outputs, _ = kinds_of(low)
    chosen = []
    for name in outputs.names(floating=False):
        mine, theirs = ([batch[name] for batch in side] for side in (outputs.reference, outputs.candidate))
        share = pooled_share([different(a, b) for a, b in zip(theirs, mine, strict=True)])
        bound = Bound(0.0, "no float: every element equal")
        chosen.append(stages.judge.row(outputs, name, "float32", share, bound, theirs))
    names = {row.name for row in chosen}
    chosen = without_ties(chosen, low, stages.sides, weights, pooled, stages.options.seed, "float32")
    return [*(row for row in rows if row.name not in names), *chosen]


def _of(
    name: str, reference: Sequence[Arrays], candidate: Sequence[Arrays], *twins: Sequence[Arrays]
) -> tuple[list[np.ndarray], list[np.ndarray], list[list[np.ndarray]]]:
    """One tensor of every batch, of both sides and of each twin."""
    mine, theirs, *near = ([batch[name] for batch in each] for each in (reference, candidate, *twins))
    return mine, theirs, near
