"""Products with a named accumulator, and the rule for widening: promote, never narrow."""

from __future__ import annotations

import einops
import torch
from jaxtyping import Float
from torch import Tensor


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """float32 for the 16-bit formats, the type itself otherwise: a float64 run stays float64."""
    return torch.promote_types(dtype, torch.float32)


def einsum(
    x: Float[Tensor, "..."], y: Float[Tensor, "..."], pattern: str, accumulate: torch.dtype
) -> Float[Tensor, "..."]:
    """The product of two operands by an einops pattern of one-letter axes, accumulated and returned in `accumulate`.

    PyTorch has no switch for the accumulator of 16-bit operands: they are widened, which is exact, before the product.
    """
    return einops.einsum(x.to(accumulate), y.to(accumulate), pattern)


def matmul(
    x: Float[Tensor, "*b d"], w: Float[Tensor, "d f"], accumulate: torch.dtype = torch.float32
) -> Float[Tensor, "*b f"]:
    """y = x w with at least `accumulate` inside, rounded once to the type of x.

    Differs: `torch.matmul` leaves the accumulator to the backend.
    """
    y = einsum(x, w, "... d, d f -> ... f", accumulate=torch.promote_types(x.dtype, accumulate))
    return y.to(x.dtype)
