"""A summary of an array that is the same for every layout of its elements, to find equal values on two sides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

#: beyond it an element is a mask's, whatever constant the mask was made with
HUGE = 1e30
#: elements that are summed at once: a few arrays of this size stay in the cache, and BLAS starts no threads for them
BLOCK = 2**13


class Fingerprint(NamedTuple):
    """Size, share of huge or non-finite elements, and moments of the rest; the same for all layouts of an array.

    Means, not sums, so that a broadcast array has the moments of the array that it was made from.
    """

    numel: int
    huge: float
    mean: float
    mean_abs: float
    mean_square: float
    mean_cube: float
    mean_abs_cube: float
    maximum: float
    minimum: float

    @property
    def recognisable(self) -> bool:
        """Whether equal fingerprints mean anything: two elements at least, and not all of them the same."""
        return self.numel > 1 and self.maximum > self.minimum


def fingerprint(array: np.ndarray) -> Fingerprint:
    """The fingerprint of an array of any type and shape, read once in blocks; complex numbers count as pairs."""
    flat = np.asarray(array).reshape(-1)
    if flat.dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    parts = [_moments(flat[start : start + BLOCK]) for start in range(0, flat.size, BLOCK)]
    count = sum(part[0] for part in parts)
    if not count:
        return Fingerprint(flat.size, float(flat.size > 0), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    means = [math.fsum(part[k] for part in parts) / count for k in range(1, 6)]
    extremes = [max(part[6] for part in parts), min(part[7] for part in parts)]
    return Fingerprint._make([flat.size, 1 - count / flat.size, *means, *extremes])


def _moments(block: np.ndarray) -> Sequence[float]:
    """Number of moderate elements, their sums of x, |x|, x^2, x^3, |x|^3, their maximum and minimum."""
    x = block.astype(np.float64)
    size = np.abs(x)
    if not size.max() < HUGE:  # NaN too
        x = x[size < HUGE]
        size = np.abs(x)
        if not x.size:
            return 0, 0.0, 0.0, 0.0, 0.0, 0.0, -math.inf, math.inf
    square = x * x
    sums = x.sum(), size.sum(), square.sum(), np.dot(square, x), np.dot(square, size)
    return [float(number) for number in (x.size, *sums, x.max(), x.min())]


def distances(left: Sequence[Fingerprint], right: Sequence[Fingerprint]) -> np.ndarray:
    """(len(left), len(right)): the worst component, each relative to its own absolute moment; 0 for equal values.

    Never relative to a signed sum, which may cancel. The size is no component: it may differ by a broadcast.
    """
    shape = (len(left), len(right))
    a = np.array(left, np.float64).reshape(shape[0], 1, 9)
    b = np.array(right, np.float64).reshape(1, shape[1], 9)
    tiny = np.finfo(np.float64).tiny
    extent = np.maximum(np.abs(a[..., 7:]), np.abs(b[..., 7:])).max(-1)
    scales = {moment: np.maximum(a[..., moment], b[..., moment]) for moment in (3, 4, 6)}
    worst = np.abs(a[..., 1] - b[..., 1])
    for component, scale in zip(range(2, 9), (3, 3, 4, 6, 6, None, None), strict=True):
        unit = extent if scale is None else scales[scale]
        worst = np.maximum(worst, np.abs(a[..., component] - b[..., component]) / np.maximum(unit, tiny))
    return worst


def distance(a: Fingerprint, b: Fingerprint) -> float:
    """`distances` of one pair."""
    return float(distances([a], [b])[0, 0])
