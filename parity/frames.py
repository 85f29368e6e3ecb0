"""Which line of the model's own code something stems from: a call, a definition, an error."""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .errors import first_line

#: frames of these packages say how an operation was carried out, not who asked for it
_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "equinox", "torch", "einops", "numpy", "jaxtyping", "beartype")

#: The files of the harness in which the call of a model stands.
_RUNNERS = frozenset(str(Path(__file__).parent / "backends" / each / "run.py") for each in ("jax", "torch"))


@functools.cache
def _library_prefixes() -> tuple[str, ...]:
    specs = [find_spec(name) for name in _LIBRARIES]
    folders = [folder for spec in specs if spec for folder in spec.submodule_search_locations or ()]
    return (*(f"{folder}/" for folder in folders), f"{Path(__file__).parent}/")


_STANDARD_LIBRARY = f"{sysconfig.get_paths()['stdlib']}/"


@functools.cache
def is_user_code(filename: str) -> bool:
    """Whether a file is the model's own: no framework, no part of Python or of this harness, no generated code."""
    is_pythons = filename.startswith(_STANDARD_LIBRARY) and "-packages/" not in filename
    return not is_pythons and not filename.startswith(("<", *_library_prefixes()))


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


def told(error: BaseException) -> str:
    """An error in one line: its type, the line of the caller's own code that it came through last, what it says."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_user_code(frame.filename)]
    where = f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    return f"{type(error).__name__}{where}: {first_line(error)}"


def definition(function: Any) -> str:
    """File and line where a function of the model's own code begins, "" for any other."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or not is_user_code(code.co_filename):
        return ""
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"
