"""Judging: the bounds, each with its derivation in words. No tolerance is chosen by a user or guessed here.

Sources: the rules were calibrated on clean random models before they were frozen; tests/test_bounds.py repeats that on
fresh seeds, and CHANGELOG.md ("Numerics") holds the figures. A factor that is a convention says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .formats import FORMATS

#: Slack of the float64 rule. Clean models needed at most 5.3 (228 of them); 32 leaves six times that.
FLOAT64_SLACK = 32
#: Ratio between the unit roundoffs of float64 and float32: by how much rounding errors shrink.
FLOAT64_TO_FLOAT32 = 2.0**-29
#: Two float64 computations of one number differ by a few roundings even where float32 was lucky.
FLOAT64_FLOOR = 4 * FORMATS["float64"].unit_roundoff
#: A side may be this much less accurate than the other: a convention, not a derivation.
LESS_ACCURATE = 2
#: Standard normal quantile of one false alarm in a million.
FALSE_ALARM_Z = 4.75
#: Share of the errors in a tensor that count as independent: a convention (neighbours share their inputs).
INDEPENDENT_SHARE = 0.25
#: Slack over the widest twin: a convention; 1 alarms on clean training runs.
TWIN_SLACK = 3
#: Slack over the root-mean-square growth of rounding errors along the longest path: a convention.
PATH_SLACK = 8


@dataclass(frozen=True)
class Bound:
    """The largest value that passes, and why it is that value."""

    value: float
    derivation: str


def float64_bound(error32: float) -> Bound:
    """For the relative distance of the two float64 runs, from the reference's own relative error in float32.

    Rounding errors shrink with the unit roundoff, so that the same computation in float64 is off by 2^-29 of what float32
    is off; a different function does not shrink. Calibrated: the measured value was 0.96 (median) to 5.3 (maximum) times
    error32 x 2^-29 on clean models.
    """
    return Bound(
        max(FLOAT64_SLACK * error32 * FLOAT64_TO_FLOAT32, FLOAT64_FLOOR),
        f"{FLOAT64_SLACK} x float32 error {error32:.2g} x 2^-29, at least 4 x 2^-53",
    )


def zero_bound(error32: float) -> Bound:
    """For a gradient that may be zero in theory: the float64 rule with zero as the other side.

    The norm of a true gradient is the same in every precision; what is only rounding noise shrinks with it.
    """
    return Bound(
        FLOAT64_SLACK * error32 * FLOAT64_TO_FLOAT32,
        f"zero in theory: at most {FLOAT64_SLACK} x its float32 noise {error32:.2g} x 2^-29",
    )


def accuracy_bound(other_error: float, rounded: float, dtype: str, roundings: int, elements: int) -> Bound:
    """For one side's relative error against its own float64 run: rule B, or the unit-roundoff floor if that is larger.

    Rule B: at most LESS_ACCURATE times the other side's error, plus one rounding of the result. Two equally accurate sides
    differ by chance as well; the ratio of two root mean squares over m errors stays below exp(z / sqrt(m)) (Fisher's z),
    z = 4.75 for one false alarm in a million.

    The floor: rounding errors of independent sign along the longest path grow like u sqrt(roundings) (Higham and Mary
    2019). Only for float32: 16-bit results are rounded far more coarsely than the float32 sums inside them.

    Args:
        other_error: relative root mean square error of the more accurate side.
        rounded: relative root mean square error of rounding the exact result once.
        dtype: the working precision.
        roundings: products added along the longest path.
        elements: how many errors the two figures were taken over.
    """
    chance = math.exp(FALSE_ALARM_Z / math.sqrt(max(elements * INDEPENDENT_SHARE, 1)))
    relative = LESS_ACCURATE * chance * other_error + rounded
    path = path_floor(dtype, roundings)
    if relative >= path:
        factor = LESS_ACCURATE * chance
        return Bound(
            relative,
            f"{factor:.2g} (convention {LESS_ACCURATE} x chance) x the other's error {other_error:.2g} + one rounding",
        )
    return Bound(path, f"{PATH_SLACK} (convention) x u x sqrt({roundings} roundings)")


def twin_bound(envelope: float, dtype: str, roundings: int, twins: int) -> Bound:
    """For optimizer steps at a working precision: training amplifies rounding, by an amount that only training shows.

    Adam turns noise in a small gradient into a whole step, and the next gradient is taken there. So the yardstick is the
    reference itself, started from weights moved by one unit in the last place: the widest distance of these twins (and of
    the reference) from its float64 run.
    """
    path = path_floor(dtype, roundings)
    if TWIN_SLACK * envelope >= path:
        return Bound(
            TWIN_SLACK * envelope,
            f"{TWIN_SLACK} (convention) x {envelope:.2g}, the widest of the reference and {twins} twins one ulp away",
        )
    return Bound(path, f"{PATH_SLACK} (convention) x u x sqrt({roundings} roundings)")


def path_floor(dtype: str, roundings: int) -> float:
    """The unit-roundoff floor; zero for 16-bit formats, which round far more coarsely than the float32 sums inside them."""
    if dtype not in ("float32", "float64"):
        return 0.0
    return PATH_SLACK * FORMATS[dtype].unit_roundoff * math.sqrt(roundings)
