"""How far two points may be apart: by the reference's own float32 run, or by its twins where there is no float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .bounds import Bound, float64_bound, path_floor, twin_bound, zero_bound
from .capture import Capture
from .compare import different, distance, error_of, independent_errors, misplaced, relative, rms
from .formats import FORMATS
from .pairing import moderate

Measure = Callable[[np.ndarray, np.ndarray], float]
#: An array per batch.
Values = Sequence[np.ndarray]

#: Whole numbers and truth values are equal or not.
EXACT = different, Bound(0.0, "no float: every element equal")


class Yardstick(Protocol):
    """How a point of the reference, its value or its gradient, is compared, and up to what it is the same."""

    def rule(self, name: str, what: str, exact: np.ndarray) -> tuple[Measure, Bound]:
        """For the point `name`; `what` is "value" or "gradient", `exact` is the reference's."""


@dataclass(frozen=True)
class ByFloat32:
    """For runs in float64: what the reference's own float32 run is off by sets the scale; `sums` as in the judge."""

    coarse: Capture
    sums: float

    def rule(self, name: str, what: str, exact: np.ndarray) -> tuple[Measure, Bound]:
        """What is zero in theory is noise, in another order on every side: it has to be that small on both."""
        if exact.dtype.kind in "biu":
            return EXACT
        low = _of(self.coarse, name, what)
        if low is None:
            return apart, float64_bound(0.0, 1, self.sums)
        fine, rough = real(exact), real(low)
        noise = distance(rough, fine)
        zero = zero_bound(noise)
        if noise and rms(fine) <= zero.value:
            return sizes, zero
        return apart, float64_bound(relative([rough], [fine]), independent_errors([rough], [fine]), self.sums)


@dataclass(frozen=True)
class ByTwins:
    """For runs in a working precision: how far its twins are from the reference; `roundings` as in the judge."""

    twins: Sequence[Capture]
    precision: str
    roundings: int

    def rule(self, name: str, what: str, exact: np.ndarray) -> tuple[Measure, Bound]:
        """What is zero in theory moves by as much as it is, and any other noise is within its bound."""
        if exact.dtype.kind in "biu":
            return EXACT
        base = real(exact)
        near = [[real(low)] for twin in self.twins if (low := _of(twin, name, what)) is not None]
        if not near:
            return apart, path_floor(self.precision, self.roundings)
        return apart, bound_by_twins([base], near, self.precision, self.roundings, relative)


def bound_by_twins(
    base: Values, near: Sequence[Values], precision: str, roundings: int, error: Callable[[Values, Values], float]
) -> Bound:
    """How far another side may be from `base` in a working precision, by how far its twins are in terms of `error`."""
    moved = [error(twin, base) for twin in near]
    # relative to the power of two below, a rounding error is anywhere between -u and u
    once = FORMATS[precision].unit_roundoff / math.sqrt(3)
    count = independent_errors(near[int(np.argmax(moved))], base)
    return twin_bound(once, count, path_floor(precision, roundings), max(moved))


def apart(value: np.ndarray, exact: np.ndarray) -> float:
    """As `relative`; what is huge is a mask's, and has to be huge on both sides."""
    return error_of([real(value)], [real(exact)])


def sizes(value: np.ndarray, exact: np.ndarray) -> float:
    """The larger of the two; infinite where one of them is huge and the other is not."""
    value, exact = real(value), real(exact)
    return np.inf if misplaced(value, exact) else max(rms(value), rms(exact))


def real(array: np.ndarray) -> np.ndarray:
    """The array in float64, NaN for what is huge; a complex number is two."""
    array = np.ascontiguousarray(moderate(array))
    return array.view(np.float64) if array.dtype.kind == "c" else array


def _of(capture: Capture, name: str, what: str) -> np.ndarray | None:
    point = capture.get(name)
    if point is None:
        return None
    return point.value if what == "value" else point.gradient
