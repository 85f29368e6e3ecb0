"""FLOPs of one PyTorch step by place, by PyTorch's counter and by the model's einops patterns, in one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from parity.einops_calls import hearing_einops
from parity.runs import Arrays
from parity.trees import Form, leaves
from parity.work import Placed

from .count import CONVOLUTIONS, counting, to_meta
from .patterns import Patterns
from .places import Places, Tally
from .versions import from_numpy


def placed_flops(function: Callable[..., Any], *args: Any, patterns: bool = False) -> dict[str, Placed]:
    """What `function(*args)` costs by the module that wrote it, on the meta device as in `counted_flops`.

    Forward is what runs outside autograd's engine; both passes together need a function that calls `backward`. The sum
    over the places of "torch" is `counted_flops`; "einops" is there with `patterns`.

    Raises:
        ValueError: as `counted_flops`; with `patterns` a pattern that cannot be counted.
    """
    moved = tree_map(to_meta, args)
    places = Places()
    counter = _Counter(places)
    methods = {"torch": counter.tally}
    with ExitStack() as stack:
        stack.enter_context(counting(counter))
        if patterns:
            places.listening = heard = Patterns(places)
            methods["einops"] = heard.tally
            stack.enter_context(hearing_einops(heard.hear))
            stack.enter_context(heard)
        stack.enter_context(places.followed())
        function(*moved)
    return {method: tally.placed for method, tally in methods.items()}


def module_flops(module: nn.Module, form: Form, inputs: Arrays, call: Callable[..., Any] | None) -> tuple[Placed, int]:
    """What a module as it stands costs by place, and its parameters, shared ones counted once, frozen ones never.

    Differentiated is the sum of every float output; `call` as in `Torch`.

    Raises:
        ValueError: as `counted_flops`.
    """

    def step(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
        returned = form.call(partial(call, module) if call else module, tensors)
        floats = [leaf for _, leaf in leaves(returned) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
        total = sum((leaf.sum() for leaf in floats), torch.zeros(()))
        if total.requires_grad:
            total.backward()

    device = torch.device("meta")
    tensors = {name: from_numpy(array, device) for name, array in inputs.items()}
    trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    return placed_flops(step, module, tensors)["torch"], trained


class _Counter(FlopCounterMode):
    """PyTorch's counter with a count for each place."""

    def __init__(self, places: Places):
        super().__init__(display=False, custom_mapping=CONVOLUTIONS)
        self.tally = Tally()
        self._places = places

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        if func_packet in self.flop_registry:
            self.tally.add(self._places.current, self.flop_registry[func_packet](*args, **kwargs, out_val=out))
        return out
