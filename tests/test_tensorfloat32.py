"""TensorFloat-32: refused where there is none, asked for where there is a GPU, judged as the format that it is."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parity import Jax, Options, Pair, ParityUsageError, Torch, check
from parity.formats import FORMATS, TENSORFLOAT32
from parity.rounding import dtype_of, to_bits
from parity.sides import rounded

WEIGHTS = {"w": np.random.default_rng(3).standard_normal((64, 32)).astype(np.float32)}


def inputs(generator: np.random.Generator) -> tuple[np.ndarray]:
    return (generator.standard_normal((48, 64)).astype(np.float32),)


def reference(params: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ params["w"])


def candidate(params: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["w"])


def test_a_cpu_has_none() -> None:
    with pytest.raises(ParityUsageError, match=r"^precisions: tensorfloat32 on a GPU, which alone has it, got cpu"):
        Options(precisions=(TENSORFLOAT32,))
    assert Options(precisions=(TENSORFLOAT32,), device="cuda").precisions == (TENSORFLOAT32,)


@given(st.floats(allow_nan=False, allow_infinity=False, width=32, allow_subnormal=False))
def test_it_is_float32_with_the_significand_of_float16(number: float) -> None:
    (short,) = rounded({"x": np.asarray([number], np.float32)}, TENSORFLOAT32)["x"]
    assert short.dtype == np.float32
    if abs(number) >= (2 - 2.0**-11) * 2.0**127:  # nearer to the next power of two, which is beyond the range
        assert short == np.copysign(np.inf, number)
        return
    assert abs(float(short) - number) <= FORMATS[TENSORFLOAT32].unit_roundoff * abs(number)
    if 2.0**-14 <= abs(number) <= 65_504:  # the range of float16
        assert short == np.float32(np.float16(np.float32(number)))


@given(st.floats(allow_nan=False, allow_infinity=False, width=32), st.integers(1, 24))
def test_rounding_to_bits_is_rounding_to_nearest_even(number: float, bits: int) -> None:
    once = to_bits(np.asarray([number], np.float32), bits)
    assert np.array_equal(to_bits(once, bits), once)
    if bits == 24:
        assert once[0] == np.float32(number)


def test_bfloat16_is_rounding_to_eight_bits() -> None:
    numbers = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    assert np.array_equal(to_bits(numbers, 8), numbers.astype(dtype_of("bfloat16")).astype(np.float32))


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> Options:
    """Options that ask for it on the CPU, where the switches change nothing."""
    options = Options(precisions=("float32",), batches=4, steps=1, flops=False)
    object.__setattr__(options, "precisions", (TENSORFLOAT32,))
    monkeypatch.setattr("parity.verdict.replace", lambda given, **changes: given)
    return options


def in_the_mode(switches: list[tuple[str, str]]) -> Pair:
    """The pair that notes which products it was run with."""

    def noting(params: Any, x: torch.Tensor) -> torch.Tensor:
        switches.append((str(x.dtype), torch.get_float32_matmul_precision()))
        return reference(params, x)

    def noting_too(params: Any, x: jax.Array) -> jax.Array:
        switches.append((str(x.dtype), str(jax.config.jax_default_matmul_precision)))
        return candidate(params, x)

    return Pair("noting", Torch(noting), Jax(noting_too), WEIGHTS, inputs)


def test_both_frameworks_are_asked_for_it_in_that_stage_alone(anywhere: Options) -> None:
    switches: list[tuple[str, str]] = []
    before = torch.get_float32_matmul_precision()
    result = check(in_the_mode(switches), anywhere)
    assert result.verdict == "PASS", str(result)
    assert {row.stage for row in result.rows} == {"float64", TENSORFLOAT32}
    assert {row.dtype for row in result.rows if row.stage == TENSORFLOAT32} == {"float32"}
    assert {("torch.float32", "high"), ("float32", "tensorfloat32")} <= set(switches)
    assert {("torch.float64", "highest"), ("float64", "highest")} <= set(switches)
    assert ("torch.float64", "high") not in switches
    assert torch.get_float32_matmul_precision() == before


def test_fewer_bits_than_it_has_are_found(anywhere: Options) -> None:
    def coarse(params: Any, x: jax.Array) -> jax.Array:
        if x.dtype == jnp.float32:
            x = jax.lax.reduce_precision(x, 8, 4)
        return candidate(params, x)

    result = check(Pair("coarse", Torch(reference), Jax(coarse), WEIGHTS, inputs), anywhere)
    assert (result.verdict, result.first_difference and result.first_difference.stage) == ("FAIL", TENSORFLOAT32)


@pytest.mark.gpu
def test_products_on_a_gpu_are_short_and_alike() -> None:
    options = Options(precisions=("float32", TENSORFLOAT32), batches=4, steps=0, device="cuda", flops=False)
    result = check(Pair("products", Torch(reference), Jax(candidate), WEIGHTS, inputs), options)
    assert result.verdict == "PASS", str(result)
    measured = {row.stage: row.measured for row in result.rows if row.name == "output"}
    assert measured[TENSORFLOAT32] > 50 * measured["float32"]
