"""Mistakes in whole modules, given as they stand, with inputs and outputs in containers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import torch.nn.functional as F
from cases import Case, Cases, channels_last, drawn, functions, held, normal, seeded
from flax import nnx

from parity import Equinox, Jax, Linen, Pair, Torch

known = Cases()


def filled(module: Any, **values: np.ndarray) -> Any:
    """An nnx module with these parameters, by their path with dots."""
    for path, value in values.items():
        place = module
        for name in path.split("__"):
            place = getattr(place, name)
        place[...] = jnp.asarray(value)
    return module


@known("layer norm eps")
def default_eps_of_a_norm(fixed: bool) -> Pair:
    candidate = nnx.LayerNorm(16, rngs=nnx.Rngs(0), **({"epsilon": 1e-5} if fixed else {}))
    return Pair("layer norm", torch.nn.LayerNorm(16), candidate, inputs=normal(7, 16))


@known("group norm groups")
def groups_counted_for_their_size(fixed: bool) -> Pair:
    candidate = nnx.GroupNorm(16, num_groups=4 if fixed else 8, epsilon=1e-5, rngs=nnx.Rngs(0))
    return Pair(
        "group norm", Torch(torch.nn.GroupNorm(4, 16), call=channels_last), candidate, inputs=normal(2, 5, 5, 16)
    )


@known("batch norm in another mode")
def batch_norm_in_evaluation(fixed: bool) -> Pair:
    candidate = nnx.BatchNorm(6, use_running_average=fixed, momentum=0.9, epsilon=1e-5, rngs=nnx.Rngs(0))
    return Pair("batch norm", torch.nn.BatchNorm1d(6).eval(), candidate, inputs=normal(32, 6))


@known("convolution padding")
def same_padding_of_a_strided_convolution(fixed: bool) -> Pair:
    reference = seeded(torch.nn.Conv2d, 3, 5, 3, stride=2, padding=1)
    padding: Any = ((1, 1), (1, 1)) if fixed else "SAME"
    candidate = nnx.Conv(3, 5, (3, 3), strides=2, padding=padding, rngs=nnx.Rngs(0))
    filled(candidate, kernel=held(reference)["weight"].transpose(2, 3, 1, 0), bias=held(reference)["bias"])
    return Pair("convolution", Torch(reference, call=channels_last), candidate, inputs=normal(2, 8, 8, 3))


@known("convolution dilation")
def depthwise_convolution_without_its_dilation(fixed: bool) -> Pair:
    reference = seeded(torch.nn.Conv1d, 6, 6, 3, padding="same", dilation=2, groups=6)
    candidate = eqx.nn.Conv1d(6, 6, 3, padding="SAME", dilation=2 if fixed else 1, groups=6, key=jax.random.key(0))
    arrays = jnp.asarray(held(reference)["weight"]), jnp.asarray(held(reference)["bias"])[:, None]
    candidate = eqx.tree_at(lambda module: (module.weight, module.bias), candidate, arrays)
    return Pair(
        "convolution",
        reference,
        Equinox(candidate, call=lambda module, x: jax.vmap(module)(x)),
        inputs=normal(2, 6, 11),
    )


@known("activation of equinox")
def another_activation_in_an_equinox_module(fixed: bool) -> Pair:
    reference = torch.nn.Sequential(seeded(torch.nn.Linear, 5, 9), torch.nn.SiLU(), seeded(torch.nn.Linear, 9, 3))
    activation = jax.nn.silu if fixed else jax.nn.gelu
    candidate = eqx.nn.MLP(5, 3, 9, 1, activation=activation, key=jax.random.key(0))
    arrays = [jnp.asarray(array) for array in held(reference).values()]
    candidate = eqx.tree_at(
        lambda module: [each for layer in module.layers for each in (layer.weight, layer.bias)], candidate, arrays
    )
    return Pair(
        "perceptron", reference, Equinox(candidate, call=lambda module, x: jax.vmap(module)(x)), inputs=normal(7, 5)
    )


@known("dropout", bug="turn dropout off")
def dropout_left_on(fixed: bool) -> Pair:
    reference = torch.nn.Sequential(seeded(torch.nn.Linear, 5, 9), torch.nn.Dropout(0.5)).train(not fixed)
    candidate = filled(
        nnx.Linear(5, 9, rngs=nnx.Rngs(0)), kernel=held(reference)["0.weight"].T, bias=held(reference)["0.bias"]
    )
    return Pair("dropout", reference, candidate, inputs=normal(7, 5))


@known("dropout of nnx", bug="turn dropout off")
def dropout_left_on_in_nnx(fixed: bool) -> Pair:
    reference = seeded(torch.nn.Linear, 5, 9)
    linear = filled(
        nnx.Linear(5, 9, rngs=nnx.Rngs(0)), kernel=held(reference)["weight"].T, bias=held(reference)["bias"]
    )
    candidate = nnx.Sequential(linear, nnx.Dropout(0.5, deterministic=fixed, rngs=nnx.Rngs(1)))
    return Pair("dropout", reference, candidate, inputs=normal(7, 5))


@known("packed attention weights")
def keys_and_values_exchanged(fixed: bool) -> Pair:
    width, heads = 12, 3
    reference = seeded(torch.nn.MultiheadAttention, width, heads, batch_first=True)
    weights = held(reference)
    weights["in_proj_bias"][:] = drawn(3 * width)
    candidate = nnx.MultiHeadAttention(heads, width, decode=False, rngs=nnx.Rngs(0))
    parts = dict(zip(("query", "key", "value") if fixed else ("query", "value", "key"), range(3), strict=True))
    for name, index in parts.items():
        rows = slice(width * index, width * (index + 1))
        kernel = weights["in_proj_weight"][rows].T.reshape(width, heads, -1)
        filled(getattr(candidate, name), kernel=kernel, bias=weights["in_proj_bias"][rows].reshape(heads, -1))
    filled(candidate.out, kernel=weights["out_proj.weight"].T.reshape(heads, -1, width), bias=weights["out_proj.bias"])
    attend = Torch(reference, call=lambda module, x: module(x, x, x, need_weights=False)[0])
    return Pair("attention", attend, candidate, inputs=normal(2, 7, width))


class TiedTorch(torch.nn.Module):
    """Tokens in, logits out, by one table."""

    def __init__(self):
        super().__init__()
        self.embedding = seeded(torch.nn.Embedding, 11, 6)
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embedding(tokens)))


class Tied(nn.Module):
    """The same, or with a table of its own for the head."""

    tied: bool

    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(11, 6)
        hidden = jnp.tanh(embed(tokens))
        return embed.attend(hidden) if self.tied else nn.Dense(11, use_bias=False)(hidden)


@known("tied weights")
def head_no_longer_tied(fixed: bool) -> Pair:
    reference = TiedTorch()
    table = reference.embedding.weight.detach().numpy()
    params = {"Embed_0": {"embedding": table}} | ({} if fixed else {"Dense_0": {"kernel": table.T}})
    return Pair("tied", reference, Linen(Tied(fixed), {"params": params}), inputs=(np.arange(11) % 7,))


def gated(reset_after: bool) -> Any:
    """A GRU over PyTorch's parameters."""

    def function(params, x):
        def step(hidden, x):
            ours, theirs = params["weight_hh_l0"], params["bias_hh_l0"]
            of_x = jnp.split(x @ params["weight_ih_l0"].T + params["bias_ih_l0"], 3, -1)
            of_h = jnp.split(hidden @ ours.T + theirs, 3, -1)
            r, z = (jax.nn.sigmoid(a + b) for a, b in zip(of_x[:2], of_h[:2], strict=True))
            rows = slice(2 * ours.shape[1], None)
            new = r * of_h[2] if reset_after else (r * hidden) @ ours[rows].T + theirs[rows]
            hidden = (1 - z) * jnp.tanh(of_x[2] + new) + z * hidden
            return hidden, hidden

        last, every = jax.lax.scan(step, jnp.zeros((len(x), 7), x.dtype), x.swapaxes(0, 1))
        return {"every": every.swapaxes(0, 1), "last": last}

    return function


