"""The feed-forward half of a block, plain and gated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .config import ModelConfig
from .precision import at_least_float32
from .projection import Projection


def activate(x: Float[Tensor, "..."], activation: str) -> Float[Tensor, "..."]:
    """The nonlinearity by name, in at least float32: GELU exact or by tanh (Hendrycks and Gimpel 2016), ReLU, SiLU.

    Differs: jax.nn.gelu is the tanh form by default, F.gelu the exact one.
    """
    y = x.to(at_least_float32(x.dtype))
    if activation in ("gelu", "geglu"):
        y = F.gelu(y, approximate="none")
    elif activation in ("gelu_tanh", "geglu_tanh"):
        y = F.gelu(y, approximate="tanh")
    elif activation == "swiglu":
        y = F.silu(y)
    else:
        y = F.relu(y)
    return y.to(x.dtype)


class MLP(nn.Module):
    """down(activate(up x)), or down(activate(gate x) * up x) for the gated forms (Shazeer 2020)."""

    def __init__(self, config: ModelConfig, parameters: Mapping[str, Any]):
        super().__init__()
        self.config = config
        self.gate_proj = Projection(parameters["gate_proj"]) if config.gated else None
        self.up_proj = Projection(parameters["up_proj"])
        self.down_proj = Projection(parameters["down_proj"])

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        up = self.up_proj(x, "b t d, d f -> b t f")
        if self.gate_proj is not None:
            gate = self.gate_proj(x, "b t d, d f -> b t f")
            hidden = activate(gate, self.config.activation) * up
        else:
            hidden = activate(up, self.config.activation)
        return self.down_proj(hidden, "b t f, f d -> b t d")
