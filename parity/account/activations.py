"""What a forward pass keeps for the backward pass, in bytes, from the sizes alone: no framework, no NumPy.

A tensor is kept where the gradient of an operation needs it: a matmul needs both operands, a norm its input and the
statistics of every row, an activation its input (ReLU its output), softmax its output, the fused attention kernel its
operands, its output and one logarithm per row. What several operations need is kept once; parameters are not counted
here. With T = B S tokens, D d_model, n heads, k key/value heads, h head width, F d_ff, V vocabulary, p bytes:

    each norm                    p T D, and 4 T or 8 T of statistics
    q, k, v projections          p T D, once for the three
    attention                    p T (n + 2 k) h; written out 4 B n S S as well (softmax in float32) and p B n S S where
                                 p < 4; fused p T n h, which is the output projection's input, and 4 B n S
    output projection            p T n h
    up (and gate) projection     p T D
    activation                   p T F; gated 3 p T F: gate, up, activated gate
    down projection              p T F
    head                         p T D; the loss 4 T V (the logarithm of softmax in float32)

In a GPT block with F = 4 D these are 16 copies of the stream, 32 bytes per element in bf16, and the attention matrices
(Korthikanti et al. 2022, section 4, count 34: with dropout masks of 1 byte, and softmax in 16 bits, so that theirs are
5 n S / D more where these are 6 n S / D). `written_out` counts instead what the functions of jaxcore and torchref keep,
whose norms, masks and activations are several operations: see `_written_out`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: Softmax, statistics and losses are computed in at least this many bytes.
WIDE = 4
#: An index of a table, and a truth value.
INDEX, BOOL = 8, 1


@dataclass(frozen=True)
class Kept:
    """One tensor: the module that keeps it ("attention.o_proj"), what it is, and its bytes."""

    module: str
    what: str
    bytes: int


def block_activations(config: Any, batch: int, seq: int, width: int, *, written_out: bool = False) -> list[Kept]:
    """What one block keeps; `width` is the bytes of an element of the stream."""
    tokens, wide = batch * seq, max(width, WIDE)
    stream, heads = tokens * config.d_model, tokens * config.num_heads * config.head_width
    keys, hidden = tokens * config.kv_heads * config.head_width, tokens * config.d_ff
    matrix = batch * config.num_heads * seq * seq
    kept = [
        *_norm("attention_norm", config, tokens, config.d_model, width, written_out),
        Kept("attention.q_proj", "input of the three projections", width * stream),
    ]
    if config.qk_norm:
        for name, elements in (("q_norm", heads), ("k_norm", keys)):
            rows = elements // config.head_width
            kept += _norm(f"attention.{name}", config, rows, config.head_width, width, written_out)
    kept += [Kept("attention", "queries", width * heads), Kept("attention", "keys and values", 2 * width * keys)]
    if config.kernel == "fused":
        kept.append(Kept("attention", "logarithm of the sum of each row", WIDE * batch * config.num_heads * seq))
    else:
        kept.append(Kept("attention", "softmax", wide * matrix))
        if written_out:
            kept.append(Kept("attention", "softmax times mask", width * matrix))
        elif width < wide:
            kept.append(Kept("attention", "softmax rounded", width * matrix))
    kept += [
        Kept("attention.o_proj", "input", width * heads),
        *_norm("mlp_norm", config, tokens, config.d_model, width, written_out),
        Kept("mlp.up_proj", "input", width * stream),
        *_activation(config, hidden, width, written_out),
        Kept("mlp.down_proj", "input", width * hidden),
    ]
    return kept


def outer_activations(config: Any, batch: int, seq: int, width: int, *, written_out: bool = False) -> list[Kept]:
    """What the model keeps outside its blocks: tables' indices, angles, the last norm, the head and the loss."""
    tokens = batch * seq
    kept = [Kept("token_embedding", "tokens", INDEX * tokens)]
    if config.position == "learned":
        kept.append(Kept("position_embedding", "positions", INDEX * seq))
    if config.position == "rope":
        kept.append(Kept("attention", "cosines and sines", WIDE * tokens * config.rotary_width))
    if config.token_types:
        kept.append(Kept("type_embedding", "types", INDEX * tokens))
    if config.embedding_norm:
        kept += _norm("embedding_norm", config, tokens, config.d_model, width, written_out)
    if written_out and config.kernel == "einsum":
        kept.append(Kept("attention", "which keys are seen", BOOL * seq * seq))
    if config.final_norm:
        kept += _norm("final_norm", config, tokens, config.d_model, width, written_out)
    if config.head != "none":
        kept.append(Kept("head", "input", width * tokens * config.d_model))
        kept.append(Kept("loss", "logarithm of softmax", max(width, WIDE) * tokens * config.vocab_size))
        kept.append(Kept("loss", "targets and which of them count", (INDEX + BOOL) * tokens + INDEX))
    return kept


def _norm(module: str, config: Any, rows: int, size: int, width: int, written_out: bool) -> Iterator[Kept]:
    wide = max(width, WIDE)
    centred = config.norm == "layer_norm"
    if written_out:
        yield Kept(module, "centred values" if centred else "input", wide * rows * size)
        yield Kept(module, "normed values before their weight", wide * rows * size)
        yield Kept(module, "reciprocal root of each row", wide * rows)
        if not centred:
            yield Kept(module, "weight and its offset", wide * size)
    else:
        yield Kept(module, "input", width * rows * size)
        yield Kept(module, "statistics of each row", (2 if centred else 1) * wide * rows)


def _activation(config: Any, hidden: int, width: int, written_out: bool) -> Iterator[Kept]:
    """Computed in at least float32 where it is written out: its input is kept so."""
    if config.activation == "relu":  # its output, which the next matmul keeps
        return
    wide = max(width, WIDE) if written_out else width
    yield Kept("mlp", "input of the activation", wide * hidden)
    if config.gated:
        yield Kept("mlp", "activated gate and up", 2 * width * hidden)
