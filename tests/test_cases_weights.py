"""Mistakes in moving weights: another layout, another order, another number that is the same parameter."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from cases import Case, Cases, drawn, held, normal, seeded
from flax import nnx

from parity import Jax, Linen, Pair, Torch

known = Cases()


class Layers(nn.Module):
    """Three layers, the last of them square."""

    @nn.compact
    def __call__(self, x):
        for width in (24, 16):
            x = nn.tanh(nn.Dense(width)(x))
        return nn.Dense(16)(x)


@known("pytorch #129834")
def square_layer_not_transposed(fixed: bool) -> Pair:
    sizes = (16, 24, 16, 16)
    layers = [seeded(torch.nn.Linear, a, b) for a, b in pairwise(sizes)]
    params = {}
    for index, layer in enumerate(layers):
        kernel = layer.weight.detach().numpy()
        turned = fixed or kernel.shape[0] != kernel.shape[1]
        params[f"Dense_{index}"] = {"kernel": kernel.T if turned else kernel, "bias": layer.bias.detach().numpy()}
    reference = torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1], torch.nn.Tanh(), layers[2])
    return Pair("three layers", reference, Linen(Layers(), {"params": params}), inputs=normal(5, 16))


class Classifier(nn.Module):
    """A convolution and a layer over all its features, channels last."""

    channels_first: bool = False

    @nn.compact
    def __call__(self, x):
        features = nn.relu(nn.Conv(8, (3, 3), padding="VALID")(x))
        if self.channels_first:
            features = features.transpose(0, 3, 1, 2)
        return nn.Dense(10)(features.reshape(len(x), -1))


def classifier(module: nn.Module, order: bool) -> Pair:
    layers = seeded(
        torch.nn.Sequential,
        seeded(torch.nn.Conv2d, 3, 8, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        seeded(torch.nn.Linear, 128, 10),
    )
    convolution, dense = held(layers[0]), held(layers[3])
    kernel = dense["weight"]
    if order:
        kernel = kernel.reshape(10, 8, 4, 4).transpose(0, 2, 3, 1).reshape(10, 128)
    params = {
        "Conv_0": {"kernel": convolution["weight"].transpose(2, 3, 1, 0), "bias": convolution["bias"]},
        "Dense_0": {"kernel": kernel.T, "bias": dense["bias"]},
    }
    reference = Torch(layers, call=lambda module, x: module(x.permute(0, 3, 1, 2)))
    return Pair("classifier", reference, Linen(module, {"params": params}), inputs=normal(2, 6, 6, 3))


@known("keras #9696")
def features_flattened_channels_last(fixed: bool) -> Pair:
    return classifier(Classifier(channels_first=fixed), order=False)


@known("keras #9696")
def features_flattened_channels_last_weights_moved(fixed: bool) -> Pair:
    return classifier(Classifier(), order=fixed)


HEADS, WIDTH, TOKENS = 2, 8, 6
ANGLES = np.arange(TOKENS)[:, None] * 100.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)


def scores(einsum: Any, turn: Any) -> Any:
    """The scores of rotated queries and keys, in the framework of `einsum`."""

    def function(params, x):
        rotated = [turn((x @ params[name].T).reshape(TOKENS, HEADS, WIDTH)) for name in ("q", "k")]
        return einsum("thd,shd->hts", *rotated)

    return function


def neighbours(x: torch.Tensor) -> torch.Tensor:
    """Rotates components 2i and 2i + 1."""
    cos, sin = (torch.tensor(f(ANGLES), dtype=x.dtype)[:, None] for f in (np.cos, np.sin))
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


def halves(x: jax.Array) -> jax.Array:
    """Rotates components i and i + half."""
    cos, sin = (jnp.asarray(f(ANGLES), x.dtype)[:, None] for f in (np.cos, np.sin))
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def sorted_into_halves(weight: np.ndarray) -> np.ndarray:
    return weight.reshape(HEADS, WIDTH // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)


def rotary(times: int) -> Pair:
    weights = {name: drawn(HEADS * WIDTH, 12, seed=seed, scale=0.3) for seed, name in enumerate("qk")}
    moved = dict(weights)
    for _ in range(times):
        moved = {name: sorted_into_halves(weight) for name, weight in moved.items()}
    return Pair(
        "rotary scores",
        Torch(scores(torch.einsum, neighbours), weights),
        Jax(scores(jnp.einsum, halves), moved),
        inputs=normal(TOKENS, 12),
    )


@known("transformers #25199")
def rotary_halves_for_neighbours(fixed: bool) -> Pair:
    return rotary(1 if fixed else 0)


@known("maxtext #1774")
def rotary_rows_sorted_twice(fixed: bool) -> Pair:
    return rotary(1 if fixed else 2)


@known("transformers #29402")
def norm_scale_without_the_one(fixed: bool) -> Pair:
    module = torch.nn.RMSNorm(64, eps=1e-6)
    module.weight.data = torch.tensor(drawn(64, scale=0.1) + fixed)

    def gemma(params, x):
        normed = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
        return normed * (1 + (params["scale"] - fixed))

    return Pair("rms norm", module, Jax(gemma, {"scale": module.weight.detach().numpy()}), inputs=normal(8, 64))


@known("transformers #29402")
def norm_scale_converted(fixed: bool) -> Pair:
    module = torch.nn.RMSNorm(64, eps=1e-6)
    module.weight.data = torch.tensor(1 + drawn(64, scale=0.1))

    def gemma(params, x):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * (1 + params["scale"])

    scale = module.weight.detach().numpy() - fixed
    return Pair("rms norm", module, Jax(gemma, {"scale": scale}), inputs=normal(8, 64))


class Recurrent(nn.Module):
    """An LSTM over a sequence."""

    @nn.compact
    def __call__(self, x):
        return nn.RNN(nn.OptimizedLSTMCell(7))(x)


def lstm(bias: Any) -> Pair:
    module = seeded(torch.nn.LSTM, 5, 7, batch_first=True)
    weights = held(module)
    cell = {}
    for index, gate in enumerate("ifgo"):
        rows = slice(7 * index, 7 * (index + 1))
        cell[f"i{gate}"] = {"kernel": weights["weight_ih_l0"][rows].T}
        cell[f"h{gate}"] = {"kernel": weights["weight_hh_l0"][rows].T, "bias": bias(weights)[rows]}
    variables = {"params": {"OptimizedLSTMCell_0": cell}}
    return Pair(
        "lstm",
        Torch(module, call=lambda module, x: module(x)[0]),
        Linen(Recurrent(), variables),
        inputs=normal(2, 6, 5),
    )


@known("flax #3746")
def one_of_two_biases(fixed: bool) -> Pair:
    return lstm(lambda weights: weights["bias_hh_l0"] + (weights["bias_ih_l0"] if fixed else 0))


def recurrent(bias: Any) -> Any:
    """An LSTM written out over PyTorch's own parameters."""

    def function(params, x):
        def step(carry, x):
            hidden, cell = carry
            gates = x @ params["weight_ih_l0"].T + hidden @ params["weight_hh_l0"].T + bias(params)
            i, f, g, o = jnp.split(gates, 4, -1)
            cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
            hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
            return (hidden, cell), hidden

        start = (jnp.zeros((len(x), 7), x.dtype),) * 2
        return jax.lax.scan(step, start, x.swapaxes(0, 1))[1].swapaxes(0, 1)

    return function


