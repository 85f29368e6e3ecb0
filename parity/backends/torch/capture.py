"""Seeing inside a PyTorch run: module outputs, einops calls and taps, their gradients; and feeding values in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch.nn.modules import module as hooks

from ...capture import (
    GIVEN,
    ROOT,
    Capture,
    Names,
    call_label,
    check_fed,
    map_arrays,
    map_inputs,
    numbered,
    refuse_unknown,
)
from ...einops_calls import Call, hearing_einops
from ...frames import caller, definition
from ...taps import hearing_taps
from .compiling import is_compiled, is_wrapper, uncompiled, without_wrappers
from .points import Fed, Record
from .versions import from_numpy, is_writable


@contextmanager
def capturing(
    module: torch.nn.Module | None = None,
    *,
    feed: Mapping[str, np.ndarray] | None = None,
    gradients: bool = True,
    keep: Callable[[str], bool] = lambda name: True,
    back: Mapping[str, np.ndarray] | None = None,
) -> Iterator[Recording]:
    """Record every module output, einops call and tap of an eager run, forward and, if it is taken, backward.

    Yields a recording whose `capture()` gives the points seen so far. Names are those of `module.named_modules()`,
    without a module those of the first one that runs. A fed point is recorded as it was computed, and the run goes on
    with the fed value, which ends the backward pass of what follows it; with a gradient in `back` another one starts
    there, once the caller has added `recording.started` to the loss. `keep(name)` says whose values and gradients are
    wanted.

    Differs: an output that is an input or another module's output (nn.Identity, nn.Sequential), a tap and an einops
    result are handed on as a view, so that the gradient is the one of what comes after the point, as in JAX. A module
    whose `forward` is called directly runs no hooks and is not seen.

    Raises:
        ParityUsageError: at the end, if a fed name met no point; at once, if its shape is wrong.
    """
    with ExitStack() as undo:
        recording = Recording(undo, module, dict(feed or {}), gradients, keep, dict(back or {}))
        undo.enter_context(uncompiled())
        for handle in (
            hooks.register_module_forward_pre_hook(recording.enter),
            # not with the keywords: torch 2.13 forgets to take that back, and says ever after that it has global hooks
            hooks.register_module_forward_hook(recording.leave, always_call=True),
        ):
            undo.callback(handle.remove)
        undo.enter_context(hearing_einops(recording.hear_einops))
        undo.enter_context(hearing_taps(recording.hear_tap))
        yield recording
    refuse_unknown(recording.feed, recording.met)


@dataclass(frozen=True)
class _Given:
    """A tensor that became a point as the input of a module, and the one that modules are given for it ever after."""

    tensor: torch.Tensor
    version: int
    follows: torch.Tensor

    def of(self, tensor: torch.Tensor) -> bool:
        """Whether it is this one, not written to since."""
        return self.tensor is tensor and tensor._version == self.version


@dataclass
class _Call:
    """A module that is running, and the tensors that it was given, by id."""

    path: str
    given: set[int] = field(default_factory=set)

    def look(self, _: str, leaf: Any) -> Any:
        """Sees one of them."""
        self.given.add(id(leaf))
        return leaf


class Recording:
    """What a run has shown so far."""

    def __init__(
        self,
        undo: ExitStack,
        module: torch.nn.Module | None,
        feed: dict[str, np.ndarray],
        gradients: bool,
        keep: Callable[[str], bool],
        back: dict[str, np.ndarray],
    ):
        self._undo = undo
        self.feed = feed
        self._starts: list[tuple[torch.Tensor, torch.Tensor]] = []  # where a backward pass starts, and its gradient
        self._back = back
        self.met: list[str] = []
        self._gradients = gradients
        self._keep = keep
        self._names = Names()
        self._begun: Counter[str] = Counter()  # path -> calls
        self._calls: dict[str, list[str]] = {}  # label -> names, those that ran again first
        self._paths: dict[int, str] = {}
        self._known: list[torch.nn.Module] = []  # kept alive, so that no id is used again
        self._hooked: set[int] = set()  # modules that `receive` is a hook of
        self._running: list[_Call] = []
        self._records: dict[str, Record] = {}
        self._aliases: dict[str, str] = {}
        self._point_of: dict[int, str] = {}  # of a tensor in `_handed`
        self._unseen: dict[str, None] = {}
        self._given: dict[int, _Given] = {}  # what was given to a module and was no point then, by id
        self._handed: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()  # outputs so far
        if module is not None:
            self._learn(module)

    @property
    def started(self) -> torch.Tensor | float:
        """What the caller adds to the loss, once the forward pass is over: a checkpoint saves what is made within."""
        return sum(((tensor * gradient).sum() for tensor, gradient in self._starts), start=0.0)

    def capture(self) -> Capture:
        """The points in data order, in NumPy.

        A gradient is zero where the loss does not reach; None where nothing was differentiated, where the point does
        not require one, and for whole numbers.
        """
        differentiated = any(record.gradient is not None for record in self._records.values())
        points = tuple(record.point(differentiated) for record in self._records.values())
        return Capture(points, (*self._unseen,), any(map(is_compiled, self._known)), self._aliases)

    def enter(self, module: torch.nn.Module, args: Any) -> Any:
        """A module starts; one that no known module holds is named after its caller and its class.

        Gives the arguments to go on with where it is too late for a hook that is told the keywords as well.
        """
        hooked = id(module) in self._hooked
        if not self._known:
            self._learn(module)
        if id(module) not in self._paths:
            self._learn(module, f"{self._path()}.{type(module).__name__}".lstrip("."))
        path = self._paths[id(module)]
        self._running.append(_Call(path))
        if is_wrapper(module):  # the module within is given the same, and gives the same
            return None
        self._begun[path] += 1
        return None if hooked else self.receive(module, args, {})[0]

    def receive(
        self, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the module that has started is given; a float tensor that is no point yet becomes one.

        What the root is given is no value of the model's. What stands in containers is left alone: a module may write
        there.
        """
        path = self._path()
        map_arrays((args, kwargs), self._running[-1].look, (torch.nn.Module,))

        def met(label: str, given: Any) -> Any:
            if not isinstance(given, torch.Tensor) or isinstance(given, torch.nn.Parameter):
                return given
            if not (given.is_floating_point() or given.is_complex()):
                return given
            before = self._given.get(id(given))
            if before is not None and before.of(given):
                given = before.follows
            if not path:
                self._handed[id(given)] = given
                self._point_of.pop(id(given), None)
            name = numbered(f"{path}{label}", self._begun[path])
            is_point = self._handed.get(id(given)) is given
            if is_point and name not in self.feed:
                if (point := self._point_of.get(id(given))) is not None:
                    self._aliases.setdefault(name, point)
                return given
            follows = self._meet(f"{path}{label}", GIVEN, given, True, name=name)
            if name in self.feed and not is_point:
                self._overwrite(given, follows)
            self._given[id(given)] = _Given(given, given._version, follows)
            return follows

        return map_inputs(getattr(type(module), "forward", module), args, kwargs, met)

    def leave(self, module: torch.nn.Module, _: Any, output: Any) -> Any:
        """A module ends; gives the output to go on with, None for the one there is, or where an error left none."""
        call = self._running.pop()
        path = call.path
        if is_wrapper(module):
            return None

        def visit(slot: str, leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                if leaf is not None and not isinstance(leaf, bool | int | float | str | torch.Size | torch.dtype):
                    self._skip(f"{path or ROOT}{slot}", f"an output of type {type(leaf).__name__} is not looked into")
                return leaf
            shared = id(leaf) in call.given or self._handed.get(id(leaf)) is leaf
            return self._meet(f"{path or ROOT}{slot}", "module", leaf, shared, where)

        where = "" if path else definition(getattr(type(module), "forward", None))
        replaced = map_arrays(output, visit, (torch.nn.Module,))
        return None if replaced is output else replaced

    def hear_einops(self, call: Call, output: Any) -> Any:
        """One einops call, in whichever module is running."""
        name = f"{self._path()}{call_label(self._path(), call.kind, call.pattern)}"

        def visit(slot: str, leaf: Any) -> Any:
            return self._meet(f"{name}{slot}", "einops", leaf, True) if isinstance(leaf, torch.Tensor) else leaf

        return map_arrays(output, visit)

    def hear_tap(self, name: str, x: Any) -> Any:
        """One tap."""

        def visit(slot: str, leaf: Any) -> Any:
            return self._meet(f"{name}{slot}", "tap", leaf, True) if isinstance(leaf, torch.Tensor) else leaf

        return map_arrays(x, visit)

    def _path(self) -> str:
        return self._running[-1].path if self._running else ""

    def _learn(self, module: torch.nn.Module, prefix: str = "") -> None:
        self._known.append(module)
        for name, child in module.named_modules():
            self._paths.setdefault(id(child), without_wrappers(f"{prefix}.{name}".strip(".")))
            if id(child) in self._hooked or is_wrapper(child):
                continue
            if not isinstance(child, torch.jit.ScriptModule):  # which takes no hooks of its own
                self._undo.callback(child.register_forward_pre_hook(self.receive, with_kwargs=True).remove)
                self._hooked.add(id(child))

    def _skip(self, name: str, reason: str) -> None:
        self._unseen.setdefault(f"{name}: {reason}")

    def _meet(
        self, label: str, source: str, tensor: torch.Tensor, shared: bool, where: str = "", name: str = ""
    ) -> torch.Tensor:
        """Record a value and give the one to go on with; `shared` if the tensor is seen elsewhere too.

        `where` is the place of what nothing of the model's own code has called; `name` is the label, numbered, unless
        another one is given.
        """
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            self._skip(label, "runs inside a torch.func transformation, where it has no value of its own")
            return tensor
        if torch._C._current_graph_task_id() != -1:
            return self._meet_again(label, tensor, shared)
        name = name or self._names.unique(label)
        self._calls.setdefault(label, []).append(name)
        self.met.append(name)
        if self._keep(name):
            self._records[name] = Record(name, source, caller() or where, tensor.detach().clone())
        if name in self._back and tensor.requires_grad:
            self._starts.append((tensor, from_numpy(self._back[name], tensor.device).to(tensor.dtype)))
        return self._go_on(name, tensor, shared)

    def _meet_again(self, label: str, tensor: torch.Tensor, shared: bool) -> torch.Tensor:
        """A checkpoint runs its function again, the last call first: no new point, but the same graph."""
        calls = self._calls.get(label, [])
        for name in reversed(calls):
            if len(calls) == 1 or (name in self._records and torch.equal(self._records[name].value, tensor)):
                calls.insert(0, calls.pop(calls.index(name)))
                return self._go_on(name, tensor, shared)
        if any(name in self._records or name in self.feed for name in calls):
            self._skip(label, "recomputed in the backward pass, where it is not known which of the calls it is")
        return tensor

    def _overwrite(self, tensor: torch.Tensor, fed: torch.Tensor) -> None:
        """Whoever else reads what a module is given goes on with the fed value as well, until the capture ends.

        Autograd is not told: what was computed from the tensor keeps its place in the graph. One whose elements share
        memory (an expanded one) is left as it is.
        """
        if is_writable(tensor):
            self._undo.callback(tensor.data.copy_, tensor.detach().clone())
            tensor.data.copy_(fed.detach())

    def _go_on(self, name: str, tensor: torch.Tensor, shared: bool) -> torch.Tensor:
        follows = tensor
        if name in self.feed:
            check_fed(name, self.feed[name], tensor.shape)
            given = from_numpy(self.feed[name], tensor.device).to(tensor.dtype)
            if torch.is_grad_enabled() and (given.is_floating_point() or given.is_complex()):
                given.requires_grad_()
            follows = Fed.apply(given, tensor, self._running)  # no leaf: the model may write in place
        elif shared and tensor.requires_grad:
            follows = tensor.view_as(tensor)
        record = self._records.get(name)
        if self._gradients and record is not None and follows.requires_grad and not record.watched:
            follows.register_hook(partial(record.hear_gradient, self._running))
            record.watched = True
        self._handed[id(follows)] = follows
        self._point_of[id(follows)] = name
        return follows
