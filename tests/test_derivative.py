"""A gradient against a finite difference: which of two is the derivative, and when both are none."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from functions import steep_square

from parity import Jax, Options, Pair, Torch, check

SHORT = Options(precisions=(), batches=2, steps=0, flops=False)
WEIGHTS = {
    "w": np.random.default_rng(1).standard_normal((7, 5)).astype(np.float32),
    "b": np.random.default_rng(2).standard_normal(5).astype(np.float32),
}


def draw(generator: np.random.Generator) -> tuple[np.ndarray]:
    return (generator.standard_normal((11, 7)),)


def right(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ p["w"] + p["b"]) ** 2


SQUARE_IN_TORCH, SQUARE_IN_JAX = steep_square(2.001)


def wrong(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return SQUARE_IN_JAX(jnp.tanh(x @ p["w"] + p["b"]))


def wrong_in_torch(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return SQUARE_IN_TORCH(torch.tanh(x @ p["w"] + p["b"]))


def test_a_finite_difference_says_which_gradient_is_right() -> None:
    result = check(Pair("square", Torch(right), Jax(wrong), WEIGHTS, draw), SHORT)
    assert (result.verdict, result.rung) == ("FAIL", "different")
    assert "a finite difference agrees with torch's gradient, not with the other's" in result.reason
    verdicts = {row.name: row.verdict for row in result.rows if row.group == "directional derivative"}
    assert verdicts == {"directional derivative of torch": "PASS", "directional derivative of jax": "ABSTAIN"}


def test_two_gradients_that_are_wrong_alike_are_told_by_thorough() -> None:
    pair = Pair("square", Torch(wrong_in_torch), Jax(wrong), WEIGHTS, draw)
    assert check(pair, SHORT).verdict == "PASS", "the two agree"
    rows = [row for row in check(pair, SHORT, thorough=True).rows if row.group == "directional derivative"]
    assert [row.verdict for row in rows] == ["ABSTAIN", "ABSTAIN"]
    assert all("a stop_gradient, a custom rule or a kink" in row.derivation for row in rows)
    assert all(1e-4 < row.measured < 1e-2 for row in rows)


def test_a_right_gradient_agrees_within_the_quotients_own_error() -> None:
    clean = Jax(lambda p, x: jnp.tanh(x @ p["w"] + p["b"]) ** 2)
    result = check(Pair("square", Torch(right), clean, WEIGHTS, draw), SHORT, thorough=True)
    rows = [row for row in result.rows if row.group == "directional derivative"]
    assert [row.verdict for row in rows] == ["PASS", "PASS"]
    assert all(row.bound < 1e-6 for row in rows)


def test_a_loss_of_the_callers_own_has_a_quotient_too() -> None:
    losses = (lambda output: output.square().mean(), lambda output: (output**2).mean())
    result = check(Pair("square", Torch(right), Jax(wrong), WEIGHTS, draw, loss=losses), SHORT)
    assert "a finite difference agrees with torch's gradient, not with the other's" in result.reason
    rows = [row for row in result.rows if row.group == "directional derivative"]
    assert [row.verdict for row in rows] == ["PASS", "ABSTAIN"]
    assert rows[0].bound < 1e-6
