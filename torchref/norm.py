"""LayerNorm and RMSNorm, statistics in at least float32."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor, nn

from .config import ModelConfig
from .precision import at_least_float32


def layer_norm(
    x: Float[Tensor, "*b d"], weight: Float[Tensor, "d"], bias: Float[Tensor, "d"], eps: float
) -> Float[Tensor, "*b d"]:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axis, var the mean square (Ba et al. 2016).

    Differs: flax.nnx.LayerNorm has eps 1e-6 and var = E[x^2] - E[x]^2, torch.nn.LayerNorm eps 1e-5.
    """
    y = x.to(at_least_float32(x.dtype))
    centred = y - reduce(y, "... d -> ... 1", "mean")
    variance = reduce(centred * centred, "... d -> ... 1", "mean")
    normed = centred * torch.rsqrt(variance + eps)
    return (normed * weight + bias).to(x.dtype)


def rms_norm(
    x: Float[Tensor, "*b d"], weight: Float[Tensor, "d"], eps: float, offset: float = 0.0
) -> Float[Tensor, "*b d"]:
    """x / sqrt(mean(x^2) + eps) * (offset + weight) over the last axis (Zhang and Sennrich 2019).

    `offset` 1 is Gemma's form, in which the stored weight starts at zero.

    Differs: torch.nn.RMSNorm has eps None, which is the epsilon of the type; flax.nnx.RMSNorm 1e-6.
    """
    y = x.to(at_least_float32(x.dtype))
    mean_square = reduce(y * y, "... d -> ... 1", "mean")
    normed = y * torch.rsqrt(mean_square + eps)
    return (normed * (offset + weight.to(y.dtype))).to(x.dtype)


class Norm(nn.Module):
    """The norm that the config names, over the last axis."""

    def __init__(self, config: ModelConfig, parameters: Mapping[str, Tensor]):
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(parameters["weight"])
        self.bias = nn.Parameter(parameters["bias"]) if config.norm == "layer_norm" else None

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        if self.bias is not None:
            return layer_norm(x, self.weight, self.bias, self.config.norm_eps)
        offset = 1.0 if self.config.norm == "rms_norm_plus_one" else 0.0
        return rms_norm(x, self.weight, self.config.norm_eps, offset)
