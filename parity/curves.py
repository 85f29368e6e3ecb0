"""Training curves: each side trains on its own, and the gap is held against that of each side's twins.

Training amplifies rounding, so that no bound on single steps holds for a whole run. How much it does is measured: each
side is trained again from weights that are one unit in the last place away, a few times over, and once with an
optimizer that computes in float64 (a bias correction in float32, as optax has it, moves every step alike). Two that are
the same training stay within a small multiple of the widest gap that either side's twins have had so far.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from .bounds import envelope_bound
from .result import Row
from .runners import Runner
from .runs import Arrays, Run, is_float, running
from .sides import Sides, perturbed, rounded

#: Runs from weights one unit in the last place away: two already bound clean runs, four are recommended.
TWINS = 4
#: What of a training run is compared, before each step.
QUANTITIES = ("loss", "gradient norm", "weight norm")
#: Training in 16 bits alone is nobody's recipe (master weights are), so that curves are float32's.
PRECISION = "float32"
GROUP = "training curve"

Curves = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Training:
    """One side's own training: each of QUANTITIES before every step, and the parameters after the last one."""

    curves: Curves
    weights: Arrays


def curve_rows(
    sides: Sides, weights: Arrays, batches: Sequence[Arrays], seed: int, progress: Callable[[str], None]
) -> list[Row]:
    """A row for each quantity: the gap where it is widest in terms of its bound, and the first step that leaves it."""
    start = rounded(weights, PRECISION)
    progress(f"{PRECISION}: training both sides for {len(batches)} steps")
    runners = sides.reference, sides.candidate
    base = [train(runner, start, batches).curves for runner in runners]
    apart: dict[str, list[np.ndarray]] = {name: [] for name in QUANTITIES}
    for index in range(TWINS + 1):
        progress(f"{PRECISION}: training twins {index + 1} of {TWINS + 1}")
        near = perturbed(start, PRECISION, [seed, index]) if index < TWINS else start
        optimizer = PRECISION if index < TWINS else "float64"
        for runner, own in zip(runners, base, strict=True):
            twin = train(runner, near, batches, optimizer).curves
            for name, gaps in apart.items():
                gaps.append(_gap(twin[name], own[name]))
    return [_row(sides.labels, name, base[0][name], base[1][name], gaps) for name, gaps in apart.items()]


def train(runner: Runner, weights: Arrays, batches: Sequence[Arrays], optimizer: str = PRECISION) -> Training:
    """One side on its own gradients with its own optimizer, a step per batch.

    Its state (running statistics) is that of the start in every step.
    `optimizer` is the precision in which the optimizer computes.
    """
    with running(f"{runner.label} in training", PRECISION):
        seen = []
        points, gradients = Latest(weights), Latest({})
        steps = runner.follow(points, gradients, optimizer)
        for batch in batches:
            run = runner.run(points.arrays, batch, PRECISION)
            seen.append(_quantities(run, points.arrays))
            gradients.arrays = run.gradients
            points.arrays = rounded(next(steps).parameters, PRECISION)
    curves = {name: np.asarray([each[name] for each in seen]) for name in QUANTITIES}
    return Training(curves, points.arrays)


@dataclass
class Latest(Sequence[Arrays]):
    """An endless sequence that has its latest arrays in every place: a side's training is not known beforehand."""

    arrays: Arrays

    def __len__(self) -> int:
        return sys.maxsize

    @overload
    def __getitem__(self, index: int) -> Arrays: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Arrays]: ...
    def __getitem__(self, index: int | slice) -> Arrays | Sequence[Arrays]:
        return self if isinstance(index, slice) else self.arrays


def _quantities(run: Run, weights: Arrays) -> dict[str, float]:
    return {"loss": run.loss, "gradient norm": _norm(run.gradients), "weight norm": _norm(weights)}


def _norm(arrays: Arrays) -> float:
    squares = [np.sum(np.square(array, dtype=np.float64)) for array in arrays.values() if is_float(array)]
    return math.sqrt(sum(map(float, squares)))


def _row(labels: tuple[str, str], name: str, base: np.ndarray, other: np.ndarray, apart: Sequence[np.ndarray]) -> Row:
    """The verdict over all steps; what is not finite must be so on both sides, and is not compared."""
    gap = _gap(other, base)
    envelope = np.maximum.accumulate(np.max(apart, axis=0))
    size = np.abs(np.where(np.isfinite(base), base, 0.0))
    bounds = [envelope_bound(*each) for each in zip(envelope.tolist(), size.tolist(), strict=True)]
    limits = np.asarray([bound.value for bound in bounds])
    outside = gap > limits
    compared = np.isfinite(base) & np.isfinite(limits)
    left = int(np.argmax(outside)) if outside.any() else None
    shares = np.divide(gap, limits, out=np.zeros_like(gap), where=compared & (limits > 0))
    step = int(np.argmax(shares)) if left is None else left
    scale = float(size[step]) or 1.0
    steps = len(base)
    if left is not None:
        verdict, where = "FAIL", f"left before step {left + 1} of {steps}"
    elif not compared.any():
        verdict, where = "VACUOUS", "has a finite value at no step of either side"
    elif limits[step] >= size[step]:
        verdict, where = "ABSTAIN", f"has a bound as large as its value before step {step + 1} of {steps}"
    else:
        verdict, where = "PASS", f"nearest before step {step + 1} of {steps}"
    return Row(
        name=f"training {name}",
        group=GROUP,
        side_names=labels,
        shape=(steps,),
        dtype=PRECISION,
        stage=PRECISION,
        measured=float(gap[step]) / scale,
        bound=float(limits[step]) / scale,
        derivation=f"{where}: {bounds[step].derivation}",
        verdict=verdict,
    )


def _gap(values: np.ndarray, base: np.ndarray) -> np.ndarray:
    """How far two curves are apart; infinitely where one alone is NaN or infinite."""
    both = np.isfinite(values) & np.isfinite(base)
    same = (values == base) | (np.isnan(values) & np.isnan(base))
    return np.where(both, np.abs(np.where(both, values, 0.0) - np.where(both, base, 0.0)), np.where(same, 0.0, np.inf))
