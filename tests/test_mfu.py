"""Utilisation by every convention: published tables, formulas worked by hand, and a run that others measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxcore import PRESETS, ModelConfig, count_parameters, parameter_table
from parity.account.formula import forward_backward_flops
from parity.account.laws import matmul_parameters
from parity.account.mfu import flops_per_token, looked_up, mfu
from parity.errors import ParityUsageError

GPT2, LLAMA = 124_439_808, 8_030_261_248
#: GPT-2's matmuls alone, without position table, biases and norms: the N of the tabulated ratios. With all parameters
#: 6N is at 0.868 instead of 0.867, 6N non-embedding at 0.593 instead of 0.596, MaxText at 0.928 instead of 0.934.
GPT2_WEIGHTS = 123_532_032


def ratios(config: ModelConfig, seq: int, parameters: int) -> dict[str, float]:
    counts = flops_per_token(config, seq, parameters)
    return {name: round(float(each / counts["torchtitan"]), 3) for name, each in counts.items()}


def test_ratios_to_torchtitan_s_convention_are_the_tabulated_ones():
    bare = replace(PRESETS["gpt2"], position="none")
    assert matmul_parameters(bare) == GPT2_WEIGHTS
    expected = ["6N", "6N non-embedding", "PaLM", "torchtitan", "MaxText", "exact", "HFU full recompute"]
    table = {
        (bare, 1024, GPT2_WEIGHTS): [0.867, 0.596, 1.000, 1, 0.934, 1, 1.333],
        (PRESETS["llama3-8b"], 8192, LLAMA): [0.832, 0.723, 1.054, 1, 0.889, 1, 1.333],
        (PRESETS["llama3-8b"], 131_072, LLAMA): [0.192, 0.167, 1.013, 1, 0.590, 1, 1.333],
    }
    for (config, seq, parameters), row in table.items():
        assert ratios(config, seq, parameters) == dict(zip(expected, row, strict=True)), seq


def test_gpt2_with_all_of_its_parameters():
    """By hand: V D 38,597,376, positions 786,432, 12 L n h T 113,246,208, six times all parameters 746,638,848."""
    counts = flops_per_token(PRESETS["gpt2"], 1024, GPT2)
    assert counts["6N"] == 746_638_848
    assert counts["6N non-embedding"] == 6 * (GPT2 - 38_597_376 - 786_432)
    assert counts["PaLM"] == counts["torchtitan"] == 746_638_848 + 113_246_208
    assert counts["exact"] == 6 * GPT2_WEIGHTS + 113_246_208
    assert counts["MaxText"] == 6 * GPT2_WEIGHTS + 113_246_208 // 2
    assert counts["HFU full recompute"] == (746_638_848 + 113_246_208) * 4 // 3
    assert ratios(PRESETS["gpt2"], 1024, GPT2) == {
        "6N": 0.868,
        "6N non-embedding": 0.593,
        "PaLM": 1.0,
        "torchtitan": 1.0,
        "MaxText": 0.928,
        "exact": 0.994,
        "HFU full recompute": 1.333,
    }


def test_torchtitan_takes_an_untied_model_s_table_off_and_no_tied_one_s():
    llama = PRESETS["llama3-8b"]
    attention = 12 * 32 * 32 * 128 * 8192
    assert flops_per_token(llama, 8192, LLAMA)["torchtitan"] == 6 * (LLAMA - 128_256 * 4096) + attention
    tied = replace(llama, head="tied")
    assert flops_per_token(tied, 8192, count_parameters(tied))["torchtitan"] == 6 * count_parameters(tied) + attention


@pytest.mark.parametrize("name", PRESETS)
def test_tables_and_counts_are_those_of_the_model(name):
    config = PRESETS[name]
    counts = flops_per_token(config, 128, count_parameters(config))
    tables = [each.size for key, each in parameter_table(config).items() if key.endswith("_embedding.weight")]
    assert looked_up(config) == sum(tables)
    assert counts["exact"] * 128 == forward_backward_flops(config, 1, 128)
    assert (counts["MaxText"] < counts["exact"]) == config.causal


def test_recomputing_changes_no_convention():
    config = PRESETS["llama3-8b"]
    assert flops_per_token(replace(config, recompute=True), 8192, LLAMA) == flops_per_token(config, 8192, LLAMA)


@pytest.mark.parametrize(
    ("d_model", "layers", "heads", "seq", "parameters", "tokens_per_second", "flops_per_second", "percent"),
    [
        # llm-foundry, scripts/train/benchmarking/README.md, H100 80GB BF16: 7b, 7b, 1b
        (4096, 32, 32, 2048, 6_658_859_008, 85_144 / 8, 4.595096e14, 46.44),
        (4096, 32, 32, 65_536, 6_918_905_856, 15_654 / 8, 2.829422e14, 28.59),
        (2048, 24, 16, 4096, 1_320_144_896, 308_282 / 8, 3.983310e14, 40.26),
    ],
)
def test_palm_s_convention_gives_llm_foundry_s_published_numbers(
    d_model, layers, heads, seq, parameters, tokens_per_second, flops_per_second, percent
):
    """It divides by 989.5 TFLOP/s; its tokens per second are rounded to whole ones of eight GPUs."""
    config = ModelConfig(
        vocab_size=50_368, d_model=d_model, num_layers=layers, num_heads=heads, d_ff=4 * d_model, max_seq_len=seq
    )
    found = mfu(config, seq, tokens_per_second, 989.5e12, parameters)
    assert found["PaLM"] * 989.5e12 == pytest.approx(flops_per_second, rel=1e-4)
    assert round(100 * found["PaLM"], 2) == percent


@pytest.mark.parametrize(("tokens_per_second", "percent"), [(5_762, 33.7), (6_667, 39.0)])
def test_torchtitan_s_published_runs_have_torchtitan_s_utilisation(tokens_per_second, percent):
    """Llama 3.1 8B on 8 H100, 8192 tokens (benchmarks/llama3_h100_202412_torchtitan.md): 33 and 39% in its text."""
    found = mfu(PRESETS["llama3-8b"], 8192, tokens_per_second, 989e12, LLAMA)
    assert round(100 * found["torchtitan"], 1) == percent
    assert round(100 * found["6N"], 1) < percent < round(100 * found["PaLM"], 1)


@pytest.mark.parametrize("peak", [0, -1.0, float("nan")])
def test_a_peak_that_is_none_is_refused(peak):
    with pytest.raises(ParityUsageError, match=r"^peak: FLOP/s above 0, got .*; find_device\(name\)\.peak"):
        mfu(PRESETS["gpt2"], 1024, 1.0, peak, GPT2)


def test_a_sequence_that_is_none_is_refused():
    with pytest.raises(ParityUsageError, match=r"^seq: a whole number, at least 1, got 0"):
        mfu(PRESETS["gpt2"], 0, 1.0, 1e12, GPT2)
