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


def test_zeros_in_stacks_of_any_name_are_told_apart_by_their_gradients() -> None:
    torch.manual_seed(2)
    linears = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(3))
    norms = torch.nn.ModuleList(torch.nn.LayerNorm(6) for _ in range(3))
    for each in linears:
        torch.nn.init.zeros_(each.bias)

    class Rows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l, self.n = linears, norms

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for linear, norm in zip(self.l, self.n, strict=True):
                x = x + torch.tanh(linear(norm(x)))
            return x

    def stack(tensors: Any) -> np.ndarray:
        return np.stack([each.detach().numpy() for each in tensors])

    # alphabetically the bias of the norm comes first, and neither name says what it is
    params = {
        "w": stack(each.weight.T for each in linears),
        "z": stack(each.bias for each in linears),
        "g": stack(each.weight for each in norms),
        "a": stack(each.bias for each in norms),
    }

    def port(params: Any, x: jax.Array) -> jax.Array:
        def body(x: jax.Array, p: Any) -> tuple[jax.Array, None]:
            centred = x - x.mean(-1, keepdims=True)
            y = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p["g"] + p["a"]
            return x + jnp.tanh(y @ p["w"] + p["z"]), None

        return jax.lax.scan(body, x, params)[0]

    pair = Pair("rows", Rows(), Jax(port, params), inputs=lambda g: (g.normal(size=(4, 6)),))
    result = check(pair, precisions=(), flops=False, batches=2)
    assert (result.verdict, result.rung) == ("PASS", "same-function"), result.reason


def test_a_zero_that_one_side_has_not_costs_no_other_its_partner() -> None:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 16))
    for each in (model[0], model[2]):
        torch.nn.init.zeros_(each.bias)
    params = {name: value.detach().numpy() for name, value in model.named_parameters()}
    params["0.bias"] = np.full(4, 0.3, np.float32)  # loaded wrongly

    def port(p: Any, x: jax.Array) -> jax.Array:
        y = x @ p["0.weight"].T + p["0.bias"]
        y = (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 1e-5)
        return (y * p["1.weight"] + p["1.bias"]) @ p["2.weight"].T + p["2.bias"]

    pair = Pair("one", model, Jax(port, params), inputs=lambda g: (g.normal(size=(5, 4)),))
    result = check(pair, precisions=(), flops=False)
    assert "weights that only one side has, by value: torch's 0.bias and jax's 0.bias" in result.reason
