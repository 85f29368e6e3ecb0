"""Prove that a JAX and a PyTorch implementation are the same function. Importing it loads no framework and no NumPy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import ParityError, ParityUsageError
    from .islands import Island
    from .options import Options
    from .pair import Jax, Operation, Pair, Torch
    from .result import Result, Row
    from .verdict import check

_HOME = {
    "options": ("Options",),
    "errors": ("ParityError", "ParityUsageError"),
    "islands": ("Island",),
    "pair": ("Jax", "Operation", "Pair", "Torch"),
    "result": ("Result", "Row"),
    "verdict": ("check",),
}

__all__ = [
    "Island",
    "Jax",
    "Operation",
    "Options",
    "Pair",
    "ParityError",
    "ParityUsageError",
    "Result",
    "Row",
    "Torch",
    "check",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            value = getattr(import_module(f".{module}", __name__), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
