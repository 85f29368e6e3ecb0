"""The machine at hand: rates from a clock that is set, real rates that are possible, and the device of its driver."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise

import pytest

from parity.account import measure as module
from parity.account.measure import LONG, SIDES, Machine, measure, seconds
from parity.errors import ParityUsageError
from parity.planning import here


class Clock:
    """Time that only work takes."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def pretended(clock, framework, rate, bandwidth, name="a machine", accelerated=False, best=10**9):
    """A machine of such rates: products larger than `best` are half as fast, and two of three calls are slow."""
    calls = []

    def work(amount, speed):
        def run():
            calls.append(amount)
            clock.now += amount / speed * (1 if len(calls) % 3 == 0 else 2)

        return run

    return Machine(
        framework,
        name,
        1e9,
        accelerated,
        lambda format, side: work(2 * side**3, rate if side <= best else rate / 2),
        lambda count: work(2 * count, bandwidth),
    )


def test_the_fastest_call_of_the_fastest_size_by_the_faster_framework_counts():
    clock = Clock()
    machines = [
        pretended(clock, "one", 1e12, 3e10, best=1024),
        pretended(clock, "other", 8e11, 4e10),
    ]
    found = measure(machines, "fp32", clock)
    assert [each.fastest for each in found.products] == [pytest.approx(1e12), pytest.approx(8e11)]
    assert [each.median for each in found.products] == [pytest.approx(5e11), pytest.approx(4e11)]
    assert found.device.peak("fp32") == pytest.approx(1e12)
    assert found.device.bandwidth == pytest.approx(4e10)
    assert (found.device.memory, found.device.sparse, found.listed) == (1e9, {}, None)
    assert found.device.source.startswith("measured here: products of ")
    assert found.device.source.endswith("MiB by other")


def test_products_grow_until_one_takes_long_and_no_further():
    clock, asked = Clock(), []

    def product(format, side):
        asked.append(side)

        def run():
            clock.now += 2 * side**3 / 1e11

        return run

    machine = Machine("one", "a machine", 1.0, False, product, lambda count: product("", 256))
    measure([machine], "bf16", clock)
    sides = asked[:-1]
    assert all(after == 2 * before for before, after in pairwise(sides))
    assert 2 * sides[-1] ** 3 / 1e11 >= LONG > 2 * sides[-2] ** 3 / 1e11
    assert sides[0] == SIDES[0]


def test_an_accelerator_is_not_measured_by_the_processor_beside_it():
    clock = Clock()
    machines = [
        pretended(clock, "one", 9e12, 9e12),
        pretended(clock, "other", 1e12, 1e12, "NVIDIA H100 80GB HBM3", accelerated=True),
    ]
    found = measure(machines, "bf16", clock)
    assert [each.framework for each in found.products] == ["other"]
    assert found.listed.key == "h100-sxm"


def test_the_first_call_is_not_counted():
    clock, calls = Clock(), []

    def compiles():
        calls.append(0)
        clock.now += 100.0 if len(calls) == 1 else 0.1

    assert seconds(compiles, clock) == pytest.approx([0.1] * 5)


@pytest.mark.parametrize("format", ["fp32", "bf16"])
def test_real_rates_are_possible_ones(monkeypatch, format):
    """An asynchronous call that nobody waits for would be thousands of times faster than any processor."""
    monkeypatch.setattr(module, "SIDES", (256, 512))
    monkeypatch.setattr(module, "COPIED", 2**24)
    monkeypatch.setattr(module, "SECONDS", 0.02)
    found = measure(here.machines(), format)
    assert [each.framework for each in found.products] == ["PyTorch", "XLA"]
    for each in found.products:
        assert 1e7 < each.fastest < 2e13
        assert each.median <= each.fastest
    for each in found.copies:
        assert 1e8 < each.fastest < 2e13


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_the_work_is_what_it_says(framework):
    """A product is one of normal numbers and no other; a copy really writes."""
    import numpy as np

    if framework == "torch":
        import torch

        from parity.backends.torch import rates

        asked = {}
        real = torch.mm

        def remember(a, b, out):
            asked["a"], asked["b"], asked["out"] = a, b, out
            return real(a, b, out=out)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "mm", remember)
            rates.product("fp32", 64)()
        assert np.allclose(asked["out"], asked["a"].double() @ asked["b"].double(), atol=1e-4)
        assert abs(float(asked["a"].std()) - 1) < 0.1
    else:
        from parity.backends.jax import rates

        product = np.asarray(rates.product("fp32", 64)())
        assert product.shape == (64, 64)
        assert abs(product.std() - 8) < 1  # of 64 products of normal numbers
        assert product.dtype == np.float32


def test_a_driver_s_name_finds_the_device(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(here, "machines", lambda: [pretended(clock, "one", 1, 1, "NVIDIA H100 PCIe", True)])
    assert here.device_here().key == "h100-pcie"
    monkeypatch.setattr(here, "machines", lambda: [pretended(clock, "one", 1, 1, "a processor")])
    with pytest.raises(ParityUsageError, match=r"--device here: one of .*, got a processor; --measure it, or"):
        here.device_here()


def test_without_a_framework_there_is_nobody_to_ask(monkeypatch):
    monkeypatch.setattr(here, "find_spec", lambda name: None)
    with pytest.raises(ParityUsageError, match="PyTorch or JAX to ask, got neither"):
        here.machines()


def test_the_command_measures_and_says_so(tmp_path):
    words = [sys.executable, "-m", "parity", "account", "tiny", "--precision", "fp32", "--measure"]
    done = subprocess.run([*words, "--json", str(tmp_path / "a.json")], check=True, capture_output=True, text=True)
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["device"]["key"] == "here"
    assert found["device"]["peak"] == max(each["fastest"] for each in found["measured"]["products"])
    assert "fastest call (median): products PyTorch" in " ".join(done.stdout.split())
    refused = subprocess.run([*words, "--device", "h100"], check=False, capture_output=True, text=True)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "--measure: of the machine at hand, got --device h100" in refused.stderr
