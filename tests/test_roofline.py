"""Operations against the counted FLOPs and bytes worked by hand; bounds against results that are published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxcore import PRESETS, ModelConfig, count_parameters
from parity.account.formula import forward_backward_flops, forward_flops, matmul_flops
from parity.account.hardware import devices, find_device
from parity.account.policies import POLICIES
from parity.account.roofline import Operation, judged, matmul, operations, parameter_count, shares
from parity.errors import ParityUsageError

H100 = find_device("h100")
VARIANTS = [
    {},
    {"recompute": True},
    {"norm_position": "post", "recompute": True},
    {"qk_norm": True, "num_kv_heads": 1},
    {"activation": "geglu", "mlp_bias": True},
    {"head": "none", "pooler": True},
    {"head": "untied", "token_types": 3, "embedding_norm": True, "final_norm": False},
]


def total(found: list[Operation], *kinds: str) -> int:
    return sum(each.count * each.flops for each in found if each.kind in kinds)


def one(found: list[Operation], name: str) -> Operation:
    (each,) = (each for each in found if each.name == name)
    return each


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("preset", ["tiny", "tiny-llama", "tiny-qwen3", "tiny-bert", "gpt2", "llama3-405b"])
def test_products_have_the_counted_flops(preset, variant):
    """formula.py's integers, which the traced programs of both frameworks have too (tests/test_flops.py)."""
    config = replace(PRESETS[preset], **variant)
    forward = operations(config, 2, 13, fused_attention=False, step="forward")
    assert total(forward, "matmul", "attention") == forward_flops(config, 2, 13)
    for name, flops in matmul_flops(config, 2, 13).items():
        assert one(forward, name).count * one(forward, name).flops == flops, name
    both = operations(config, 2, 13, fused_attention=False)
    assert total(both, "matmul", "attention") == forward_backward_flops(config, 2, 13)


@pytest.mark.parametrize("preset", PRESETS)
def test_fused_attention_forms_one_product_more(preset):
    """Its backward pass has the logits to form again: five products, of which the model has four."""
    config = PRESETS[preset]
    extra = matmul_flops(config, 2, 13)["attention_logits"]
    found = operations(config, 2, 13)
    assert total(found, "matmul", "attention") == forward_backward_flops(config, 2, 13) + extra
    assert total(operations(config, 2, 13, step="forward"), "matmul", "attention") == forward_flops(config, 2, 13)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("preset", PRESETS)
def test_parameters_are_those_of_the_model(preset, variant):
    config = replace(PRESETS[preset], **variant)
    assert parameter_count(config) == count_parameters(config)
    assert one(operations(config, 1, 1), "adamw").flops == 15 * count_parameters(config)


def test_bytes_worked_by_hand():
    """B 2, T 3, D 20, 4 heads and 2 key heads of 5, F 7, V 11, one layer, bfloat16; an array of t D is 240 bytes."""
    config = ModelConfig(
        vocab_size=11,
        d_model=20,
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        d_ff=7,
        max_seq_len=13,
        activation="swiglu",
    )
    fused, written = operations(config, 2, 3), operations(config, 2, 3, fused_attention=False)
    expected = {
        "embedding": 3 * 240,  # two tables read, their sum written
        "embedding backward": 5 * 240,  # the gradient read; the rows of two tables read and written
        "attention_norm": 2 * 240,
        "attention_norm backward": 3 * 240,
        "q_proj": 2 * (6 * 20 + 20 * 20 + 6 * 20),
        "k_proj": 2 * (6 * 20 + 20 * 10 + 6 * 10),
        "attention": 2 * 6 * (20 + 10 + 10 + 20),  # q, k, v, and what they mix to
        "attention backward": 2 * 6 * (4 * 20 + 4 * 10),  # and the output, its gradient and those of q, k, v
        "o_proj backward": 2 * (6 * 20 + 20 * 20 + 6 * 20),  # of each of two
        "attention_residual": 3 * 240,
        "activation": 3 * 2 * 6 * 7,  # gate, up, their product
        "activation backward": 5 * 2 * 6 * 7,
        "down_proj": 2 * (6 * 7 + 7 * 20 + 6 * 20),
        "head": 2 * (6 * 20 + 20 * 11 + 6 * 11),
        "cross_entropy": 2 * 6 * 11,
        "cross_entropy backward": 2 * 2 * 6 * 11,
        "adamw": 28 * count_parameters(config),
    }
    assert {name: one(fused, name).bytes for name in expected} == expected
    square = 2 * 4 * 3 * 3  # elements of the logits
    assert one(written, "attention_logits").bytes == 2 * (6 * 20 + 6 * 10 + square)
    assert one(written, "attention_values backward").bytes == 2 * (6 * 20 + 6 * 10 + square)
    assert one(written, "softmax").bytes == 2 * 2 * square
    assert one(written, "softmax backward").bytes == 2 * 3 * square
    assert not [each.name for each in fused if each.kind == "softmax"]
    assert {each.bytes for each in operations(config, 2, 3, policy=POLICIES["fp32"]) if each.name == "q_proj"} == {
        4 * 640
    }


