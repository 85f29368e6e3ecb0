"""What is compared: two implementations, the numbers given to both, and what to do with them. Loads no framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from .weights import WeightMap

    Arrays = Mapping[str, np.ndarray]
    Batch = Mapping[str, Any] | tuple[Any, ...]
    Batches = Callable[[np.random.Generator], Batch]


@dataclass(frozen=True)
class Jax:
    """A JAX implementation: `function(params, *inputs)`, `function(*inputs)` without parameters, or an nnx.Module.

    Args:
        function: pure; it computes in the type of its parameters and inputs, and returns arrays in any containers.
        params: any pytree; None where the pair gives the weights, or where there are none.
        label: what the report calls it.
        optimizer: an optax transformation, or a function that returns one.
        call: for a module, `call(module, *inputs)` instead of `module(*inputs)`.
        jit: compiled by XLA as a whole; False: operation by operation, but for what is jitted inside it.
    """

    function: Any
    params: Any = None
    label: str = "jax"
    optimizer: Any = None
    call: Callable[..., Any] | None = None
    jit: bool = True
    framework: str = field(default="jax", init=False)


@dataclass(frozen=True)
class Linen:
    """A flax.linen module and its variables; a dtype that it was given is replaced in float64 and 16-bit runs."""

    module: Any
    variables: Mapping[str, Any]
    label: str = "linen"
    optimizer: Any = None
    call: Callable[..., Any] | None = None
    jit: bool = True
    framework: str = field(default="jax", init=False)


@dataclass(frozen=True)
class Equinox:
    """An equinox module, which takes one example unless `call(module, *inputs)` maps it over a batch."""

    module: Any
    label: str = "equinox"
    optimizer: Any = None
    call: Callable[..., Any] | None = None
    jit: bool = True
    framework: str = field(default="jax", init=False)


@dataclass(frozen=True)
class Torch:
    """A PyTorch implementation: an nn.Module, `function(params, *inputs)`, or `function(*inputs)` without parameters.

    Args:
        function: what is run, eagerly; in the mode (train or eval) in which a module stands.
        params: tensors in dicts, lists or tuples; None where the pair gives the weights, or where there are none.
        label: what the report calls it.
        optimizer: `optimizer(parameters)` returns a torch.optim.Optimizer.
        call: for a module, `call(module, *inputs)` instead of `module(*inputs)`.
    """

    function: Any
    params: Any = None
    label: str = "torch"
    optimizer: Callable[[Any], Any] | None = None
    call: Callable[..., Any] | None = None
    framework: str = field(default="torch", init=False)


@dataclass(frozen=True)
class Factory:
    """An implementation that has to be made anew for each precision: `make(dtype: np.dtype)` returns any other side.

    `label` and `optimizer` are those of the side that is made unless they are given here.
    """

    make: Callable[[Any], Any]
    label: str | None = None
    optimizer: Any = None


Side = Jax | Linen | Equinox | Torch | Factory


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
        reference: the side whose own rounding sets the scale of every bound: an nn.Module, an nnx.Module or an
            equinox.Module as it stands, or one of Jax, Torch, Linen, Equinox and Factory.
        candidate: the side that is asked whether it is the same function.
        weights: "loaded": both sides hold the same numbers already, under any names and in any layout, which is proved
            first; a WeightMap that makes the candidate's out of the reference's; or every parameter by name, given to
            both sides alike.
        inputs: one batch, a tuple or dict of arrays, or a function of a NumPy Generator that returns one.
        loss: what is differentiated: the name of a scalar output; a function of the outputs, or two of them (reference,
            candidate) where it needs a framework; None: a fixed random projection of every float output.
        operations: what is judged one by one in the 16-bit formats.
        roundings: the number of products added along the longest path through the model, for the unit-roundoff floor.
        formula: matmul FLOPs of one batch by a formula, "forward" and "forward_backward"; None: only counted.
        points: which point inside the reference is which of the candidate, by name, where neither values nor names
            show it.
        dropout: None: as the sides stand, which then must not draw at random; "off": left out on both; "shared": the
            n-th dropout of either side keeps the same elements.
        mutants: functions by name that return the pair with a fault in it, for `mutate` beside its own faults.
        notes: lines for the report: kernels named, where weights and text come from.
    """

    name: str
    reference: Any
    candidate: Any
    weights: str | WeightMap | Arrays = "loaded"
    inputs: Batches | Batch = ()
    loss: str | Callable[..., Any] | tuple[Callable[..., Any], Callable[..., Any]] | None = None
    operations: Sequence[Operation] = ()
    roundings: int = 1
    formula: Mapping[str, int] | None = None
    points: Mapping[str, str] = field(default_factory=dict)
    dropout: str | None = None
    mutants: Mapping[str, Callable[[], Pair]] = field(default_factory=dict)
    notes: Sequence[str] = ()