@known("flax #3746")
def one_of_two_biases_with_gradients(fixed: bool) -> Pair:
    module = seeded(torch.nn.LSTM, 5, 7, batch_first=True)
    candidate = recurrent(lambda params: params["bias_hh_l0"] + (params["bias_ih_l0"] if fixed else 0))
    reference = Torch(module, call=lambda module, x: module(x)[0])
    return Pair("lstm", reference, Jax(candidate, held(module)), inputs=normal(2, 6, 5))


@known("jax #4862")
def two_default_initialisations(fixed: bool) -> Pair:
    module = seeded(torch.nn.Linear, 32, 16)
    candidate = nnx.Linear(32, 16, rngs=nnx.Rngs(0))
    if fixed:
        candidate.kernel[...], candidate.bias[...] = (jnp.asarray(held(module)[name].T) for name in ("weight", "bias"))
    return Pair("linear", module, candidate, inputs=normal(4, 32))


@known("flax #3125")
def two_default_embeddings(fixed: bool) -> Pair:
    module = seeded(torch.nn.Embedding, 50, 16)
    embed = nn.Embed(50, 16)
    loaded = {"params": {"embedding": held(module)["weight"]}}
    variables = loaded if fixed else embed.init(jax.random.key(0), jnp.zeros(1, int))
    return Pair("embedding", module, Linen(embed, variables), inputs=(np.arange(20),))


@pytest.mark.parametrize(("case", "fixed"), known.params())
def test_weights(case: Case, fixed: bool) -> None:
    case.hold(fixed)
