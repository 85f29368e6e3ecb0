"""A side that is not a function of its weights and inputs is told so, however little it draws."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
import torch

import parity
from parity.errors import ParityUsageError

X = np.random.Generator(np.random.PCG64(0)).normal(size=(8, 8)).astype(np.float32)


class Noisy(torch.autograd.Function):
    """Twice x, with a gradient of noise."""

    @staticmethod
    def forward(context, x):
        return x * 2.0

    @staticmethod
    def backward(context, gradient):
        return 2 * gradient * (1 + 1e-9 * torch.randn_like(gradient))


def drawing(size):
    return parity.Torch(lambda x: x * (1 + size * torch.randn_like(x)))


SAME = parity.Jax(lambda x: x)


@pytest.mark.parametrize("size", [1e-2, 5e-9, 1e-14])
@pytest.mark.parametrize("swapped", [False, True])
def test_noise_beyond_rounding_is_refused_on_either_side(size, swapped):
    sides = (SAME, drawing(size)) if swapped else (drawing(size), SAME)
    with pytest.raises(
        ParityUsageError, match=r"torch: a function of its weights and inputs alone, got 'output' that "
    ):
        parity.check(parity.Pair("noise", *sides, inputs=(X,)))


@pytest.mark.parametrize("swapped", [False, True])
def test_noise_of_the_size_of_rounding_is_said_and_is_not_bitwise(swapped):
    sides = (SAME, drawing(1.5e-16)) if swapped else (drawing(1.5e-16), SAME)
    torch.manual_seed(0)
    result = parity.check(parity.Pair("noise", *sides, inputs=(X,)))
    assert (result.verdict, result.rung) == ("PASS", "same-function")
    assert any(
        re.search("torch: two runs on the same numbers give other bits, '(gradient )?.*put.*' by", note)
        for note in result.notes
    )


def test_a_gradient_by_chance_is_refused():
    pair = parity.Pair("noise", parity.Torch(Noisy.apply), parity.Jax(lambda x: x * 2), inputs=(X,))
    with pytest.raises(ParityUsageError, match="got 'gradient input 0' that differs by 1e-09 between two runs"):
        parity.check(pair)


def test_choices_by_chance_are_refused():
    pair = parity.Pair(
        "choice", parity.Torch(lambda x: torch.rand(8) > 0.5), parity.Jax(lambda x: x[0] > 0), inputs=(X,)
    )
    with pytest.raises(ParityUsageError, match="got 'output' that differs by"):
        parity.check(pair)


def test_noise_beside_float32_inside_is_an_island_still():
    """Sums of float32 in another order are no other function; they are said."""

    calls = []

    def island(x):
        calls.append(x)
        inside = x.float().sum()
        inside = torch.nextafter(inside, inside + len(calls) // 2 % 2)  # as another order of its terms would give
        return x + 1e-3 * inside.to(x.dtype)

    def plain(x):
        return x + 1e-3 * x.sum()

    result = parity.check(parity.Pair("order", parity.Torch(island), parity.Jax(plain), inputs=(X,)), precisions=())
    assert (result.verdict, result.rung) == ("PASS", "float32-island"), result.reason
    assert any("two runs on the same numbers give other bits" in note for note in result.notes)


def test_what_is_the_same_twice_says_nothing():
    result = parity.check(parity.Pair("tanh", parity.Torch(torch.tanh), parity.Jax(jax.numpy.tanh), inputs=(X,)))
    assert not [note for note in result.notes if "two runs" in note]


def test_a_pass_that_was_looked_into_has_no_reason():
    """Two points that agree were said to leave something in a state that is not there."""
    pair = parity.Pair("tanh", parity.Torch(torch.tanh), parity.Jax(jax.numpy.tanh), inputs=(X,))
    result = parity.check(pair, points=True)
    assert (result.verdict, result.reason) == ("PASS", "")


def test_float32_inside_that_adds_up_in_any_order_is_an_island_and_no_chance():
    weights = {"w": (np.random.Generator(np.random.PCG64(0)).normal(size=(12, 5)) / 2).astype(np.float32)}
    x = np.random.Generator(np.random.PCG64(1)).normal(size=(7, 12)).astype(np.float32)

    def shuffled(p, x):
        order = torch.randperm(12)
        return (torch.sin(x).float()[:, order] @ p["w"].float()[order]).to(x.dtype)

    torch.manual_seed(0)
    pair = parity.Pair(
        "shuffled",
        parity.Torch(shuffled, {"w": torch.tensor(weights["w"])}),
        parity.Jax(lambda p, x: jax.numpy.sin(x) @ p["w"], weights),
        inputs=(x,),
    )
    result = parity.check(pair, precisions=(), flops=False)
    assert (result.verdict, result.rung) == ("PASS", "float32-island"), result.reason
