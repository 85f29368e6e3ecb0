"""Hearing every einops call, functions and layers, however early they were imported. Loads no framework."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from .frames import caller


class Call(NamedTuple):
    """One einops call: the function or layer, its pattern, "file:line" of the caller, and the arrays that it was given.

    `operands` are those of an einsum, in order; of a layer, which has a weight of its own, they are not told.
    """

    kind: str
    pattern: str
    where: str
    operands: tuple[Any, ...] = ()


#: (call, output) -> what the model goes on with
Listener = Callable[[Call, Any], Any]

_listeners: list[Listener] = []
_originals: dict[str, FunctionType] = {}
#: where the pattern stands among the positional arguments
_PATTERN = {"rearrange": 1, "reduce": 1, "repeat": 1, "einsum": -1, "pack": 1, "unpack": 2}
#: module, class and method of every layer; what is not imported cannot be called
_LAYERS = (
    ("einops.layers", "RearrangeMixin", "_apply_recipe"),
    ("einops.layers", "ReduceMixin", "_apply_recipe"),
    ("einops.layers.torch", "Rearrange", "forward"),
    ("einops.layers.torch", "Reduce", "forward"),
    ("einops.layers.torch", "EinMix", "forward"),
    ("einops.layers.flax", "EinMix", "__call__"),
)


@contextmanager
def hearing_einops(listener: Listener) -> Iterator[None]:
    """While it lasts `listener` hears the outermost einops calls, and the model goes on with what it returns.

    The functions keep their identity and get another `__code__`, so that a name imported before is heard too. `pack`
    gives the packed array alone, `unpack` the list of arrays.
    """
    with ExitStack() as undo:
        if not _listeners:
            undo.callback(_originals.clear)
            for kind in _PATTERN:
                _replace_function(kind, undo)
            for module, name, method in _LAYERS:
                if module in sys.modules:
                    _replace_method(getattr(sys.modules[module], name), method, undo)
        _listeners.append(listener)
        undo.callback(_listeners.pop)
        yield


def heard(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the replaced function `kind` does: the original, then the listener."""
    pattern = kwargs["pattern"] if "pattern" in kwargs else args[_PATTERN[kind]]
    operands = args if "pattern" in kwargs else args[:-1]
    run = functools.partial(_originals[kind], *args, **kwargs)
    return _outermost(kind, str(pattern), run, operands if kind == "einsum" else ())


def _outermost(kind: str, pattern: str, call: Callable[[], Any], operands: tuple[Any, ...] = ()) -> Any:
    """Run one call; what it calls in turn (repeat calls reduce, a layer its recipe) is part of it and is not heard."""
    if not _listeners:
        return call()
    listener = _listeners[-1]
    _listeners.append(_deaf)
    try:
        output = call()
    finally:
        _listeners.pop()
    if kind == "pack":
        packed, shapes = output
        return listener(Call(kind, pattern, caller()), packed), shapes
    return listener(Call(kind, pattern, caller(), operands), output)


def _deaf(call: Call, output: Any) -> Any:
    """The listener during a call."""
    return output


def _trampoline(*args: Any, **kwargs: Any) -> Any:
    from parity.einops_calls import heard  # absolute: this code runs with the global names of einops

    return heard("KIND", args, kwargs)


def _replace_function(kind: str, undo: ExitStack) -> None:
    import einops

    function = getattr(einops, kind)
    code: CodeType = function.__code__
    original = FunctionType(code, function.__globals__, kind, function.__defaults__, function.__closure__)
    original.__kwdefaults__ = function.__kwdefaults__
    _originals[kind] = original
    template = _trampoline.__code__
    constants = tuple(kind if constant == "KIND" else constant for constant in template.co_consts)
    function.__code__ = template.replace(co_consts=constants, co_name=kind)
    undo.callback(setattr, function, "__code__", code)


def _replace_method(layer: Any, method: str, undo: ExitStack) -> None:
    original = vars(layer)[method]
    kind = layer.__name__.removesuffix("Mixin").lower()

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _outermost(kind, self.pattern, functools.partial(original, self, *args, **kwargs))

    setattr(layer, method, run)
    undo.callback(setattr, layer, method, original)
