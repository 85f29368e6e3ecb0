"""Prove that a JAX and a PyTorch implementation are the same function. Importing it loads no framework and no NumPy."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import ParityError, ParityUsageError
    from .islands import Island
    from .options import Options
    from .pair import Equinox, Factory, Jax, Linen, Operation, Pair, Torch
    from .result import Result, Row
    from .taps import tap
    from .verdict import check
    from .weights.weight_map import WeightMap

_HOME = {
    "options": ("Options",),
    "errors": ("ParityError", "ParityUsageError"),
    "islands": ("Island",),
    "pair": ("Equinox", "Factory", "Jax", "Linen", "Operation", "Pair", "Torch"),
    "result": ("Result", "Row"),
    "taps": ("tap",),
    "verdict": ("check",),
    "weights.weight_map": ("WeightMap",),
}

__all__ = [
    "Equinox",
    "Factory",
    "Island",
    "Jax",
    "Linen",
    "Operation",
    "Options",
    "Pair",
    "ParityError",
    "ParityUsageError",
    "Result",
    "Row",
    "Torch",
    "WeightMap",
    "check",
    "tap",
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
