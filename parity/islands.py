"""What an island is: a value of lower precision inside a float64 run; how to know its numbers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Island:
    """One place where a float64 run holds less than float64.

    Args:
        side: the label of the implementation.
        place: the module's path ("layers.0.attention_norm"), else the function, else "input <name>".
        operation: the operation that brought the low precision in; "input" and "constant" are values that came with it.
        dtype: the type seen; "float64" for a constant that is float64 by type but holds float32 numbers only.
        source: file and line of whoever asked for it ("norm.py:31"), "" where no line is known.
        meets: for what depends on no input (a table), the module or function in which it meets the data first.
    """

    side: str
    place: str
    operation: str
    dtype: str
    source: str
    meets: str = ""


class Told:
    """Which islands were told already: each module and each function once, apart for what is a constant or is not.

    What no module holds counts line by line, for one function may hold a norm and a softmax of its own.
    """

    def __init__(self) -> None:
        self._keys: set[Hashable] = set()

    def is_new(self, constant: bool, place: str, function: Hashable = None, line: Hashable = None) -> bool:
        """Whether it is the first of its place and function, or of the line where one is given; never again then."""
        keys: set[Hashable] = {(constant, place)}
        if function is not None:
            keys.add((constant, function))
        asked = keys if line is None else {("line", line)}
        new = not asked & self._keys
        self._keys |= keys | asked
        return new


def nudged(values: Any, seed: int) -> Any:
    """float32 numbers, each moved by one unit in its last place up or down at random; always the same for one seed.

    Those of at most 16 significant bits stay: the cosine of nothing is 1, and no float32 computation rounds it.
    """
    import numpy as np

    values = np.asarray(values, np.float64)
    signs = np.random.Generator(np.random.PCG64([seed, values.size])).choice([-1.0, 1.0], values.shape)
    rounded = (values.astype(np.float32).view(np.uint32) & 0xFF) != 0
    return np.asarray(values * (1 + rounded * signs * 2.0**-23))  # of no axes too


def holds_float32(values: Any) -> bool:
    """Whether a float64 NumPy array holds float32 numbers only, so that its values were computed in float32.

    A float64 number ends in 29 zero bits by chance once in 2^29; whole numbers and short fractions do by right, so that
    at least one element must need more than 16 of float32's 24 bits, and more than 7 decimal digits: -1e9 is the number
    that was written, in either type. Masks (beyond 1e30, infinite) do not count. Blind to bfloat16 and float16 numbers,
    which are short, and no proof for weights that were stored in float32.
    """
    values = values[abs(values) < 1e30]
    narrow = values.astype("float32")
    if not (narrow == values).all():
        return False
    long = narrow[(narrow.view("uint32") & 0xFF) != 0].tolist()
    return any(float(f"{number:.7g}") != number for number in long)
