"""A PyTorch side as a module whose parameters can be set by name, at any precision; the caller's is never touched."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from ...draws import Dropout
from ...errors import ParityUsageError
from ...pair import Torch
from ...recognition import recognised
from ...runs import Arrays, check_names, is_float
from ...trees import Form, is_array, leaves, rebuilt, to_array
from .compiling import compiled_in_place
from .draws import replacing_dropout
from .state import Snapshot, buffers_of
from .versions import DTYPES, from_numpy

Place = tuple[nn.Module, str]


class Plain(nn.Module):
    """A function of parameters and inputs as a module; its parameters keep their names, which may have dots in them."""

    def __init__(self, function: Callable[..., Any], params: Any):
        super().__init__()
        self.function = function
        self.alone = params is None
        for name, leaf in leaves(params):
            if is_array(leaf) and is_float(to_array(leaf)):
                self._parameters[name] = nn.Parameter(as_tensor(leaf))  # register_parameter refuses the dots
        held = self._parameters
        self.params = rebuilt(params, lambda name, leaf: None if name in held else as_tensor(leaf))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns."""
        if self.alone:
            return self.function(*args, **kwargs)
        return self.function(rebuilt(self.params, self._parameters.get), *args, **kwargs)


class Model:
    """What a PyTorch side runs.

    Args:
        role: "reference" or "candidate", for messages.
        given: the side as it stands in the pair.
        names: of the weights that the pair gives, or None where the side holds its own.
        form: how the module is called.
        dropout: as the pair has it.

    Raises:
        ParityUsageError: a module whose parameters are not those that the pair gives; one that was compiled in place.
    """

    def __init__(self, role: str, given: Any, weights: Arrays | None, form: Form, dropout: str | None = None):
        self.role, self.given, self.weights, self.form = role, given, weights, form
        self.side = self._side("float32")
        original = self._module(self.side)
        if inside := compiled_in_place(original):
            raise ParityUsageError(
                f"{self.side.label}: a module as it is, or as torch.compile(module) gives it, got {inside} after "
                "its own compile(), which a copy does not keep; give torch.compile(module)"
            )
        named = dict(original.named_parameters())
        if parts := [name for name, value in named.items() if value.is_complex()]:
            raise ParityUsageError(
                f"{self.side.label}: real parameters, got {parts[0]} of {named[parts[0]].dtype}; hold its two parts "
                "(torch.view_as_real) and make it of them"
            )
        if weights is not None:
            check_names(self.side.label, weights, named)
        self.own = {} if weights is not None else {name: to_array(value) for name, value in named.items()}
        self.state = {name: to_array(buffer) for name, buffer, _ in buffers_of(original)}
        self._skeletons: dict[str, tuple[nn.Module, dict[str, list[Place]], Snapshot]] = {}
        self._filled = ""
        self.dropout = Dropout(dropout, replacing_dropout)

    def at(self, weights: Mapping[str, torch.Tensor], precision: str) -> nn.Module:
        """The module at a precision with these parameters, all else as at first; it holds them until `release`."""
        if precision not in self._skeletons:
            module = skeleton(self._module(self._side(precision)), precision)
            self._skeletons[precision] = (module, parameter_places(module), Snapshot(module))
        self.release()  # one model's numbers at a time: it may be large
        self._filled = precision
        module, places, snapshot = self._skeletons[precision]
        snapshot.restore()
        _fill(places, weights)
        return module

    def release(self) -> None:
        """Lets go of the parameters that the module holds, and of their gradients."""
        if self._filled:
            module, places, _ = self._skeletons[self._filled]
            _fill(places, {name: parameter.detach().to("meta") for name, parameter in module.named_parameters()})
        self._filled = ""

    def call(self, module: nn.Module, inputs: Mapping[str, torch.Tensor]) -> Any:
        """What the module returns for a batch."""
        with self.dropout.run():
            return self.form.call(partial(self.side.call, module) if self.side.call else module, inputs)

    def changed_state(self, paired: Collection[str]) -> dict[str, torch.Tensor]:
        """What the last call changed of the module's state (running statistics, counters)."""
        return self._skeletons[self._filled][2].changed(paired)

    def _side(self, precision: str) -> Torch:
        side = recognised(self.role, self.given, precision)
        assert isinstance(side, Torch)
        return side

    def _module(self, side: Torch) -> nn.Module:
        if isinstance(side.function, nn.Module):
            return side.function
        params = side.params
        if params is None and self.weights is not None:
            params = {name: from_numpy(value, torch.device("cpu")) for name, value in self.weights.items()}
        return Plain(side.function, params)


def skeleton(module: nn.Module, precision: str) -> nn.Module:
    """A copy of a module whose floats are of `precision`; its parameters are on the meta device, to be set."""
    known: dict[int, Any] = {}
    for parameter in module.parameters():
        dtype = DTYPES[precision] if parameter.is_floating_point() else parameter.dtype
        empty = torch.empty_like(parameter, dtype=dtype, device="meta")
        known[id(parameter)] = nn.Parameter(empty, parameter.is_floating_point())
    for buffer in module.buffers():
        known[id(buffer)] = buffer.detach().to(
            DTYPES[precision] if buffer.is_floating_point() else buffer.dtype, copy=True
        )
    return copy.deepcopy(module, known)


def parameter_places(module: nn.Module) -> dict[str, list[Place]]:
    """Every module and key that holds a parameter, by the first of its names: a tied one has several."""
    first = {id(parameter): name for name, parameter in module.named_parameters()}
    places: dict[str, list[Place]] = {name: [] for name in first.values()}
    for owner in module.modules():
        for key, parameter in owner._parameters.items():
            if parameter is not None:
                places[first[id(parameter)]].append((owner, key))
    return places


def as_tensor(leaf: Any) -> Any:
    """An array of any framework as a tensor of its own; whatever else as it stands."""
    return from_numpy(to_array(leaf), torch.device("cpu")) if is_array(leaf) else leaf


def _fill(places: Mapping[str, list[Place]], weights: Mapping[str, torch.Tensor]) -> None:
    for name, value in weights.items():
        parameter = nn.Parameter(value, value.is_floating_point())
        for owner, key in places[name]:
            owner._parameters[key] = parameter
            if "." not in key:
                setattr(owner, key, parameter)  # an RNN keeps its parameters in a list as well
