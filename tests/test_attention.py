"""Attention against scaled_dot_product_attention of both libraries; what is seen; queries that see nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from sides import JAX, TORCH, assert_equal_float64, assert_rounds_like, both_sides, normal, rms, rounded
from transformers.masking_utils import create_sliding_window_causal_mask
from transformers.models.mistral import MistralConfig

B, T, S, N, H = 3, 7, 11, 6, 5
kernels = pytest.mark.parametrize("kernel", ["attend", "attend_fused"])


def operands(t=T, s=S, kv_heads=2):
    return normal("q", B, t, N, H), normal("k", B, s, kv_heads, H), normal("v", B, s, kv_heads, H)


def some_keys(t=T, s=S):
    """Most keys are seen, no query sees none."""
    seen = np.random.default_rng(3).random((B, t, s)) < 0.6
    seen[..., 0] = True
    return seen


def torch_oracle(q, k, v, seen):
    q, k, v = (rearrange(x, "b t n h -> b n t h") for x in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=rearrange(seen, "b t s -> b 1 t s"), enable_gqa=True)
    return rearrange(mixed, "b n t h -> b t n h")


def jax_oracle(q, k, v, seen):
    return jax.nn.dot_product_attention(q, k, v, mask=rearrange(seen, "b t s -> b 1 t s"))


@both_sides
@kernels
@pytest.mark.parametrize("kv_heads", [6, 2, 1], ids=["MHA", "GQA", "MQA"])
def test_attention_equals_torch_in_value_and_gradients(side, kernel, kv_heads):
    arguments = (*operands(kv_heads=kv_heads), some_keys())
    function = getattr(side.package, kernel)
    truth = TORCH.run(torch_oracle, *arguments)
    assert_equal_float64(side.run(function, *arguments), truth)
    assert_rounds_like(
        side.run(function, *arguments, dtype="float32"), TORCH.run(torch_oracle, *arguments, dtype="float32"), truth
    )


@both_sides
@kernels
def test_attention_in_float32_rounds_like_jax(side, kernel):
    arguments = (*operands(), some_keys())
    function = getattr(side.package, kernel)
    library = JAX.run(jax_oracle, *arguments, dtype="float32")
    assert_rounds_like(side.run(function, *arguments, dtype="float32"), library, TORCH.run(torch_oracle, *arguments))


def test_jax_rounds_its_softmax_to_float32_even_in_float64():
    """Why `attend_fused` takes the written-out path in float64; when this fails, the detour can go."""
    arguments = (*operands(), some_keys())
    with jax.enable_x64(True):
        arrays = [JAX.array(value, "float64") for value in arguments]
        mixed = jax.nn.dot_product_attention(*arrays[:3], mask=rearrange(arrays[3], "b t s -> b 1 t s"))
        program = str(jax.make_jaxpr(jax_oracle)(*arrays))
    gap = np.abs(np.asarray(mixed) - TORCH.run(torch_oracle, *arguments)[0]).max()
    assert mixed.dtype == np.float64
    assert "f32" in program
    assert 1e-9 < gap < 1e-6, "float32 rounding: not float64's 1e-16, not a difference of the mathematics"
    assert jaxcore_kernel("float64") == "einsum"


def test_jax_cannot_compile_its_attention_for_float16_on_a_cpu():
    """One reason why `attend_fused` widens 16-bit operands; when this fails, the other is the next test's.

    The library asks for an F16_F16_F32 dot inside a `try`, which catches only what is raised before lowering.
    """
    arrays = [JAX.array(value, "float16") for value in (*operands(), some_keys())]
    with pytest.raises(ValueError, match="F16_F16_F32"):
        jax.jit(jax_oracle).lower(*arrays).compile()
    jax.jit(JAX.package.attend_fused).lower(*arrays).compile()


def relative_errors(side, function, arguments, truth):
    """Relative rms error of the value and of each gradient in bfloat16."""
    return [
        rms(low - exact) / rms(exact)
        for low, exact in zip(side.run(function, *arguments, dtype="bfloat16"), truth, strict=True)
    ]


@both_sides
def test_fused_attention_in_16_bits_is_rounded_once_backward_too(side):
    """The result is rounded, and so is the cotangent that the test draws: sqrt(2). The libraries round inside too."""
    arguments = (*(rounded(value, "bfloat16") for value in operands(t=64, s=64)), some_keys(64, 64))
    truth = TORCH.run(torch_oracle, *arguments)
    once = [rms(rounded(exact, "bfloat16") - exact) / rms(exact) for exact in truth]
    ours = relative_errors(side, side.package.attend_fused, arguments, truth)
    library = relative_errors(side, jax_oracle if side is JAX else torch_oracle, arguments, truth)
    assert max(a / b for a, b in zip(ours, once, strict=True)) < 1.03 * 2**0.5
    assert max(a / b for a, b in zip(library, once, strict=True)) > 1.15 * 2**0.5


def jaxcore_kernel(dtype):
    return JAX.package.fused_implementation(jnp.dtype(dtype))


def test_the_fused_kernel_is_named():
    assert jaxcore_kernel("float32") == "xla"
    assert jaxcore_kernel("bfloat16") == "xla"
    assert jaxcore_kernel("float16") == "xla"
    name = TORCH.package.fused_implementation(torch.float32)
    assert ("efficient" in name) if torch.cuda.is_available() else (name == "flash (CPU)")


@both_sides
def test_grouped_heads_are_repeated_neighbours_not_tiles(side):
    q, k, v = operands()
    seen = some_keys()
    grouped = side.run(side.package.attend, q, k, v, seen)[0]
    repeated, tiled = (
        TORCH.run(torch_oracle, q, *(repeat(x, pattern, g=3) for x in (k, v)), seen)[0]
        for pattern in ("b s k h -> b s (k g) h", "b s k h -> b s (g k) h")
    )
    assert_equal_float64([grouped], [repeated])
    with pytest.raises(AssertionError, match="gap"):
        assert_equal_float64([grouped], [tiled])


@both_sides
@kernels
def test_causal_attention_equals_both_libraries_own_causal_switch(side, kernel):
    q, k, v = operands(t=T, s=T)

    def ours(q, k, v):
        if kernel == "attend_fused":
            return side.package.attend_fused(q, k, v, None)
        return side.package.attend(q, k, v, side.array(np.tril(np.ones((1, T, T), bool)), "bool"))

    def causal(q, k, v):
        q, k, v = (rearrange(x, "b t n h -> b n t h") for x in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return rearrange(mixed, "b n t h -> b t n h")

    truth = TORCH.run(causal, q, k, v)
    assert_equal_float64(side.run(ours, q, k, v), truth)
    library = JAX.run(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), q, k, v, dtype="float32")
    assert_rounds_like(side.run(ours, q, k, v, dtype="float32"), library, truth)


def see(side, t, s, causal, window, padding):
    """`visible` as NumPy; PyTorch's takes the device to allocate on."""
    device = () if side is JAX else (torch.device("cpu"),)
    padding = None if padding is None else side.array(padding, "bool")
    return side.numpy(side.package.visible(t, s, causal, window, padding, *device))


