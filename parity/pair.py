"""What is compared: two implementations, the numbers given to both, and what to do with them. Loads no framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Arrays = Mapping[str, np.ndarray]
    Batches = Callable[[np.random.Generator], Arrays]


@dataclass(frozen=True)
class Jax:
    """A JAX implementation as a pure function.

    `function(parameters, **inputs)` returns a dict of arrays and computes in the type of its parameters; `optimizer` is
    an optax transformation or a function that returns one.
    """

    function: Callable[..., Mapping[str, Any]]
    label: str = "jax"
    optimizer: Any = None
    framework: str = field(default="jax", init=False)


@dataclass(frozen=True)
class Torch:
    """A PyTorch implementation as a recipe for a module.

    `build(parameters)` returns an nn.Module with those named parameters, `module(**inputs)` a dict of tensors,
    `optimizer(parameters)` a torch.optim.Optimizer.
    """

    build: Callable[[Mapping[str, Any]], Any]
    label: str = "torch"
    optimizer: Callable[[Any], Any] | None = None
    framework: str = field(default="torch", init=False)


Side = Jax | Torch


@dataclass(frozen=True)
class Operation:
    """One operation of the model on its own, for the precisions in which a whole model proves nothing.

    `draw(generator)` returns the operands as float64 NumPy arrays by name, in the order of both functions' arguments.
    `limit` bounds rms(error) / rms(rounding the exact result once); `derivation` says in words where it comes from.
    """

    name: str
    reference: Callable[..., Any]
    candidate: Callable[..., Any]
    draw: Callable[[np.random.Generator], Arrays]
    limit: float
    derivation: str


@dataclass(frozen=True)
class Pair:
    """Two implementations of one function.

    Args:
        name: what the report calls it.
        reference: the side whose own rounding sets the scale of every bound.
        candidate: the side that is asked whether it is the same function.
        weights: every parameter by name, given to both sides alike.
        inputs: one batch by name, or a function of a NumPy Generator that returns one.
        loss: the name of the scalar output to differentiate; None: a fixed random projection of every float output.
        operations: what is judged one by one in the 16-bit formats.
        roundings: the number of products added along the longest path through the model, for the unit-roundoff floor.
        formula: matmul FLOPs of one batch by a formula, "forward" and "forward_backward"; None: only counted.
        notes: lines for the report: kernels named, where weights and text come from.
    """

    name: str
    reference: Side
    candidate: Side
    weights: Arrays
    inputs: Batches | Arrays
    loss: str | None = None
    operations: Sequence[Operation] = ()
    roundings: int = 1
    formula: Mapping[str, int] | None = None
    notes: Sequence[str] = ()