@known("gated unit")
def reset_before_the_product(fixed: bool) -> Pair:
    module = seeded(torch.nn.GRU, 5, 7, batch_first=True)

    def reference(module, x):
        every, last = module(x)
        return {"every": every, "last": last[0]}

    return Pair("gru", Torch(module, call=reference), Jax(gated(fixed), held(module)), inputs=normal(2, 6, 5))


@known("gated unit of flax", grads=False)
def gates_of_a_unit_exchanged(fixed: bool) -> Pair:
    module = seeded(torch.nn.GRU, 5, 7, batch_first=True)
    weights = held(module)
    weights["bias_hh_l0"][:14] = 0  # flax has one bias for each of the first two gates
    cell: dict[str, Any] = {}
    for index, gate in enumerate("rzn" if fixed else "zrn"):
        rows = slice(7 * index, 7 * index + 7)
        cell[f"i{gate}"] = {"kernel": weights["weight_ih_l0"][rows].T, "bias": weights["bias_ih_l0"][rows]}
        cell[f"h{gate}"] = {"kernel": weights["weight_hh_l0"][rows].T}
    cell["hn"]["bias"] = weights["bias_hh_l0"][14:]
    candidate = Linen(nn.RNN(nn.GRUCell(7)), {"params": {"cell": cell}})
    return Pair("gru", Torch(module, call=lambda module, x: module(x)[0]), candidate, inputs=normal(2, 6, 5))


