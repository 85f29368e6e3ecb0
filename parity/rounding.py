"""Formats as NumPy has them, and rounding to any number of significand bits."""

from __future__ import annotations

import numpy as np

from .formats import FORMATS


def dtype_of(precision: str) -> np.dtype:
    """The type of arrays in a format."""
    import ml_dtypes

    name = FORMATS[precision].dtype
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def to_bits(array: np.ndarray, bits: int) -> np.ndarray:
    """Rounded to so many significand bits, ties to even, in the array's own type and range."""
    significand, exponent = np.frexp(np.asarray(array, np.float64))
    return np.asarray(np.ldexp(np.round(np.ldexp(significand, bits)), exponent - bits), array.dtype)
