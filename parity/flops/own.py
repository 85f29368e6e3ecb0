"""The FLOPs of one's own code: a Pair, an nn.Module or nnx.Module, or a JAX function, on inputs of given shapes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..capture import ROOT
from ..errors import ANYTHING, ParityUsageError
from ..frames import told
from ..options import Options
from ..pair import Jax, Pair, Torch
from ..preparation import prepare
from ..recognition import is_module, recognised
from ..runs import is_float
from ..sides import make_runner
from ..targets import load_object, load_pairs
from ..trees import Form
from ..work import Placed, Work
from .counts import Flops, by_layer, merge_classes

#: "tokens:int32[2,128]", or without a name, which then goes by its place.
_INPUT = re.compile(r"(?:(?P<name>[^:\[\]]+):)?(?P<dtype>[a-z]+\d*)\[(?P<shape>[\d, ]*)\]")


def own_flops(target: str, inputs: Sequence[str]) -> Flops:
    """The counts of a target: a Pair, or with `inputs` a module, another side of a Pair, or a JAX function.

    Raises:
        ParityUsageError: it is none of these, or has no inputs.
    """
    if inputs:
        return _of_side(target, load_object(target), Form(read_inputs(inputs)))
    found = load_object(target)
    if recognised_as(found) is not None:
        raise ParityUsageError(f"--input: one for each argument of {target}, got none; for example float32[8,128]")
    pair, *more = load_pairs(target)
    if more:
        raise ParityUsageError(f"{target}: one Pair, got {len(more) + 1}; name the one that is meant")
    prepared = prepare(pair, Options(batches=1, steps=0))
    batch = prepared.batches[0]
    work = prepared.sides.count(prepared.weights, batch, pair.formula)
    return Flops(pair.name, described(batch), work, parameters=sum(each.size for each in prepared.weights.values()))


def read_inputs(specs: Sequence[str]) -> tuple[np.ndarray, ...] | dict[str, np.ndarray]:
    """Zeros of the shapes and types that the words say: by name if all have one, in order if none has.

    Raises:
        ParityUsageError: a word is no TYPE[SIZES], or some have names and others have none.
    """
    named: list[tuple[str | None, np.ndarray]] = []
    for spec in specs:
        parts = _INPUT.fullmatch(spec.replace(" ", ""))
        try:
            dtype = np.dtype(parts["dtype"]) if parts else None
        except TypeError:
            dtype = None
        if parts is None or dtype is None or dtype.kind not in "fiub":
            raise ParityUsageError(f"--input: NAME:TYPE[SIZES] or TYPE[SIZES], got {spec!r}; for example int32[2,128]")
        shape = tuple(int(size) for size in parts["shape"].split(",") if size)
        named.append((parts["name"], np.zeros(shape, dtype)))
    if len({name is None for name, _ in named}) > 1:
        raise ParityUsageError(f"--input: names for all or for none, got {', '.join(specs)}; name the others too")
    if named[0][0] is None:
        return tuple(array for _, array in named)
    return {str(name): array for name, array in named}


def recognised_as(found: Any) -> Any:
    """The side that an object is as it stands, None for anything else."""
    try:
        return recognised("target", found)
    except ParityUsageError:
        return None


def described(arrays: Mapping[str, np.ndarray]) -> str:
    """Names, types and shapes of the inputs."""
    return ", ".join(f"{name}:{each.dtype.name}{list(each.shape)}" for name, each in arrays.items())


def _of_side(target: str, found: Any, form: Form) -> Flops:
    side, said = recognised_as(found), described(form.arrays())
    if isinstance(found, Pair) or (side is None and not callable(found)):
        kind = type(found).__name__
        raise ParityUsageError(f"--input: with a module or a JAX function, got the {kind} {target}; leave it out")
    if side is None:
        side, form = as_parameters(found, form)
    if is_module(side.function, "torch.nn"):
        return _of_module(target, side, form)
    runner = make_runner("reference", Pair(target, side, side), None, form, "cpu")
    work = runner.count(runner.own, form.arrays())
    return Flops(target, said, work, parameters=sum(each.size for each in runner.own.values()))


def _of_module(target: str, side: Torch, form: Form) -> Flops:
    """A module as it stands: what is frozen is."""
    from ..backends.torch.placed import module_flops

    inputs = form.arrays()
    notes: tuple[str, ...] = ()
    placed: Placed = {}
    parameters: int | None = None
    try:
        placed, parameters = module_flops(side.function, form, inputs, side.call)
    except ParityUsageError as error:
        notes = (str(error),)
    except ANYTHING as error:  # whatever somebody's module raises on the meta device
        notes = (f"no count by torch, {told(error)}",)
    flops = {each: {"torch": sum(found.values())} for each, found in placed.items()}
    places = {each: {place or ROOT: count for place, count in found.items()} for each, found in placed.items()}
    classes = merge_classes({"torch": places}) if placed else {}
    layers = {each: {"torch": found} for each, found in by_layer(placed).items() if found}
    return Flops(target, described(inputs), Work(flops, notes), {}, classes, layers, parameters=parameters)


def as_parameters(function: Callable[..., Any], form: Form) -> tuple[Jax, Form]:
    """A JAX function whose float arguments are parameters, so that a gradient is taken in each of them."""
    floats = {name: array for name, array in form.arrays().items() if is_float(array)}
    others = {name: array for name, array in form.arrays().items() if name not in floats}

    def called(parameters: Mapping[str, Any], **inputs: Any) -> Any:
        return form.call(function, {**parameters, **inputs})

    return Jax(called, floats), Form(others)
