"""Products with a named accumulator, and the rule for widening: promote, never narrow."""

from __future__ import annotations

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float


def at_least_float32(dtype: DTypeLike) -> jnp.dtype:
    """float32 for the 16-bit formats, the type itself otherwise: a float64 run stays float64."""
    return jnp.promote_types(dtype, jnp.float32)


def einsum(x: Float[Array, "..."], y: Float[Array, "..."], pattern: str, accumulate: DTypeLike) -> Float[Array, "..."]:
    """The product of two operands by an einops pattern of one-letter axes, accumulated and returned in `accumulate`.

    XLA takes 16-bit operands as they are and accumulates in the type asked for (`preferred_element_type`).
    """
    return jnp.einsum(pattern.replace(" ", ""), x, y, preferred_element_type=accumulate)


def matmul(
    x: Float[Array, "*b d"], w: Float[Array, "d f"], accumulate: DTypeLike = jnp.float32
) -> Float[Array, "*b f"]:
    """y = x w with at least `accumulate` inside, rounded once to the type of x.

    Differs: `jnp.matmul` leaves the accumulator to the backend.
    """
    y = einsum(x, w, "... d, d f -> ... f", accumulate=jnp.promote_types(x.dtype, accumulate))
    return y.astype(x.dtype)
