"""Cross-entropy against torch.nn.functional and optax, with targets that do not count."""

from __future__ import annotations

import numpy as np
import optax
import pytest
import torch.nn.functional as F
from einops import rearrange
from sides import JAX, TORCH, assert_equal_float64, assert_rounds_like, both_sides, normal

LOGITS = normal("logits", 3, 7, 37, scale=3.0)
TARGETS = np.random.default_rng(5).integers(0, 37, (3, 7))
TARGETS[0, :3] = TARGETS[2, 4] = -100


def torch_oracle(logits, targets):
    return F.cross_entropy(rearrange(logits, "b t v -> (b t) v"), targets.flatten(), ignore_index=-100)


def optax_oracle(logits, targets):
    counted = targets != -100
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets * counted)
    return (losses * counted).sum() / counted.sum()


@both_sides
@pytest.mark.parametrize(("library", "oracle"), [(TORCH, torch_oracle), (JAX, optax_oracle)], ids=["torch", "optax"])
def test_cross_entropy_equals_the_library_in_value_and_gradient(side, library, oracle):
    truth = library.run(oracle, LOGITS, TARGETS)
    assert_equal_float64(side.run(side.package.cross_entropy, LOGITS, TARGETS), truth)
    assert_rounds_like(
        side.run(side.package.cross_entropy, LOGITS, TARGETS, dtype="float32")[1:],
        library.run(oracle, LOGITS, TARGETS, dtype="float32")[1:],
        truth[1:],
    )


@both_sides
def test_another_ignore_index_counts_other_targets(side):
    value = side.run(lambda x, y: side.package.cross_entropy(x, y, ignore_index=3), LOGITS, np.maximum(TARGETS, 0))
    oracle = TORCH.run(
        lambda x, y: F.cross_entropy(rearrange(x, "b t v -> (b t) v"), y.flatten(), ignore_index=3),
        LOGITS,
        np.maximum(TARGETS, 0),
    )
    assert_equal_float64(value, oracle)


@both_sides
def test_mean_over_all_targets_would_fail(side):
    """The planted fault: the sum divided by every target, counted or not."""
    wrong = side.run(side.package.cross_entropy, LOGITS, TARGETS)[0] * (TARGETS != -100).mean()
    with pytest.raises(AssertionError, match="gap"):
        assert_equal_float64([wrong], TORCH.run(torch_oracle, LOGITS, TARGETS)[:1])


@both_sides
def test_no_counted_target_gives_zero_and_zero_gradients(side):
    value, gradient = side.run(side.package.cross_entropy, LOGITS, np.full_like(TARGETS, -100))
    assert value == 0
    np.testing.assert_array_equal(gradient, np.zeros_like(LOGITS))
    assert np.isnan(TORCH.run(torch_oracle, LOGITS, np.full_like(TARGETS, -100))[0]), "the docstring's `Differs`"


@both_sides
def test_large_logits_do_not_overflow(side):
    value, gradient = side.run(side.package.cross_entropy, LOGITS * 1e4, TARGETS, dtype="float32")
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


@both_sides
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_loss_of_sixteen_bit_logits_is_a_float32(side, dtype):
    with side.mode(dtype):
        loss = side.package.cross_entropy(side.array(LOGITS, dtype), side.array(TARGETS, "int"))
    assert loss.dtype == side.dtype("float32")
