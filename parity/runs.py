"""What one side of a pair gives back, whatever the framework: NumPy arrays with names. Loads no framework."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Run:
    """Outputs by name (a scalar "loss" among them) and the gradient of that loss in every parameter."""

    outputs: Arrays
    gradients: Arrays


@dataclass(frozen=True)
class Trained:
    """Parameters after some optimizer steps, and both moments where the optimizer keeps them, each by parameter name."""

    parameters: Arrays
    mu: Arrays
    nu: Arrays


class Runner(Protocol):
    """One side of a pair, ready to run at any precision. `parity/backends/*/run.py` implement it."""

    label: str

    def run(self, weights: Arrays, batch: Arrays, precision: str, *, lifted: bool = False) -> Run:
        """Outputs and gradients of one batch; `lifted` widens every float32 island of a float64 run."""

    def train(self, weights: Arrays, batches: Sequence[Arrays], precision: str, *, lifted: bool = False) -> Trained:
        """One optimizer step per batch."""

    def follow(self, start: Arrays, gradients: Sequence[Arrays], precision: str) -> Trained:
        """One optimizer step per given gradient, without the model."""

    def evaluate(self, function: Callable[..., Any], draws: Sequence[Arrays], precision: str) -> list[np.ndarray]:
        """One operation on its own for each set of operands, in `precision`."""

    def islands(self, weights: Arrays, batch: Arrays) -> list[Any]:
        """Where a float64 run of outputs and gradients drops to a lower precision, in data order."""

    def count(self, weights: Arrays, batch: Arrays) -> dict[str, dict[str, int | None]]:
        """Matmul FLOPs of one batch, "forward" and "forward_backward", by every method of the framework; nothing is run."""


def projection(name: str, shape: Sequence[int]) -> np.ndarray:
    """The fixed random weights that turn an output into a loss: N(0, 1) / sqrt(size), every value exact in float32."""
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    draw = generator.standard_normal(tuple(shape)) / np.sqrt(max(1, int(np.prod(shape))))
    return draw.astype(np.float32)


def is_float(array: np.ndarray) -> bool:
    """Floating point, bfloat16 included."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


#: The optimizer state of the two frameworks under one name (optax and jaxcore; torchref; torch.optim).
MOMENTS = {"mu": ("mu", "exp_avg"), "nu": ("nu", "exp_avg_sq")}
