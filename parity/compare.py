"""Measuring: how far two sets of named arrays are apart. Nothing here judges."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .formats import FORMATS
from .runs import Arrays, is_float


def wide(array: np.ndarray) -> np.ndarray:
    """The array as float64, exact for every format that a check runs in; the array itself where it is that already."""
    return np.asarray(array, np.float64)


#: Elements that are measured at once: a few arrays of this size stay in the cache.
BLOCK = 2**16
#: A sum of squares from here on has lost nothing to squares that are too small for float64.
LEAST_SQUARES = 1e-280


def _blocks(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Arrays of one shape, block by block: no copy of a large one, whose pages cost more than its numbers."""
    flat = [np.asarray(array).reshape(-1) for array in arrays]
    for start in range(0, flat[0].size, BLOCK):
        yield tuple(each[start : start + BLOCK] for each in flat)


def _root_mean_square(blocks: Iterator[np.ndarray], size: int) -> float | None:
    """Of blocks in float64; None where an element is not finite, or the squares leave the range."""
    with np.errstate(over="ignore", invalid="ignore"):
        # einsum and not dot: BLAS would wake its threads for every block
        squares = math.fsum(float(np.einsum("i,i", block, block)) for block in blocks)
    return math.sqrt(squares / size) if LEAST_SQUARES < squares < math.inf else None


def rms(array: np.ndarray) -> float:
    """Root of the mean square over the finite elements; 0 for none."""
    quick = _root_mean_square((wide(block) for (block,) in _blocks(array)), np.size(array))
    if quick is not None:
        return quick
    values = np.atleast_1d(_only(wide(array), np.isfinite(array)))
    if not values.size:
        return 0.0
    # scaled first: squares of 1e-200 would vanish
    scale = max(float(values.max()), -float(values.min()))
    if not scale:
        return 0.0
    scaled = values / scale
    return scale * float(np.sqrt(np.mean(np.multiply(scaled, scaled, out=scaled))))


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Root mean square of a - b over the elements where both are finite; the others are `misplaced`'s."""
    if np.shape(a) == np.shape(b):
        quick = _root_mean_square((wide(x) - wide(y) for x, y in _blocks(a, b)), np.size(a))
        if quick is not None:
            return quick
    both = np.isfinite(a) & np.isfinite(b)
    # halves: the difference of two finite numbers may be infinite, and what is infinite would not be counted
    half = _only(wide(a), both) / 2
    half -= _only(wide(b), both) / 2
    return 2 * rms(half)


