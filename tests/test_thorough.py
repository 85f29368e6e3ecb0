"""Faults that hide on ordinary inputs and parameters, and the variant that shows each."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from functions import steep_square

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


# what a check that passes on its own inputs has to say all the same


def thorough(reference, candidate, **changes):
    given = (np.random.Generator(np.random.PCG64(9)).normal(size=(4, 16)).astype(np.float32),)
    changes = {"thorough": True, "steps": 0, "flops": False, "precisions": ()} | changes
    return check(Pair("x", Torch(reference), Jax(candidate), inputs=given), **changes)


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (lambda x: torch.where(x == 0, 1.0, x), lambda x: x),
        (torch.sign, lambda x: jnp.where(x >= 0, 1.0, -1.0)),
        (lambda x: torch.topk(x, 3).indices, lambda x: jax.lax.top_k(-x[:, ::-1], 3)[1] * 0 + jax.lax.top_k(x, 3)[1]),
    ],
    ids=["another value at zero", "sign", "top-k"],
)
def test_a_tie_that_turns_out_otherwise_is_no_pass(reference, candidate):
    result = thorough(reference, candidate)
    assert (result.verdict, result.rung) == ("ABSTAIN", None)
    assert re.match(
        r"the same on the pair's own inputs, but output, inputs .*: \d+ elements differ, all as good as tied",
        (result.reason),
    )
    assert result.exit_status == 3


def test_a_gradient_that_is_no_number_on_both_sides_is_said():
    result = thorough(lambda x: (x * x).sum(-1).sqrt(), lambda x: jnp.sqrt((x * x).sum(-1)))
    assert result.verdict == "PASS"
    assert "gradient input 0, inputs all zero: no element is finite" in result.reason


def test_an_output_that_is_no_number_on_both_sides_is_said():
    result = thorough(lambda x: x / (x * x).sum(-1, keepdim=True), lambda x: x / (x * x).sum(-1, keepdims=True))
    assert "output, inputs all zero" in result.reason
    right = thorough(lambda x: x / (1 + x * x), lambda x: x / (1 + x * x))
    assert (right.verdict, right.reason) == ("PASS", "")


STEEP_IN_TORCH, STEEP_IN_JAX = steep_square(2.5)


def test_a_gradient_that_is_wrong_alike_is_said():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.full((16,), 1.5))

        def forward(self, x):
            return STEEP_IN_TORCH(self.w) * x

    x = np.random.Generator(np.random.PCG64(9)).normal(size=(4, 16)).astype(np.float32)
    weights = {"w": np.full(16, 1.5, np.float32)}
    pair = Pair("steep", Torch(Module()), Jax(lambda p, x: STEEP_IN_JAX(p["w"]) * x, weights), inputs=(x,))
    result = check(pair, thorough=True, steps=0, flops=False, precisions=())
    assert result.verdict == "PASS"
    assert "on neither side the gradient is the derivative: gradient" in result.reason


def scaled(eps, sqrt):
    def run(x):
        return x / sqrt((x * x).mean(-1, keepdims=True) + eps)

    return run


def test_an_eps_that_is_zero_in_float16_is_found_on_zeros_although_the_two_agree():
    result = thorough(scaled(1e-8, torch.sqrt), scaled(1e-8, jnp.sqrt), precisions=("float16",))
    assert (result.verdict, result.rung) == ("PASS", "same-function")
    assert (
        "output, inputs all zero in float16 and 1 more: both sides are wrong alike: 64 of 64 elements" in result.reason
    )
    assert thorough(scaled(1e-8, torch.sqrt), scaled(1e-8, jnp.sqrt), precisions=("bfloat16",)).verdict == "PASS"


@pytest.mark.parametrize(
    ("mask", "name"),
    [
        (np.array([[1, 1, 0, 0]]), "mask all zero"),
        (np.array([[1, 1, 0, 0], [1, 1, 1, 0]]), "last row of mask all zero"),
        (np.array([[0, 0, -np.inf], [0, -np.inf, 0]], np.float32), "last row of mask all -inf"),
        (np.array([[0, -1e9, 0]], np.float32), "mask all -1e+09"),
    ],
)
def test_masks_of_every_kind_are_closed(mask, name):
    closed = next(each for each in variants({}, {"mask": mask}, 0) if "mask" in each.name)
    assert closed.name == name
    assert set(np.unique(closed.batch["mask"][-1])) == {mask.min()}
    assert not [each.name for each in variants({}, {"mask": mask}, 0) if each.name.startswith("inputs")]


@pytest.mark.parametrize("array", [np.array([[0.0, -0.5]]), np.array([[0.0, 0.0]]), np.array([[-1e9, 1.0]])])
def test_ordinary_numbers_are_no_mask(array):
    assert not [
        each for each in variants({}, {"x": array.astype(np.float32)}, 0) if each.name.startswith(("x ", "last"))
    ]


def test_one_side_that_is_no_number_in_float16_fails_and_the_functions_are_still_the_same():
    def right(x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True).float() + 1e-8).to(x.dtype)

    result = thorough(right, scaled(1e-8, jnp.sqrt), precisions=("float16",))
    assert (result.verdict, result.rung) != ("FAIL", "different")
    assert result.verdict == "FAIL"
    assert "in float16: jax is wrong: " in result.reason


def test_what_a_saturated_softmax_leaves_of_a_gradient_decides_nothing():
    w = (np.random.Generator(np.random.PCG64(0)).normal(size=(64, 16)) / 8).astype(np.float32)
    pair = Pair(
        "softmax",
        Torch(lambda p, x: (x @ p["w"]).softmax(-1), {"w": torch.tensor(w)}),
        Jax(lambda p, x: jax.nn.softmax(x @ p["w"], -1), {"w": w}),
        inputs=lambda generator: (generator.normal(size=(7, 64)),),
    )
    result = check(pair, thorough=True, steps=0, flops=False, precisions=())
    assert result.verdict == "PASS", result.reason