@known("order of the gates", grads=False)
def lstm_of_nnx_with_gates_exchanged(fixed: bool) -> Pair:
    module = seeded(torch.nn.LSTM, 5, 7, batch_first=True)
    weights = held(module)
    weights["bias_ih_l0"][:] = 0
    cell = nnx.OptimizedLSTMCell(5, 7, rngs=nnx.Rngs(0))
    order = [0, 1, 2, 3] if fixed else [1, 0, 2, 3]
    kernels = [
        np.concatenate([np.split(weights[name], 4)[i] for i in order]) for name in ("weight_ih_l0", "weight_hh_l0")
    ]
    bias = np.concatenate([np.split(weights["bias_hh_l0"], 4)[i] for i in order])
    filled(cell, dense_i__kernel=kernels[0].T, dense_h__kernel=kernels[1].T, dense_h__bias=bias)
    reference = Torch(module, call=lambda module, x: module(x)[0])
    return Pair("lstm", reference, nnx.RNN(cell, rngs=nnx.Rngs(0)), inputs=normal(2, 6, 5))


def tokens(vocabulary: int) -> Any:
    """Batches of token numbers."""
    return lambda generator: (generator.integers(0, vocabulary, (3, 5)),)


def padded(fixed: bool, inputs: Any) -> Pair:
    reference = seeded(torch.nn.Embedding, 9, 4, padding_idx=0)
    table = held(reference)["weight"]

    def candidate(params, tokens):
        rows = params["table"][tokens]
        return jnp.where((tokens == 0)[..., None], jax.lax.stop_gradient(rows), rows) if fixed else rows

    return Pair("embedding", reference, Jax(candidate, {"table": table}), inputs=inputs)


@known("padding token")
def gradient_of_the_padding_row(fixed: bool) -> Pair:
    return padded(fixed, tokens(9))


@known("padding token")
def gradient_of_a_padding_row_that_is_read_twice(fixed: bool) -> Pair:
    return padded(fixed, (np.array([0, 3, 0, 5]),))


@dataclass
class Output:
    """What a model returns."""

    logits: Any
    hidden: Any


def two_layers(tanh: Any, fields: tuple[str, str]) -> Any:
    def function(params, batch, *, scale):
        hidden = tanh(batch["x"] @ params["layers"][0]) * scale
        return Output(**dict(zip(fields, (hidden @ params["layers"][1], hidden), strict=True)))

    return function


@known("fields of an output")
def two_outputs_exchanged(fixed: bool) -> Pair:
    params = {"layers": [drawn(5, 6), drawn(6, 6)]}
    fields = ("logits", "hidden")
    sides = (
        Torch(two_layers(torch.tanh, fields), params),
        Jax(two_layers(jnp.tanh, fields if fixed else fields[::-1]), params),
    )
    return Pair("fields", *sides, inputs={"batch": {"x": drawn(7, 5)}, "scale": drawn(6)})


