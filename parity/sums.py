"""How well the frameworks add up in float64, against the float32 run that the float64 rule takes its scale from.

A float32 matmul sums in blocks, and its error hardly grows with the length of the sum. A float64 one may add one
product after the other: then its error grows with the square root of the length. Torch 2.13 on a CPU does
(tests/test_sums.py); whatever the machine at hand does is measured, not looked up.
"""

from __future__ import annotations

import math

import numpy as np

from .compare import rms
from .formats import FORMATS
from .runners import Runner
from .runs import Arrays
from .sides import Sides

#: Rows and columns of the product that is tried: as many as make a matmul's kernel of it, and no more than that.
ROWS, CHECKED = 64, 8
#: Longer sums are not tried: this one takes half a second and 70 MB.
LONGEST = 2**16


def summation_factor(sides: Sides, length: int) -> float:
    """By how much float64 sums of `length` products are worse than the reference's float32 ones, in roundings of each.

    At least 1; the worse of the two sides counts.
    """
    length = min(length, LONGEST)
    generator = np.random.Generator(np.random.PCG64(length))
    # float32 numbers: their products are exact in float64, so that only the sums round
    a, b = (
        generator.standard_normal(shape).astype(np.float32).astype(np.float64)
        for shape in ((ROWS, length), (length, ROWS))
    )
    exact = np.array([[math.fsum(row * column) for column in b.T[:CHECKED]] for row in a[:CHECKED]])

    def roundings(runner: Runner, precision: str) -> float:
        (product,) = runner.evaluate(lambda a, b: a @ b, [{"a": a, "b": b}], precision)
        error = product[:CHECKED, :CHECKED].astype(np.float64) - exact
        return rms(error) / rms(exact) / FORMATS[precision].unit_roundoff

    worse = max(roundings(runner, "float64") for runner in (sides.reference, sides.candidate))
    return max(1.0, worse / max(1.0, roundings(sides.reference, "float32")))


def longest_sum(weights: Arrays, inputs: Arrays) -> int:
    """The longest sum that a model is likely to form: over an axis of a weight, or over a whole batch."""
    axes = [size for array in weights.values() for size in array.shape]
    return max([1, *axes, *(array.size for array in inputs.values())])