def _only(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The chosen elements; no copy of a large array where that is all of them."""
    return values if chosen.all() else values[chosen]


def non_finite(array: np.ndarray) -> int:
    """Number of elements that are NaN or infinite."""
    return sum(map(_non_finite, (block for (block,) in _blocks(array))))


def _non_finite(block: np.ndarray) -> int:
    if block.dtype in (np.float32, np.float64):
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(np.add.reduce(block)):  # a sum keeps what is not finite, and is the quicker of the two
                return 0
    return block.size - int(np.count_nonzero(np.isfinite(block)))


def not_a_number(array: np.ndarray) -> int:
    """Number of elements that are NaN."""
    return sum(int(np.count_nonzero(np.isnan(block))) for (block,) in _blocks(array))


def misplaced(a: np.ndarray, b: np.ndarray, truth: np.ndarray | None = None) -> int:
    """Number of elements that are NaN, +infinity or -infinity on one side and something else on the other.

    `truth` is given where both have left the range of their type: where it is finite, which elements did and what they
    became is an accident of the last bit.
    """
    if not (non_finite(a) or non_finite(b)):
        return 0
    finite = np.isfinite(a), np.isfinite(b)
    a, b = wide(a), wide(b)
    same = (np.isnan(a) & np.isnan(b)) | (finite[0] & finite[1]) | (a == b)
    if truth is not None:
        same |= np.isfinite(truth)
    return int(np.count_nonzero(~same))


def different(a: np.ndarray, b: np.ndarray) -> float:
    """Share of the elements that are not equal; for whole numbers and truth values."""
    return float(np.mean(a != b)) if a.size else 0.0


def rounding(exact: np.ndarray, dtype: np.dtype) -> float:
    """Root mean square error of rounding exact values once to `dtype`: the least that any computation in it pays."""
    return distance(nearest(exact, dtype), exact)


def nearest(exact: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The exact values rounded once to `dtype`; infinite beyond its range."""
    with np.errstate(over="ignore"):
        return wide(exact).astype(dtype)


def pooled(values: Sequence[float]) -> float:
    """Root mean square of one measure over several batches; infinite if one of them is (`rms` would leave that out)."""
    return rms(np.asarray(values, np.float64)) if all(map(math.isfinite, values)) else math.inf


def independent(errors: Sequence[np.ndarray]) -> int:
    """How many independent errors the errors of one tensor, an array per batch, amount to; at least one.

    The error of a weight's gradient is a sum of rank-one terms, one for each cause: a sum over keys that is not quite
    zero, a ReLU that rounding has switched. Its singular values s tell how many there are: 3 (sum s^2)^2 / sum s^4 is k
    for k normal numbers, whose fourth moment is 3. Of the ways to fold a tensor into a matrix the one with the most
    counts. One cause may change a whole vector too, but not in every batch: the batches are the rows. A single vector
    and numbers have themselves for s.
    """
    size = sum(error.size for error in errors)
    if errors[0].ndim < 2:
        rows = [error.reshape(-1) for error in errors]
        stacks = len(rows) > 1 and {row.size for row in rows} == {rows[0].size} and rows[0].size > 1
        errors = [np.stack(rows) if stacks else np.concatenate(rows)]
    return _most_independent(lambda axis: [_folded(error, axis) for error in errors], errors[0].ndim, size)


def independent_errors(values: Sequence[np.ndarray], truth: Sequence[np.ndarray]) -> int:
    """`independent(scaled_errors(values, truth))`, without the errors of a large tensor that are not looked at."""
    if truth[0].ndim < 2 or not truth[0].size:
        return independent(scaled_errors(values, truth))
    scales = [rms(exact) or 1.0 for exact in truth]

    def folded(axis: int) -> list[np.ndarray]:
        parts = [_thinned(value, axis) for value in values], [_thinned(exact, axis) for exact in truth]
        with np.errstate(invalid="ignore"):
            errors = [(wide(a) - wide(b)) / scale for a, b, scale in zip(*parts, scales, strict=True)]
        return [np.nan_to_num(error, posinf=0.0, neginf=0.0) for error in errors]

    return _most_independent(folded, truth[0].ndim, sum(exact.size for exact in truth))


def _most_independent(folds: Callable[[int], Sequence[np.ndarray]], ndim: int, size: int) -> int:
    """The count of `independent`: the most over every axis to fold at; `folds(axis)` are the folded errors."""
    most = 1.0
    for axis in range(1, max(2, ndim)):
        squares = fourths = 0.0
        for folded in folds(axis):
            gram = folded**2 if folded.ndim == 1 else folded @ folded.T
            squares += float(np.sum(folded**2))
            fourths += float(np.sum(gram**2))
        if fourths:
            most = max(most, 3 * squares**2 / fourths)
    return max(1, min(int(most), size))


def _folded(error: np.ndarray, axis: int) -> np.ndarray:
    """A vector, or a matrix whose rows are the axes before `axis`; of a large one 256 rows and columns."""
    if error.ndim < 2 or not error.size:
        return np.nan_to_num(error.reshape(-1), posinf=0.0, neginf=0.0)
    return np.nan_to_num(_thinned(error, axis), posinf=0.0, neginf=0.0)


def _thinned(array: np.ndarray, axis: int) -> np.ndarray:
    matrix = array.reshape(int(np.prod(array.shape[:axis])), -1)
    rows, columns = (max(1, -(-size // 256)) for size in matrix.shape)
    return matrix[::rows, ::columns]


def one_rounding(exact: np.ndarray, dtype: np.dtype) -> float:
    """Root mean square error of rounding once, at least that of values just below a power of two: few may be lucky."""
    least = FORMATS[dtype.name].unit_roundoff / math.sqrt(12)
    return max(rounding(exact, dtype), least * rms(exact))


def scaled_errors(values: Sequence[np.ndarray], truth: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What is wrong in each batch, over the root mean square of the truth."""
    scales = [rms(exact) or 1.0 for exact in truth]
    with np.errstate(invalid="ignore"):  # infinity in place on both sides is no error, and leaves NaN
        return [(wide(value) - wide(exact)) / scale for value, exact, scale in zip(values, truth, scales, strict=True)]


def errors_by_name(values: Sequence[Arrays], truth: Sequence[Arrays]) -> dict[str, float]:
    """One side's error against its own float64 run by tensor, unjudged: a dict of arrays per batch."""
    shared = [
        name
        for name, array in values[0].items()
        if is_float(array)
        and all(name in a and name in b and a[name].shape == b[name].shape for a, b in zip(values, truth, strict=True))
    ]
    return {name: error_of([batch[name] for batch in values], [batch[name] for batch in truth]) for name in shared}


def keep_largest(largest: dict[str, float], errors: Mapping[str, float]) -> None:
    """The worst of the twins seen so far by tensor: a side is as accurate as that."""
    largest.update({name: max(error, largest.get(name, 0.0)) for name, error in errors.items()})


def relative(values: Sequence[np.ndarray], truth: Sequence[np.ndarray]) -> float:
    """Root mean square error over root mean square of the truth, pooled over the batches."""

    def one(value: np.ndarray, exact: np.ndarray) -> float:
        apart, scale = distance(value, exact), rms(exact)
        return apart / scale if scale else (np.inf if apart else 0.0)

    return pooled([one(value, exact) for value, exact in zip(values, truth, strict=True)])


def error_of(values: Sequence[np.ndarray], truth: Sequence[np.ndarray]) -> float:
    """As `relative`, but infinite where the values have left the range of their type and the truth has not."""
    overflowed = any(misplaced(value, exact) for value, exact in zip(values, truth, strict=True))
    return np.inf if overflowed else relative(values, truth)


@dataclass(frozen=True)
class Structure:
    """What is wrong between two sets of names, or None where both have the name, the shape and the type."""

    name: str
    problem: str


def structure(reference: Arrays, candidate: Arrays) -> list[Structure]:
    """Names that only one side has, and shapes and types that differ: found before any value is compared."""
    problems = []
    for name in [*reference, *(name for name in candidate if name not in reference)]:
        if name not in candidate:
            problems.append(Structure(name, _alone(name, "reference")))
        elif name not in reference:
            problems.append(Structure(name, _alone(name, "candidate")))
        elif reference[name].shape != candidate[name].shape:
            problems.append(Structure(name, f"shape {reference[name].shape} against {candidate[name].shape}"))
        elif problem := _types(reference[name].dtype, candidate[name].dtype):
            problems.append(Structure(name, problem))
    return problems


def _alone(name: str, side: str) -> str:
    """State is there where a run has changed it (`runs.is_state`)."""
    mode = "changes it: is the other one in evaluation mode?" if name.startswith("state ") else "has it"
    return f"only the {side} {mode}"


def _types(reference: np.dtype, candidate: np.dtype) -> str:
    """What is wrong with two types, "" for nothing; the width of a whole number is a habit of its framework."""
    if reference.kind == "c" or candidate.kind == "c":
        return f"type {reference} against {candidate}: complex numbers are not judged, return both parts as two outputs"
    whole = reference.kind in "iu" and candidate.kind in "iu"
    return "" if whole or reference == candidate else f"type {reference} against {candidate}"


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bit patterns, so that -0 differs from 0 and a NaN equals itself."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return all(x.tobytes() == y.tobytes() for x, y in _blocks(a, b))
