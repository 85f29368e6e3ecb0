"""LayerNorm and RMSNorm against torch.nn.functional, jax.nn and flax.nnx; the width of the statistics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flax import nnx
from sides import (
    JAX,
    TORCH,
    assert_equal_float64,
    assert_rounds_like,
    both_sides,
    normal,
    rms,
    rounded,
)

SHAPE, WIDTH, EPS = (3, 5, 31), 31, 1e-3  # an eps that shows: 1e-3 of a variance near 1

X, WEIGHT, BIAS = normal("x", *SHAPE) + 0.5, normal("weight", WIDTH), normal("bias", WIDTH)


def torch_layer_norm(x, weight, bias):
    return F.layer_norm(x, (WIDTH,), weight, bias, EPS)


def jax_layer_norm(x, weight, bias):
    return jax.nn.standardize(x, axis=-1, epsilon=EPS) * weight + bias


def flax_layer_norm(x, weight, bias):
    norm = nnx.LayerNorm(WIDTH, epsilon=EPS, use_fast_variance=False, rngs=nnx.Rngs(0), param_dtype=x.dtype)
    norm.scale[...], norm.bias[...] = weight, bias
    return norm(x)


def torch_rms_norm(x, weight):
    return F.rms_norm(x, (WIDTH,), weight, EPS)


def flax_rms_norm(x, weight):
    norm = nnx.RMSNorm(WIDTH, epsilon=EPS, rngs=nnx.Rngs(0), param_dtype=x.dtype)
    norm.scale[...] = weight
    return norm(x)


@both_sides
@pytest.mark.parametrize(
    ("library", "oracle"),
    [(TORCH, torch_layer_norm), (JAX, flax_layer_norm)],
    ids=["torch.nn.functional", "flax.nnx"],
)
def test_layer_norm_equals_the_library_in_value_and_gradients(side, library, oracle):
    def ours(x, weight, bias):
        return side.package.layer_norm(x, weight, bias, EPS)

    truth = library.run(oracle, X, WEIGHT, BIAS)
    assert_equal_float64(side.run(ours, X, WEIGHT, BIAS), truth)
    assert_rounds_like(
        side.run(ours, X, WEIGHT, BIAS, dtype="float32"), library.run(oracle, X, WEIGHT, BIAS, dtype="float32"), truth
    )


@both_sides
def test_layer_norm_equals_jax_nn_standardize(side):
    """standardize subtracts two means (E[x^2] - E[x]^2), so it agrees to rounding only where the mean is small."""
    ours = side.run(lambda x, w, b: side.package.layer_norm(x, w, b, EPS), X, WEIGHT, BIAS)
    assert_equal_float64(ours, JAX.run(jax_layer_norm, X, WEIGHT, BIAS))


@both_sides
@pytest.mark.parametrize(
    ("library", "oracle"), [(TORCH, torch_rms_norm), (JAX, flax_rms_norm)], ids=["torch.nn.functional", "flax.nnx"]
)
def test_rms_norm_equals_the_library_in_value_and_gradients(side, library, oracle):
    def ours(x, weight):
        return side.package.rms_norm(x, weight, EPS)

    truth = library.run(oracle, X, WEIGHT)
    assert_equal_float64(side.run(ours, X, WEIGHT), truth)
    assert_rounds_like(
        side.run(ours, X, WEIGHT, dtype="float32"), library.run(oracle, X, WEIGHT, dtype="float32"), truth
    )


@both_sides
def test_rms_norm_plus_one_is_the_norm_with_the_weight_moved(side):
    ours = side.run(lambda x, w: side.package.rms_norm(x, w, EPS, 1.0), X, WEIGHT)
    assert_equal_float64(ours, TORCH.run(lambda x, w: torch_rms_norm(x, 1 + w), X, WEIGHT))


@both_sides
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm", "rms_norm_plus_one"])
def test_norm_module_applies_the_norm_that_the_config_names(side, kind):
    config = side.config(d_model=WIDTH, num_heads=1, norm=kind, norm_eps=EPS)
    oracle = {
        "layer_norm": torch_layer_norm,
        "rms_norm": torch_rms_norm,
        "rms_norm_plus_one": lambda x, w: torch_rms_norm(x, 1 + w),
    }[kind]
    tensors = (WEIGHT, BIAS) if kind == "layer_norm" else (WEIGHT,)

    def ours(x, *tensors):
        parameters = dict(zip(("weight", "bias"), tensors, strict=False))
        return side.apply(lambda parameters: side.package.Norm(config, parameters), parameters, x)

    assert_equal_float64(side.run(ours, X, *tensors), TORCH.run(oracle, X, *tensors))


def bf16_statistics(side, x, weight, bias):
    """The planted fault: mean and variance in the type of x."""
    if side is JAX:
        mean = jnp.mean(x, -1, keepdims=True, dtype=x.dtype)
        return (x - mean) * jax.lax.rsqrt(jnp.mean((x - mean) ** 2, -1, keepdims=True, dtype=x.dtype)) * weight + bias
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred**2).mean(-1, keepdim=True)) * weight + bias


OPERANDS = {"x": SHAPE, "weight": (WIDTH,), "bias": (WIDTH,)}


def ratio_to_one_rounding(side, function, dtype):
    """rms error over that of rounding the exact result once: 1 when everything inside is wider."""
    ratios = []
    for seed in range(8):
        operands = [rounded(normal(f"{name}{seed}", *shape), dtype) for name, shape in OPERANDS.items()]
        truth = TORCH.run(lambda x, w, b: F.layer_norm(x, (WIDTH,), w, b, 0.0), *operands)[0]
        with side.mode(dtype):
            value = side.numpy(function(*(side.array(operand, dtype) for operand in operands)))
        ratios.append(rms(value - truth) / rms(rounded(truth, dtype) - truth))
    return float(np.mean(ratios))


@both_sides
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bit_layer_norm_rounds_once(side, dtype):
    """Measured 1.00; statistics in bfloat16 give 2 and more, so 1.2 tells them apart."""
    assert ratio_to_one_rounding(side, lambda x, w, b: side.package.layer_norm(x, w, b, 0.0), dtype) <= 1.2
    assert ratio_to_one_rounding(side, lambda x, w, b: bf16_statistics(side, x, w, b), dtype) > 1.2


@both_sides
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_a_norm_keeps_the_type_of_its_input(side, dtype):
    with side.mode(dtype):
        x, w, b = (side.array(value, dtype) for value in (X, WEIGHT, BIAS))
        assert side.package.layer_norm(x, w, b, EPS).dtype == side.dtype(dtype)
        assert side.package.rms_norm(x, w, EPS, 1.0).dtype == side.dtype(dtype)


@both_sides
def test_a_constant_row_gives_the_bias_and_a_finite_gradient(side):
    value, *gradients = side.run(lambda x, w, b: side.package.layer_norm(x, w, b, EPS), 0 * X + 3, WEIGHT, BIAS)
    np.testing.assert_array_equal(value, np.broadcast_to(BIAS, SHAPE))
    assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_the_same_wrong_eps_on_both_sides_agrees_with_itself_and_fails_the_oracle(kind):
    """A mirror shares its mistakes: the two sides agree to rounding while both are wrong."""
    arguments = (X, WEIGHT, BIAS) if kind == "layer_norm" else (X, WEIGHT)
    oracle = torch_layer_norm if kind == "layer_norm" else torch_rms_norm
    norms = {side: getattr(side.package, kind) for side in (JAX, TORCH)}
    wrong = [side.run(lambda *a, f=function: f(*a, EPS * 1.001), *arguments) for side, function in norms.items()]
    assert_equal_float64(wrong[0], wrong[1])
    for side in wrong:
        with pytest.raises(AssertionError, match="gap"):
            assert_equal_float64(side, TORCH.run(oracle, *arguments))
