"""The operations of the transformer one by one, as both sides have them when these are made, for the 16-bit formats.

Their limits are in units of one rounding of the exact result. A value rounds with a relative root mean square error of
u / sqrt(12) just below a power of two, of u / sqrt(3) just above; spread evenly between they pay 0.68 u / sqrt(3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from jaxcore.config import ModelConfig

from ..pair import Operation

Draw = Callable[[np.random.Generator], dict[str, np.ndarray]]

ONE = math.sqrt(1 + 0.3**2)
ONE_ROUNDING = "float32 inside (at most 0.3 of a 16-bit rounding) and one rounding: sqrt(1 + 0.3^2)"
TWO = math.sqrt(1 + (1 / 0.68) ** 2)
TWO_ROUNDINGS = "two roundings, the inner one at worst just above a power of two: sqrt(1 + (1 / 0.68)^2)"
LOSS = 64.0
LOSS_ROUNDINGS = "float32 throughout, in units of one float32 rounding: 64 (convention; clean runs need 10)"

#: Tokens that an operation sees: longer adds nothing, the limits do not depend on it.
LONGEST = 64


def operations(config: ModelConfig, seq: int) -> tuple[Operation, ...]:
    """Norm, RoPE, attention, activation, projection and loss of one config, at its own widths."""
    return tuple(
        operation
        for part in (_norms, _rope, _attention, _activations, _products, _loss)
        for operation in part(config, min(seq, LONGEST))
    )


def _norms(config: ModelConfig, seq: int) -> Iterator[Operation]:
    import jaxcore
    import torchref

    offset = 1.0 if config.norm == "rms_norm_plus_one" else 0.0
    widths = {config.norm: config.d_model} | ({"qk_norm": config.head_width} if config.qk_norm else {})
    for name, width in widths.items():
        if config.norm == "layer_norm":
            sides = _either(torchref.layer_norm, jaxcore.layer_norm, config.norm_eps)
            draw = _normal(x=(8, width), weight=(width,), bias=(width,))
        else:
            sides = _either(torchref.rms_norm, jaxcore.rms_norm, config.norm_eps, offset)
            draw = _normal(x=(8, width), weight=(width,))
        yield Operation(name, *sides, draw, ONE, ONE_ROUNDING)


def _rope(config: ModelConfig, seq: int) -> Iterator[Operation]:
    import jaxcore
    import torchref

    if config.position != "rope":
        return
    mirror = torchref.config_from_dict(asdict(config))
    yield Operation(
        "rotate",
        _rotation(mirror, torchref.rotate, torchref.rope_table, torchref.at_least_float32),
        _rotation(config, jaxcore.rotate, jaxcore.rope_table, jaxcore.at_least_float32),
        _normal({"at": np.arange(seq)[None]}, x=(1, seq, 2, config.head_width)),
        ONE,
        ONE_ROUNDING,
    )


def _attention(config: ModelConfig, seq: int) -> Iterator[Operation]:
    import jaxcore
    import torchref

    seen = np.ones((1, seq, seq), bool)
    seen = np.tril(seen) if config.causal else seen
    seen[:, 1] = False  # a query that sees no key
    queries, keys = (2, seq, config.num_heads, config.head_width), (2, seq, config.kv_heads, config.head_width)
    fused = config.kernel == "fused"
    yield Operation(
        f"attention ({config.kernel})",
        torchref.attend_fused if fused else torchref.attend,
        jaxcore.attend_fused if fused else jaxcore.attend,
        _normal({"seen": seen}, q=queries, k=keys, v=keys),
        TWO,
        f"the weights of the softmax and the result: {TWO_ROUNDINGS}",
    )


def _activations(config: ModelConfig, seq: int) -> Iterator[Operation]:
    import jaxcore
    import torchref

    name = config.activation
    of_torch, of_jax = torchref.activate, jaxcore.activate
    yield Operation(
        f"activation ({name})",
        *_either(of_torch, of_jax, name),
        _normal(x=(8, config.d_ff)),
        ONE,
        ONE_ROUNDING,
    )
    if config.gated:
        yield Operation(
            f"gate ({name})",
            lambda gate, up: of_torch(gate, name) * up,
            lambda gate, up: of_jax(gate, name) * up,
            _normal(gate=(8, config.d_ff), up=(8, config.d_ff)),
            TWO,
            f"the gate and the product: {TWO_ROUNDINGS}",
        )


def _products(config: ModelConfig, seq: int) -> Iterator[Operation]:
    import jaxcore
    import torchref

    d, f = config.d_model, config.d_ff
    of_torch, of_jax = torchref.Projection, jaxcore.Projection
    yield Operation("matmul", torchref.matmul, jaxcore.matmul, _normal(x=(8, d), w=(d, f)), ONE, ONE_ROUNDING)
    yield Operation(
        "projection with bias",
        lambda x, weight, bias: of_torch({"weight": weight, "bias": bias})(x, "b f, f d -> b d"),
        lambda x, weight, bias: of_jax({"weight": weight, "bias": bias})(x, "b f, f d -> b d"),
        _normal(x=(8, f), weight=(f, d), bias=(d,)),
        ONE,
        ONE_ROUNDING,
    )


def _loss(config: ModelConfig, seq: int) -> Iterator[Operation]:
    import jaxcore
    import torchref

    if config.head == "none":
        return
    targets = np.where(np.arange(seq) % 5 == 0, -100, np.arange(seq) % config.vocab_size)
    yield Operation(
        "cross_entropy",
        torchref.cross_entropy,
        jaxcore.cross_entropy,
        _normal({"targets": targets}, logits=(seq, config.vocab_size)),
        LOSS,
        LOSS_ROUNDINGS,
    )


def _either(
    of_torch: Callable[..., Any], of_jax: Callable[..., Any], *settings: Any
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Both sides' functions with their settings after the operands."""
    return lambda *operands: of_torch(*operands, *settings), lambda *operands: of_jax(*operands, *settings)


def _rotation(config: Any, rotate: Any, table: Any, at_least_float32: Any) -> Callable[..., Any]:
    return lambda x, at: rotate(x, *table(config, at, at_least_float32(x.dtype)), config.rope_layout)


def _normal(fixed: dict[str, np.ndarray] | None = None, **shapes: tuple[int, ...]) -> Draw:
    """Standard normal operands by name, the fixed ones after them."""
    return lambda generator: {
        **{name: generator.standard_normal(shape) for name, shape in shapes.items()},
        **(fixed or {}),
    }
