"""Mistakes that only a working precision shows, those that both sides make among them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cases import Case, Cases, drawn, functions, normal

from parity import Jax, Operation, Pair, Torch

known = Cases()


def uniform(*shape: int) -> Any:
    return lambda generator: (generator.uniform(size=shape).astype(np.float32),)


@known("ml_dtypes #63", precisions=("bfloat16",))
def long_sum_in_bfloat16(fixed: bool) -> Pair:
    def candidate(x):
        kept = jnp.promote_types(x.dtype, jnp.float32) if fixed else x.dtype
        start = jnp.zeros(x.shape[0], kept)
        total, _ = jax.lax.scan(lambda total, each: (total + each.astype(kept), None), start, x.T)
        return total.astype(x.dtype)

    return functions(lambda x: x.sum(-1), candidate, uniform(8, 2048))


@known("ml_dtypes #63", precisions=("bfloat16",), batches=8)
def long_sum_of_one_number_in_bfloat16(fixed: bool) -> Pair:
    def candidate(x):
        kept = jnp.promote_types(x.dtype, jnp.float32) if fixed else x.dtype
        total, _ = jax.lax.scan(lambda total, each: (total + each.astype(kept), None), jnp.zeros((), kept), x)
        return total.astype(x.dtype)

    return functions(
        torch.sum,
        candidate,
        uniform(5000),
    )


@known("ml_dtypes #63", precisions=("bfloat16",))
def long_sum_in_bfloat16_on_both_sides(fixed: bool) -> Pair:
    def reference(x):
        kept = torch.promote_types(x.dtype, torch.float32) if fixed else x.dtype
        total = torch.zeros(x.shape[0], dtype=kept)
        for each in x.T:
            total = total + each.to(kept)
        return total.to(x.dtype)

    def candidate(x):
        kept = jnp.promote_types(x.dtype, jnp.float32) if fixed else x.dtype
        start = jnp.zeros(x.shape[0], kept)
        total, _ = jax.lax.scan(lambda total, each: (total + each.astype(kept), None), start, x.T)
        return total.astype(x.dtype)

    return functions(reference, candidate, uniform(16, 1024))


@known("jax #37762")
def logarithm_of_subnormal_numbers(fixed: bool) -> Pair:
    tiny = np.finfo(np.float32).tiny
    reference = (lambda x: x.clamp(min=tiny).log()) if fixed else torch.log
    candidate = (lambda x: jnp.log(jnp.maximum(x, tiny))) if fixed else jnp.log
    return functions(
        reference,
        candidate,
        (np.array([1e-40, 2e-39, 1e-3, 0.5] * 2, np.float32),),
    )


@known("jax #37762")
def products_of_subnormal_numbers(fixed: bool) -> Pair:
    x = np.array([1e-36, 2e-35] if fixed else [1e-40, 2e-38], np.float32)
    return functions(lambda x: x * 1e10, lambda x: x * 1e10, (x,))


@known("jax #37762")
def exponential_below_the_normal_range(fixed: bool) -> Pair:
    return functions(torch.exp, jnp.exp, (np.array([-80.0 if fixed else -90.0] * 3, np.float32),))


def feed_forward(fixed: bool) -> dict[str, np.ndarray]:
    scale = 2.0**-4 if fixed else 1.0
    return {
        "h": np.abs(drawn(4, 2048)) * 12 * np.float32(scale),
        "w": np.abs(drawn(2048, 64)) * 4,
    }


@known("transformers #5651", precisions=("float16",))
def product_beyond_float16(fixed: bool) -> Pair:
    return functions(lambda h, w: h @ w, lambda h, w: h @ w, feed_forward(fixed))


@known("transformers #5651", precisions=("float16",))
def network_beyond_float16(fixed: bool) -> Pair:
    params = {"up": np.abs(drawn(64, 256)) * 4, "down": np.abs(drawn(256, 64)) * 4}
    if fixed:
        params["up"] = params["up"] / 256
    reference = Torch(lambda params, x: F.layer_norm(F.relu(x @ params["up"]) @ params["down"], (64,)), params)

    def candidate(params, x):
        y = jax.nn.relu(x @ params["up"]) @ params["down"]
        y = y - jnp.mean(y, -1, keepdims=True)
        return y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5)

    return Pair(
        "feed forward",
        reference,
        Jax(candidate, params),
        inputs=lambda generator: (np.abs(generator.standard_normal((8, 64))),),
    )


@known("transformers #5651", precisions=("float16",))
def weight_beyond_float16(fixed: bool) -> Pair:
    weight = drawn(64, 64)
    weight[0, 0] = 6e4 if fixed else 7e4
    linear = lambda params, x: x @ params["w"]  # noqa: E731
    params = {"w": weight}
    return Pair("linear", Torch(linear, params), Jax(linear, params), inputs=normal(8, 64, scale=2.0**-8))


@known("transformers #9295", precisions=("float16",))
def squares_beyond_float16(fixed: bool) -> Pair:
    def root_mean_square(x):
        if fixed:
            x = x * 2.0**-8
        return x / ((x * x).mean(-1)[:, None] + 1e-6) ** 0.5

    return functions(root_mean_square, root_mean_square, normal(8, 64, scale=300))


@known("naive logsumexp")
def exponentials_beyond_float32(fixed: bool) -> Pair:
    def naive(module: Any) -> Any:
        def function(x):
            most = module.amax(x, -1)[:, None] if fixed else 0
            return module.log(module.exp(x - most).sum(-1)) + (most[:, 0] if fixed else 0)

        return function

    return functions(naive(torch), naive(jnp), normal(8, 16, scale=10, shift=90))


@known("jax #37358")
def fast_variance_on_both_sides(fixed: bool) -> Pair:
    def function(x):
        mean = x.mean(-1)[:, None]
        variance = ((x - mean) ** 2).mean(-1) if fixed else (x * x).mean(-1) - mean[:, 0] ** 2
        return (x - mean) / (variance[:, None] + 1e-5) ** 0.5

    return functions(function, function, normal(8, 64, shift=1000))


def rotation(module: Any, dtype: Any, wide: Any, fixed: bool, cast: Any) -> Any:
    """RoPE with its positions in the type of the input, or in a wide one."""

    def function(x):
        kind = wide(x) if fixed else x.dtype
        positions = cast(module.arange(x.shape[0]), kind)
        rates = cast(10000.0 ** (-module.arange(0, x.shape[1], 2) / x.shape[1]), kind)
        angles = positions[:, None] * rates[None]
        cos, sin = cast(module.cos(angles), x.dtype), cast(module.sin(angles), x.dtype)
        a, b = x[:, ::2], x[:, 1::2]
        return module.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)

    return function


@known("transformers #29285", precisions=("bfloat16",))
def positions_in_bfloat16(fixed: bool) -> Pair:
    reference = rotation(
        torch, None, lambda x: torch.promote_types(x.dtype, torch.float32), fixed, lambda x, kind: x.to(kind)
    )
    candidate = rotation(
        jnp, None, lambda x: jnp.promote_types(x.dtype, jnp.float32), fixed, lambda x, kind: x.astype(kind)
    )
    return functions(reference, candidate, normal(4096, 16))


@known("transformers #29285", precisions=("bfloat16",))
def positions_in_bfloat16_on_one_side(fixed: bool) -> Pair:
    reference = rotation(
        torch, None, lambda x: torch.promote_types(x.dtype, torch.float32), True, lambda x, kind: x.to(kind)
    )
    candidate = rotation(
        jnp, None, lambda x: jnp.promote_types(x.dtype, jnp.float32), fixed, lambda x, kind: x.astype(kind)
    )
    return functions(reference, candidate, normal(4096, 16))


def torch_norm(scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A norm by 1 + scale, in float32 or more, rounded once."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    return (normed * (1 + scale.to(wide.dtype))).to(x.dtype)


def jax_norm(fixed: bool) -> Any:
    """The same, or with 1 + scale in the type of the input."""

    def function(scale, x):
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
        if fixed:
            return (normed * (1 + scale.astype(wide.dtype))).astype(x.dtype)
        return normed.astype(x.dtype) * (1 + scale)

    return function


SCALE = np.full(256, 3.5e-3, np.float32)


@known("vllm #3653", precisions=("bfloat16",), batches=8)
def one_plus_scale_in_bfloat16(fixed: bool) -> Pair:
    norm = jax_norm(fixed)
    return Pair(
        "gemma norm",
        Torch(lambda params, x: torch_norm(params["scale"], x), {"scale": SCALE}),
        Jax(lambda params, x: norm(params["scale"], x), {"scale": SCALE}),
        inputs=normal(64, 256),
    )


@known("vllm #3653", precisions=("bfloat16",))
def one_plus_scale_in_bfloat16_as_an_operation(fixed: bool) -> Pair:
    def draw(generator: np.random.Generator) -> dict[str, np.ndarray]:
        return {"scale": SCALE.astype(np.float64), "x": generator.standard_normal((64, 256))}

    once = "float32 inside and one rounding: sqrt(1 + 0.3^2)"
    operation = Operation("gemma norm", torch_norm, jax_norm(fixed), draw, 1.044, once)
    return replace(one_plus_scale_in_bfloat16(fixed), operations=(operation,))


@known("vllm #3653", precisions=("bfloat16",), batches=8)
def embedding_scale_in_bfloat16(fixed: bool) -> Pair:
    def candidate(x):
        scale = jnp.asarray(3072**0.5, jnp.promote_types(x.dtype, jnp.float32) if fixed else x.dtype)
        return (x * scale).astype(x.dtype)

    def reference(x):
        return (x.to(torch.promote_types(x.dtype, torch.float32)) * 3072**0.5).to(x.dtype)

    return functions(reference, candidate, normal(64, 256))


@known("flow-rl #12")
def product_in_tensorfloat32(fixed: bool) -> Pair:
    def short(x):  # what a GPU's tensor core reads of a float32 number
        return x if fixed or x.dtype != jnp.float32 else jax.lax.reduce_precision(x, 8, 10)

    inputs = {"a": drawn(64, 64), "b": drawn(64, 64, seed=1)}
    return functions(lambda a, b: a @ b, lambda a, b: short(a) @ short(b), inputs)


@known("pytorch #35086")
def pixels_beyond_255(fixed: bool) -> Pair:
    reference = (lambda x: x.clamp(0, 255).to(torch.uint8)) if fixed else lambda x: x.to(torch.uint8)
    candidate = (lambda x: x.clip(0, 255).astype(jnp.uint8)) if fixed else lambda x: x.astype(jnp.uint8)
    return functions(reference, candidate, (np.array([-1.5, 12.7, 255.4, 300.0], np.float32),))


@known("pytorch #35086")
def whole_numbers_of_no_number(fixed: bool) -> Pair:
    x = np.array([3e9, -3e9, np.nan, 7.2], np.float32)
    reference = (lambda x: x.nan_to_num(0).clamp(-9, 9).int()) if fixed else lambda x: x.int()
    candidate = (lambda x: jnp.nan_to_num(x).clip(-9, 9).astype(int)) if fixed else lambda x: x.astype(jnp.int32)
    return functions(reference, candidate, (x,))


@pytest.mark.parametrize(("case", "fixed"), known.params())
def test_precision(case: Case, fixed: bool) -> None:
    case.hold(fixed)
