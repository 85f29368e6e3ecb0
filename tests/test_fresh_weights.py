"""Fresh weights, of which many are all zeros or ones: paired by name and gradient, stacked or not, without an alarm."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from parity import Jax, Pair, check

WIDTH, LAYERS = 12, 2


class Block(torch.nn.Module):
    """A norm and a product, with a fresh norm."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.fc = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.fc(self.ln1(x)))


class Model(torch.nn.Module):
    """Blocks in a row and a last norm, which is as fresh as theirs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def stacked(model: Model) -> dict[str, Any]:
    held = {name: value.detach().numpy() for name, value in model.named_parameters()}

    def layers(name: str) -> np.ndarray:
        return np.stack([held[f"blocks.{index}.{name}"] for index in range(LAYERS)])

    return {
        "layers": {
            "ln1": {"g": layers("ln1.weight"), "b": layers("ln1.bias")},
            "fc": {"w": layers("fc.weight").swapaxes(1, 2), "b": layers("fc.bias")},
        },
        "norm": {"g": held["norm.weight"], "b": held["norm.bias"]},
    }


def scanned(params: Any, x: jax.Array) -> jax.Array:
    def norm(p: Any, x: jax.Array) -> jax.Array:
        centred = x - x.mean(-1, keepdims=True)
        return centred / jnp.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * p["g"] + p["b"]

    def body(x: jax.Array, layer: Any) -> tuple[jax.Array, None]:
        return x + jnp.tanh(norm(layer["ln1"], x) @ layer["fc"]["w"] + layer["fc"]["b"]), None

    return norm(params["norm"], jax.lax.scan(body, x, params["layers"])[0])


def test_a_last_norm_is_no_layer_of_a_stack() -> None:
    model = Model()
    pair = Pair("stacked", model, Jax(scanned, stacked(model)), inputs=lambda g: (g.standard_normal((5, WIDTH)),))
    result = check(pair, precisions=(), batches=2, steps=0, flops=False)
    assert (result.verdict, result.rung) == ("PASS", "same-function"), result.reason
    assert {row.name for row in result.rows} >= {"gradient norm.bias", "gradient blocks.1.ln1.bias"}
