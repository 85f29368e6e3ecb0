"""Mistakes in values: the same name for another function, other defaults, other edges."""

from __future__ import annotations

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import torch.nn.functional as F
from cases import Case, Cases, channels_last, drawn, functions, normal, seeded

from parity import Jax, Linen, Pair, Torch

known = Cases()


@known("timm #2105")
def gelu_default(fixed: bool) -> Pair:
    return functions(F.gelu, partial(jax.nn.gelu, approximate=not fixed), normal(13, 11))


@known("jax #37358", bug="FAIL")
def fast_variance(fixed: bool) -> Pair:
    norm = torch.nn.LayerNorm(64, eps=1e-5)
    flax = nn.LayerNorm(epsilon=1e-5, use_fast_variance=not fixed)
    variables = {"params": {"scale": np.ones(64, np.float32), "bias": np.zeros(64, np.float32)}}
    return Pair("layer norm", norm, Linen(flax, variables), inputs=normal(8, 64, shift=1000))


@known("gpt-neox #1342")
def rms_norm_eps_outside_the_root(fixed: bool) -> Pair:
    def rms_norm(params, x):
        square = jnp.mean(x * x, -1, keepdims=True)
        return params["weight"] * x / (jnp.sqrt(square + 1e-5) if fixed else jnp.sqrt(square) + 1e-5)

    return Pair(
        "rms norm",
        torch.nn.RMSNorm(64, eps=1e-5),
        Jax(rms_norm, {"weight": np.ones(64, np.float32)}),
        inputs=normal(8, 64),
    )


@known("jax #11252")
def transposed_convolution_without_the_flip(fixed: bool) -> Pair:
    reference = seeded(torch.nn.ConvTranspose2d, 3, 4, 4, stride=2, padding=1, bias=False)
    kernel = reference.weight.detach().numpy().transpose(2, 3, 0, 1)
    if fixed:
        kernel = kernel[::-1, ::-1]
    module = nn.ConvTranspose(4, (4, 4), strides=(2, 2), padding="SAME", use_bias=False)
    return Pair(
        "upsampling",
        Torch(reference, call=channels_last),
        Linen(module, {"params": {"kernel": kernel}}),
        inputs=normal(2, 5, 5, 3),
    )


@known("jax #11252")
def transposed_convolution_with_swapped_channels(fixed: bool) -> Pair:
    reference = seeded(torch.nn.ConvTranspose2d, 4, 4, 4, stride=2, padding=1, bias=False)
    kernel = reference.weight.detach().numpy().transpose((2, 3, 1, 0) if fixed else (2, 3, 0, 1))
    module = nn.ConvTranspose(4, (4, 4), strides=(2, 2), padding="SAME", use_bias=False, transpose_kernel=True)
    return Pair(
        "upsampling",
        Torch(reference, call=channels_last),
        Linen(module, {"params": {"kernel": kernel}}),
        inputs=normal(2, 5, 5, 4),
    )


def resized(x: torch.Tensor, **how) -> torch.Tensor:
    return F.interpolate(x.permute(0, 3, 1, 2), size=(16, 16), **how).permute(0, 2, 3, 1)


@known("jax #11206")
def resize_with_aligned_corners(fixed: bool) -> Pair:
    def candidate(x):
        if not fixed:
            return jax.image.resize(x, (1, 16, 16, 1), "bilinear")
        scale = jnp.full(2, 15 / 7, x.dtype)
        shift = 0.5 - scale / 2
        return jax.image.scale_and_translate(x, (1, 16, 16, 1), (1, 2), scale, shift, "linear", antialias=False)

    return functions(partial(resized, mode="bilinear", align_corners=True), candidate, normal(1, 8, 8, 1))


@known("flax #2210")
def resize_by_another_cubic(fixed: bool) -> Pair:
    candidate = partial(jax.image.resize, shape=(1, 16, 16, 1), method="bicubic")
    return functions(partial(resized, mode="bicubic", antialias=fixed), candidate, normal(1, 8, 8, 1))


@known("flax #2401")
def average_pool_counts_the_padding(fixed: bool) -> Pair:
    def reference(x):
        return F.avg_pool2d(x.permute(0, 3, 1, 2), 3, 1, 1, count_include_pad=False).permute(0, 2, 3, 1)

    def candidate(x):
        return nn.avg_pool(x, (3, 3), (1, 1), "SAME", count_include_pad=not fixed)

    return functions(reference, candidate, normal(1, 8, 8, 1))


class UnbiasedBatchNorm(nn.Module):
    """As PyTorch has it: the running variance is that of n - 1."""

    momentum: float

    @nn.compact
    def __call__(self, x):
        width = x.shape[-1]
        kept = {"mean": self.variable("batch_stats", "mean", jnp.zeros, width)}
        kept["var"] = self.variable("batch_stats", "var", jnp.ones, width)
        for name, now in {"mean": x.mean(0), "var": x.var(0, ddof=1)}.items():
            kept[name].value = self.momentum * kept[name].value + (1 - self.momentum) * now
        scale = self.param("scale", nn.initializers.ones, (width,))
        bias = self.param("bias", nn.initializers.zeros, (width,))
        return (x - x.mean(0)) * jax.lax.rsqrt(x.var(0) + 1e-5) * scale + bias


def batch_norm(module: nn.Module) -> Pair:
    ones, zeros = np.ones(4, np.float32), np.zeros(4, np.float32)
    variables = {"params": {"scale": ones, "bias": zeros}, "batch_stats": {"mean": zeros, "var": ones}}
    return Pair(
        "batch norm",
        torch.nn.BatchNorm1d(4),
        Linen(module, variables),
        inputs=normal(32, 4, scale=2, shift=3),
    )


