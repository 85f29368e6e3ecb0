"""Rules and maps by themselves: both directions, element coverage, and what a wrong map says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcore.config import ModelConfig
from jaxcore.parameters import Parameter, initial_parameters, parameter_table
from jaxcore.presets import PRESETS, shrink
from parity.errors import ParityUsageError
from parity.weights import FAMILIES, Rule, WeightMap

SIZES = {"d": 7, "n": 3, "k": 3, "h": 2, "f": 11, "v": 13, "t": 5}

RULES = [
    "a <- b : d -> d",
    "a <- b : v d -> d v",
    "a <- b : (n h) d -> d n h",
    "a <- b : d (n h) -> n h d",
    "a <- b : d (three n h) -> d n h ; three=3 ; take three=1",
    "a <- b : (x h) d -> d (x h) ; x=5 ; take x=2:4",
    "a <- b : (n two h) d -> d n two h ; two=2 ; take n=1:3",
    "a.{i}.c <- {i}.b : (n h two) -> n (two h) ; two=2",
]


def bits(array):
    return array.view(f"u{array.dtype.itemsize}")


@pytest.mark.parametrize("line", RULES)
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_backward_of_forward_gives_the_same_bits_and_nothing_else_is_touched(line, dtype):
    rule = Rule.parse(line)
    shape = rule.file_shape(SIZES)
    # every bit pattern counts, NaN with payloads too
    raw = np.random.default_rng(3).integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
    tensor = raw.view(dtype)[..., 0].copy()
    parameter = rule.forward(tensor, SIZES)
    assert parameter.shape == rule.parameter_shape(SIZES)
    assert parameter.flags.c_contiguous
    back = np.zeros_like(tensor)
    rule.backward(parameter, back, SIZES)
    touched = np.zeros(shape, np.uint8)
    rule.part(touched, SIZES)[...] = 1
    assert touched.sum() == parameter.size
    assert np.array_equal(bits(back), np.where(touched == 1, bits(tensor), 0))
    again = rule.forward(back, SIZES)
    assert np.array_equal(bits(again), bits(parameter))


def test_fused_projection_is_cut_where_transformers_cuts_it():
    tensor = np.arange(7 * 18).reshape(7, 18)
    _, key, _ = np.split(tensor, 3, axis=1)
    rule = Rule.parse("a <- b : d (three n h) -> d n h ; three=3 ; take three=1")
    assert np.array_equal(rule.forward(tensor, SIZES), key.reshape(7, 3, 2))


def test_a_rule_prints_as_the_line_that_it_was_parsed_from():
    for line in RULES:
        assert str(Rule.parse(line)) == line
        assert Rule.parse(str(Rule.parse(line))) == Rule.parse(line)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a <- b", "target <- source : pattern"),
        ("a = b : d -> d", "target <- source : pattern"),
        ("a <- b : d -> d -> d", "target <- source : pattern"),
        ("a <- b : d -> d ; drop d", "got 'drop d'"),
        ("a <- b : d d -> d", "every axis once on each side"),
        ("a <- b : d n -> d", "an axis that goes away taken at one index"),
        ("a <- b : d -> d n", "an axis that goes away taken at one index"),
        ("a <- b : d -> d ; take x=0", "every axis once on each side"),
        ("a.{i} <- b : d -> d", "{i} on both sides"),
        ("! b", "got no reason"),
        ("! b : ", "got no reason"),
    ],
)
def test_a_wrong_line_is_refused_by_itself(line, says):
    with pytest.raises(ParityUsageError, match="weight map: ") as caught:
        WeightMap.parse(line)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a <- b : (x h) d -> d (x h) ; x=5 ; take x=2:6", "take within 0:5, got 2:6"),
        ("a <- b : (x h) d -> d h ; x=5 ; take x=5", "take within 0:5"),
        ("a <- b : q -> q", "got q; give its size"),
    ],
)
def test_a_range_beyond_the_axis_is_refused_and_not_cut_short(line, says):
    rule = Rule.parse(line)
    with pytest.raises(ParityUsageError) as caught:
        rule.forward(np.zeros((10, 7)), SIZES)
    assert says in str(caught.value)


CONFIGS = {
    "gpt2": shrink(PRESETS["gpt2"]),
    "llama": shrink(PRESETS["llama3-8b"]),
    "qwen3": shrink(PRESETS["qwen3-0.6b"]),
    "bert": shrink(PRESETS["bert-base"]),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_every_family_inverts_to_the_bit(family, dtype):
    config, weight_map = CONFIGS[family], FAMILIES[family].weight_map
    table = parameter_table(config)
    parameters = initial_parameters(config, seed=5, randomise_constants=True, dtype=np.dtype(dtype))
    tensors = weight_map.invert(parameters, table)
    assert sum(tensor.size for tensor in tensors.values()) == sum(value.size for value in parameters.values())
    again = weight_map.apply(tensors, table)
    assert list(again) == list(table)
    for name, value in parameters.items():
        assert again[name].dtype == value.dtype
        assert np.array_equal(bits(again[name]), bits(value)), name


@pytest.mark.parametrize("family", FAMILIES)
def test_no_rule_of_a_family_is_dead(family):
    wide = {
        "llama": replace(CONFIGS["llama"], qkv_bias=True, o_bias=True, mlp_bias=True, head="untied"),
        "qwen3": replace(CONFIGS["qwen3"], qkv_bias=True, o_bias=True, head="untied"),
        "gpt2": replace(CONFIGS["gpt2"], head="untied"),
    }.get(family, CONFIGS[family])
    weight_map = FAMILIES[family].weight_map
    table = parameter_table(wide)
    assert len(weight_map.bind(table)) == len(table)
    for rule in weight_map.rules:
        assert any(rule.at(name) for name in table), rule


def gpt2_without(text, put=""):
    original = str_map("gpt2")
    assert text in original
    return WeightMap.parse(original.replace(text, put))


def str_map(family):
    weight_map = FAMILIES[family].weight_map
    lines = [str(rule) for rule in weight_map.rules]
    lines += [f"! {ignore.source} : {ignore.reason}" for ignore in weight_map.ignores]
    lines += [f"tie {tie.name} = {tie.source}" for tie in weight_map.ties]
    lines += [f"either {spelling.usual} or {spelling.other or '-'}" for spelling in weight_map.spellings]
    return "\n".join(lines)


def test_a_map_reads_back_from_its_own_text():
    for family in FAMILIES:
        assert WeightMap.parse(str_map(family)) == FAMILIES[family].weight_map


@pytest.fixture
def gpt2_tensors():
    config = CONFIGS["gpt2"]
    table = parameter_table(config)
    return FAMILIES["gpt2"].weight_map.invert(initial_parameters(config), table), table


def test_a_third_of_a_fused_tensor_that_is_read_twice_is_seen(gpt2_tensors):
    tensors, table = gpt2_tensors
    good = "c_attn.weight : d (three k h) -> d k h ; three=3 ; take three=2"
    wrong = gpt2_without(good, good.replace("three=2", "three=1"))
    with pytest.raises(ParityUsageError) as caught:
        wrong.apply(tensors, table)
    d = CONFIGS["gpt2"].d_model
    expected = f"c_attn.weight: each of its {3 * d * d} elements used once, got {2 * d * d} used 0 to 2 times"
    assert expected in str(caught.value)


def test_a_third_of_a_fused_tensor_that_is_dropped_is_seen():
    table = {"q": Parameter("d n h", (7, 3, 2)), "k": Parameter("d k h", (7, 3, 2))}
    part = "<- fused : d (three {} h) -> d {} h ; three=3 ; take three={}"
    text = "q " + part.format("n", "n", 0) + "\nk " + part.format("k", "k", 1)
    with pytest.raises(ParityUsageError, match="fused: each of its 126 elements used once, got 42 used 0 to 1 times"):
        WeightMap.parse(text).apply({"fused": np.zeros((7, 18))}, table)


def test_a_parameter_without_a_rule_and_one_with_two_are_refused(gpt2_tensors):
    tensors, table = gpt2_tensors
    text = "final_norm.bias <- transformer.ln_f.bias : d -> d"
    with pytest.raises(ParityUsageError, match=r"final_norm.bias: written by one rule, got 0"):
        gpt2_without(text).apply(tensors, table)
    with pytest.raises(ParityUsageError, match=r"final_norm.bias: written by one rule, got 2"):
        gpt2_without(text, f"{text}\n{text}").apply(tensors, table)


def test_a_tensor_both_used_and_ignored_is_refused(gpt2_tensors):
    tensors, table = gpt2_tensors
    both = WeightMap.parse(str_map("gpt2") + "\n! transformer.ln_f.* : by mistake")
    with pytest.raises(ParityUsageError, match=r"ln_f\.weight: used or ignored, got both"):
        both.apply(tensors, table)


def test_a_pattern_that_makes_another_shape_is_refused(gpt2_tensors):
    tensors, table = gpt2_tensors
    wrong = gpt2_without("mlp.c_fc.weight : d f -> d f", "mlp.c_fc.weight : d f -> f d")
    with pytest.raises(ParityUsageError, match=r"c_fc.weight : d f -> f d: shape"):
        wrong.apply(tensors, table)


def test_layer_numbers_with_leading_zeros_are_other_names():
    rule = Rule.parse("a.{i} <- b.{i} : d -> d")
    assert rule.at("a.10").source == "b.10"
    assert rule.at("a.01") is None
    assert rule.at("a.1\n") is None


@settings(max_examples=30, deadline=None)
@given(
    family=st.sampled_from(list(FAMILIES)),
    missing=st.integers(0, 10**6),
    drop=st.booleans(),
)
def test_any_one_tensor_missing_or_surplus_is_named(family, missing, drop):
    config = CONFIGS[family]
    table = parameter_table(config)
    tensors = FAMILIES[family].weight_map.invert(initial_parameters(config), table)
    name = sorted(tensors)[missing % len(tensors)]
    value = tensors.pop(name) if drop else tensors[name]
    if not drop:
        name = name.replace("weight", "scale").replace("bias", "offset")
        tensors[name] = value
    with pytest.raises(ParityUsageError) as caught:
        FAMILIES[family].weight_map.apply(tensors, table)
    assert (f"missing: {name}, surplus: none" if drop else f"missing: none, surplus: {name}") in str(caught.value)


def test_tied_configs_are_the_only_ones_whose_head_is_checked_and_not_read():
    config = ModelConfig(vocab_size=13, d_model=6, num_layers=1, num_heads=3, d_ff=11, max_seq_len=5)
    weight_map = FAMILIES["gpt2"].weight_map
    tied = weight_map.invert(initial_parameters(config), parameter_table(config))
    assert "lm_head.weight" not in tied
    tied["lm_head.weight"] = tied["transformer.wte.weight"].copy()
    weight_map.apply(tied, parameter_table(config))
    tied["lm_head.weight"][3, 2] = np.nextafter(tied["lm_head.weight"][3, 2], np.float32(1))
    with pytest.raises(ParityUsageError, match=r"lm_head\.weight: the bits of transformer\.wte\.weight.* got 1 of 78"):
        weight_map.apply(tied, parameter_table(config))
    untied = replace(config, head="untied")
    parameters = weight_map.apply(tied, parameter_table(untied))
    assert np.array_equal(parameters["head.weight"], tied["lm_head.weight"].T)
