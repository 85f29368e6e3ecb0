"""Measuring: how far two sets of named arrays are apart. Nothing here judges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Arrays = Mapping[str, np.ndarray]


def wide(array: np.ndarray) -> np.ndarray:
    """The array as float64; exact for every format that a check runs in."""
    return np.asarray(array).astype(np.float64)


def rms(array: np.ndarray) -> float:
    """Root of the mean square over the finite elements; 0 for none."""
    values = wide(array)
    values = values[np.isfinite(values)]
    # scaled first: squares of 1e-200 would vanish
    scale = float(np.max(np.abs(values))) if values.size else 0.0
    return scale * float(np.sqrt(np.mean((values / scale) ** 2))) if scale else 0.0


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Root mean square of a - b over the elements where both are finite; the others are `misplaced`'s."""
    a, b = wide(a), wide(b)
    both = np.isfinite(a) & np.isfinite(b)
    # halves: the difference of two finite numbers may be infinite, and what is infinite would not be counted
    return 2 * rms(a[both] / 2 - b[both] / 2)


def misplaced(a: np.ndarray, b: np.ndarray) -> int:
    """Number of elements that are NaN, +infinity or -infinity on one side and something else on the other."""
    a, b = wide(a), wide(b)
    same = (np.isnan(a) & np.isnan(b)) | (np.isfinite(a) & np.isfinite(b)) | (a == b)
    return int(np.count_nonzero(~same))


def rounding(exact: np.ndarray, dtype: np.dtype) -> float:
    """Root mean square error of rounding exact values once to `dtype`: the least that any computation in it pays."""
    with np.errstate(over="ignore"):
        return distance(wide(exact).astype(dtype), exact)


def pooled(values: Sequence[float]) -> float:
    """Root mean square of one measure over several batches; infinite if one of them is (`rms` would leave that out)."""
    return rms(np.asarray(values, np.float64)) if all(map(math.isfinite, values)) else math.inf


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
            problems.append(Structure(name, "only the reference has it"))
        elif name not in reference:
            problems.append(Structure(name, "only the candidate has it"))
        elif reference[name].shape != candidate[name].shape:
            problems.append(Structure(name, f"shape {reference[name].shape} against {candidate[name].shape}"))
        elif reference[name].dtype != candidate[name].dtype:
            problems.append(Structure(name, f"type {reference[name].dtype} against {candidate[name].dtype}"))
    return problems


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bit patterns, so that -0 differs from 0 and a NaN equals itself."""
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
