"""The float64 rule takes its scale from float32, whose kernels may add up better: by how much is measured."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parity import Jax, Pair, Torch
from parity.bounds import float64_bound
from parity.environment import processor
from parity.sides import Sides
from parity.sums import longest_sum, summation_factor

PAIR = Pair("sums", Torch(dict), Jax(dict))


class Adds:
    """A runner that adds products in blocks, each block one after the other, in the precision asked for."""

    def __init__(self, **block: int):
        self.block = block

    def evaluate(self, function: Any, draws: Sequence[dict[str, np.ndarray]], precision: str) -> list[np.ndarray]:
        a, b = (operand.astype(precision) for operand in draws[0].values())
        blocks = []
        for start in range(0, a.shape[1], self.block[precision]):
            stop = start + self.block[precision]
            # cumsum adds in order
            blocks.append(
                np.cumsum(a[:, None, start:stop] * b.T[None, :, start:stop], axis=2, dtype=precision)[..., -1]
            )
        return [np.sum(np.stack(blocks), axis=0)]


def factor(reference: Adds, candidate: Adds, length: int) -> float:
    return summation_factor(SimpleNamespace(reference=reference, candidate=candidate), length)  # type: ignore[arg-type]


def test_sums_one_after_another_are_worse_by_the_square_root_of_their_length() -> None:
    blocked, sequential = Adds(float32=64, float64=64), Adds(float32=64, float64=10**6)
    assert factor(blocked, blocked, 1600) == pytest.approx(1, abs=0.4)
    assert factor(sequential, blocked, 1600) == pytest.approx(5, rel=0.4)
    assert factor(blocked, sequential, 1600) == pytest.approx(5, rel=0.4), "the worse of the two sides counts"
    assert factor(sequential, sequential, 400) < factor(sequential, sequential, 6400)


def test_float32_that_adds_worse_than_float64_excuses_nothing() -> None:
    assert factor(Adds(float32=10**6, float64=64), Adds(float32=64, float64=64), 1600) == 1


def test_torch_adds_long_float64_sums_one_after_another_and_float32_in_blocks() -> None:
    """Why there is a factor at all; when this fails, torch's float64 matmul has changed for the better."""
    if "AMD" not in processor():
        pytest.skip("MKL chooses its kernels by processor: seen on AMD EPYC")
    sides = Sides.of(PAIR)
    assert summation_factor(sides, 61) < 1.5
    assert summation_factor(sides, 12_289) > 3


def test_the_factor_widens_the_bound_and_is_named_in_it() -> None:
    plain, wider = float64_bound(1e-7, 1000), float64_bound(1e-7, 1000, 3.5)
    assert wider.value == pytest.approx(3.5 * plain.value)
    assert "3.5 (float64's sums, measured)" in wider.derivation
    assert "sums" not in plain.derivation


def test_the_longest_sum_is_an_axis_of_a_weight_or_a_whole_batch() -> None:
    weights = {"w": np.zeros((3, 47)), "b": np.zeros(5)}
    assert longest_sum(weights, {"x": np.zeros((2, 19, 1))}) == 47
    assert longest_sum(weights, {"x": np.zeros((7, 19, 1))}) == 7 * 19
    assert longest_sum({}, {"x": np.zeros(())}) == 1
