"""Faults that hide on ordinary inputs and parameters, and the variant that shows each."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from parity import Jax, Options, Pair, Torch, check
from parity.variants import variants

SHORT = Options(precisions=(), batches=2, steps=0, flops=False)


def draw(generator: np.random.Generator) -> tuple[np.ndarray]:
    return (generator.standard_normal((5, 7)),)


def masked(generator: np.random.Generator) -> dict[str, np.ndarray]:
    mask = np.ones((5, 7), np.int64)
    mask[:, 5:] = 0
    return {"x": generator.standard_normal((5, 7)), "mask": mask}


def mean_torch(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (x * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def mean_jax(x: jax.Array, mask: jax.Array, least: float = 1.0) -> jax.Array:
    return (x * mask).sum(-1) / jnp.maximum(mask.sum(-1), least)


ZERO_BIAS = {"b": np.zeros(7, np.float32)}

FAULTS: dict[str, tuple[Pair, Pair, str]] = {
    # name: (with the fault, without it, what shows it)
    "clip at 100": (
        Pair("clip", Torch(lambda x: x * 2), Jax(lambda x: jnp.clip(x, -100, 100) * 2), inputs=draw),
        Pair("clip", Torch(lambda x: x * 2), Jax(lambda x: x * 2), inputs=draw),
        "inputs x 1e3",
    ),
    "a kink at ties": (
        Pair("max", Torch(lambda x: x.max(-1).values), Jax(lambda x: x.max(-1)), inputs=draw),
        Pair("max", Torch(lambda x: x.amax(-1)), Jax(lambda x: x.max(-1)), inputs=draw),
        "inputs of 0, 1",
    ),
    "a gradient at zero": (
        Pair("norm", Torch(lambda x: x.norm(dim=-1)), Jax(lambda x: jnp.linalg.norm(x, axis=-1)), inputs=draw),
        Pair("square", Torch(lambda x: (x * x).sum(-1)), Jax(lambda x: (x * x).sum(-1)), inputs=draw),
        "inputs all zero",
    ),
    "a row without anything": (
        Pair(
            "mean", Torch(mean_torch), Jax(lambda x, mask: mean_jax(x, mask, 1e-9) + (mask.sum(-1) == 0)), inputs=masked
        ),
        Pair("mean", Torch(mean_torch), Jax(mean_jax), inputs=masked),
        "last row of mask all zero",
    ),
    "a table that ends": (
        Pair(
            "table",
            Torch(lambda x: x * torch.arange(x.shape[1])),
            Jax(lambda x: x * jnp.minimum(jnp.arange(x.shape[1]), 6)),
            inputs=draw,
        ),
        Pair(
            "table",
            Torch(lambda x: x * torch.arange(x.shape[1])),
            Jax(lambda x: x * jnp.arange(x.shape[1])),
            inputs=draw,
        ),
        "longer sequences",
    ),
    "a bias that is used twice": (
        Pair("bias", Torch(lambda p, x: x + p["b"]), Jax(lambda p, x: x + p["b"] * (1 + p["b"] * 3)), ZERO_BIAS, draw),
        Pair("bias", Torch(lambda p, x: x + p["b"]), Jax(lambda p, x: x + p["b"]), ZERO_BIAS, draw),
        "parameters of zeros or ones randomised",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_ordinary_inputs_hide_is_shown_by_another(name: str) -> None:
    wrong, right, shown = FAULTS[name]
    assert check(wrong, SHORT).verdict == "PASS", "the fault must hide on the pair's own inputs"
    result = check(wrong, SHORT, thorough=True)
    assert (result.verdict, result.rung) == ("FAIL", "different")
    assert any(shown in row.name for row in result.rows if row.verdict == "FAIL")
    assert "the same on the pair's own inputs" in result.reason
    assert check(right, SHORT, thorough=True).verdict == "PASS"


def test_every_variant_is_float32_and_changes_something() -> None:
    batch: dict[str, Any] = {
        "x": np.float32(np.random.default_rng(0).standard_normal((4, 6))),
        "mask": np.ones((4, 6), bool),
        "ids": np.arange(24).reshape(4, 6),
    }
    weights = {"gain": np.ones(3, np.float32), "w": np.float32([1, 2])}
    found = list(variants(weights, batch, 0))
    assert len({each.name for each in found}) == len(found) == 11
    for each in found:
        assert each.batch["x"].dtype == np.float32
        same = [np.array_equal(each.batch[name], batch[name]) for name in batch]
        assert not all(same) or not np.array_equal(each.weights["gain"], weights["gain"])
        np.testing.assert_array_equal(each.weights["w"], weights["w"])
    shapes = {each.name: each.batch["ids"].shape for each in found}
    assert (shapes["shorter sequences"], shapes["longer sequences"]) == ((4, 3), (4, 9))


def test_a_side_that_cannot_run_on_an_input_is_told_and_the_rest_is_judged() -> None:
    def short(x: torch.Tensor) -> torch.Tensor:
        assert x.shape[1] < 8, "too long"
        return x * 2

    result = check(Pair("short", Torch(short), Jax(lambda x: x * 2), inputs=draw), SHORT, thorough=True)
    assert result.verdict == "PASS"
    (refused,) = [row for row in result.rows if row.name.startswith("not run")]
    assert (refused.verdict, refused.group) == ("ABSTAIN", "longer sequences")
    assert "too long" in refused.derivation
