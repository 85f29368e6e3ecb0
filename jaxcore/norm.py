"""LayerNorm and RMSNorm, statistics in at least float32."""

from __future__ import annotations

from collections.abc import Mapping

import jax
from einops import reduce
from flax import nnx
from jaxtyping import Array, Float

from .config import ModelConfig
from .precision import at_least_float32


def layer_norm(
    x: Float[Array, "*b d"], weight: Float[Array, "d"], bias: Float[Array, "d"], eps: float
) -> Float[Array, "*b d"]:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axis, var the mean square (Ba et al. 2016).

    Differs: flax.nnx.LayerNorm has eps 1e-6 and var = E[x^2] - E[x]^2, torch.nn.LayerNorm eps 1e-5.
    """
    y = x.astype(at_least_float32(x.dtype))
    centred = y - reduce(y, "... d -> ... 1", "mean")
    variance = reduce(centred * centred, "... d -> ... 1", "mean")
    normed = centred * jax.lax.rsqrt(variance + eps)
    return (normed * weight + bias).astype(x.dtype)


def rms_norm(
    x: Float[Array, "*b d"], weight: Float[Array, "d"], eps: float, offset: float = 0.0
) -> Float[Array, "*b d"]:
    """x / sqrt(mean(x^2) + eps) * (offset + weight) over the last axis (Zhang and Sennrich 2019).

    `offset` 1 is Gemma's form, in which the stored weight starts at zero.

    Differs: torch.nn.RMSNorm has eps None, which is the epsilon of the type; flax.nnx.RMSNorm 1e-6.
    """
    y = x.astype(at_least_float32(x.dtype))
    mean_square = reduce(y * y, "... d -> ... 1", "mean")
    normed = y * jax.lax.rsqrt(mean_square + eps)
    return (normed * (offset + weight.astype(y.dtype))).astype(x.dtype)


class Norm(nnx.Module):
    """The norm that the config names, over the last axis."""

    def __init__(self, config: ModelConfig, parameters: Mapping[str, Array]):
        self.config = config
        self.weight = nnx.Param(parameters["weight"])
        self.bias = nnx.Param(parameters["bias"]) if config.norm == "layer_norm" else None

    def __call__(self, x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
        if self.bias is not None:
            return layer_norm(x, self.weight[...], self.bias[...], self.config.norm_eps)
        offset = 1.0 if self.config.norm == "rms_norm_plus_one" else 0.0
        return rms_norm(x, self.weight[...], self.config.norm_eps, offset)
