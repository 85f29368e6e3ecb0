"""Attention with grouped keys and values: written out (`attend`) and by the framework's kernel (`attend_fused`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from einops import rearrange, reduce
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from .config import ModelConfig
from .norm import Norm
from .precision import at_least_float32, einsum
from .projection import Projection
from .rope import rotate

Rope = tuple[Float[Array, "b t 1 r"], Float[Array, "b t 1 r"]]


def visible(
    t: int, s: int, causal: bool, window: int | None, padding: Bool[Array, "b s"] | None
) -> Bool[Array, "_ t s"]:
    """Which keys each query sees: none after it if causal, none `window` or more away, none that is padding (False)."""
    query = rearrange(jnp.arange(t), "t -> 1 t 1")
    key = rearrange(jnp.arange(s), "s -> 1 1 s")
    seen = (key <= query) | (not causal)
    if window is not None:
        seen = seen & (query - key < window) & (key - query < window)
    if padding is not None:
        seen = seen & rearrange(padding, "b s -> b 1 s")
    return seen


def attend(
    q: Float[Array, "b t n h"], k: Float[Array, "b s k h"], v: Float[Array, "b s k h"], seen: Bool[Array, "_ t s"]
) -> Float[Array, "b t n h"]:
    """softmax(q k / sqrt(h)) v over the keys seen, in at least float32; a query that sees no key gives zeros.

    Each key head serves a group of n / k neighbouring query heads (Vaswani et al. 2017; Ainslie et al. 2023).
    """
    wide = at_least_float32(q.dtype)
    seen = rearrange(seen, "b t s -> b 1 1 t s")
    q = rearrange(q, "b t (k g) h -> b t k g h", k=k.shape[2])
    logits = einsum(q, k, "b t k g h, b s k h -> b k g t s", accumulate=wide) * q.shape[-1] ** -0.5
    logits = jnp.where(seen, logits, jnp.finfo(wide).min)
    weights = jax.nn.softmax(logits, axis=-1) * seen
    mixed = einsum(weights.astype(v.dtype), v, "b k g t s, b s k h -> b t k g h", accumulate=wide)
    return rearrange(mixed, "b t k g h -> b t (k g) h").astype(q.dtype)


def attend_fused(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b s k h"],
    v: Float[Array, "b s k h"],
    seen: Bool[Array, "_ t s"] | None,
) -> Float[Array, "b t n h"]:
    """The same function by the framework's kernel; `seen` None means causal without padding or window.

    Differs: kernels give a query that sees no key zeros, NaN or the mean of every value; here it reads every value and
    the result is zeroed. The CPU's round inside their backward pass in 16 bits (and JAX's does not compile in float16),
    so that those are widened and rounded once.
    """
    dtype = q.dtype
    if fused_implementation(dtype) == "xla":
        q, k, v = (x.astype(at_least_float32(dtype)) for x in (q, k, v))
    if seen is None:
        return fused_kernel(q, k, v, None, is_causal=True).astype(dtype)
    some = reduce(seen, "b t s -> b t 1 1", "max")
    mask = rearrange(seen, "b t s -> b 1 t s") | rearrange(~some, "b t 1 1 -> b 1 t 1")
    mixed = fused_kernel(q, k, v, mask, is_causal=False)
    return jnp.where(some, mixed, 0).astype(dtype)


def fused_kernel(
    q: Float[Array, "b t n h"],
    k: Float[Array, "b s k h"],
    v: Float[Array, "b s k h"],
    mask: Bool[Array, "_ 1 t s"] | None,
    is_causal: bool,
) -> Float[Array, "b t n h"]:
    """`jax.nn.dot_product_attention`; in float64, where that rounds its softmax to float32, `attend` in its place."""
    implementation = fused_implementation(q.dtype)
    if implementation == "einsum":
        seen = visible(q.shape[1], k.shape[1], is_causal, None, None)
        return attend(q, k, v, seen if mask is None else seen & rearrange(mask, "b 1 t s -> b t s"))
    return jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=is_causal, implementation=implementation)


def fused_implementation(dtype: DTypeLike) -> Literal["cudnn", "xla", "einsum"]:
    """What `attend_fused` runs here: cuDNN's flash attention on a GPU in 16 bits, `attend` in float64, else XLA's."""
    if jnp.dtype(dtype).itemsize == 2 and jax.default_backend() == "gpu":
        return "cudnn"
    return "einsum" if jnp.dtype(dtype) == jnp.float64 else "xla"


class Attention(nnx.Module):
    """Project to heads, norm and rotate queries and keys, attend, project back."""

    def __init__(self, config: ModelConfig, parameters: Mapping[str, Any]):
        self.config = config
        self.q_proj = Projection(parameters["q_proj"])
        self.k_proj = Projection(parameters["k_proj"])
        self.v_proj = Projection(parameters["v_proj"])
        self.q_norm = Norm(config, parameters["q_norm"]) if config.qk_norm else None
        self.k_norm = Norm(config, parameters["k_norm"]) if config.qk_norm else None
        self.o_proj = Projection(parameters["o_proj"])

    def __call__(
        self, x: Float[Array, "b t d"], seen: Bool[Array, "_ t s"] | None, rope: Rope | None
    ) -> Float[Array, "b t d"]:
        q = self.q_proj(x, "b t d, d n h -> b t n h")
        k = self.k_proj(x, "b s d, d k h -> b s k h")
        v = self.v_proj(x, "b s d, d k h -> b s k h")
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm(q)
            k = self.k_norm(k)
        if rope is not None:
            q = rotate(q, *rope, self.config.rope_layout)
            k = rotate(k, *rope, self.config.rope_layout)
        if seen is None or self.config.kernel == "fused":
            mixed = attend_fused(q, k, v, seen)
        else:
            mixed = attend(q, k, v, seen)
        return self.o_proj(mixed, "b t n h, n h d -> b t d")
