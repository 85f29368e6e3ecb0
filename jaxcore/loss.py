"""Cross-entropy over the tokens that count."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .precision import at_least_float32


def cross_entropy(
    logits: Float[Array, "*b v"], targets: Int[Array, "*b"], ignore_index: int = -100
) -> Float[Array, ""]:
    """Mean of -log softmax(logits)[target] in nats over the targets that are not `ignore_index`; 0 when none counts.

    Differs: torch.nn.functional.cross_entropy gives NaN when none counts; optax's has neither the mean nor the index.
    """
    log_probabilities = jax.nn.log_softmax(logits.astype(at_least_float32(logits.dtype)), axis=-1)
    counted = targets != ignore_index
    chosen = jnp.where(counted, targets, 0)
    picked = jnp.take_along_axis(log_probabilities, chosen[..., None], axis=-1)[..., 0]
    total = jnp.where(counted, -picked, 0).sum()
    return total / jnp.maximum(counted.sum(), 1)
