"""Which framework a side belongs to, told from its classes: nothing is imported that the side has not imported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .errors import ANYTHING, ParityUsageError
from .frames import told
from .pair import Equinox, Factory, Jax, Linen, Torch


def recognised(role: str, given: Any, precision: str = "float32") -> Jax | Linen | Equinox | Torch:
    """A side as one of the four kinds that run; modules as they stand are wrapped, a factory makes one for `precision`.

    Raises:
        ParityUsageError: it is nothing that can be run; names the `role`, "reference" or "candidate".
    """
    if isinstance(given, Factory):
        made = recognised(role, _made(role, given, precision))
        changes = {"label": given.label, "optimizer": given.optimizer}
        return replace(made, **{name: value for name, value in changes.items() if value is not None})
    if isinstance(given, Jax | Linen | Equinox | Torch):
        return given
    if is_module(given, "torch.nn"):
        return Torch(given)
    if is_module(given, "flax.nnx"):
        return Jax(given, label="nnx")
    if is_module(given, "equinox"):
        return Equinox(given)
    if is_module(given, "flax.linen"):
        raise ParityUsageError(f"{role}: a linen module with its variables, got the module alone; give parity.Linen")
    known = "an nn.Module, an nnx.Module, parity.Jax, Torch, Linen, Equinox or Factory"
    raise ParityUsageError(f"{role}: {known}, got {type(given).__name__}; a function belongs into parity.Jax or Torch")


def is_module(value: Any, package: str) -> bool:
    """Whether a value is an instance of the `Module` class of a package."""
    return any(
        base.__name__ == "Module" and (base.__module__ == package or base.__module__.startswith(f"{package}."))
        for base in type(value).__mro__
    )


def _made(role: str, factory: Factory, precision: str) -> Any:
    from .rounding import dtype_of

    dtype = dtype_of(precision)
    try:
        return factory.make(dtype)
    except ANYTHING as error:
        what = told(error)
        raise ParityUsageError(
            f"{role}: a factory that makes a side of {dtype}, got {what}; --debug shows where"
        ) from error
