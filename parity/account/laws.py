"""The rules of thumb about a model's FLOPs, each with what it really comes to: no framework, no NumPy.

With N tokens and P parameters a training step is said to cost 6 N P: 2 per parameter and token forward, twice that
backward. It leaves out attention, whose products have no parameters, and counts the tables that are only looked up.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .formula import forward_backward_flops, forward_flops, matmul_flops, recomputed_flops

#: The products without parameters.
ATTENTION = ("attention_logits", "attention_values")


@dataclass(frozen=True)
class Law:
    """A rule of thumb: its name, what it comes to for this model, and what that number is."""

    name: str
    value: float
    says: str


def laws(config: Any, batch: int, seq: int, parameters: int, forward_backward: int) -> list[Law]:
    """The rules for one step without recomputation; `forward_backward` are its FLOPs, `parameters` counts all once."""
    tokens = batch * seq
    forward = matmul_flops(config, batch, seq)
    attention = sum(forward[name] for name in ATTENTION)
    total = sum(forward.values())
    found = [
        Law("backward / forward", float(Fraction(forward_backward - total, total)), "the 1:2 law says 2"),
        Law("6 N P / step", 6 * parameters * tokens / forward_backward, "P all parameters, shared ones once"),
        Law(
            "6 N P' / step",
            6 * matmul_parameters(config) * tokens / forward_backward,
            "P' those that are multiplied: blocks and head, no table that is looked up",
        ),
        Law("attention / forward", attention / total, "logits and values, the full square"),
    ]
    if config.causal:
        half = Fraction(seq + 1, 2 * seq)
        found.append(Law("causal half", float(half * attention / total), "of them below the diagonal, the same share"))
    found.append(Law("attention overtakes at", overtaking(config), "tokens: its products as large as all others"))
    return found


def matmul_parameters(config: Any) -> int:
    """Parameters that meet every token in a matmul: weights of the blocks, and of the head even where it is tied."""
    forward = matmul_flops(config, 1, 1)
    return sum(count // 2 for name, count in forward.items() if name not in (*ATTENTION, "pooler"))


def overtaking(config: Any) -> float:
    """The sequence length at which the products without parameters cost as much as those with."""
    attention = sum(matmul_flops(config, 1, 1)[name] for name in ATTENTION)
    return 2 * matmul_parameters(config) / attention


def model_flops(config: Any, batch: int, seq: int, unreached: Collection[str] = ()) -> dict[str, int]:
    """What the model needs, without what `recompute` runs again: forward, and forward and backward."""
    hardware = forward_backward_flops(config, batch, seq, unreached)
    return {
        "forward": forward_flops(config, batch, seq),
        "forward_backward": hardware - recomputed_flops(config, batch, seq),
    }
