"""Mistakes in gradients alone: kinks, ties and zeros, where the values agree."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import torch.nn.functional as F
from cases import Case, Cases, drawn, functions, normal

from parity import Jax, Pair, Torch

known = Cases()
TIES = (np.array([-1, 0, 0, 2], np.float32),)
ZERO_ROW = (np.array([[0, 0, 0], [1, -2, 3]], np.float32),)


@known("jax #37821")
def relu_for_maximum(fixed: bool) -> Pair:
    return functions(F.relu, jax.nn.relu if fixed else lambda x: jnp.maximum(x, 0), TIES)


@known("pytorch #184572")
def clamp_for_relu(fixed: bool) -> Pair:
    return functions(F.relu if fixed else partial(torch.clamp, min=0), jax.nn.relu, TIES)


@known("jax #37821")
def relu_for_maximum_behind_a_layer_of_zeros(fixed: bool) -> Pair:
    params = {"w": np.zeros((3, 4), np.float32), "skip": drawn(3, 4)}
    rectified = jax.nn.relu if fixed else lambda x: jnp.maximum(x, 0)
    reference = Torch(lambda params, x: x @ params["skip"] + F.relu(x @ params["w"]), params)
    candidate = Jax(lambda params, x: x @ params["skip"] + rectified(x @ params["w"]), params)
    return Pair("a branch that starts at zero", reference, candidate, inputs=normal(5, 3))


@known("jax #3058")
def norm_of_zeros(fixed: bool) -> Pair:
    norm = partial(optax.safe_norm, min_norm=0.0, axis=-1) if fixed else partial(jnp.linalg.norm, axis=-1)
    return functions(lambda x: x.norm(dim=-1), norm, ZERO_ROW)


@known("jax #3058")
def squared_norm_of_zeros(fixed: bool) -> Pair:
    candidate = (lambda x: jnp.sum(x * x)) if fixed else lambda x: jnp.linalg.norm(x) ** 2
    return functions(lambda x: x.norm() ** 2, candidate, (np.zeros(3, np.float32),))


@known("jax #4177")
def deviation_of_equal_numbers(fixed: bool) -> Pair:
    def candidate(x):
        variance = jnp.var(x, ddof=1)
        return jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1)), 0)

    return functions(torch.std, candidate if fixed else partial(jnp.std, ddof=1), (np.ones(3, np.float32),))


@known("jax #13600")
def maximum_of_ties(fixed: bool) -> Pair:
    reference = (lambda x: x.amax(-1)) if fixed else lambda x: x.max(-1).values
    return functions(reference, partial(jnp.max, axis=-1), (np.array([[1, 2, 2], [0, 0, 0], [3, 1, 2]], np.float32),))


@known("pytorch #184575")
def unit_length_of_zeros(fixed: bool) -> Pair:
    def candidate(x):
        square = jnp.sum(x * x, -1, keepdims=True)
        if not fixed:
            return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
        above = square > 1e-24
        return x / jnp.where(above, jnp.sqrt(jnp.where(above, square, 1)), 1e-12)

    return functions(partial(F.normalize, dim=-1), candidate, ZERO_ROW)


@known("keras #23075")
def cosine_with_zeros(fixed: bool) -> Pair:
    def candidate(x):
        square = jnp.sum(x * x, -1)
        length = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 1e-8) if fixed else jnp.sqrt(square)
        return x.sum(-1) / (length * jnp.sqrt(3.0))

    return functions(lambda x: F.cosine_similarity(x, torch.ones_like(x), dim=-1), candidate, ZERO_ROW)


@known("jax #12409")
def zero_to_the_power_of_zero(fixed: bool) -> Pair:
    return functions(lambda x: x**0.0 * 2, lambda x: x ** (0 if fixed else 0.0) * 2, TIES)


@known("jax #12409")
def powers_of_zero(fixed: bool) -> Pair:
    def candidate(x):
        if fixed:
            return jnp.stack([jnp.ones_like(x), x, x * x], -1)
        return x[:, None] ** jnp.arange(3.0, dtype=x.dtype)

    return functions(lambda x: x[:, None] ** torch.arange(3.0, dtype=x.dtype), candidate, TIES)


@pytest.mark.parametrize(("case", "fixed"), known.params())
def test_gradients(case: Case, fixed: bool) -> None:
    case.hold(fixed)
