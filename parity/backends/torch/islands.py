"""Values of lower precision inside a float64 PyTorch run: where they come in, and the same run without them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ...frames import is_user_code
from ...islands import Island, Told, holds_float32, nudged
from .compiling import uncompiled
from .state import buffers_of

_WIDE = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}


@contextmanager
def trace_islands(
    module: torch.nn.Module,
    side: str = "torchref",
    inputs: Mapping[str, torch.Tensor] | None = None,
    tables: Collection[str] = (),
) -> Iterator[list[Island]]:
    """Record where a float64 run, forward and backward, drops to a lower precision.

    Yields a list that fills in data order while the run goes on, one entry per module and, outside modules, per
    function; what depends on no parameter or input (a table of sines) stands where it meets the data first. Parameters,
    inputs and state may hold float32 numbers; any other tensor that does was computed in float32 and is reported as a
    constant. `inputs` are those that the module's own arguments do not show, `tables` the state that is none.
    """
    trace = _Trace(module, side, inputs or {}, tables)
    handles = (
        []
        if isinstance(module, torch.jit.ScriptModule)
        else [  # which takes no hooks of its own
            module.register_forward_pre_hook(trace.take_inputs, with_kwargs=True)
        ]
    )
    handles += [
        hooks.register_module_forward_pre_hook(trace.enter),
        hooks.register_module_forward_hook(trace.leave, always_call=True),
    ]
    try:
        with uncompiled(), trace:
            yield trace.islands
        trace.release()
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def lift(nudge: int | None = None) -> Iterator[None]:
    """Run forward and backward with every lower-precision float in float64.

    Casts and factories that ask for a lower type get float64, so does a factory that asks for none, and tensors that
    exist already in a lower type are widened where they are read. An altered run, and labelled so: a table that was
    computed in float32 keeps its rounded values. A float32 tensor that is written in place stays float32. With a seed
    to `nudge` by, tensors that exist already are moved by one unit in their last place.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with uncompiled(), _Lift(nudge):
            yield
    finally:
        torch.set_default_dtype(default)


