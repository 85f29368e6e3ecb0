"""Cross-entropy over the tokens that count."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .precision import at_least_float32


def cross_entropy(
    logits: Float[Tensor, "*b v"], targets: Int[Tensor, "*b"], ignore_index: int = -100
) -> Float[Tensor, ""]:
    """Mean of -log softmax(logits)[target] in nats over the targets that are not `ignore_index`; 0 when none counts.

    Differs: torch.nn.functional.cross_entropy gives NaN when none counts; optax's has neither the mean nor the index.
    """
    log_probabilities = torch.log_softmax(logits.to(at_least_float32(logits.dtype)), dim=-1)
    counted = targets != ignore_index
    chosen = torch.where(counted, targets, 0)
    picked = torch.take_along_dim(log_probabilities, chosen[..., None], dim=-1)[..., 0]
    total = torch.where(counted, -picked, 0).sum()
    return total / torch.clamp(counted.sum(), min=1)
