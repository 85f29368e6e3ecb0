"""Judging: the bounds, each with its derivation in words. No tolerance is chosen by a user or guessed here.

Sources: the rules were calibrated on clean random models before they were frozen; tests/test_bounds.py repeats that on
fresh seeds, and CHANGELOG.md ("Numerics") holds the figures. A factor that is a convention says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from .formats import FORMATS

#: Slack of the float64 rule: a convention; clean models needed at most a third of it (CHANGELOG, "Numerics").
FLOAT64_SLACK = 32
#: Ratio between the unit roundoffs of float64 and float32: by how much rounding errors shrink.
FLOAT64_TO_FLOAT32 = 2.0**-29
#: Two float64 computations of one number differ by a few roundings even where float32 was lucky.
FLOAT64_FLOOR = 4 * FORMATS["float64"].unit_roundoff
#: A side may be this much less accurate than the other: a convention, not a derivation.
LESS_ACCURATE = 2
#: Slack over what one unit in the last place of weights and inputs does to a result: a convention, FLOAT64_SLACK again.
OWN_SLACK = 32
#: How often a rule may be wrong about two equally accurate sides.
FALSE_ALARMS = 1e-6
#: Slack over the largest gap of each side's own twins in training: a convention (CHANGELOG, "Numerics", has the need).
ENVELOPE_SLACK = 4
#: By how many standard deviations between seeds the mean final losses of two trainings may differ: a convention.
SEED_SPREADS = 2
#: Level of each of the two one-sided t-tests over seeds, so that their interval is one of 90%: a convention.
ONE_SIDED = 0.05
#: By how much of one rounding a side may be too large throughout: a convention, as much as float32 inside may add.
SCALE_SHARE = 0.3
#: Slack over the root-mean-square growth of rounding errors along the longest path: a convention.
PATH_SLACK = 8


@dataclass(frozen=True)
class Bound:
    """The largest value that passes, and why it is that value."""

    value: float
    derivation: str


NO_FLOOR = Bound(0.0, "no floor")


@cache
def chance(errors: int) -> float:
    """How far two root mean squares over `errors` independent errors of one size may lie apart.

    The logarithm y of their ratio has the density sech(y)^errors (Fisher's z with equal degrees of freedom). The ratio
    returned is exceeded, in the one direction or the other, FALSE_ALARMS of the time: it is 1.3 million for one error,
    9.5 for eight, 1.2 for a thousand.
    """
    # beyond 40 standard deviations, or exp(40) for the heavy tails of few errors, nothing is left of the density
    y = np.linspace(0.0, 40 / math.sqrt(errors), 20_001)
    density = np.exp(-errors * np.log(np.cosh(y)))
    beyond = np.cumsum(density[::-1])[::-1] / density.sum()
    return float(np.exp(y[np.argmax(beyond <= FALSE_ALARMS)]))


def float64_bound(error32: float, errors: int, sums: float = 1.0) -> Bound:
    """For the relative distance of the two float64 runs, from the reference's own relative error in float32.

    Rounding errors shrink with the unit roundoff, so that the same computation in float64 is off by 2^-29 of what
    float32 is off; a different function does not shrink. Where few errors are pooled, float32 may have been lucky: then
    `chance` takes the place of the convention. Float64's kernels may add up less well than float32's.

    Args:
        error32: root mean square error of the reference's float32 run over the root mean square of the exact tensor.
        errors: how many independent errors it was taken over.
        sums: `summation_factor`, measured where the check runs.
    """
    slack = max(FLOAT64_SLACK, chance(errors))
    why = "convention" if slack == FLOAT64_SLACK else f"chance over {errors} errors"
    kernels = f" x {sums:.2g} (float64's sums, measured)" if sums > 1 else ""
    return Bound(
        max(slack * error32 * FLOAT64_TO_FLOAT32 * sums, FLOAT64_FLOOR),
        f"{slack:.3g} ({why}) x float32 error {error32:.2g} x 2^-29{kernels}, at least 4 x 2^-53",
    )


def zero_bound(error32: float) -> Bound:
    """For the norm of a gradient that may be zero in theory, from the absolute error of the reference's float32 run.

    Rounding noise shrinks by 2^29 between float32 and float64, the norm of a true gradient not at all. The border
    stands halfway, at 2^-14.5: a factor of 23,000 from either.
    """
    return Bound(
        error32 * math.sqrt(FLOAT64_TO_FLOAT32),
        f"zero in theory: at most its float32 noise {error32:.2g} x 2^-14.5, halfway from noise to a value",
    )


def path_floor(dtype: str, roundings: int) -> Bound:
    """What any computation may be off by: rounding errors along the longest path, of independent sign.

    They grow like u sqrt(roundings) (Higham and Mary 2019). None for 16-bit formats, whose results are rounded far more
    coarsely than the float32 sums inside them.

    Args:
        dtype: the working precision.
        roundings: products added along the longest path.
    """
    if dtype not in ("float32", "float64"):
        return NO_FLOOR
    value = PATH_SLACK * FORMATS[dtype].unit_roundoff * math.sqrt(roundings)
    return Bound(value, f"{PATH_SLACK} (convention) x u x sqrt({roundings} roundings)")


def optimizer_floor() -> Bound:
    """What any optimizer may be off by: the bias correction 1 - b^t, evaluated in float32.

    Rounding b alone changes 1 - b by u / (1 - b) of itself, a thousand times u for the usual b = 0.999, and the step by
    half of that. optax does so in every precision; torch.optim and both optimizers of this project keep the digits.
    """
    value = FORMATS["float32"].unit_roundoff / (1 - 0.999) / 2
    return Bound(value, "half of u / (1 - 0.999): 1 - b^t may be evaluated in float32")


def stored_floor(size: float, steps: int, dtype: str) -> Bound:
    """What any optimizer's movement may be off by: the parameters that move are stored in the working precision.

    A step x d - s errs by at most u / 2 of x where the decay factor d, just below 1, is rounded, by u of x where the
    product is and by u of x where the sum is. Where each step starts from the same x, as on a stream, two of these are
    the same in every step and add up. A learning rate of 1e-4 moves a weight of 0.02 by 1/200 of itself.

    Args:
        size: root mean square of the parameters over that of the movement of all steps.
        steps: how many there are.
        dtype: the working precision.
    """
    value = 2.5 * FORMATS[dtype].unit_roundoff * steps * size
    return Bound(value, f"2.5 u of the parameters, {size:.2g} times the movement, in each of {steps} steps")


def accuracy_bound(other_error: float, rounded: float, errors: int, floor: Bound) -> Bound:
    """For one side's relative error against its own float64 run: rule B, or a floor if that is larger.

    Rule B: at most LESS_ACCURATE times the other side's error, plus one rounding of the result. Two equally accurate
    sides differ by `chance` as well.

    Args:
        other_error: relative root mean square error of the more accurate side.
        rounded: relative root mean square error of rounding the exact result once.
        errors: how many independent errors the two figures were taken over.
        floor: what is never too much.
    """
    factor = LESS_ACCURATE * chance(errors)
    relative = factor * other_error + rounded
    if relative < floor.value:
        return floor
    return Bound(
        relative,
        f"one rounding + {factor:.2g} (convention {LESS_ACCURATE} x chance) x the other's error {other_error:.2g}",
    )


def own_floor(dtype: str, roundings: int) -> Bound:
    """What the better side may always be off by: half of the digits that the format has, or the floor of its path.

    None for 16-bit formats. A function has constants that one unit in the last place of weights and inputs does not
    move: the angles of RoPE, a position times a rate, are off by thousands of units on both sides.

    Args:
        dtype: the working precision.
        roundings: products added along the longest path.
    """
    floor = path_floor(dtype, roundings)
    half = math.sqrt(FORMATS[dtype].unit_roundoff)
    if floor is NO_FLOOR or floor.value >= half:
        return floor
    return Bound(half, f"{half:.2g} (convention), half of the digits of {dtype}")


def lucky_bound(rounded: float, dtype: str) -> Bound:
    """For one side's relative error where the other has none, in 16 bits: sums of equal numbers may come out exact.

    Rule B has nothing to go by there, and a kernel that sums up in 16 bits is off by roundings.

    Args:
        rounded: relative root mean square error of rounding the exact result once.
        dtype: the working precision.
    """
    value = rounded + OWN_SLACK * FORMATS[dtype].unit_roundoff
    return Bound(value, f"one rounding + {OWN_SLACK} (convention) x u, for the other is exact, by luck")


def own_bound(rounded: float, errors: int, floor: Bound, response: float) -> Bound:
    """For the relative error of the better side against its own float64 run: both sides may be wrong alike.

    A computation in a format is as good as an exact one of numbers that are a few units in the last place away
    (backward stability). What one unit does to the exact result is `response`: large where the function is
    ill-conditioned, infinite never, so that an overflow is always too much.

    Args:
        rounded: relative root mean square error of rounding the exact result once.
        errors: how many independent errors there are: few may be far apart by chance.
        floor: what is never too much.
        response: relative root mean square change of the exact result by one unit in the last place of what it is of.
    """
    what = "which one unit in the last place of weights and inputs does to the exact result"
    return _by_units(rounded, errors, floor, response, what)


def twin_bound(rounded: float, errors: int, floor: Bound, moved: float) -> Bound:
    """For the relative distance of the two sides where neither can be run in float64.

    Each side is as good as an exact computation of numbers a few units in the last place away, as in `own_bound`, and
    what one unit does is seen in the reference itself: it is run again on such numbers.

    Args:
        rounded: relative root mean square error of rounding a result once.
        errors: how many independent errors there are: few may be far apart by chance.
        floor: what is never too much.
        moved: the largest relative root mean square change of the reference's result among its twins.
    """
    what = "by which the reference moves when weights and inputs are one unit in the last place off"
    return _by_units(rounded, errors, floor, moved, what)


def _by_units(rounded: float, errors: int, floor: Bound, moved: float, what: str) -> Bound:
    """A multiple of one rounding and what one unit in the last place moves, of which `what` is the description."""
    slack = max(OWN_SLACK, chance(errors))
    value = slack * (rounded + moved)
    if value < floor.value:
        return floor
    why = "convention" if slack == OWN_SLACK else f"chance over {errors} errors"
    return Bound(value, f"{slack:.3g} ({why}) x (one rounding + {moved:.2g}, {what})")


def scale_bound(apart: Sequence[float], errors: Sequence[float], rounded: float, count: int) -> Bound:
    """For the mean difference of the shares by which the two sides are too large, over batches drawn independently.

    The shares of two sides that round to nearest are zero on average. Their difference is tested as it varies between
    batches (Student's t), and as the errors of both sides let it vary, since these may be the same in every batch where
    the inputs hardly change. Both quantiles are at FALSE_ALARMS. What is left must be more than a convention.

    Args:
        apart: the difference of the shares, batch by batch; two at least.
        errors: relative root mean square error of either side.
        rounded: that of rounding the exact result once.
        count: how many independent errors there are.
    """
    degrees = len(apart) - 1
    batches = math.sqrt(degrees) * sinh_chance(degrees) * float(np.std(apart, ddof=1)) / math.sqrt(len(apart))
    within = sinh_chance(count) * math.hypot(*errors)
    least = SCALE_SHARE * rounded
    value = max(batches, within, least)
    return Bound(
        value,
        f"{SCALE_SHARE} (convention) of one rounding {rounded:.2g}, at least {within:.2g}, chance over {count} errors, "
        f"and {batches:.2g}, chance over {len(apart)} batches",
    )


def sinh_chance(degrees: int) -> float:
    """Student's t over the root of its degrees of freedom, exceeded in either direction FALSE_ALARMS of the time.

    t = sqrt(n) sinh(y) has the density sech(y)^n in y, which is that of `chance`.
    """
    ratio = chance(degrees)
    return (ratio - 1 / ratio) / 2


def envelope_bound(envelope: float, size: float) -> Bound:
    """For the gap between two training runs in float32, at one step.

    Args:
        envelope: the largest gap so far between a side and its twins, trained from weights one unit in the last place
            away or with an optimizer that computes in float64. A running maximum: the gap of two twins crosses zero. Of
            either side: one may be the less accurate.
        size: of the reference's own value there. A few of its roundings are never too much, for an optimizer may hide
            the first ones: Adam's first step is the sign of the gradient.
    """
    value = ENVELOPE_SLACK * envelope + PATH_SLACK * FORMATS["float32"].unit_roundoff * size
    why = f"{ENVELOPE_SLACK} (convention) x {envelope:.2g}, the widest gap of a side's twins so far"
    return Bound(value, f"{why}, + {PATH_SLACK} (convention) x 2^-24 of {size:.4g}")


def seeds_bound(spread: float) -> Bound:
    """For the mean difference between the final losses of two trainings, over seeds that draw their batches.

    Args:
        spread: standard deviation (n - 1) of the reference's own final losses between the seeds. An estimate: with n
            seeds its standard error is about 1 / sqrt(2 (n - 1)) of it, a third for six.
    """
    why = f"{SEED_SPREADS} (convention) x {spread:.3g}, the standard deviation of the reference between seeds"
    return Bound(SEED_SPREADS * spread, why)
