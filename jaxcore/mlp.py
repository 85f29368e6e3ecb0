"""The feed-forward half of a block, plain and gated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from .config import ModelConfig
from .precision import at_least_float32
from .projection import Projection


def activate(x: Float[Array, "..."], activation: str) -> Float[Array, "..."]:
    """The nonlinearity by name, in at least float32: GELU exact or by tanh (Hendrycks and Gimpel 2016), ReLU, SiLU.

    Differs: jax.nn.gelu is the tanh form by default, torch.nn.functional.gelu the exact one.
    """
    y = x.astype(at_least_float32(x.dtype))
    if activation in ("gelu", "geglu"):
        y = jax.nn.gelu(y, approximate=False)
    elif activation in ("gelu_tanh", "geglu_tanh"):
        y = jax.nn.gelu(y, approximate=True)
    elif activation == "swiglu":
        y = jax.nn.silu(y)
    else:
        y = jax.nn.relu(y)
    return y.astype(x.dtype)


class MLP(nnx.Module):
    """down(activate(up x)), or down(activate(gate x) * up x) for the gated forms (Shazeer 2020)."""

    def __init__(self, config: ModelConfig, parameters: Mapping[str, Any]):
        self.config = config
        self.gate_proj = Projection(parameters["gate_proj"]) if config.gated else None
        self.up_proj = Projection(parameters["up_proj"])
        self.down_proj = Projection(parameters["down_proj"])

    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        up = self.up_proj(x, "b t d, d f -> b t f")
        if self.gate_proj is not None:
            gate = self.gate_proj(x, "b t d, d f -> b t f")
            hidden = activate(gate, self.config.activation) * up
        else:
            hidden = activate(up, self.config.activation)
        return self.down_proj(hidden, "b t f, f d -> b t d")