@known("keywords of an input")
def two_inputs_exchanged(fixed: bool) -> Pair:
    def attend(einsum, softmax):
        return lambda query, key: softmax(einsum("ti,si->ts", query, key), -1)

    candidate = attend(jnp.einsum, jax.nn.softmax)
    exchanged = candidate if fixed else lambda query, key: candidate(key, query)
    inputs = {"key": drawn(6, 4), "query": drawn(6, 4, seed=1)}
    return functions(attend(torch.einsum, torch.softmax), exchanged, inputs)


@known("label smoothing")
def smoothing_over_the_other_labels(fixed: bool) -> Pair:
    labels = np.array([1, 4, 0, 2])

    def candidate(logits, labels):
        wanted = optax.smooth_labels(jax.nn.one_hot(labels, 5, dtype=logits.dtype), 0.1)
        if not fixed:
            wanted = jnp.where(jax.nn.one_hot(labels, 5) > 0, 0.9, 0.1 / 4).astype(logits.dtype)
        return optax.softmax_cross_entropy(logits, wanted).mean()

    inputs = {"logits": drawn(4, 5), "labels": labels}
    return functions(lambda logits, labels: F.cross_entropy(logits, labels, label_smoothing=0.1), candidate, inputs)


@known("ignored labels")
def mean_over_ignored_labels(fixed: bool) -> Pair:
    def candidate(logits, labels):
        kept = labels != -100
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(kept, labels, 0)) * kept
        return losses.sum() / kept.sum() if fixed else losses.mean()

    inputs = (drawn(6, 5), np.array([1, -100, 0, 2, -100, 4]))
    return functions(F.cross_entropy, candidate, inputs)


@known("ddof")
def variance_of_n(fixed: bool) -> Pair:
    return functions(lambda x: x.var(-1), lambda x: x.var(-1, ddof=int(fixed)), normal(7, 12))


@known("causal mask of fewer queries")
def causal_mask_from_the_other_corner(fixed: bool) -> Pair:
    def candidate(q, k, v):
        allowed = jnp.tril(jnp.ones((3, 5), bool), 0 if fixed else 2)
        scores = jnp.where(allowed, jnp.einsum("bhti,bhsi->bhts", q, k) / 2, -jnp.inf)
        return jax.nn.softmax(scores) @ v

    inputs = {"q": drawn(1, 2, 3, 4), "k": drawn(1, 2, 5, 4), "v": drawn(1, 2, 5, 4, seed=1)}
    return functions(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), candidate, inputs)


@known("moving average")
def share_of_the_new_for_that_of_the_old(fixed: bool) -> Pair:
    def candidate(old, new):
        return optax.incremental_update(new, old, 0.01 if fixed else 0.99)

    return functions(lambda old, new: old.lerp(new, 0.01), candidate, {"old": drawn(9), "new": drawn(9, seed=1)})


@known("nearest neighbour")
def nearest_pixel_by_its_corner(fixed: bool) -> Pair:
    def reference(x):
        how = "nearest-exact" if fixed else "nearest"
        return F.interpolate(x.permute(0, 3, 1, 2), size=(5, 5), mode=how).permute(0, 2, 3, 1)

    return functions(reference, lambda x: jax.image.resize(x, (1, 5, 5, 2), "nearest"), normal(1, 8, 8, 2))


@known("target without a gradient")
def gradient_through_the_target(fixed: bool) -> Pair:
    params = {"online": drawn(5, 3), "target": drawn(5, 3, seed=1)}

    def reference(params, x):
        return (x @ params["online"] - (x @ params["target"]).detach()).square().mean()

    def candidate(params, x):
        target = x @ params["target"]
        return jnp.mean((x @ params["online"] - (jax.lax.stop_gradient(target) if fixed else target)) ** 2)

    return Pair("target", Torch(reference, params), Jax(candidate, params), inputs=normal(7, 5))


@pytest.mark.parametrize(("case", "fixed"), known.params())
def test_modules(case: Case, fixed: bool) -> None:
    case.hold(fixed)