@both_sides
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 3, 11, 12])
@pytest.mark.parametrize("padded", [True, False])
def test_visible_equals_its_definition_pair_by_pair(side, causal, window, padded):
    padding = np.random.default_rng(1).random((2, S)) < 0.7 if padded else None
    seen = see(side, S, S, causal, window, padding)
    for row in range(len(seen)):
        for t in range(S):
            for s in range(S):
                expected = (not causal or s <= t) and (window is None or abs(t - s) < window)
                expected = expected and (padding is None or padding[row, s])
                assert seen[row, t, s] == expected, (row, t, s)


@both_sides
@pytest.mark.parametrize("window", [1, 4, 17])
def test_causal_window_equals_the_sliding_window_mask_of_transformers(side, window):
    config = MistralConfig(sliding_window=window, num_hidden_layers=1, hidden_size=8, num_attention_heads=1)
    config._attn_implementation = "sdpa"
    mask = create_sliding_window_causal_mask(
        config, torch.zeros(1, S, 8), attention_mask=None, cache_position=torch.arange(S), past_key_values=None
    )
    expected = np.tril(np.ones((1, S, S), bool)) if mask is None else mask[:, 0].numpy()
    np.testing.assert_array_equal(see(side, S, S, True, window, None), expected)


LEFT_PADDED = np.arange(T) >= np.array([[0], [3], [T]])  # none, three and every key of a row is padding


