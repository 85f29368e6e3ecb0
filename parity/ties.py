"""What differs where a choice was as good as tied: argmax, top-k, routing, a threshold, a rounding to whole numbers.

How near a choice was does not show in it. But what rounding may tip, a change of every number by a few roundings tips
as well: an element is tied if in such a twin one side gives what the other one gave. Any other gap is larger. Beside
an output that ties explain, what many choices enter (a mean, a gradient) is tied if a twin moves it by as much as the
sides differ: no twin makes all of them anew.

The same twins show how well the result is conditioned: sides that are no further apart than a few roundings of weights
and inputs move the reference do not differ. Float32's error is the scale elsewhere, and says too little where a kernel
adds up in more than float32 (PyTorch's variance of numbers around 1000).

A gradient at a tie of equal values (the kink of a ReLU, the maximum of two equals) is no such case: outputs agree
there, and what is propagated is a convention that a port has to keep. It counts as tied only behind an output that is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from .bounds import FLOAT64_SLACK
from .compare import error_of
from .formats import FORMATS
from .result import Row
from .runs import Arrays, Run, is_float
from .sides import Sides

#: An exact tie of two falls either way in each: one that is missed by all of them is one in 65,536.
TWINS = 16
#: As many for a tie of several, where what differs is seen to waver: one of 16 that is missed is one in 3,800.
MOST_TWINS = 128
#: Twins in which no float wavers: then none is behind a choice.
FEW_TWINS = 3
#: How much of a gap may be left between a float and the other side's, for the roundings of a twin.
LEFT = 2.0**-20
#: How much of a gap a twin has to move a float by that many choices enter.
SHARE = 0.5

GRADIENT = "gradient "
TIED = "all as good as tied"


def is_tied(row: Row) -> bool:
    """Whether nothing but choices as good as tied keeps a row from passing."""
    return row.verdict == "ABSTAIN" and TIED in row.derivation


def without_ties(
    rows: Sequence[Row],
    exact: tuple[list[Run], list[Run]],
    sides: Sides,
    weights: Arrays,
    batches: Sequence[Arrays],
    seed: int,
    precision: str = "float64",
    choices_alone: bool = False,
) -> list[Row]:
    """The rows of a float64 stage; ABSTAIN where every element that differs is tied, and counted.

    PASS where roundings of weights and inputs move the reference as far. Or of a stage in float32 where there is no
    float64: `exact` are the runs of that. `choices_alone`: floats stay as they are, for a side that gives other bits in
    every run would wander from a twin to the other side by itself.
    """
    failed = {row.name: row for row in rows if row.verdict == "FAIL" and row.compared}
    gaps = {name: gap for name, row in failed.items() for gap in _gaps(row, exact)}
    gaps = {name: gap for name, gap in gaps.items() if gap.chosen or not choices_alone}
    outputs = [gap for name, gap in gaps.items() if name in exact[0][0].outputs]
    half = FORMATS[precision].half_of_digits
    conditioned = [name for name in gaps if failed[name].measured < half]
    without_digits = any(failed[name].bound > half for name in gaps)  # what saturates, in the reference's own float32
    if not outputs and not conditioned and not without_digits:
        return list(rows)
    for twin in range(MOST_TWINS):
        if twin >= FEW_TWINS and not any(gap.wants(twin) for gap in gaps.values()):
            break
        near = [_moved(batch, [seed, twin, 1], precision) for batch in batches]
        moved = sides.run(_moved(weights, [seed, twin], precision), near, precision)
        for name, gap in gaps.items():
            gap.meet(*(_values(side, name) for side in moved))
    if any(gap.explained for gap in outputs):
        for gap in gaps.values():
            gap.follow()
    return [gaps[row.name].judged(row, row.name in conditioned) if row.name in gaps else row for row in rows]


@dataclass
class _Gap:
    """The elements of one tensor, of every batch in a row, in which the sides differ, and those that twins tip."""

    mine: np.ndarray
    theirs: np.ndarray
    differ: np.ndarray
    tied: np.ndarray = field(init=False)
    wavering: np.ndarray = field(init=False)
    moved: float = 0.0  # of the reference by twins, relative to its size

    def __post_init__(self) -> None:
        self.tied, self.wavering = np.zeros_like(self.differ), np.zeros_like(self.differ)

    @property
    def chosen(self) -> bool:
        """Whether the elements are choices themselves."""
        return not is_float(self.mine)

    def wants(self, twins: int) -> bool:
        """Whether more twins than so many may tell something."""
        left = self.differ & ~self.tied
        if self.chosen and twins < TWINS:
            return bool(left.any())
        return bool((left & self.wavering).any()) and twins < (MOST_TWINS if self.chosen else TWINS)

    def meet(self, mine: np.ndarray, theirs: np.ndarray) -> None:
        """What both sides give in a twin."""
        if self.chosen:
            self.tied |= (mine == self.theirs) | (theirs == self.mine)
            self.wavering |= (mine != self.mine) | (theirs != self.theirs)
            return
        self.moved = max(self.moved, error_of([mine], [self.mine]))
        with np.errstate(invalid="ignore"):
            gap = np.abs(self.mine - self.theirs)
            gap = np.where(np.isfinite(gap), gap, np.nan)  # what is infinite on one side is no tie
            self.tied |= (np.abs(mine - self.theirs) <= LEFT * gap) | (np.abs(theirs - self.mine) <= LEFT * gap)
            moved = np.maximum(np.abs(mine - self.mine), np.abs(theirs - self.theirs))
            self.wavering |= moved >= SHARE * gap

    @property
    def explained(self) -> bool:
        """Whether every element that differs is tied."""
        return bool(self.differ.any()) and not (self.differ & ~self.tied).any()

    def follow(self) -> None:
        """Of floats that many choices enter what wavers is tied."""
        if not self.chosen and not self.explained:
            self.tied = self.tied | self.wavering

    def judged(self, row: Row, conditioned: bool) -> Row:
        """ABSTAIN if nothing is left that no rounding tips; PASS if the twins may and do move it as far."""
        by = f"{FLOAT64_SLACK} (convention) roundings in weights and inputs"
        if conditioned and not self.chosen and row.measured <= self.moved < np.inf:
            return replace(row, bound=self.moved, verdict="PASS", derivation=f"{by} move the reference as far")
        differing, tied = int(self.differ.sum()), int((self.differ & self.tied).sum())
        if tied and tied == differing:
            said = f"{differing} elements differ, {TIED}: {by} turn the one into the other"
            return replace(row, verdict="ABSTAIN", derivation=said)
        if not self.chosen and row.measured <= self.moved < np.inf:
            return replace(row, verdict="ABSTAIN", derivation=f"{by} move the reference as far: no digit is certain")
        if not tied:
            return row
        by += " turn the one into the other"
        return replace(row, derivation=f"{differing} elements differ, {tied} of them as good as tied: {by}")


def _gaps(row: Row, exact: tuple[list[Run], list[Run]]) -> Iterator[_Gap]:
    """The gap of a row, if it is one of outputs or gradients whose elements can be compared."""
    if not all(_has(side, row.name) for side in exact):
        return
    mine, theirs = (_values(side, row.name) for side in exact)
    if mine.shape != theirs.shape or is_float(mine) != is_float(theirs) or mine.dtype.kind == "c":
        return
    if is_float(mine):
        ordinary = np.isfinite(mine) & np.isfinite(theirs)
        size = float(np.sqrt(np.mean(np.square(mine[ordinary])))) if ordinary.any() else 0.0
        with np.errstate(invalid="ignore"):
            yield _Gap(mine, theirs, ~ordinary & (mine != theirs) | (np.abs(mine - theirs) > row.bound * size))
    else:
        yield _Gap(mine, theirs, mine != theirs)


def _has(runs: Sequence[Run], name: str) -> bool:
    run = runs[0]
    return name in run.outputs or name.removeprefix(GRADIENT) in run.derivatives


def _values(runs: Sequence[Run], name: str) -> np.ndarray:
    """Of every batch in a row."""
    found = (run.outputs[name] if name in run.outputs else run.derivatives[name.removeprefix(GRADIENT)] for run in runs)
    return np.concatenate([np.ravel(each) for each in found])


def _moved(arrays: Arrays, seed: Sequence[int], precision: str) -> dict[str, np.ndarray]:
    """Floats in a precision, off by up to FLOAT64_SLACK roundings; zeros by as much of the tensor's size, or of 1.

    What is exactly tied because it is zero is so for any relative change.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    step = FLOAT64_SLACK * FORMATS[precision].unit_roundoff
    moved = {}
    for name, array in arrays.items():
        moved[name] = array
        if is_float(array):
            size = float(np.abs(array[np.isfinite(array)]).max(initial=0)) or 1.0
            # of many sizes: what is tied between many would stay tied among those that go the same way
            signs = step * generator.choice([-1.0, 1.0], array.shape) * generator.uniform(0.5, 1.0, array.shape)
            moved[name] = np.where(array == 0, size * signs, array * (1 + signs)).astype(precision)
    return moved
