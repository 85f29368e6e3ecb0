"""The affine map that every projection of the model is."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor, nn

from .precision import at_least_float32, einsum


class Projection(nn.Module):
    """y = x w + b, the axes named by the caller's pattern; product and sum in at least float32, rounded once."""

    def __init__(self, parameters: Mapping[str, Tensor]):
        super().__init__()
        self.weight = nn.Parameter(parameters["weight"])
        self.bias = nn.Parameter(parameters["bias"]) if "bias" in parameters else None

    def forward(self, x: Float[Tensor, "..."], pattern: str) -> Float[Tensor, "..."]:
        y = einsum(x, self.weight, pattern, accumulate=at_least_float32(x.dtype))
        if self.bias is not None:
            y = y + self.bias
        return y.to(x.dtype)
