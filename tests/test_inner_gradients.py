"""Models that differentiate while they run (forces), and those that run again in the backward pass (checkpoints)."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import parity
from parity import Jax, Pair, Torch, check
from parity.backends.torch.capture import capturing
from parity.findings import BORN

QUICK = {"precisions": (), "steps": 0, "points": True}


class Energy(torch.nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.mid, self.down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
        self.factor = factor

    def forward(self, x):
        return self.down(torch.tanh(self.mid(torch.tanh(self.up(x)) * self.factor))).sum()


class Forces(torch.nn.Module):
    """An energy and minus its gradient, as a force field gives them."""

    def __init__(self, factor=1.0, sign=-1.0):
        super().__init__()
        self.energy, self.sign = Energy(factor), sign

    def forward(self, x):
        x = x.clone() if x.requires_grad else x.requires_grad_()
        with torch.enable_grad():
            energy = self.energy(x)
            (slope,) = torch.autograd.grad(energy, x, create_graph=True)
        return {"energy": energy, "forces": self.sign * slope}


def jax_forces(factor=1.0, sign=-1.0):
    """The same in JAX."""

    def energy(p, x):
        hidden = jnp.tanh(parity.tap("up", x @ p["up.weight"].T + p["up.bias"])) * factor
        hidden = parity.tap("energy.mid", hidden @ p["mid.weight"].T + p["mid.bias"])
        return jnp.sum(jnp.tanh(hidden) @ p["down.weight"].T + p["down.bias"])

    def function(p, x):
        value, slope = jax.value_and_grad(energy, argnums=1)(p, x)
        return {"energy": value, "forces": sign * slope}

    return Jax(function, {name: tensor.detach().numpy() for name, tensor in Energy().named_parameters()})


def rows_of(generator):
    return {"x": generator.standard_normal((3, 4)).astype(np.float32)}


def born(result):
    return [(finding.name, finding.what) for finding in result.findings if finding.birth == BORN]


FORCES = {
    "torch and jax": (Forces, jax_forces, "energy.mid"),
    "jax and torch": (jax_forces, Forces, "energy.mid"),
    "torch and torch": (Forces, lambda *given: Torch(Forces(*given), label="other"), "energy.mid:in"),
}


@pytest.mark.parametrize("sides", FORCES)
def test_forces_agree_in_values_and_gradients_at_every_point(sides):
    reference, candidate, _ = FORCES[sides]
    result = check(Pair("forces", reference(), candidate(), inputs=rows_of), **QUICK)
    assert (result.verdict, result.rung, born(result)) == ("PASS", "same-function", [])
    assert any(row.name.startswith("gradient at point") for row in result.rows)


@pytest.mark.parametrize("sides", FORCES)
def test_a_fault_of_the_energy_is_named_where_it_is_made(sides):
    reference, candidate, first = FORCES[sides]
    result = check(Pair("forces", reference(), candidate(1.01), inputs=rows_of), **QUICK)
    assert result.verdict == "FAIL"
    assert born(result)[0] == (first, "value")
    assert not [line for line in result.unseen if "could not be run" in line]


def test_a_fault_behind_the_gradient_is_named_in_what_is_returned():
    result = check(Pair("forces", Forces(), Torch(Forces(1, -1.01), label="other"), inputs=rows_of), **QUICK)
    assert (result.verdict, born(result)) == ("FAIL", [("model:forces", "value")])


def test_gradients_that_a_model_takes_on_its_way_are_not_the_runs_own():
    model, x = Energy(), torch.ones(3, 4)

    def inside(x):
        x.requires_grad_()
        (slope,) = torch.autograd.grad(model(x), x, create_graph=True)
        return slope.square().sum()

    class Slope(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return inside(x)

    whole = Slope()
    with capturing(whole) as recording:
        whole(x.clone()).backward()
    up = torch.nn.functional.linear(x, model.up.weight, model.up.bias).detach().requires_grad_()
    mid = torch.tanh(up) * model.factor
    energy = model.down(torch.tanh(model.mid(mid))).sum()
    (of_up,) = torch.autograd.grad(energy, up, create_graph=True)
    (expected,) = torch.autograd.grad((of_up @ model.up.weight).square().sum(), up)
    np.testing.assert_allclose(recording.capture().get("model.up").gradient, expected.numpy(), rtol=1e-4, atol=1e-7)


class Block(torch.nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.up, self.down, self.norm = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4), torch.nn.LayerNorm(4)
        self.factor = factor

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))) * self.factor)


class Blocks(torch.nn.Module):
    def __init__(self, factor=1.0, reentrant=None):
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.reentrant = torch.nn.ModuleList([Block(), Block(factor), Block()]), reentrant

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [False, True])
def test_values_are_fed_through_checkpoints_of_both_kinds(reentrant):
    for factor, expected in ((1.0, []), (1.01, [("blocks.1.down:in", "value")])):
        pair = Pair("blocks", Blocks(), Torch(Blocks(factor, reentrant), label="other"), inputs=rows_of)
        result = check(pair, flops=False, **QUICK)  # what runs again costs again
        assert (result.verdict, born(result)) == ("FAIL" if expected else "PASS", expected)


@pytest.mark.parametrize("feed", [None, {"blocks.0.down:in": np.zeros((2, 8), np.float32)}])
def test_the_graph_of_a_captured_run_is_gone_with_it(feed):
    """Nothing in it holds the recording: what a large model keeps would wait for the garbage collector."""
    module = Blocks()

    def recorded():
        x = torch.ones(2, 4, requires_grad=True)
        with capturing(module, feed=feed) as recording:
            (module(x + 0).sum() + recording.started).backward()
        assert recording.capture().get("blocks.0.up").gradient is not None
        return weakref.ref(recording)

    gc.collect()
    gc.disable()
    try:
        assert recorded()() is None
    finally:
        gc.enable()
