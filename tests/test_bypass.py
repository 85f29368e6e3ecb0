"""Faults in plain functions: what a residual stream that no point shows carries on is not said to be born there."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from einops import einsum

import parity
from parity.findings import BORN, INHERITED, UNKNOWN

LAYERS = 6
WEIGHTS = {
    f"w{i}": np.random.Generator(np.random.PCG64(i)).normal(size=(16, 16)).astype(np.float32) / 4 for i in range(LAYERS)
}
X = np.random.Generator(np.random.PCG64(9)).normal(size=(4, 16)).astype(np.float32)


def model(tanh, wrong, tapped, residual=True):
    def run(parameters, x):
        for i in range(LAYERS):
            inside = tanh(einsum(x, parameters[f"w{i}"], "b i, i o -> b o"))
            inside = 1.001 * inside if i in wrong else inside
            x = x + inside if residual else inside
            x = parity.tap(f"stream{i}", x) if tapped else x
        return x

    return run


class Module(torch.nn.Module):
    def __init__(self, run):
        super().__init__()
        self.run = run
        for name, value in WEIGHTS.items():
            setattr(self, name, torch.nn.Parameter(torch.tensor(value)))

    def forward(self, x):
        return self.run(dict(self.named_parameters()), x)


def found(wrong, tapped, swapped, residual=True):
    right, faulty = (), wrong
    of_torch, of_jax = (right, faulty) if swapped else (faulty, right)
    sides = (
        parity.Torch(Module(model(torch.tanh, of_torch, tapped, residual))),
        parity.Jax(model(jnp.tanh, of_jax, tapped, residual), WEIGHTS),
    )
    result = parity.check(parity.Pair("layers", *(sides if swapped else sides[::-1]), inputs=(X,)), precisions=())
    assert result.verdict == "FAIL"
    return result, {finding.reference: finding.birth for finding in result.findings}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("wrong", [(2,), (2, 4)])
def test_what_a_hidden_stream_carries_is_unknown_and_said(wrong, swapped):
    result, births = found(wrong, tapped=False, swapped=swapped)
    first, *later = births.values()
    assert first == BORN
    assert set(later) == {UNKNOWN}
    assert result.reason.endswith("it begins at einsum 'b i, i o -> b o'#4")
    assert any("may have been carried there past all points" in line for line in result.unseen)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("wrong", [(2,), (2, 4)])
def test_with_the_stream_tapped_each_fault_is_born_in_its_layer(wrong, swapped):
    result, births = found(wrong, tapped=True, swapped=swapped)
    assert [name for name, birth in births.items() if birth == BORN] == [f"stream{i}" for i in wrong]
    assert {birth for name, birth in births.items() if name not in {f"stream{i}" for i in wrong}} == {INHERITED}
    assert not result.unseen


def test_without_a_stream_both_faults_are_born_where_they_are():
    """Every path leads through a point: the second one is no doubt."""
    _, births = found((2, 4), tapped=False, swapped=False, residual=False)
    born = [name for name, birth in births.items() if birth == BORN]
    assert born == ["einsum 'b i, i o -> b o'#4", "einsum 'b i, i o -> b o'#6"]


def births(body, good=1.0, bad=1.01):
    weights = {
        name: (np.random.Generator(np.random.PCG64(ord(name))).normal(size=(6, 6)) / 2).astype(np.float32)
        for name in "abcd"
    }
    x = np.random.Generator(np.random.PCG64(1)).normal(size=(7, 6)).astype(np.float32)
    held = {name: torch.tensor(value) for name, value in weights.items()}
    sides = (parity.Torch(partial(body, factor), held) for factor in (good, bad))
    result = parity.check(parity.Pair("body", *sides, inputs=(x,)), precisions=(), flops=False)
    return {finding.reference: finding.birth for finding in result.findings}, result


def test_a_skip_over_several_points_is_doubted():
    def body(factor, p, x):
        a = parity.tap("a", torch.tanh(x @ p["a"]))
        h = (x + a) * factor
        b = parity.tap("b", torch.tanh(h @ p["b"]))
        c = parity.tap("c", h + b @ p["c"])
        d = parity.tap("d", torch.tanh(c @ p["d"]))
        return parity.tap("e", h + d)

    found, _ = births(body)
    assert [found[name] for name in "bcde"] == [BORN, UNKNOWN, INHERITED, UNKNOWN]


def test_a_model_that_does_not_run_on_moved_values_leaves_the_doubt():
    def body(factor, p, x):
        a = parity.tap("a", torch.tanh(x @ p["a"]))
        if (a.abs() > 1).any():
            raise ValueError("a is a tanh")
        h = (x + a) * factor
        b = parity.tap("b", torch.tanh(h @ p["b"]))
        return parity.tap("c", h + b @ p["c"])

    found, result = births(body)
    assert [found[name] for name in "bc"] == [BORN, UNKNOWN]
    assert any("could not be run on values that were moved to see what they reach" in line for line in result.unseen)