@both_sides
@kernels
@pytest.mark.parametrize(
    ("dtype", "causal", "window"),
    [
        ("float64", True, None),
        ("float32", True, None),
        ("float16", True, None),
        ("bfloat16", True, None),
        ("bfloat16", True, 2),
        ("bfloat16", False, 2),
    ],
)
def test_a_query_that_sees_no_key_gives_zeros_and_zero_gradients(side, kernel, dtype, causal, window):
    seen = see(side, T, T, causal, window, LEFT_PADDED)
    blind = ~seen.any(-1)
    assert blind.any()
    assert not blind.all()
    value, dq, dk, dv = side.run(getattr(side.package, kernel), *operands(t=T, s=T), seen, dtype=dtype)
    for result in (value, dq, dk, dv):
        assert np.isfinite(result).all()
    np.testing.assert_array_equal(value[blind], 0)
    np.testing.assert_array_equal(dq[blind], 0)
    unseen = ~seen.any(-2)
    assert unseen.any()
    np.testing.assert_array_equal(dk[unseen], 0)
    np.testing.assert_array_equal(dv[unseen], 0)
    assert np.abs(value[~blind]).min() > 0, "the others do get something"


def test_the_libraries_alone_do_not_give_zeros():
    """What the two docstrings say of JAX and PyTorch, so that the masking above has something to do."""
    seen = see(JAX, T, T, True, None, LEFT_PADDED)
    blind = ~seen.any(-1)
    averaged = JAX.run(jax_oracle, *operands(t=T, s=T), seen, dtype="float32")[0]
    assert np.abs(averaged[blind]).max() > 0.01


@both_sides
@kernels
def test_masked_keys_do_not_touch_the_result(side, kernel):
    q, k, v = operands()
    seen = some_keys()
    seen[:, :, 4] = False
    function = side.compiled(getattr(side.package, kernel))
    arrays = [side.array(x, "float32") for x in (q, k, v, seen)]
    k[:, 4] = v[:, 4] = 1e3
    changed = [side.array(x, "float32") for x in (q, k, v, seen)]
    np.testing.assert_array_equal(side.numpy(function(*arrays)), side.numpy(function(*changed)))


@both_sides
def test_large_logits_stay_finite(side):
    q, k, v = operands()
    results = side.run(side.package.attend, q * 1e4, k * 1e4, v, some_keys(), dtype="float32")
    assert all(np.isfinite(result).all() for result in results)


@both_sides
@kernels
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bit_attention_is_within_three_roundings(side, kernel, dtype):
    """The weights are rounded to the operands' type once, the result once; a third for what the library adds."""
    q, k, v = (rounded(x, dtype) for x in operands())
    seen = some_keys()
    truth = TORCH.run(torch_oracle, q, k, v, seen)[0]
    value = side.run(getattr(side.package, kernel), q, k, v, seen, dtype=dtype)[0]
    assert rms(value - truth) <= 3 * rms(rounded(truth, dtype) - truth)


@both_sides
@kernels
def test_attention_keeps_the_type_of_its_queries(side, kernel):
    for dtype in ("bfloat16", "float16", "float32", "float64"):
        with side.mode(dtype):
            arguments = [side.array(x, dtype) for x in (*operands(), some_keys())]
            function = getattr(side.package, kernel)
            result = jax.eval_shape(function, *arguments) if side is JAX else function(*arguments)
            assert result.dtype == side.dtype(dtype)


def test_a_missing_scale_on_both_sides_agrees_with_itself_and_fails_the_oracle():
    """A mirror shares its mistakes: q sqrt(h) in both leaves out the 1 / sqrt(h) of both."""
    q, k, v = operands()
    wrong = [
        side.run(lambda q, k, v, seen, s=side: s.package.attend(q * H**0.5, k, v, seen), q, k, v, some_keys())
        for side in (JAX, TORCH)
    ]
    assert_equal_float64(*wrong)
    for side in wrong:
        with pytest.raises(AssertionError, match="gap"):
            assert_equal_float64(side, TORCH.run(torch_oracle, q, k, v, some_keys()))
