"""The presets have the parameter counts of the models they are named after; small ones keep every choice."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from sides import both_sides

COUNTS = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "bert-base": 109_482_240,
    "minilm-l6": 22_713_216,
}
SMALL = ["tiny", "tiny-llama", "tiny-qwen3", "tiny-bert"]


@both_sides
@pytest.mark.parametrize("name", COUNTS)
def test_preset_has_the_published_number_of_parameters(side, name):
    assert side.package.count_parameters(side.package.PRESETS[name]) == COUNTS[name]


@both_sides
def test_every_preset_is_counted_or_small(side):
    assert set(side.package.PRESETS) == {*COUNTS, *SMALL}
    for name in SMALL:
        assert side.package.count_parameters(side.package.PRESETS[name]) < 3_000_000
    assert side.package.count_parameters(side.package.PRESETS["tiny"]) >= 1_000_000


@both_sides
def test_an_untied_head_is_counted_and_a_tied_one_is_not(side):
    tied, untied, none = (side.package.count_parameters(side.config(head=h)) for h in ("tied", "untied", "none"))
    assert (untied - tied, tied - none) == (24 * 37, 0)


@both_sides
@pytest.mark.parametrize("name", COUNTS)
def test_shrinking_keeps_every_choice(side, name):
    config = side.package.PRESETS[name]
    small = side.package.shrink(config)
    sizes = {"vocab_size", "d_model", "num_layers", "num_heads", "num_kv_heads", "d_head", "d_ff", "max_seq_len"}
    for field, value in asdict(config).items():
        if field not in {*sizes, "rope_scaling"}:
            assert getattr(small, field) == value, field
    assert (small.rope_scaling is None) == (config.rope_scaling is None)
    assert (small.num_heads > small.kv_heads) == (config.num_heads > config.kv_heads)
    wide = config.num_heads * config.head_width != config.d_model
    assert wide == (small.num_heads * small.head_width != small.d_model), "heads wider than the model stay so"
    assert side.package.count_parameters(small) < 300_000
