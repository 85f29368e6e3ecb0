"""In which module each piece of work of a PyTorch program was written, forward, backward and in what is run again.

FlopCounterMode's own table of modules takes a backward matmul for that of whichever module its hooks saw last (torch
2.13: of three equal projections of one input it gives the first 3 parts, the second 5, the third 7). Here every node of
the autograd graph remembers the module that made it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from parity.work import FORWARD, FORWARD_BACKWARD, Placed

#: Where something stands that no module wrote.
OUTSIDE = ""
#: Under which name a node of the autograd graph keeps its place.
PLACE = "parity.place"


def is_backward() -> bool:
    """Whether autograd's engine runs: gradients, or what a checkpoint runs again for them."""
    return bool(torch._C._current_graph_task_id() != -1)


class Tally:
    """FLOPs by place, those of the forward pass apart."""

    def __init__(self) -> None:
        self._forward: Counter[str] = Counter()
        self._backward: Counter[str] = Counter()

    def add(self, place: str, flops: int) -> None:
        """Counts something that happens now."""
        (self._backward if is_backward() else self._forward)[place] += flops

    @property
    def placed(self) -> Placed:
        """The counts of both passes; a place without any is left out."""
        both = self._forward + self._backward
        return {FORWARD: dict(+self._forward), FORWARD_BACKWARD: {place: both[place] for place in both}}


class Places:
    """Which module is running, and which one made a node of the autograd graph.

    `listening` is on in what a checkpoint runs again: autograd's engine takes function modes off (torch 2.13).
    """

    def __init__(self, listening: TorchFunctionMode | None = None) -> None:
        self.listening = listening
        self._again = ExitStack()
        self._running: list[str] = []
        self._paths: dict[int, str] = {}
        self._known: list[torch.nn.Module] = []  # kept alive, so that no id is used again

    @property
    def current(self) -> str:
        """The place of what is computed now: the path from the outermost module that runs."""
        node = torch._C._current_autograd_node()
        if node is not None and not self._running:
            return str(_metadata(node).get(PLACE, OUTSIDE))
        return self._running[-1] if self._running else OUTSIDE

    @contextmanager
    def followed(self) -> Iterator[None]:
        """While it lasts modules and the nodes that they make are seen."""
        with ExitStack() as undo:
            undo.callback(hooks.register_module_forward_pre_hook(self._enter).remove)
            undo.callback(hooks.register_module_forward_hook(self._leave, always_call=True).remove)
            undo.enter_context(_Tagging(self))
            yield

    def _enter(self, module: torch.nn.Module, _: Any) -> None:
        if id(module) not in self._paths:
            self._known.append(module)
            for name, child in module.named_modules():
                self._paths.setdefault(id(child), name)
        if not self._running and self.listening is not None and is_backward():
            self._again.enter_context(self.listening)
        self._running.append(self._paths[id(module)])

    def _leave(self, *_: Any) -> None:
        self._running.pop()
        if not self._running:
            self._again.close()


class _Tagging(TorchFunctionMode):
    """Gives every new node of the autograd graph the place in which it was made."""

    def __init__(self, places: Places):
        super().__init__()
        self._places = places

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        place = self._places.current
        waiting = [leaf.grad_fn for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        while waiting:
            node = waiting.pop()
            if node is not None and PLACE not in (kept := _metadata(node)):
                kept[PLACE] = place
                waiting += [following for following, _ in node.next_functions]
        return output


def _metadata(node: Any) -> dict[str, Any]:
    """What a node keeps for whoever asks; the stubs take it for a method."""
    return node.metadata
