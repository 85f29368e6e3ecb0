"""Activations against torch.nn.functional and jax.nn, the MLP against its equation, the projection against linear."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch.nn.functional as F
from sides import JAX, TORCH, assert_equal_float64, assert_rounds_like, both_sides, normal

X = normal("x", 3, 5, 31, scale=2.0)

IN_TORCH = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
IN_JAX = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": jax.nn.gelu,
    "relu": jax.nn.relu,
    "swiglu": jax.nn.swish,
    "geglu": lambda x: jax.nn.gelu(x, approximate=False),
    "geglu_tanh": jax.nn.gelu,
}


@both_sides
@pytest.mark.parametrize("activation", IN_TORCH)
@pytest.mark.parametrize(("library", "table"), [(TORCH, IN_TORCH), (JAX, IN_JAX)], ids=["torch", "jax"])
def test_activation_equals_the_library_in_value_and_gradient(side, activation, library, table):
    def ours(x):
        return side.package.activate(x, activation)

    truth = library.run(table[activation], X)
    assert_equal_float64(side.run(ours, X), truth)
    assert_rounds_like(side.run(ours, X, dtype="float32"), library.run(table[activation], X, dtype="float32"), truth)


@both_sides
def test_the_two_gelus_differ_so_that_the_oracle_tells_them_apart(side):
    with pytest.raises(AssertionError, match="gap"):
        assert_equal_float64(side.run(lambda x: side.package.activate(x, "gelu_tanh"), X), TORCH.run(F.gelu, X))


def gated_oracle(activation):
    def mlp(x, gate, gate_bias, up, up_bias, down, down_bias):
        hidden = IN_TORCH[activation](F.linear(x, gate.T, gate_bias)) * F.linear(x, up.T, up_bias)
        return F.linear(hidden, down.T, down_bias)

    def plain(x, up, up_bias, down, down_bias):
        return F.linear(IN_TORCH[activation](F.linear(x, up.T, up_bias)), down.T, down_bias)

    return mlp if activation in ("swiglu", "geglu", "geglu_tanh") else plain


@both_sides
@pytest.mark.parametrize("activation", IN_TORCH)
def test_mlp_equals_torch_linear_layers_in_value_and_every_gradient(side, activation):
    config = side.config(d_model=31, num_heads=1, d_ff=13, activation=activation)
    names = (["gate_proj"] if config.gated else []) + ["up_proj", "down_proj"]
    tensors = []
    for name in names:
        rows, columns = (13, 31) if name == "down_proj" else (31, 13)
        tensors += [normal(f"{name}.weight", rows, columns, scale=0.3), normal(f"{name}.bias", columns)]

    def ours(x, *flat):
        pairs = zip(flat[::2], flat[1::2], strict=True)
        parameters = {n: {"weight": w, "bias": b} for n, (w, b) in zip(names, pairs, strict=True)}
        return side.apply(lambda parameters: side.package.MLP(config, parameters), parameters, x)

    truth = TORCH.run(gated_oracle(activation), X, *tensors)
    assert_equal_float64(side.run(ours, X, *tensors), truth)


@both_sides
def test_without_bias_the_projection_has_none(side):
    config = side.config(d_model=31, num_heads=1, d_ff=13, mlp_bias=False)
    assert not [n for n in side.package.parameter_table(config) if "mlp." in n and n.endswith("bias")]


@both_sides
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bit_projection_adds_the_bias_before_it_rounds(side, dtype):
    """1 + 5/8 of a step is the next number; x w = 1 + 1/4 rounded on its own is 1, and 1 + 3/8 is 1 again."""
    step = {"bfloat16": 2.0**-7, "float16": 2.0**-10}[dtype]
    with side.mode(dtype):
        x = side.array(np.array([[[1.0, step / 4]]]), dtype)
        weight, bias = side.array(np.ones((2, 1)), dtype), side.array(np.array([3 * step / 8]), dtype)
        y = side.package.Projection({"weight": weight, "bias": bias})(x, "b t d, d f -> b t f")
    assert y.dtype == side.dtype(dtype)
    assert side.numpy(y).item() == 1.0 + step
