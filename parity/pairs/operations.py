"""The operations of the transformer one by one, as both sides have them, for the 16-bit formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from jaxcore.config import ModelConfig

from ..pair import Operation

ONE_ROUNDING = "float32 inside and one rounding at the end give 1.00"
TWO_ROUNDINGS = "the weights of the softmax are rounded as well: two roundings of independent sign give sqrt(2)"


def operations(config: ModelConfig, seq: int) -> tuple[Operation, ...]:
    """Norm, RoPE, attention, activation, projection and head of one config, at its own widths."""
    import jaxcore
    import torchref

    mirror = torchref.config_from_dict(asdict(config))
    d, h = config.d_model, config.head_width
    t = min(seq, 64)

    def add(name: str, jax: Callable[..., Any], torch: Callable[..., Any], draw: Any, limit: float, why: str) -> None:
        found.append(Operation(name, torch, jax, draw, limit, why))

    found: list[Operation] = []
    if config.norm == "layer_norm":
        add(
            "layer_norm",
            lambda x, weight, bias: jaxcore.layer_norm(x, weight, bias, config.norm_eps),
            lambda x, weight, bias: torchref.layer_norm(x, weight, bias, config.norm_eps),
            _normal(x=(8, d), weight=(d,), bias=(d,)),
            1.1,
            ONE_ROUNDING,
        )
    else:
        offset = 1.0 if config.norm == "rms_norm_plus_one" else 0.0
        add(
            "rms_norm",
            lambda x, weight: jaxcore.rms_norm(x, weight, config.norm_eps, offset),
            lambda x, weight: torchref.rms_norm(x, weight, config.norm_eps, offset),
            _normal(x=(8, d), weight=(d,)),
            1.1,
            ONE_ROUNDING,
        )
    if config.position == "rope":
        add(
            "rotate",
            lambda x, at: jaxcore.rotate(x, *jaxcore.rope_table(config, at, _wide(jaxcore, x)), config.rope_layout),
            lambda x, at: torchref.rotate(x, *torchref.rope_table(mirror, at, _wide(torchref, x)), config.rope_layout),
            _with(_normal(x=(1, t, 2, h)), at=np.arange(t)[None]),
            1.1,
            ONE_ROUNDING,
        )
    heads = {"q": (2, t, config.num_heads, h), "k": (2, t, config.kv_heads, h), "v": (2, t, config.kv_heads, h)}
    seen = np.ones((1, t, t), bool)
    seen = np.tril(seen) if config.causal else seen
    fused = config.kernel == "fused"
    add(
        f"attention ({config.kernel})",
        jaxcore.attend_fused if fused else jaxcore.attend,
        torchref.attend_fused if fused else torchref.attend,
        _with(_normal(**heads), seen=seen),
        1.6,
        TWO_ROUNDINGS,
    )
    add(
        f"activation ({config.activation})",
        lambda x: jaxcore.activate(x, config.activation),
        lambda x: torchref.activate(x, config.activation),
        _normal(x=(8, config.d_ff)),
        1.1,
        ONE_ROUNDING,
    )
    add("matmul", jaxcore.matmul, torchref.matmul, _normal(x=(8, d), w=(d, config.d_ff)), 1.1, ONE_ROUNDING)
    if config.head != "none":
        targets = np.where(np.arange(16) % 5 == 0, -100, np.arange(16) % config.vocab_size)
        add(
            "cross_entropy",
            jaxcore.cross_entropy,
            torchref.cross_entropy,
            _with(_normal(logits=(16, config.vocab_size)), targets=targets),
            64.0,
            "float32 throughout, in units of one float32 rounding",
        )
    return tuple(found)


def _wide(package: Any, x: Any) -> Any:
    return package.at_least_float32(x.dtype)


def _normal(**shapes: tuple[int, ...]) -> Callable[[np.random.Generator], dict[str, np.ndarray]]:
    return lambda generator: {name: generator.standard_normal(shape) for name, shape in shapes.items()}


def _with(
    draw: Callable[[np.random.Generator], dict[str, np.ndarray]], **fixed: np.ndarray
) -> Callable[[np.random.Generator], dict[str, np.ndarray]]:
    return lambda generator: {**draw(generator), **fixed}
