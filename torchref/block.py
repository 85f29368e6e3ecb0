"""One layer: attention and MLP, each with its norm and its residual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from .attention import Attention, Rope
from .config import ModelConfig
from .mlp import MLP
from .norm import Norm


class Block(nn.Module):
    """Pre-norm x + f(norm(x)), or post-norm norm(x + f(x)), for f attention and then the MLP."""

    def __init__(self, config: ModelConfig, parameters: Mapping[str, Any]):
        super().__init__()
        self.config = config
        self.attention_norm = Norm(config, parameters["attention_norm"])
        self.attention = Attention(config, parameters["attention"])
        self.mlp_norm = Norm(config, parameters["mlp_norm"])
        self.mlp = MLP(config, parameters["mlp"])

    def forward(
        self, x: Float[Tensor, "b t d"], seen: Bool[Tensor, "_ t s"] | None, rope: Rope | None
    ) -> Float[Tensor, "b t d"]:
        if self.config.norm_position == "pre":
            x = x + self.attention(self.attention_norm(x), seen, rope)
            return x + self.mlp(self.mlp_norm(x))
        x = self.attention_norm(x + self.attention(x, seen, rope))
        return self.mlp_norm(x + self.mlp(x))
