"""Optimizers whose steps are small beside the weights: right ones pass, and what never moves is said."""

from __future__ import annotations

import numpy as np
import optax
import pytest
import torch
from calibrate_optimizers import optimizer_pair

import parity
from parity.bounds import stored_floor

X = np.random.Generator(np.random.PCG64(9)).normal(size=(4, 16)).astype(np.float32)
SLICE = [
    ("adamw", 1e-4, 1e-2, 0.999, False),
    ("adamw", 1e-4, 1e-2, 0.999, True),
    ("adamw", 1e-5, 0.1, 0.95, False),
    ("adamw", 1e-3, 0.1, 0.999, True),
    ("sgd", 1e-6, 0.1, 0.0, False),
]


@pytest.mark.parametrize("constants", SLICE, ids=lambda constants: " ".join(map(str, constants)))
def test_a_right_optimizer_passes_whatever_its_learning_rate(constants):
    """`python tests/calibrate_optimizers.py` has the whole grid."""
    result = parity.check(optimizer_pair(*constants))
    assert result.verdict == "PASS", result.reason


def linear():
    torch.manual_seed(1)
    module = torch.nn.Linear(16, 3)
    return module, {name: value.detach().numpy().copy() for name, value in module.named_parameters()}


def function(parameters, x):
    return x @ parameters["weight"].T + parameters["bias"]


@pytest.mark.parametrize(
    ("of_torch", "of_optax"),
    [
        (lambda p: torch.optim.Adamax(p, 1e-3), optax.adamax(1e-3)),
        (lambda p: torch.optim.Adadelta(p, 1.0, rho=0.9, eps=1e-6), optax.adadelta(1.0, rho=0.9, eps=1e-6)),
        (
            lambda p: torch.optim.RMSprop(p, 1e-3, alpha=0.9, eps=1e-8, centered=True),
            optax.rmsprop(1e-3, decay=0.9, eps=1e-8, centered=True, eps_in_sqrt=False),
        ),
    ],
    ids=["adamax", "adadelta", "centred rmsprop"],
)
def test_the_controls_among_the_optimizers_are_not_flagged(of_torch, of_optax):
    module, weights = linear()
    sides = parity.Torch(module, optimizer=of_torch), parity.Jax(function, weights, optimizer=of_optax)
    result = parity.check(parity.Pair("control", *sides, inputs=(X,)))
    assert result.verdict == "PASS", result.reason


def test_a_decay_that_is_a_thousandth_off_is_another_optimizer_at_a_small_rate_too():
    """The floor is float32's; float64 tells such a decay from the right one."""
    module, weights = linear()
    pair = parity.Pair(
        "decay",
        parity.Torch(module, optimizer=lambda p: torch.optim.AdamW(p, 1e-5, weight_decay=0.1)),
        parity.Jax(function, weights, optimizer=optax.adamw(1e-5, weight_decay=0.1001)),
        inputs=(X,),
    )
    assert parity.check(pair).verdict == "FAIL"


def test_the_floor_is_of_the_size_of_what_storing_does():
    """Steps of float32 against exact ones: within the floor, and not far below it."""
    generator = np.random.Generator(np.random.PCG64(0))
    start = generator.normal(0, 0.02, 10_000).astype(np.float32)
    steps, rate, decay = 20, 1e-5, 0.1
    moves = [rate * generator.normal(size=start.shape) for _ in range(steps)]
    factor = np.float32(1) - np.float32(rate) * np.float32(decay)
    low = sum((start * factor - move.astype(np.float32)).astype(np.float64) - start for move in moves)
    exact = sum(start.astype(np.float64) * (1 - rate * decay) - move - start for move in moves)
    size = np.sqrt(np.mean(start.astype(np.float64) ** 2)) / np.sqrt(np.mean(exact**2))
    error = np.sqrt(np.mean((low - exact) ** 2)) / np.sqrt(np.mean(exact**2))
    bound = stored_floor(size, steps, "float32").value
    assert bound / 20 < error < bound


@pytest.mark.parametrize(("rate", "moves"), [(1e-6, False), (1e-2, True)])
def test_a_weight_that_never_moves_in_bfloat16_is_said_although_the_two_agree(rate, moves):
    module, weights = linear()
    pair = parity.Pair(
        "never",
        parity.Torch(module, optimizer=lambda p: torch.optim.SGD(p, rate)),
        parity.Jax(function, weights, optimizer=optax.sgd(rate)),
        inputs=(X,),
    )
    result = parity.check(pair)
    assert result.verdict == "PASS"
    assert ("in bfloat16 a step moves no element of weight, bias on either side" in result.reason) != moves
