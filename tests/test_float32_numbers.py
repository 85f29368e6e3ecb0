"""Numbers and tables that were rounded to float32 before a run: islands, whose proof is how far a rounding moves."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import parity
from parity import Jax, Pair, Torch, check

TABLE = np.sin(np.linspace(0, 9, 16))
#: float32 numbers in a function that is float64 otherwise, and what they round
FLOAT32 = {
    "a number of jax": (lambda x: x * jnp.float32(512**0.5), lambda x: x * 512**0.5),
    "a number of NumPy": (lambda x: x * np.float32(0.123456789), lambda x: x * 0.123456789),
    "a table in a function without places": (
        lambda x: x + TABLE.astype(np.float32),
        lambda x: x + torch.from_numpy(TABLE).to(x.dtype),
    ),
}


@pytest.mark.parametrize("name", FLOAT32)
def test_numbers_that_were_rounded_to_float32_are_islands(name: str) -> None:
    narrow, exact = FLOAT32[name]
    pair = Pair("rounded", Torch(exact), Jax(narrow), inputs=lambda g: (g.standard_normal((4, 16)),))
    result = check(pair, precisions=(), batches=2, steps=0, flops=False)
    assert (result.verdict, result.rung) == ("PASS", "float32-island"), result.reason


def test_another_number_is_no_island() -> None:
    pair = Pair(
        "other",
        Torch(lambda x: x + torch.from_numpy(TABLE).to(x.dtype)),
        Jax(lambda x: x + TABLE.astype(np.float32) * np.float32(1 + 1e-6)),
        inputs=lambda g: (g.standard_normal((4, 16)),),
    )
    assert check(pair, precisions=(), batches=2, steps=0, flops=False).rung == "different"


def test_a_table_in_a_function_that_another_one_made_is_excused_as_any() -> None:
    weights = {"w": np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)}

    def made() -> Any:
        def port(p: Any, x: Any) -> Any:
            return parity.tap("sum", parity.tap("product", x @ p["w"]) + TABLE.astype(np.float32)) @ p["w"]

        return port

    def reference(p: Any, x: Any) -> Any:
        return parity.tap("sum", parity.tap("product", x @ p["w"]) + torch.from_numpy(TABLE).to(x.dtype)) @ p["w"]

    pair = Pair("made", Torch(reference), Jax(made()), weights, lambda g: (g.standard_normal((4, 16)),))
    result = check(pair, precisions=(), batches=2, steps=0, flops=False)
    assert (result.verdict, result.rung) == ("PASS", "float32-island"), result.reason
