"""Matmul FLOPs from the einops patterns of a PyTorch model: what its author wrote, not what PyTorch made of it.

Forward, a call costs twice the product of its distinct axes. Backward, each operand that needs a gradient costs the
einsum of its gradient, where the result's gradient is taken at all. A call that a checkpoint runs again costs its
forward once more. `F.scaled_dot_product_attention` counts as the two einsums that it stands for, over the full square
of queries and keys; what its kernel works out twice is not counted.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from parity.account.einsum import parse_einsum
from parity.einops_calls import Call
from parity.errors import ParityUsageError

from .places import Places, Tally, is_backward


class Patterns(TorchFunctionMode):
    """Counts what is heard of einops, and the fused attention, which it sees itself."""

    def __init__(self, places: Places):
        super().__init__()
        self.tally = Tally()
        self._places = places

    def hear(self, call: Call, output: Any) -> Any:
        """One einops call.

        Raises:
            ParityUsageError: a pattern that cannot be counted, or a layer with a weight of its own.
        """
        if call.kind == "einmix":
            raise ParityUsageError(f"einops: einsum with its weight as an operand, got EinMix at {call.where}")
        if call.kind == "einsum":
            parsed = parse_einsum(call.pattern, [tuple(each.shape) for each in call.operands])
            costs = [(each, parsed.backward(index)) for index, each in enumerate(call.operands)]
            self._add(parsed.forward, costs, output)
        return output

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            q, k, v = args[:3]
            logits = 2 * math.prod(q.shape) * k.shape[-2]
            values = 2 * math.prod(q.shape[:-1]) * k.shape[-2] * v.shape[-1]
            # the gradient of the weights costs as much as the values, and is taken where queries or keys need theirs
            weights = q if q.requires_grad else k
            self._add(logits + values, [(q, logits), (k, logits), (v, values), (weights, values)], output)
        return output

    def _add(self, forward: int, backward: list[tuple[torch.Tensor, int]], output: torch.Tensor) -> None:
        """One product: its forward now, and the cost of each operand's gradient if the backward pass comes to it."""
        place = self._places.current
        self.tally.add(place, forward)
        cost = sum(flops for operand, flops in backward if operand.requires_grad)
        # a checkpoint's second run makes no new graph
        if cost and output.requires_grad and not is_backward():
            output.register_hook(lambda _: self.tally.add(place, cost))
