"""The whole model: embeddings, blocks, final norm, head or pooler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from .attention import Rope, visible
from .block import Block
from .config import ModelConfig
from .norm import Norm
from .parameters import check_parameters, nest
from .precision import at_least_float32, einsum
from .projection import Projection
from .rope import rope_table


class Embedding(nn.Module):
    """A table of vectors, one per index."""

    def __init__(self, parameters: Mapping[str, Tensor]):
        super().__init__()
        self.weight = nn.Parameter(parameters["weight"])

    def forward(self, index: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        return F.embedding(index, self.weight)


class Transformer(nn.Module):
    """Tokens to hidden states, and to logits and a pooled state where the config has them.

    Args:
        config: which model.
        parameters: every tensor by name as `parameter_table(config)` lists them, in the type to compute in
            (`initial_parameters(config, seed)` makes them); the model takes copies.

    Raises:
        ValueError: a name or shape is not the config's (`check_parameters`); more tokens than learned positions.
    """

    def __init__(self, config: ModelConfig, parameters: Mapping[str, Tensor | np.ndarray]):
        super().__init__()
        check_parameters(config, parameters)
        tree = nest({name: torch.as_tensor(value).clone() for name, value in parameters.items()})
        self.config = config
        self.token_embedding = Embedding(tree["token_embedding"])
        self.position_embedding = Embedding(tree["position_embedding"]) if config.position == "learned" else None
        self.type_embedding = Embedding(tree["type_embedding"]) if config.token_types else None
        self.embedding_norm = Norm(config, tree["embedding_norm"]) if config.embedding_norm else None
        if config.scan_layers:
            self.layers: Any = Block(config, tree["layers"])
        else:
            self.layers = nn.ModuleList(Block(config, tree["layers"][str(layer)]) for layer in range(config.num_layers))
        self.final_norm = Norm(config, tree["final_norm"]) if config.final_norm else None
        self.head = Projection(tree["head"]) if config.head == "untied" else None
        self.pooler = Projection(tree["pooler"]) if config.pooler else None

    def forward(
        self,
        tokens: Int[Tensor, "b t"],
        padding: Bool[Tensor, "b t"] | None = None,
        types: Int[Tensor, "b t"] | None = None,
        positions: Int[Tensor, "b t"] | None = None,
    ) -> dict[str, Float[Tensor, "..."]]:
        """`hidden` "b t d"; with a head `logits` "b t v"; with a pooler `pooled` "b d".

        `padding` is True at real tokens; `types` default to 0, `positions` to 0, 1, 2 ...
        """
        config = self.config
        length = tokens.shape[1]
        if config.position == "learned" and positions is None and length > config.max_seq_len:
            raise ValueError(f"tokens: at most max_seq_len {config.max_seq_len} positions, got {length}; cut the text")
        if positions is None:
            positions = repeat(torch.arange(length, device=tokens.device), "t -> b t", b=tokens.shape[0])
        x = self.embed(tokens, types, positions)
        rope = rope_table(config, positions, at_least_float32(x.dtype)) if config.position == "rope" else None
        plain = config.kernel == "fused" and config.causal and config.window is None and padding is None
        seen = None if plain else visible(length, length, config.causal, config.window, padding, tokens.device)
        x = self.run_layers(x, seen, rope)
        if self.final_norm is not None:
            x = self.final_norm(x)
        outputs = {"hidden": x}
        if self.head is not None:
            outputs["logits"] = self.head(x, "b t d, d v -> b t v")
        elif config.head == "tied":
            logits = einsum(x, self.token_embedding.weight, "b t d, v d -> b t v", accumulate=at_least_float32(x.dtype))
            outputs["logits"] = logits.to(x.dtype)
        if self.pooler is not None:
            outputs["pooled"] = torch.tanh(self.pooler(x[:, 0], "b d, d e -> b e"))
        return outputs

    def embed(
        self, tokens: Int[Tensor, "b t"], types: Int[Tensor, "b t"] | None, positions: Int[Tensor, "b t"]
    ) -> Float[Tensor, "b t d"]:
        """Token, position and type vectors, summed."""
        x = self.token_embedding(tokens)
        if self.config.embedding_scale:
            scaled = x.to(at_least_float32(x.dtype)) * math.sqrt(self.config.d_model)
            x = scaled.to(x.dtype)
        if self.type_embedding is not None:
            x = x + self.type_embedding(torch.zeros_like(tokens) if types is None else types)
        if self.position_embedding is not None:
            x = x + self.position_embedding(positions)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        return x

    def run_layers(
        self, x: Float[Tensor, "b t d"], seen: Bool[Tensor, "_ t s"] | None, rope: Rope | None
    ) -> Float[Tensor, "b t d"]:
        """Every block in turn: a loop, or one scan over stacked parameters; recomputed backward if asked."""

        def run(graph: nn.Module, state: Mapping[str, Tensor], x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
            return functional_call(graph, dict(state), (x, seen, rope))

        if self.config.recompute:
            run = partial(checkpoint, run, use_reentrant=False)
        if self.config.scan_layers:
            stacked = {name: value.unbind(0) for name, value in self.layers.named_parameters()}
            for layer in range(self.config.num_layers):
                x = run(self.layers, {name: values[layer] for name, values in stacked.items()}, x)
            return x
        for block in self.layers:
            x = run(block, dict(block.named_parameters()), x)
        return x