def test_rotation_turns_the_share_of_each_head_that_the_config_says():
    config = replace(PRESETS["tiny-llama"], rope_fraction=0.5)
    whole, half = (one(operations(each, 2, 3), "rotation") for each in (PRESETS["tiny-llama"], config))
    assert (whole.flops, whole.bytes) == (2 * half.flops, half.bytes)
    assert not [each for each in operations(PRESETS["gpt2"], 2, 3) if each.name == "rotation"]


def test_every_layer_is_counted_and_recomputing_runs_blocks_again():
    config = replace(PRESETS["tiny"], num_layers=5)
    plain, again = operations(config, 2, 13), operations(replace(config, recompute=True), 2, 13)
    counts = {each.name: each.count for each in plain}
    assert (counts["q_proj"], counts["q_proj backward"], counts["attention"], counts["head"]) == (5, 10, 5, 1)
    more = {each.name for each in again if each.count != counts[each.name]}
    assert more == {
        "attention_norm", "q_proj", "k_proj", "v_proj", "attention", "o_proj", "attention_residual", "mlp_norm",
        "up_proj", "activation",
    }  # fmt: skip
    assert {each.count for each in again if each.name in more} == {10}


def test_forward_alone_has_neither_loss_nor_optimizer():
    names = [each.name for each in operations(PRESETS["gpt2"], 2, 13, step="forward")]
    assert not [name for name in names if "backward" in name or name in ("cross_entropy", "adamw")]
    assert "cross_entropy" not in [each.name for each in operations(PRESETS["bert-base"], 2, 13)]


@pytest.mark.parametrize(("device", "tokens"), [("h100", 295), ("h200", 206), ("a100", 153), ("tpu-v5e", 240)])
def test_a_matmul_is_bound_by_arithmetic_from_the_ridge_s_tokens_on(device, tokens):
    """2 B D K / (2 B D + 2 D K + 2 B K) is B where D and K are far larger (How to Scale Your Model, chapter 1: 240)."""
    far = 2**22
    for batch, bound in ((tokens - 1, "memory"), (tokens + 2, "compute")):
        assert judged(matmul("x w", batch, far, far, 2), find_device(device), "bf16")[1] == bound
    assert judged(matmul("x w", 4 * tokens, 64, far, 2), find_device(device), "bf16")[1] == "memory"


@pytest.mark.parametrize("unit", ["bf16", "fp32"])
@pytest.mark.parametrize("preset", ["gpt2", "llama3-8b", "qwen3-0.6b", "bert-base"])
def test_what_goes_element_by_element_waits_for_memory(preset, unit):
    """On every device, even by the peak of its vector units, which are the slower ones."""
    found = operations(PRESETS[preset], 8, 512, fused_attention=False)
    waiting = [each for each in found if each.kind not in ("matmul", "attention")]
    assert {each.kind for each in waiting} >= {"norm", "softmax", "elementwise", "gather", "optimizer"}
    assert "cross_entropy" in [each.name for each in waiting] or preset == "bert-base"
    for device in devices().values():
        if unit in device.dense:
            assert {judged(each, device, unit)[1] for each in waiting} == {"memory"}, device.key


def test_fused_attention_is_bound_by_arithmetic_as_the_sequence_grows():
    """4 n h T FLOPs over 2 (2 n + 2 n) h bytes for each token: T / 2 FLOPs per byte, with n / k queries a key more."""
    for seq, bound in ((128, "memory"), (512, "memory"), (1024, "compute"), (8192, "compute")):
        attention = one(operations(PRESETS["gpt2"], 4, seq), "attention")
        assert attention.intensity == seq / 2
        assert judged(attention, H100, "bf16")[1] == bound
    assert one(operations(PRESETS["llama3-8b"], 1, 1024), "attention").intensity == 1024 * 32 / (32 + 8)


