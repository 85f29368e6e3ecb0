"""What one side of a pair gives back, whatever the framework: NumPy arrays with names. Loads no framework."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import ParityUsageError

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Run:
    """Outputs by name and the gradient of the loss in every parameter."""

    outputs: Arrays
    gradients: Arrays


@dataclass(frozen=True)
class Trained:
    """Parameters after some optimizer steps, and both moments where the optimizer keeps them, by parameter name."""

    parameters: Arrays
    mu: Arrays
    nu: Arrays


def projection(name: str, shape: Sequence[int]) -> np.ndarray:
    """The fixed random signs, over the power of two nearest to sqrt(size), that turn an output into a loss.

    Exact in every format, so that the projection adds no rounding of its own and is no low-precision constant.
    """
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    signs = np.asarray(generator.choice([-1.0, 1.0], tuple(shape)))
    return np.asarray(signs * 2.0 ** -round(np.log2(max(1, signs.size)) / 2))


def named_outputs(label: str, outputs: Any, loss: str | None) -> dict[str, Any]:
    """What a side returned, as a dict with the loss in it.

    Raises:
        ParityUsageError: it is no mapping by name, or the loss that the pair names is not there.
    """
    if not isinstance(outputs, Mapping) or not outputs:
        raise ParityUsageError(
            f"{label}: must return a dict of arrays by name, got {type(outputs).__name__}; return {{'output': ...}}"
        )
    if loss is not None and loss not in outputs:
        raise ParityUsageError(f"loss: one of the outputs {', '.join(outputs)}, got {loss!r}; name one of them")
    return dict(outputs)


def is_float(array: np.ndarray) -> bool:
    """Floating point, bfloat16 included."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


#: The optimizer state of the two frameworks under one name (optax and jaxcore; torchref; torch.optim).
MOMENTS = {"mu": ("mu", "exp_avg"), "nu": ("nu", "exp_avg_sq")}
