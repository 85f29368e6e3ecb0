"""matmul with a named accumulator against the exact product, by a bound derived from data and unit roundoff."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from sides import JAX, ROUNDOFF, TORCH, both_sides, normal, rounded

M, N = 5, 7
DEPTHS = [1, 16, 257, 1024]
sixteen_bits = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
depths = pytest.mark.parametrize("depth", DEPTHS)


def operands(depth, dtype, kind="normal"):
    x, w = normal(f"x{depth}", M, depth), normal(f"w{depth}", depth, N)
    if kind == "positive":
        x, w = np.abs(x), np.abs(w)
    return rounded(x, dtype), rounded(w, dtype)


def bound(x, w, dtype, accumulate="float32"):
    """What rounding can do to x w, elementwise.

    Each partial sum s_k is rounded once, by at most u |s_k| with a random sign, so the error of the sum is near
    u sqrt(sum of s_k^2) (running error analysis, Higham 2002 section 3.3; Higham and Mary 2019); 6 standard deviations
    of that, and one rounding of the result, with half the smallest subnormal for float16.
    """
    partial = np.cumsum(np.einsum("md,dn->mdn", x, w), axis=1)
    running = np.sqrt(np.square(partial).sum(axis=1))
    exact = partial[:, -1]
    return 6 * ROUNDOFF[accumulate] * running + ROUNDOFF[dtype] * np.abs(exact) + 2.0**-25


def headroom(value, x, w, dtype):
    """The largest error over its bound: at most 1 passes."""
    return float((np.abs(value - x @ w) / bound(x, w, dtype)).max())


@both_sides
@sixteen_bits
@depths
@pytest.mark.parametrize("kind", ["normal", "positive"])
def test_sixteen_bit_operands_are_accumulated_in_float32(side, dtype, depth, kind):
    x, w = operands(depth, dtype, kind)
    with side.mode(dtype):
        y = side.package.matmul(side.array(x, dtype), side.array(w, dtype), accumulate=side.dtype("float32"))
    assert y.dtype == side.dtype(dtype)
    assert headroom(side.numpy(y), x, w, dtype) <= 1


@sixteen_bits
@pytest.mark.parametrize("depth", [16, 257, 1024])
@pytest.mark.parametrize("kind", ["normal", "positive"])
def test_an_accumulator_of_sixteen_bits_fails_the_bound(dtype, depth, kind):
    """The planted fault: every partial sum rounded to the type of the operands."""
    x, w = operands(depth, dtype, kind)
    narrow = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    total = np.zeros((M, N), narrow)
    for k in range(depth):
        total = (total.astype(np.float32) + np.outer(x[:, k], w[k]).astype(np.float32)).astype(narrow)
    assert headroom(total.astype(np.float64), x, w, dtype) > 1.5


@both_sides
@depths
@pytest.mark.parametrize("kind", ["normal", "positive"])
def test_float32_operands_keep_the_bound_of_float32(side, depth, kind):
    x, w = operands(depth, "float32", kind)
    y = side.numpy(side.package.matmul(side.array(x, "float32"), side.array(w, "float32")))
    assert headroom(y, x, w, "float32") <= 1


@both_sides
def test_the_accumulator_is_at_least_the_one_asked_for(side):
    """float64 operands are not narrowed to the float32 that stands as the default."""
    x, w = operands(257, "float64")
    with side.mode("float64"):
        y = side.package.matmul(side.array(x, "float64"), side.array(w, "float64"))
        assert y.dtype == side.dtype("float64")
        np.testing.assert_allclose(side.numpy(y), x @ w, rtol=0, atol=1e-13)


@both_sides
@sixteen_bits
def test_a_wider_accumulator_is_honoured(side, dtype):
    """1 + 2^-30 - 1: float32 loses the middle term, float64 keeps it."""
    x, w = np.array([[1.0, 2.0**-14, -1.0]]), np.array([[1.0], [2.0**-14], [1.0]])
    with side.mode("float64"):
        operands = side.array(x, dtype), side.array(w, dtype)
        y = side.package.einsum(*operands, "b d, d f -> b f", accumulate=side.dtype("float64"))
        assert y.dtype == side.dtype("float64")
        assert side.numpy(y).item() == 2.0**-28


@both_sides
def test_matmul_takes_leading_axes(side):
    x, w = normal("leading", 2, 3, 5), normal("w", 5, 7)
    np.testing.assert_allclose(side.run(side.package.matmul, x, w)[0], x @ w, rtol=0, atol=1e-14)


@both_sides
def test_gradients_of_matmul_are_the_two_products(side):
    x, w = normal("x", 3, 5), normal("w", 5, 7)
    value, dx, dw = side.run(side.package.matmul, x, w)
    weights = normal("cotangent", *value.shape)
    np.testing.assert_allclose(dx, weights @ w.T, rtol=0, atol=1e-14)
    np.testing.assert_allclose(dw, x.T @ weights, rtol=0, atol=1e-14)


@both_sides
def test_at_least_float32_promotes_and_never_narrows(side):
    for dtype, wide in {
        "bfloat16": "float32",
        "float16": "float32",
        "float32": "float32",
        "float64": "float64",
    }.items():
        with side.mode(dtype):
            assert side.package.at_least_float32(side.dtype(dtype)) == side.dtype(wide)


def test_the_accumulator_is_in_the_jax_program():
    """XLA reads `preferred_element_type`: the dot of two bfloat16 operands gives float32 before the cast."""
    operands = jnp.ones((2, 3), jnp.bfloat16), jnp.ones((3, 5), jnp.bfloat16)
    program = jax.make_jaxpr(JAX.package.matmul)(*operands)
    (dot,) = [e for e in program.eqns if e.primitive.name == "dot_general"]
    assert [v.aval.dtype.name for v in dot.invars] == ["bfloat16", "bfloat16"]
    assert dot.params["preferred_element_type"] == jnp.float32
    assert TORCH.package.matmul.__doc__.splitlines()[0] == JAX.package.matmul.__doc__.splitlines()[0]
