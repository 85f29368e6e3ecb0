"""Every operation alone in 16 bits: as accurate as it can be, and a needless rounding inside is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from jaxcore.config import ModelConfig
from parity.accuracy import DRAWS
from parity.bounds import Bound
from parity.judge import Judge
from parity.pair import Jax, Operation, Pair, Torch
from parity.pairs.operations import LOSS, ONE, TWO, operations
from parity.result import Row
from parity.sides import Sides, rounded

GPT = ModelConfig(vocab_size=97, d_model=44, num_layers=1, num_heads=4, d_ff=53, max_seq_len=64)
LLAMA = ModelConfig(
    vocab_size=61,
    d_model=47,
    num_layers=1,
    num_heads=6,
    num_kv_heads=2,
    d_head=14,
    d_ff=71,
    max_seq_len=64,
    norm="rms_norm_plus_one",
    qk_norm=True,
    position="rope",
    rope_layout="interleaved",
    rope_fraction=1.0,
    activation="swiglu",
    kernel="fused",
    causal=False,
)
#: together: every norm, both kernels, every activation
CONFIGS = [
    GPT,
    LLAMA,
    replace(GPT, norm="rms_norm", activation="gelu", qk_norm=True),
    replace(GPT, activation="relu", causal=False, d_model=264, d_head=None, num_heads=3, num_kv_heads=None),
    replace(LLAMA, activation="geglu", kernel="einsum", num_kv_heads=1),
    replace(LLAMA, activation="geglu_tanh", rope_layout="half", norm="layer_norm"),
]
JUDGE = Judge(("reference", "candidate"), roundings=1)
SIDES = Sides.of(Pair("operations", Torch(dict, label="reference"), Jax(dict, label="candidate")))
REFERENCE, CANDIDATE = SIDES.reference, SIDES.candidate


def judge(operation: Operation, precision: str, seed: int, batches: int = 8) -> Row:
    """The row of one operation, on draws that no other test has."""
    generator = np.random.Generator(np.random.PCG64([seed, 8191]))
    draws = [rounded(operation.draw(generator), precision) for _ in range(batches)]
    exact, low = (
        [
            REFERENCE.evaluate(operation.reference, draws, each),
            CANDIDATE.evaluate(operation.candidate, draws, each),
        ]
        for each in ("float64", precision)
    )
    (row,) = JUDGE.operation(operation.name, exact, low, precision, Bound(operation.limit, operation.derivation))
    return row


def find(name: str, *, config: ModelConfig = GPT, seq: int = 23) -> Operation:
    """An operation by the beginning of its name."""
    return next(operation for operation in operations(config, seq) if operation.name.startswith(name))


def name_of(config: ModelConfig) -> str:
    return f"{config.norm}-{config.activation}-{config.kernel}"


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "config",
    [*CONFIGS[:2], *(pytest.param(config, marks=pytest.mark.slow) for config in CONFIGS[2:])],
    ids=map(name_of, CONFIGS),
)
def test_every_operation_is_as_accurate_as_its_roundings_allow(config: ModelConfig, precision: str) -> None:
    rows = [judge(operation, precision, seed=11) for operation in operations(config, 23)]
    assert [(row.name, row.measured, row.bound) for row in rows if row.verdict != "PASS"] == []
    rounds = [row for row in rows if not row.name.startswith(("activation (relu", "cross_entropy"))]
    assert all(row.measured > 0.9 for row in rounds), "less than one rounding: the statistic is wrong"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("seq", [4, 7, 64])
@pytest.mark.parametrize("batches", [DRAWS, 2 * DRAWS])
def test_the_limits_hold_at_every_length_from_the_least_number_of_draws_on(
    seq: int, batches: int, precision: str
) -> None:
    for config in CONFIGS:
        for operation in operations(config, seq):
            row = judge(operation, precision, seed=1000 * seq + batches, batches=batches)
            assert row.verdict == "PASS", (row, config)


def torch_norm_in_16_bits(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5) * weight + bias


def torch_attention_with_softmax_in_16_bits(q: Any, k: Any, v: Any, seen: Any) -> Any:
    logits = torch.einsum("btnh,bsnh->bnts", q, k) * q.shape[-1] ** -0.5
    weights = torch.softmax(torch.where(seen[:, None], logits, torch.finfo(q.dtype).min), dim=-1)
    return torch.einsum("bnts,bsnh->btnh", weights, v)


def torch_matmul_accumulated_in_16_bits(x: Any, w: Any) -> Any:
    total = torch.zeros(x.shape[0], w.shape[1], dtype=x.dtype)
    for column in range(x.shape[1]):
        total = total + x[:, column, None] * w[column]
    return total


def torch_activation_rounded_twice(x: Any) -> Any:
    inner = 0.7978845608028654 * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + torch.tanh(inner))


def torch_bias_after_the_rounding(x: Any, weight: Any, bias: Any) -> Any:
    return x @ weight + 100 * bias - 99 * bias


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("layer_norm", torch_norm_in_16_bits),
        ("attention", torch_attention_with_softmax_in_16_bits),
        ("matmul", torch_matmul_accumulated_in_16_bits),
        ("activation", torch_activation_rounded_twice),
        ("projection", torch_bias_after_the_rounding),
    ],
)
def test_a_rounding_too_many_is_seen(name: str, fault: Callable[..., Any], precision: str) -> None:
    operation = find(name)
    assert judge(operation, precision, seed=3).verdict == "PASS"
    row = judge(replace(operation, reference=fault), precision, seed=3)
    assert row.verdict == "FAIL"
    assert row.derivation.startswith("reference, in units of one rounding: ")


def test_a_rounding_too_many_in_jax_is_seen_too() -> None:
    import jax.numpy as jnp

    def norm(x: Any, weight: Any, bias: Any) -> Any:
        centred = x - jnp.mean(x, -1, keepdims=True).astype(x.dtype)
        scale = 1 / jnp.sqrt(jnp.mean(centred * centred, -1, keepdims=True) + 1e-5)
        return centred * scale.astype(x.dtype) * weight + bias

    row = judge(replace(find("layer_norm"), candidate=norm), "bfloat16", seed=3)
    assert row.verdict == "FAIL"
    assert row.derivation.startswith("candidate")


def test_the_limits_are_what_their_words_say() -> None:
    # rounding errors of values just above a power of two, just below it, and spread over several
    generator = np.random.default_rng(0)

    def relative(values: np.ndarray) -> float:
        error = rounded({"x": values.astype(np.float32)}, "bfloat16")["x"].astype(np.float64) - values
        return float(np.sqrt(np.mean(error**2) / np.mean(values**2))) / (2.0**-8 / np.sqrt(3))

    assert relative(generator.uniform(1, 1.02, 100_000)) == pytest.approx(1, rel=0.05)
    assert relative(generator.uniform(1.98, 2, 100_000)) == pytest.approx(0.5, rel=0.05)
    assert relative(np.exp2(generator.uniform(0, 1, 100_000))) == pytest.approx(0.68, rel=0.05)
    assert pytest.approx(1.78, abs=0.005) == TWO
    assert pytest.approx(1.044, abs=0.001) == ONE


def test_a_lucky_draw_of_one_number_is_no_alarm() -> None:
    # the exact loss may be a float32 number by chance: in units of its own rounding any error would be infinite
    exact = np.array(2.5)
    low = np.array(2.5 * (1 + 2**-22), np.float32)
    (row,) = JUDGE.operation("cross_entropy", [[exact], [exact]], [[low], [low]], "bfloat16", Bound(LOSS, ""))
    assert row.verdict == "PASS"
    assert 1 < row.measured < LOSS


def test_an_operation_of_every_part_is_there() -> None:
    names = {operation.name for config in CONFIGS for operation in operations(config, 23)}
    assert {"layer_norm", "rms_norm", "rms_norm_plus_one", "qk_norm", "rotate", "matmul", "cross_entropy"} <= names
    assert {"attention (einsum)", "attention (fused)", "projection with bias", "gate (swiglu)"} <= names
    assert {f"activation ({name})" for name in ("gelu", "gelu_tanh", "relu", "swiglu", "geglu", "geglu_tanh")} <= names
    encoder = [operation.name for operation in operations(replace(GPT, head="none"), 23)]
    assert "cross_entropy" not in encoder
