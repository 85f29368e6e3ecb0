"""Training over seeds: both sides are trained on the batches of each seed, and their final losses held together.

Once training has amplified rounding for long enough, two runs of the same training have nothing in common but where
they end on average. What is tested is that the two ends are near (two one-sided t-tests, Schuirmann 1987), not that no
difference was found: too few seeds, or too scattered ones, decide nothing. The margin is an estimate as well: PASS
takes it as it was found, FAIL as wide as it may be in truth.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .bounds import ONE_SIDED, PATH_SLACK, seeds_bound
from .curves import PRECISION, train
from .formats import FORMATS
from .options import Options
from .pair import Pair
from .preparation import Prepared, draw_batches
from .result import Row
from .runners import Runner
from .runs import Arrays, running
from .sides import rounded

GROUP = "final loss"
#: The last word of the seeds of these batches: without one [seed, 0] is the generator of the check's own.
STREAM = zlib.crc32(b"training over seeds")
#: Seeds up to which it is worked out how many would decide.
MOST_SEEDS = 1_000


def seed_rows(prepared: Prepared, options: Options, progress: Callable[[str], None]) -> list[Row]:
    """One row: the final losses of both sides, trained for `options.curve` steps on the batches of each seed.

    Both see the same batches, start from the pair's own weights, and are evaluated on the check's own pooled batches.
    """
    sides = prepared.sides
    runners = sides.reference, sides.candidate
    start, common = rounded(prepared.weights, PRECISION), prepared.batches[: prepared.pooled]
    final = np.empty((2, options.seeds))
    for index in range(options.seeds):
        progress(f"{PRECISION}: training both sides for {options.curve} steps, seed {index + 1} of {options.seeds}")
        batches = seed_batches(prepared.pair, options, index)
        for side, runner in enumerate(runners):
            final[side, index] = mean_loss(runner, train(runner, start, batches).weights, common)
    untrained = mean_loss(sides.reference, start, common)
    return [final_loss_row(sides.labels, final[0], final[1], untrained)]


def seed_batches(pair: Pair, options: Options, index: int) -> list[Arrays]:
    """The batches of one training, apart from those of every other one and from the check's own."""
    generator = np.random.Generator(np.random.PCG64([options.seed, index, STREAM]))
    return draw_batches(pair, generator, options.curve)[1]


def mean_loss(runner: Runner, weights: Arrays, batches: Sequence[Arrays]) -> float:
    """The loss of one side over batches that are the same after every training; NaN or infinite where one is."""
    with running(f"{runner.label} after training", PRECISION):
        losses = [runner.run(weights, batch, PRECISION).loss for batch in batches]
    with np.errstate(invalid="ignore"):  # infinities of both signs
        return float(np.mean(losses))


def final_loss_row(labels: tuple[str, str], reference: np.ndarray, candidate: np.ndarray, untrained: float) -> Row:
    """The verdict over the final losses of both sides, one for each seed, paired.

    Args:
        labels: what the report calls the sides.
        reference: its losses after training, float64 "seeds", two at least.
        candidate: its losses after training on the same batches.
        untrained: the reference's loss before training.
    """
    finite = [np.isfinite(side) for side in (reference, candidate)]
    if not np.all(finite):
        return _row(labels, len(reference), *_without_numbers(labels, *finite))
    mean, half = interval(candidate - reference)
    level = float(reference.mean())
    bound = seeds_bound(float(reference.std(ddof=1)))
    verdict, where = _verdict(candidate - reference, bound.value, level, untrained)
    why = f"{where}: mean difference {mean:.3g} of {level:.4g}, 90% interval {mean - half:.3g} to {mean + half:.3g}"
    scale = abs(level) or 1.0
    figures = (abs(mean) + half) / scale, bound.value / scale
    return _row(labels, len(reference), verdict, f"{why}; margin {bound.value:.3g}: {bound.derivation}", *figures)


def interval(differences: np.ndarray) -> tuple[float, float]:
    """Mean and half width of the confidence interval of the mean, 1 - 2 ONE_SIDED, by Student's t."""
    from scipy.stats import t

    count = len(differences)
    half = float(t.ppf(1 - ONE_SIDED, count - 1)) * float(differences.std(ddof=1)) / math.sqrt(count)
    return float(differences.mean()), half


def spread_limit(counts: Any) -> Any:
    """How many times their sample's standard deviation that of so many normal numbers may be: 15.9 for 2, 2.1 for 6.

    The upper limit of its confidence interval by chi-square, at the level ONE_SIDED; for a count, or an array of them.
    """
    from scipy.stats import chi2

    return np.sqrt((counts - 1) / chi2.ppf(ONE_SIDED, counts - 1))


def seeds_needed(differences: np.ndarray, margin: float) -> int | None:
    """The least number of seeds that would decide, were mean, spread and margin to stay; None beyond MOST_SEEDS."""
    from scipy.stats import t

    counts = np.arange(len(differences) + 1, MOST_SEEDS + 1)
    halves = t.ppf(1 - ONE_SIDED, counts - 1) * differences.std(ddof=1) / np.sqrt(counts)
    mean = abs(float(differences.mean()))
    decided = (mean + halves <= margin) | (mean - halves > margin * spread_limit(counts))
    return int(counts[np.argmax(decided)]) if decided.any() else None


def _verdict(differences: np.ndarray, margin: float, level: float, untrained: float) -> tuple[str, str]:
    """And the words that follow the name of the row; `level` is the mean final loss of the reference."""
    mean, half = interval(differences)
    rounding = PATH_SLACK * FORMATS[PRECISION].unit_roundoff * abs(level)
    if margin <= rounding:
        return "ABSTAIN", f"is undecided, for the reference ends alike in every seed, within rounding ({rounding:.2g})"
    if abs(mean) - half > margin * spread_limit(len(differences)):
        return "FAIL", "differs by more than the margin, and than the margin may be"
    if abs(mean) + half > margin:
        needed = seeds_needed(differences, margin)
        more = f"more than {MOST_SEEDS:,}" if needed is None else f"about {needed:,}"
        known = f"known to a factor of {spread_limit(len(differences)):.2g}"
        return "ABSTAIN", f"is undecided, the interval reaches over the margin, {known}, and {more} seeds would decide"
    if margin >= abs(level - untrained):
        # a side that never learned would pass
        return "ABSTAIN", f"is undecided, the margin being as large as what training changes ({level - untrained:.2g})"
    return "PASS", "is equivalent"


def _without_numbers(labels: tuple[str, str], reference: np.ndarray, candidate: np.ndarray) -> tuple[str, str, float]:
    """Verdict, words and measured value where some losses are NaN or infinite; the arrays say which ones are finite."""
    count = len(reference)
    ends = " and ".join(
        f"{count - int(side.sum())} of {labels[index]}'s" for index, side in enumerate((reference, candidate))
    )
    if not np.array_equal(reference, candidate):
        return "FAIL", f"is NaN or infinite on one side alone: {ends} {count} trainings", math.inf
    if not reference.any():
        return "VACUOUS", f"is finite in no seed of either side: {ends} {count} trainings are not", math.nan
    return "ABSTAIN", f"is undecided, for some trainings diverge on both sides alike: {ends} {count}", math.nan


def _row(
    labels: tuple[str, str], count: int, verdict: str, derivation: str, measured: float, bound: float = 0.0
) -> Row:
    return Row(
        name=f"final loss over {count} seeds",
        group=GROUP,
        side_names=labels,
        shape=(count,),
        dtype=PRECISION,
        stage=PRECISION,
        measured=measured,
        bound=bound,
        derivation=derivation,
        verdict=verdict,
    )