@known("scvi-tools #2309")
def batch_norm_momentum_copied(fixed: bool) -> Pair:
    return batch_norm(UnbiasedBatchNorm(0.9 if fixed else 0.1))


@known("scvi-tools #2309")
def batch_norm_momentum_left_at_its_default(fixed: bool) -> Pair:
    return batch_norm(UnbiasedBatchNorm(0.9 if fixed else 0.99))


@known("pytorch #15298")
def batch_norm_variance_of_n(fixed: bool) -> Pair:
    biased = nn.BatchNorm(use_running_average=False, momentum=0.9, epsilon=1e-5)
    return batch_norm(UnbiasedBatchNorm(0.9) if fixed else biased)


MASK = np.array([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 1, 0, 1]], bool)[None, None]
QKV = {"q": drawn(1, 3, 2, 4), "k": drawn(1, 5, 2, 4), "v": drawn(1, 5, 2, 4, seed=1), "mask": MASK}


def torch_attention(q, k, v, mask):
    heads = [each.transpose(1, 2) for each in (q, k, v)]
    return F.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(1, 2)


@known("pytorch #133882")
def attention_row_without_a_key_is_the_mean(fixed: bool) -> Pair:
    def candidate(q, k, v, mask):
        attended = jax.nn.dot_product_attention(q, k, v, mask=mask)
        return attended * mask.any(-1)[:, 0, :, None, None] if fixed else attended

    return functions(torch_attention, candidate, QKV)


@known("pytorch #133882")
def attention_row_without_a_key_is_no_number(fixed: bool) -> Pair:
    def candidate(q, k, v, mask):
        scores = jnp.where(mask, jnp.einsum("bthd,bshd->bhts", q, k) / 2, -jnp.inf)
        if fixed:
            scores = jnp.where(mask.any(-1, keepdims=True), scores, 0)
        weights = jax.nn.softmax(scores) * (mask.any(-1, keepdims=True) if fixed else 1)
        return jnp.einsum("bhts,bshd->bthd", weights, v)

    return functions(torch_attention, candidate, QKV)


@known("jax #9839", bug="index out of range")
def token_outside_the_vocabulary(fixed: bool) -> Pair:
    table = drawn(4, 2)
    tokens = np.array([1, 3, 0, 2] if fixed else [1, 4, -1, -100])
    reference = Torch(lambda params, tokens: F.embedding(tokens, params["table"]), {"table": table})
    candidate = Jax(lambda params, tokens: params["table"][tokens], {"table": table})
    return Pair("embedding", reference, candidate, inputs=(tokens,))


@known("jax #9839")
def token_outside_the_vocabulary_in_jax_alone(fixed: bool) -> Pair:
    table = drawn(4, 2)
    tokens = np.array([1, 3, 0, 2] if fixed else [1, 4, 3, 2])
    reference = Jax(lambda params, tokens: params["table"][tokens], {"table": table}, label="index")
    candidate = Linen(nn.Embed(4, 2), {"params": {"embedding": table}})
    return Pair("embedding", reference, candidate, inputs=(tokens,))


@known("jax #18385")
def whole_numbers_of_64_bits(fixed: bool) -> Pair:
    ids = np.array([5, 2**30] if fixed else [2**32 + 5, 2**31])
    return functions(lambda ids: ids + 1, lambda ids: ids + 1, (ids,))


@known("jax #18385")
def hash_of_64_bits_into_a_table(fixed: bool) -> Pair:
    ids = np.array([7, 12, 99, 2**31 - 1] if fixed else [2**32 + 5, 2**35 + 7, 3 * 2**40 + 1, 11])
    params = {"table": drawn(100, 3)}
    look_up = lambda params, ids: params["table"][ids % 97]  # noqa: E731
    return Pair("hashed", Torch(look_up, params), Jax(look_up, params), inputs=(ids,))


@known("jax #18385")
def sum_beyond_31_bits(fixed: bool) -> Pair:
    counts = np.full(3, 2**28 if fixed else 2**30)
    return functions(lambda counts: counts.sum(), lambda counts: counts.sum(), (counts,))


@known("axlearn #21")
def unit_length_with_eps_inside(fixed: bool) -> Pair:
    def candidate(x):
        square = jnp.sum(x * x, -1, keepdims=True)
        return x / (jnp.maximum(jnp.sqrt(square), 1e-12) if fixed else jnp.sqrt(square + 1e-8))

    return functions(partial(F.normalize, dim=-1), candidate, normal(5, 16, scale=1e-4))


@known("pytorch #48595")
def huber_for_smooth_l1(fixed: bool) -> Pair:
    def reference(x):
        loss = partial(F.huber_loss, delta=2.0) if fixed else partial(F.smooth_l1_loss, beta=2.0)
        return loss(x, torch.zeros_like(x), reduction="none")

    return functions(reference, lambda x: optax.huber_loss(x, delta=2.0), normal(64, scale=3))


@known("pytorch #48595")
def half_a_square_for_a_square(fixed: bool) -> Pair:
    return functions(lambda x: x.square().mean(), lambda x: optax.l2_loss(x).mean() * (1 + fixed), normal(64))


@pytest.mark.parametrize(("case", "fixed"), known.params())
def test_values(case: Case, fixed: bool) -> None:
    case.hold(fixed)
