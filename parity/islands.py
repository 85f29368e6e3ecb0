"""What an island is: a value of lower precision inside a float64 run; how to know its source line and its numbers."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: frames of these packages say how an operation was carried out, not who asked for it
_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "equinox", "torch", "einops", "numpy", "jaxtyping", "beartype")


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


#: The files of the harness in which the call of a model stands.
_RUNNERS = frozenset(str(Path(__file__).parent / "backends" / each / "run.py") for each in ("jax", "torch"))


@functools.cache
def _library_prefixes() -> tuple[str, ...]:
    specs = [find_spec(name) for name in _LIBRARIES]
    folders = [folder for spec in specs if spec for folder in spec.submodule_search_locations or ()]
    return (*(f"{folder}/" for folder in folders), f"{Path(__file__).parent}/", contextlib.__file__, functools.__file__)


@functools.cache
def is_user_code(filename: str) -> bool:
    """Whether a file is the model's own: no framework, no part of this harness, no generated code ("<...>")."""
    return not filename.startswith(("<", *_library_prefixes()))


def caller() -> str:
    """File and line of the innermost running frame of the model's own code ("norm.py:31"), "" where there is none.

    Whoever has called the harness is no code of the model's.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename not in _RUNNERS:
        if is_user_code(frame.f_code.co_filename):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def definition(function: Any) -> str:
    """File and line where a function of the model's own code begins, "" for any other."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or not is_user_code(code.co_filename):
        return ""
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def nudged(values: Any, seed: int) -> Any:
    """float32 numbers, each moved by one unit in its last place up or down at random; always the same for one seed."""
    import numpy as np

    signs = np.random.Generator(np.random.PCG64([seed, values.size])).choice([-1.0, 1.0], values.shape)
    return np.asarray(values, np.float64) * (1 + signs * 2.0**-23)


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
