"""A JAX side as a pure function of parameters and state by name, at any precision: plain, nnx, linen or equinox."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ...draws import Dropout
from ...formats import FORMATS
from ...pair import Equinox, Jax, Linen
from ...recognition import is_module, recognised
from ...runs import Arrays, check_names, named_arrays
from ...trees import ALONE, Form, to_array
from .draws import replacing_dropout
from .dtypes import linen_at, nnx_at, parameters_in

Tree = Mapping[str, Any]


@dataclass(frozen=True)
class Named:
    """A pytree whose float arrays have names, the keys of their path joined by dots; the other leaves stay in place."""

    names: tuple[str, ...] = ()
    leaves: tuple[Any, ...] = ()
    structure: Any = None

    @classmethod
    def of(cls, tree: Any) -> Named:
        """The names of a pytree's leaves."""
        found, structure = jax.tree_util.tree_flatten_with_path(tree)
        names = (jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value") for path, _ in found)
        return cls(tuple(name or ALONE for name in names), tuple(leaf for _, leaf in found), structure)

    @property
    def floats(self) -> dict[str, Any]:
        """The float arrays by name."""
        return {name: leaf for name, leaf in zip(self.names, self.leaves, strict=True) if _is_float(leaf)}

    @property
    def numbers(self) -> dict[str, Any]:
        """The arrays by name, of floats, whole numbers and truth values."""
        return {name: leaf for name, leaf in zip(self.names, self.leaves, strict=True) if _is_number(leaf)}

    def filled(self, values: Tree) -> Any:
        """The same pytree with these values in it."""
        leaves = [values.get(name, leaf) for name, leaf in zip(self.names, self.leaves, strict=True)]
        return jax.tree_util.tree_unflatten(self.structure, leaves)


class Program(Protocol):
    """What a side computes.

    `parameters` are differentiated; `state` is what a run may change; `counters` count what was drawn.
    """

    parameters: Named
    state: Named
    counters: Mapping[str, Any]

    def __call__(self, parameters: Tree, state: Tree, form: Form, inputs: Tree) -> tuple[Any, Tree]:
        """What the side returns for a batch, and the state that it leaves behind."""


@dataclass
class PlainProgram:
    """A function; `given` if the pair gives the weights, as one dict by name."""

    function: Callable[..., Any]
    parameters: Named
    given: bool
    state: Named = field(default_factory=Named)
    counters: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, parameters: Tree, state: Tree, form: Form, inputs: Tree) -> tuple[Any, Tree]:
        """A function has no state of its own."""
        if self.given:
            return form.call(self.function, inputs, parameters), {}
        if self.parameters.structure is None:
            return form.call(self.function, inputs), {}
        return form.call(self.function, inputs, self.parameters.filled(parameters)), {}


class NnxProgram:
    """An nnx.Module, made anew from its parts in every call."""

    def __init__(self, module: Any, call: Callable[..., Any] | None):
        from flax import nnx

        split: Any = nnx.split(module, nnx.Param, ...)
        self.graph, parameters, rest = split
        self.call = call
        self.parameters, self.state = Named.of(parameters), Named.of(rest)
        counted = zip(self.state.names, self.state.leaves, strict=True)
        self.counters: Mapping[str, Any] = {name: np.asarray(leaf) for name, leaf in counted if name.endswith("count")}

    def __call__(self, parameters: Tree, state: Tree, form: Form, inputs: Tree) -> tuple[Any, Tree]:
        """Variables that are no parameters are state."""
        from flax import nnx

        module = nnx.merge(self.graph, self.parameters.filled(parameters), self.state.filled(state))
        returned = form.call(partial(self.call, module) if self.call else module, inputs)
        split: Any = nnx.split(module, nnx.Param, ...)
        _, _, rest = split
        return returned, Named.of(rest).numbers


class LinenProgram:
    """A flax.linen module; every collection of its variables but "params" is state."""

    def __init__(
        self, module: Any, variables: Mapping[str, Any], call: Callable[..., Any] | None, precision: str, draws: bool
    ):
        self.precision, self.draws = precision, draws
        plain = {name: _unfrozen(value) for name, value in variables.items()}
        self.module, self.call = module, call
        self.parameters = Named.of(plain.pop("params", {}))
        self.state = Named.of(plain)
        self.collections = list(plain)
        self.counters: Mapping[str, Any] = {}

    def __call__(self, parameters: Tree, state: Tree, form: Form, inputs: Tree) -> tuple[Any, Tree]:
        """The collections are mutable, so that running statistics can be compared."""
        variables = {"params": self.parameters.filled(parameters), **(self.state.filled(state) or {})}
        how: dict[str, Any] = {"method": self.call} if self.call else {}
        if self.draws:
            how["rngs"] = {"dropout": jax.random.key(0)}  # asked for, and of no effect: the draws are the pair's
        apply = partial(self.module.apply, **how)
        with parameters_in(self.precision):
            if not self.collections:
                return form.call(apply, inputs, variables), {}
            returned, changed = form.call(partial(apply, mutable=self.collections), inputs, variables)
        return returned, Named.of({name: _unfrozen(value) for name, value in changed.items()}).numbers