def test_attention_written_out_waits_for_its_logits_at_any_length():
    """2 T h FLOPs over 2 (2 h + T) bytes for each query: never more than h FLOPs per byte."""
    for seq in (128, 1024, 8192, 131_072):
        logits = one(operations(PRESETS["gpt2"], 1, seq, fused_attention=False), "attention_logits")
        assert logits.intensity < 64
        assert judged(logits, H100, "bf16")[1] == "memory"


def test_bert_large_s_products_are_nearly_all_of_its_flops_and_less_of_its_time():
    """Ivanov et al. 2021, table 1: contractions have 99.80% of a layer's FLOPs and 61% of its time, batch 8, T 512.

    Theirs is measured, on a V100, with dropout and with biases apart: more bytes than the fewest, which stand here.
    """
    large = ModelConfig(
        vocab_size=30_522, d_model=1024, num_layers=24, num_heads=16, d_ff=4096, max_seq_len=512, causal=False,
        norm_position="post", activation="gelu", head="none",
    )  # fmt: skip
    found = [each for each in operations(large, 8, 512, fused_attention=False) if each.name != "adamw"]
    parts = shares(found, find_device("a100"), "fp16")
    products = [parts[kind] for kind in ("matmul", "attention")]
    flops, seconds = sum(each.flops for each in products), sum(each.seconds for each in products)
    assert flops == pytest.approx(0.998, abs=1e-3)
    assert seconds > 0.61
    assert 1 - seconds > 20 * (1 - flops)


@pytest.mark.parametrize(
    ("config", "seq", "sequences", "device", "measured"),
    [
        # llm.c, GPT-2 124M: 10e9 tokens in 45 minutes on 8 H100 (modded-nanogpt's README)
        (PRESETS["gpt2"], 1024, 64, "h100", 1e10 / (45 * 60 * 8)),
        # torchtitan, Llama 3.1 8B compiled on H100 (benchmarks/llama3_h100_202412_torchtitan.md)
        (PRESETS["llama3-8b"], 8192, 2, "h100", 6667),
    ],
)
def test_no_published_run_is_faster_than_the_bound(config, seq, sequences, device, measured):
    seconds = sum(judged(each, find_device(device), "bf16")[0] for each in operations(config, sequences, seq))
    assert measured < sequences * seq / seconds < 4 * measured


def test_time_is_the_larger_of_the_two_and_shares_sum_to_one():
    bound, waiting = Operation("a", "matmul", 10**15, 1, 3), Operation("b", "norm", 1, 10**12, 2)
    assert judged(bound, H100, "bf16") == (pytest.approx(3 * 1e15 / 989.4e12), "compute")
    assert judged(waiting, H100, "bf16") == (pytest.approx(2 * 1e12 / 3.35e12), "memory")
    assert judged(bound, H100, "fp8")[0] == pytest.approx(3 * 1e15 / 1979e12)
    parts = shares([bound, waiting, replace(bound, count=1)], H100, "bf16")
    arithmetic, traffic = 4 * 1e15 / 989.4e12, 2 * 1e12 / 3.35e12
    assert parts["norm"].seconds == pytest.approx(traffic / (arithmetic + traffic))
    assert parts["matmul"].flops == pytest.approx(4e15 / (4e15 + 2))
    assert sum(each.seconds for each in parts.values()) == pytest.approx(1)


def test_the_optimizer_s_bytes_follow_where_its_numbers_are_kept():
    parameters = count_parameters(PRESETS["gpt2"])
    expected = {"fp32": 28, "autocast": 28, "bf16-mixed": 28, "bf16-mixed-fp32-grads": 30, "bf16": 14}
    for name, each in expected.items():
        assert one(operations(PRESETS["gpt2"], 1, 16, POLICIES[name]), "adamw").bytes == each * parameters
    for optimizer, each in {"sgd": 12, "momentum": 20, "adam": 28}.items():
        assert (
            one(operations(PRESETS["gpt2"], 1, 16, POLICIES["fp32"], optimizer), optimizer).bytes == each * parameters
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "batch: a whole number, at least 1, got 0; correct it"),
        ({"step": "train"}, "step: one of forward, forward_backward, got 'train'; choose one of them"),
        ({"optimizer": "lion"}, "optimizer: one of sgd, momentum, adam, adamw, got 'lion'; choose one of them"),
    ],
)
def test_what_is_unknown_is_refused(arguments, message):
    with pytest.raises(ParityUsageError) as caught:
        operations(PRESETS["tiny"], **{"batch": 2, "seq": 3, **arguments})
    assert str(caught.value) == message