class _Trace(TorchDispatchMode):
    """Sees every operation below autograd; one whose result is low while no tensor it reads is low is an entry."""

    def __init__(
        self, module: torch.nn.Module, side: str, inputs: Mapping[str, torch.Tensor], tables: Collection[str] = ()
    ):
        super().__init__()
        self.side = side
        self.islands: list[Island] = []
        self._found: list[Island] = []  # by the operation that runs
        self._waiting: dict[int, list[Island]] = {}  # storage of what depends on no data -> its islands
        self._told = Told()
        self._names = {id(child): name for name, child in module.named_modules()}
        self._running: list[str] = []
        self._known: dict[int, StorageWeakRef] = {}  # a weak reference keeps the address from being used again
        state = [(name, buffer) for name, buffer, is_saved in buffers_of(module) if is_saved and name not in tables]
        given = [*module.named_parameters(), *inputs.items(), *state]
        self._inputs = {_key(tensor): f"input {name}" for name, tensor in given}
        self._data = set(self._inputs)
        self._buffers = {_key(tensor): name for name, tensor in module.named_buffers()}
        self._forward: dict[int, tuple[str, _Line | None]] = {}  # autograd's sequence number -> place, line

    def take_inputs(self, _: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """The outermost module's tensors: given, not computed."""
        for name, given in [*enumerate(args), *kwargs.items()]:
            for tensor in tree_leaves(given):
                if isinstance(tensor, torch.Tensor):
                    self._inputs.setdefault(_key(tensor), f"input {name}")
                    self._data.add(_key(tensor))

    def enter(self, module: torch.nn.Module, _: Any) -> None:
        """A module starts; one without a name (the root, or made on the way) leaves its caller's."""
        self._running.append(self._names.get(id(module)) or (self._running[-1] if self._running else ""))

    def leave(self, module: torch.nn.Module, _: Any, __: Any) -> None:
        """A module ends, by an error too."""
        self._running.pop()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        operands = [leaf for leaf in read if _is_float(leaf)]
        place, line = self._origin()
        for operand in operands:
            self._meet(operand, place, line)
        # looked at before it runs: in place, it may make of a count what is none (the product that NAdam keeps)
        reads_low = any(operand.dtype in _WIDE and not _is_count(operand) for operand in operands)
        result = function(*args, **(kwargs or {}))
        produced = [leaf for leaf in tree_leaves(result) if _is_float(leaf)]
        if not reads_low:
            for tensor in produced:
                if tensor.dtype in _WIDE and not _is_count(tensor):
                    self._add(str(function).removeprefix("aten."), tensor.dtype, place, line)
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self._place(read, made, place or (line[0].co_qualname if line else ""))
        return result

    def release(self) -> None:
        """What never met the data comes last."""
        for islands in self._waiting.values():
            self._report(islands)

    def _report(self, islands: Sequence[Island]) -> None:
        """Each once, as it met the data first."""
        for island in dict.fromkeys(islands):
            if not any(replace(island, meets=known.meets) == known for known in self.islands):
                self.islands.append(island)

    def _place(self, read: Sequence[torch.Tensor], made: Sequence[torch.Tensor], place: str) -> None:
        """An operation on data reports its islands and those of all that it reads; any other hands them on."""
        waited = [island for tensor in read for island in self._waiting.get(_key(tensor), ())]
        found, self._found = self._found, []
        islands = waited + found
        if any(_key(tensor) in self._data for tensor in read):
            constants = [replace(island, meets=place) if island.operation == "constant" else island for island in found]
            self._report([*(replace(island, meets=place) for island in waited), *constants])
            self._data |= {_key(tensor) for tensor in made}
        for tensor in made:
            self._remember(tensor)
            if islands and _key(tensor) not in self._data:
                self._waiting[_key(tensor)] = list(dict.fromkeys(islands))

    def _origin(self) -> tuple[str, _Line | None]:
        """Module and line of the operation that runs; a backward one has those of its forward one."""
        node = torch._C._current_autograd_node()
        line = _user_line()
        if node is not None and line is None:
            return self._forward.get(node._sequence_nr(), ("", None))
        place = self._running[-1] if self._running else ""
        if node is None:
            # an operation is dispatched after its node was numbered; what follows without a node must not take it over
            self._forward.setdefault(torch.autograd._get_sequence_nr() - 1, (place, line))
        return place, line

    def _meet(self, tensor: torch.Tensor, place: str, line: _Line | None) -> None:
        """A tensor that no operation made is an input, a parameter, a buffer or a constant."""
        key = _key(tensor)
        if key in self._known:
            return
        self._remember(tensor)
        if key in self._inputs:
            if tensor.dtype in _WIDE:
                self._add("input", tensor.dtype, self._inputs[key], None)
        elif _is_count(tensor):
            pass
        elif tensor.dtype in _WIDE or (tensor.dtype == torch.float64 and _holds_float32(tensor)):
            self._add("constant", tensor.dtype, self._buffers.get(key, place), line)

    def _remember(self, tensor: torch.Tensor) -> None:
        self._known.setdefault(_key(tensor), StorageWeakRef(tensor.untyped_storage()))

    def _add(self, operation: str, dtype: torch.dtype, place: str, line: _Line | None) -> None:
        """Report once per module and function, or per line where no module is; constants count apart."""
        constant = operation == "constant"
        by_line = line and not (place or constant or torch._C._current_autograd_node() is not None)
        place = place or (line[0].co_qualname if line else "?")
        if self._told.is_new(constant, place, line and line[0], line if by_line else None):
            source = f"{Path(line[0].co_filename).name}:{line[1]}" if line else ""
            self._found.append(Island(self.side, place, operation, str(dtype).removeprefix("torch."), source))


class _Lift(TorchDispatchMode):
    """Gives every operation float64 for the narrower floats it asks for, reads or makes."""

    def __init__(self, nudge: int | None = None):
        super().__init__()
        self.nudge = nudge

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.view.dtype:  # a reinterpretation of bits has no wider form
            return function(*args, **(kwargs or {}))
        schema = function._schema.arguments
        written = [argument.alias_info is not None and argument.alias_info.is_write for argument in schema]
        args = [x if write else tree_map(self._read, x) for x, write in zip(args, written, strict=False)]
        kwargs = {key: x if key == "out" else tree_map(self._read, x) for key, x in (kwargs or {}).items()}
        result = function(*args, **kwargs)
        return result if any(written) else tree_map(_widen, result)

    def _read(self, x: Any) -> Any:
        if self.nudge is None or not isinstance(x, torch.Tensor) or x.dtype not in _WIDE:
            return _widen(x)
        return nudge_tensor(x, self.nudge)


_Line = tuple[CodeType, int]


def nudge_tensor(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """float32 numbers in float64, one unit in the last place off; of complex ones both parts."""
    if tensor.is_complex():
        return torch.view_as_complex(nudge_tensor(torch.view_as_real(tensor.resolve_conj()), seed))
    return torch.from_numpy(nudged(tensor.detach().cpu().float().numpy(), seed)).to(tensor.device)


def constants_of(module: torch.nn.Module, tables: Collection[str] = ()) -> Iterator[torch.Tensor]:
    """Float32 numbers that a model worked out: of buffers that are not saved with it, and of `tables`."""
    for name, buffer, is_saved in buffers_of(module):
        is_table = not is_saved or name in tables
        if is_table and _is_float(buffer) and (buffer.dtype in _WIDE or _holds_float32(buffer)):
            yield buffer


def _user_line() -> _Line | None:
    """The innermost frame of the model's own code; None inside a backward pass that runs no Python of the model."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_engine_run_backward":
            return None
        if is_user_code(frame.f_code.co_filename):
            return frame.f_code, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _is_float(leaf: Any) -> bool:
    if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
        return False
    return leaf.is_floating_point() or leaf.is_complex()


def _is_count(tensor: torch.Tensor) -> bool:
    """A whole number by itself, as torch.optim's step is: exact in every format."""
    return tensor.numel() == 1 and tensor.is_floating_point() and float(tensor).is_integer()


def _holds_float32(tensor: torch.Tensor) -> bool:
    return holds_float32(tensor.detach().reshape(-1).cpu().numpy())


def _widen(x: Any) -> Any:
    """A dtype or a tensor in float64."""
    if isinstance(x, torch.dtype):
        return _WIDE.get(x, x)
    return x.to(_WIDE[x.dtype]) if isinstance(x, torch.Tensor) and x.dtype in _WIDE else x
