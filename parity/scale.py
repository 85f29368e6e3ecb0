"""A side whose results are all too large, or too small, by one share: a constant was rounded on the way to them.

sqrt(3072) is 55.5 in bfloat16, 0.13% too much. That is less than the rounding of a result, and hides in its root mean
square; but a rounding has either sign, and this has one, in every element of every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .bounds import scale_bound
from .compare import rms, wide
from .result import Row

Values = Sequence[np.ndarray]


def too_large(values: Values, truth: Values) -> np.ndarray:
    """By what share of itself each batch is too large: the least squares of its errors on the exact results."""
    shares = []
    for value, exact in zip(values, truth, strict=True):
        finite = np.isfinite(value) & np.isfinite(exact)
        unit = wide(exact)[finite] / (rms(exact) or 1.0)
        error = wide(value)[finite] / (rms(exact) or 1.0) - unit
        shares.append(float(np.sum(error * unit)) / (float(np.sum(unit * unit)) or 1.0))
    return np.asarray(shares)


def same_scale(
    row: Row, values: Sequence[Values], truths: Sequence[Values], errors: Sequence[float], rounded: float, count: int
) -> Row:
    """The row, a failure if one side alone is too large or too small by the same share in every batch.

    Args:
        row: what the other rules say of the tensor.
        values: an array per batch, of the reference and of the candidate.
        truths: the same in float64.
        errors: relative root mean square error of either side.
        rounded: that of rounding the exact result once.
        count: how many independent errors there are.
    """
    if row.verdict != "PASS" or len(values[0]) < 2:
        return row
    shares = [too_large(value, truth) for value, truth in zip(values, truths, strict=True)]
    apart = abs(float(np.mean(shares[1] - shares[0])))
    bound = scale_bound(shares[1] - shares[0], errors, rounded, count)
    if apart <= bound.value:
        return row
    means = [float(each.mean()) for each in shares]
    worse = int(abs(means[1]) > abs(means[0]))
    what = (
        f"{row.side_names[worse]} is {abs(means[worse]):.2g} too {'large' if means[worse] > 0 else 'small'} throughout"
    )
    why = f"{what}, as if a constant had been rounded, {row.side_names[1 - worse]} {abs(means[1 - worse]):.1g}"
    return replace(row, measured=apart, bound=bound.value, derivation=f"{why}: {bound.derivation}", verdict="FAIL")