class EquinoxProgram:
    """An equinox module: a pytree whose float arrays are its parameters."""

    def __init__(self, module: Any, call: Callable[..., Any] | None):
        self.parameters, self.call = Named.of(module), call
        self.state = Named()
        self.counters: Mapping[str, Any] = {}

    def __call__(self, parameters: Tree, state: Tree, form: Form, inputs: Tree) -> tuple[Any, Tree]:
        """State that a module hands round is an input and an output."""
        module = self.parameters.filled(parameters)
        return form.call(partial(self.call, module) if self.call else module, inputs), {}


class Model:
    """What a JAX side runs.

    Args:
        role: "reference" or "candidate", for messages.
        given: the side as it stands in the pair.
        weights: those that the pair gives, or None where the side holds its own.
        dropout: as the pair has it.

    Raises:
        ParityUsageError: a module whose parameters are not those that the pair gives.
    """

    def __init__(self, role: str, given: Any, weights: Arrays | None, dropout: str | None = None):
        self.role, self.given, self.weights = role, given, weights
        self.dropout = Dropout(dropout, replacing_dropout)
        self._programs: dict[str, Program] = {}
        self.side = self._side("float32")
        program = self.at("float32")
        held = program.parameters.floats
        if weights is not None and held:
            check_names(self.side.label, weights, held)
        self.own = named_arrays(self.side.label, held) if weights is None else {}
        state = {name: leaf for name, leaf in program.state.numbers.items() if name not in program.counters}
        self.state = named_arrays(self.side.label, state)

    def at(self, precision: str) -> Program:
        """The side as it computes at a precision; traced anew for each, for what it holds may differ."""
        if precision not in self._programs:
            self._programs[precision] = self._program(self._side(precision), precision)
        return self._programs[precision]

    def call(self, precision: str, parameters: Tree, state: Tree, form: Form, inputs: Tree) -> tuple[Any, Tree]:
        """What the side returns for a batch, its dropout as the pair has it, and the state that it leaves behind."""
        with self.dropout.run():
            return self.at(precision)(parameters, state, form, inputs)

    def tree(self, arrays: Tree) -> Any:
        """Parameters by name in the containers that the side's own optimizer knows; anything else stays a dict."""
        parameters = self.at("float32").parameters
        known = parameters.structure is not None and arrays.keys() == parameters.floats.keys()
        if not known:
            return dict(arrays)
        return jax.tree.map(lambda leaf: leaf if _is_float(leaf) else None, parameters.filled(arrays))

    def _side(self, precision: str) -> Jax | Linen | Equinox:
        side = recognised(self.role, self.given, precision)
        assert isinstance(side, Jax | Linen | Equinox)
        return side

    def _program(self, side: Jax | Linen | Equinox, precision: str) -> Program:
        dtype = FORMATS[precision].dtype
        if isinstance(side, Linen):
            drops = bool(self.dropout.mode)
            return LinenProgram(linen_at(side.module, dtype), side.variables, side.call, dtype, drops)
        if isinstance(side, Equinox):
            return EquinoxProgram(side.module, side.call)
        if is_module(side.function, "flax.nnx"):
            return NnxProgram(nnx_at(side.function, dtype), side.call)
        params = Named() if side.params is None else Named.of(_without_tensors(_unfrozen(side.params)))
        return PlainProgram(side.function, params, side.params is None and self.weights is not None)


def by_name(tree: Any) -> dict[str, jax.Array]:
    """The arrays of a pytree by the names that `Named` gives them."""
    named = Named.of(tree)
    return {name: leaf for name, leaf in zip(named.names, named.leaves, strict=True) if isinstance(leaf, jax.Array)}


def _is_float(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def _is_number(leaf: Any) -> bool:
    is_plain = hasattr(leaf, "dtype") and not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    return is_plain and (_is_float(leaf) or np.dtype(leaf.dtype).kind in "iub")


def _without_tensors(tree: Any) -> Any:
    """Parameters with PyTorch's tensors, as `dict(module.named_parameters())` has them, as NumPy arrays."""
    return jax.tree.map(lambda leaf: to_array(leaf) if hasattr(leaf, "detach") else leaf, tree)


def _unfrozen(tree: Any) -> Any:
    """A flax FrozenDict as a dict: optimizers and gradients know it as one."""
    return tree.unfreeze() if hasattr(tree, "unfreeze") else tree
