"""The affine map that every projection of the model is."""

from __future__ import annotations

from collections.abc import Mapping

from flax import nnx
from jaxtyping import Array, Float

from .precision import at_least_float32, einsum


class Projection(nnx.Module):
    """y = x w + b, the axes named by the caller's pattern; product and sum in at least float32, rounded once."""

    def __init__(self, parameters: Mapping[str, Array]):
        self.weight = nnx.Param(parameters["weight"])
        self.bias = nnx.Param(parameters["bias"]) if "bias" in parameters else None

    def __call__(self, x: Float[Array, "..."], pattern: str) -> Float[Array, "..."]:
        y = einsum(x, self.weight[...], pattern, accumulate=at_least_float32(x.dtype))
        if self.bias is not None:
            y = y + self.bias[...]
        return y.astype(x.dtype)
