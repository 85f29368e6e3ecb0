"""Matmul FLOPs of the transformer from its sizes alone: exact Python integers, no framework, no NumPy.

A product and its sum count two, so that x "b t d" times w "d f" costs 2 B T D F. With B batch, T sequence, D d_model,
n heads, k key/value heads, h head width, F d_ff, V vocabulary, L layers:

    q_proj, o_proj               2 B T D n h   each, per layer
    k_proj, v_proj               2 B T D k h   each, per layer
    attention logits, values     2 B T T n h   each, per layer: the full square, with a causal mask or a window too
    gate_proj, up_proj, down     2 B T D F     each, per layer (gate_proj where the MLP is gated)
    head                         2 B T D V     tied or untied
    pooler                       2 B D D       the first position only

Embedding tables are looked up and norms, rotations, softmax and optimizers multiply element by element: no matmul.
`config` is jaxcore's ModelConfig or torchref's, or anything with the same attributes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from parity.errors import ParityUsageError


def matmul_flops(config: Any, batch: int, seq: int) -> dict[str, int]:
    """Forward FLOPs of each class of matmul, all layers together (equations: head of this module).

    Raises:
        ValueError: batch or seq is no whole number of at least 1.
    """
    for name, size in (("batch", batch), ("seq", seq)):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ParityUsageError(f"{name}: a whole number, at least 1, got {size!r}; correct it")
    tokens = batch * seq
    d, n, h, layers = config.d_model, config.num_heads, config.head_width, config.num_layers
    per_layer = {
        "q_proj": 2 * tokens * d * n * h,
        "k_proj": 2 * tokens * d * config.kv_heads * h,
        "v_proj": 2 * tokens * d * config.kv_heads * h,
        "attention_logits": 2 * tokens * seq * n * h,
        "attention_values": 2 * tokens * seq * n * h,
        "o_proj": 2 * tokens * n * h * d,
        **({"gate_proj": 2 * tokens * d * config.d_ff} if config.gated else {}),
        "up_proj": 2 * tokens * d * config.d_ff,
        "down_proj": 2 * tokens * config.d_ff * d,
    }
    flops = {name: layers * count for name, count in per_layer.items()}
    if config.head != "none":
        flops["head"] = 2 * tokens * d * config.vocab_size
    if config.pooler:
        flops["pooler"] = 2 * batch * d * d
    return flops


def forward_flops(config: Any, batch: int, seq: int) -> int:
    """FLOPs of one call of the model."""
    return sum(matmul_flops(config, batch, seq).values())


def forward_backward_flops(config: Any, batch: int, seq: int, unreached: Collection[str] = ()) -> int:
    """FLOPs of every output and the gradient of every parameter; the loss needs all but the `unreached` matmuls."""
    return sum(step_flops(config, batch, seq, unreached).values())


def step_flops(config: Any, batch: int, seq: int, unreached: Collection[str] = ()) -> dict[str, int]:
    """Forward, backward and recomputed FLOPs of each class of matmul, all layers together.

    Backward, y = x w needs dx = dy w^T and dw = x^T dy, each as large as y: three times forward. No dx is spared, since
    below the first projection lies the embedding table, a parameter itself; q k and weights v have two operands alike.
    """
    again = recomputed(config)
    return {
        name: count * (1 + 2 * (name not in unreached) + (name in again))
        for name, count in matmul_flops(config, batch, seq).items()
    }


def recomputed(config: Any) -> frozenset[str]:
    """The classes of matmuls that `recompute` runs again: those of a block, none without it.

    A pre-norm block ends in x + down_proj(...), a value that no gradient asks for: both frameworks spare that matmul.
    A post-norm block ends in norm(x + down_proj(...)), whose gradient needs it: it runs again as well.
    """
    if not config.recompute:
        return frozenset()
    outside = {"head", "pooler"} if config.norm_position == "post" else {"head", "pooler", "down_proj"}
    return frozenset(matmul_flops(config, 1, 1)) - outside


def recomputed_flops(config: Any, batch: int, seq: int) -> int:
    """FLOPs that `recompute` adds, 0 without it."""
    again = recomputed(config)
    return sum(count for name, count in matmul_flops(config, batch, seq).items() if name in again)
