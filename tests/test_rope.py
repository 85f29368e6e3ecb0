"""Rotary embedding against transformers' Llama and GPT-J, its tables against the definition, both layouts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from einops import rearrange
from lift import Float64Everywhere
from sides import TORCH, assert_equal_float64, both_sides, normal
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama

HEAD, POSITIONS = 22, np.array([[0, 1, 2, 3, 5], [7, 11, 13, 4096, 100_003]])
X = normal("x", 2, 5, 3, HEAD)


def angles(width):
    """position / 10000^(2 i / width), as the paper writes it."""
    return POSITIONS[..., None] / 10_000.0 ** (2 * np.arange(width // 2) / width)


def ours(side, layout, fraction=1.0):
    config = side.config(position="rope", d_model=4 * HEAD, rope_layout=layout, rope_fraction=fraction)

    def function(x):
        table = side.package.rope_table(config, side.array(POSITIONS, "int"), side.dtype("float64"))
        return side.package.rotate(x, *table, layout)

    return function


def llama(x):
    phase = torch.tensor(np.concatenate([angles(HEAD)] * 2, axis=-1))
    return modeling_llama.apply_rotary_pos_emb(x, x, phase.cos(), phase.sin(), unsqueeze_dim=2)[0]


def gptj(x):
    phase = torch.tensor(angles(HEAD))
    return modeling_gptj.apply_rotary_pos_emb(x, phase.sin(), phase.cos())


@both_sides
@pytest.mark.parametrize(("layout", "oracle"), [("half", llama), ("interleaved", gptj)])
def test_rotation_equals_transformers_in_value_and_gradient(side, layout, oracle):
    assert_equal_float64(
        side.run(ours(side, layout), X), TORCH.run(oracle, X), bound=1e-10
    )  # cos(1e5 + 1 ulp): 1.5e-11


@both_sides
def test_the_two_layouts_are_one_up_to_a_permutation_and_not_equal(side):
    interleaved = side.run(ours(side, "interleaved"), X)[0]
    halves = side.run(ours(side, "half"), rearrange(X, "b t n (r two) -> b t n (two r)", two=2))[0]
    np.testing.assert_array_equal(rearrange(halves, "b t n (two r) -> b t n (r two)", two=2), interleaved)
    with pytest.raises(AssertionError, match="gap"):
        assert_equal_float64([side.run(ours(side, "half"), X)[0]], [interleaved])


@both_sides
@pytest.mark.parametrize(("layout", "oracle"), [("half", llama), ("interleaved", gptj)])
def test_partial_rotation_turns_the_first_elements_and_passes_the_rest(side, layout, oracle):
    width = 2 * HEAD
    config = side.config(position="rope", d_model=4 * width, rope_layout=layout, rope_fraction=0.5)
    assert config.rotary_width == HEAD
    x = normal("wide", 2, 5, 3, width)

    def partial(x):
        table = side.package.rope_table(config, side.array(POSITIONS, "int"), side.dtype("float64"))
        return side.package.rotate(x, *table, layout)

    value = side.run(partial, x)[0]
    np.testing.assert_array_equal(value[..., HEAD:], x[..., HEAD:])
    assert_equal_float64([value[..., :HEAD]], TORCH.run(oracle, x[..., :HEAD])[:1], bound=1e-10)


@both_sides
def test_logits_depend_on_the_distance_alone(side):
    config = side.config(position="rope", d_model=4 * HEAD)

    def logits(q, k, shift):
        positions = side.array(np.arange(5)[None] + shift, "int")
        table = side.package.rope_table(config, positions, side.dtype("float64"))
        return (side.package.rotate(q, *table, "half") * side.package.rotate(k, *table, "half")).sum(-1)

    q, k = X[:1], normal("k", 1, 5, 3, HEAD)
    near, far = (side.run(lambda q, k, shift=shift: logits(q, k, shift), q, k)[0] for shift in (0, 17))
    assert_equal_float64([far], [near])


SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@both_sides
@pytest.mark.parametrize("length", [32, 512, 8192])
def test_scaled_frequencies_equal_those_of_transformers(side, length):
    scaling = side.package.RopeScaling(**SCALING, original_max_seq_len=length)
    theirs = LlamaConfig(
        hidden_size=4 * 128,
        num_attention_heads=4,
        rope_theta=500_000.0,
        rope_scaling={**SCALING, "original_max_position_embeddings": length, "rope_type": "llama3"},
    )
    with Float64Everywhere():
        oracle, factor = ROPE_INIT_FUNCTIONS["llama3"](theirs, torch.device("cpu"))
    assert factor == 1.0
    frequencies = side.package.rope_frequencies(128, 500_000.0, scaling)
    np.testing.assert_allclose(frequencies, oracle.numpy(), rtol=1e-14)
    kept = side.package.rope_frequencies(128, 500_000.0, None)
    assert frequencies[0] == kept[0], "the fastest wave stays"
    assert frequencies[-1] == kept[-1] / 8.0, "the slowest is slowed by the factor"
    between = (frequencies != kept) & (frequencies != kept / 8.0)
    assert between.any(), "some wave is blended, or the test sees only two of the three cases"


@both_sides
def test_table_is_as_wide_as_asked(side):
    config = side.config(position="rope")
    for dtype in ("float32", "float64"):
        with side.mode(dtype):
            cos, sin = side.package.rope_table(config, side.array(POSITIONS, "int"), side.dtype(dtype))
            assert cos.dtype == sin.dtype == side.dtype(dtype)
            assert tuple(cos.shape) == (2, 5, 1, 3)


@both_sides
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bit_heads_are_turned_in_float32_and_keep_their_type(side, dtype):
    """bfloat16 holds whole positions only to 256: a table in its type would turn position 4097 by the angle of 4096."""
    config = side.config(position="rope", d_model=4 * HEAD)
    with side.mode(dtype):
        positions = side.array(np.array([[4096, 4097]]), "int")
        table = side.package.rope_table(config, positions, side.dtype("float32"))
        turned = side.package.rotate(side.array(np.ones((1, 2, 3, HEAD)), dtype), *table, "half")
    assert turned.dtype == side.dtype(dtype)
    value = side.numpy(turned)
    assert np.abs(value[:, 0] - value[:, 1]).max() > 0.5
