"""The formula, the traced JAX program and PyTorch's counter give the same integer, forward and backward."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxcore
import parity
import torchref
from jaxcore import PRESETS, ModelConfig, parameter_table
from parity.account.formula import forward_backward_flops, forward_flops, matmul_flops, recomputed_flops
from parity.backends.jax.count import traced_flops
from parity.backends.torch.count import counted_flops
from parity.options import Options
from parity.pairs.transformer import Source, transformer_pair
from parity.preparation import prepare

BATCH, SEQ = 2, 13

TINY = ["tiny", "tiny-llama", "tiny-qwen3", "tiny-bert"]
PUBLISHED = [name for name in PRESETS if name not in TINY]

VARIANTS = {
    "plain": {},
    "recompute": {"recompute": True},
    "scan": {"scan_layers": True},
    "scan and recompute": {"scan_layers": True, "recompute": True},
    "fused": {"kernel": "fused"},
    "fused and recompute": {"kernel": "fused", "recompute": True},
    "window": {"window": 5},
    "fused window": {"kernel": "fused", "window": 5},
    "one key head": {"num_kv_heads": 1},
    "untied": {"head": "untied"},
    "tied": {"head": "tied"},
    "no head": {"head": "none"},
    "pooler": {"pooler": True},
    "wide heads": {"d_head": 22},
    "geglu": {"activation": "geglu"},
    "post-norm recompute": {"norm_position": "post", "recompute": True},
    "pre-norm recompute": {"norm_position": "pre", "recompute": True},
}


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter's shape, stacked where the config scans."""
    table = {name: parameter.shape for name, parameter in parameter_table(config).items()}
    if not config.scan_layers:
        return table
    return {
        (f"layers.{name.split('.', 2)[2]}" if name.startswith("layers.") else name): (
            (config.num_layers, *shape) if name.startswith("layers.") else shape
        )
        for name, shape in table.items()
    }


def loss(package, outputs, tokens):
    """Something that every output reaches: cross-entropy of the logits, the sum of the rest."""
    total = sum(value.sum() for name, value in outputs.items() if name != "logits")
    return total + package.cross_entropy(outputs["logits"], tokens) if "logits" in outputs else total


def traced(
    config: ModelConfig, batch: int, seq: int, backward: bool, model=jaxcore.Transformer, dtype="float32"
) -> int:
    def forward(parameters, tokens):
        return model(config, parameters)(tokens)

    def step(parameters, tokens):
        return loss(jaxcore, forward(parameters, tokens), tokens)

    parameters = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes(config).items()}
    tokens = jax.ShapeDtypeStruct((batch, seq), jnp.int32)
    return traced_flops(jax.value_and_grad(step) if backward else forward, parameters, tokens)


def counted(
    config: ModelConfig, batch: int, seq: int, backward: bool, model=torchref.Transformer, dtype="float32"
) -> int:
    mirror = torchref.config_from_dict(asdict(config))

    def step(parameters, tokens):
        outputs = model(mirror, parameters)(tokens)
        if backward:
            loss(torchref, outputs, tokens).backward()

    kind = getattr(torch, dtype)
    parameters = {name: torch.empty(shape, dtype=kind, device="meta") for name, shape in shapes(config).items()}
    return counted_flops(step, parameters, torch.empty((batch, seq), dtype=torch.int64, device="meta"))


def formula(config: ModelConfig, batch: int, seq: int, backward: bool) -> int:
    return forward_backward_flops(config, batch, seq) if backward else forward_flops(config, batch, seq)


#: every choice on a gated decoder with grouped keys and on an encoder, a slice of them on the other two
CASES = [(preset, variant) for preset in ("tiny-llama", "tiny-bert") for variant in VARIANTS]
CASES += [("tiny", variant) for variant in ("plain", "recompute", "scan and recompute", "fused", "untied", "pooler")]
CASES += [("tiny-qwen3", variant) for variant in ("plain", "scan", "fused and recompute", "wide heads")]


@pytest.mark.parametrize(("preset", "variant"), CASES)
def test_three_counts_are_one_integer_forward_and_backward(preset, variant):
    config = replace(PRESETS[preset], num_layers=2, **VARIANTS[variant])
    expected = forward_backward_flops(config, BATCH, SEQ)
    assert traced(config, BATCH, SEQ, backward=True) == expected
    assert counted(config, BATCH, SEQ, backward=True) == expected


@pytest.mark.parametrize("variant", ["plain", "scan", "fused", "one key head", "no head", "pooler"])
@pytest.mark.parametrize("preset", TINY)
def test_three_counts_are_one_integer_forward(preset, variant):
    config = replace(PRESETS[preset], **VARIANTS[variant])
    expected = forward_flops(config, BATCH, SEQ)
    assert traced(config, BATCH, SEQ, backward=False) == expected
    assert counted(config, BATCH, SEQ, backward=False) == expected


@pytest.mark.parametrize("head", ["none", "tied"])
def test_a_pooler_beside_a_head_runs_forward_only_in_the_pair_that_ships(head):
    # the loss of the head does not reach the pooled state: nobody multiplies its gradient
    config = replace(PRESETS["tiny-bert"], num_layers=1, pooler=True, head=head)
    source = Source(np.arange(200) % 61, "numbers")
    pair = transformer_pair("pooler", config, source, batch=BATCH, seq=SEQ)
    prepared = prepare(pair, Options(batches=1, steps=0))
    work = prepared.sides.count(prepared.weights, prepared.batches[0], pair.formula)
    assert work.equal
    spared = 4 * BATCH * config.d_model**2
    assert work.flops["forward_backward"]["jaxpr"] == forward_backward_flops(config, BATCH, SEQ) - (
        spared if head == "tied" else 0
    )


@pytest.mark.parametrize("preset", PUBLISHED)
def test_published_models_agree_layer_by_layer(preset):
    config = replace(PRESETS[preset], num_layers=1)  # depth: the tests above and below
    expected = forward_backward_flops(config, 1, 128)
    assert traced(config, 1, 128, backward=True) == expected
    assert counted(config, 1, 128, backward=True) == expected


def test_a_trained_encoder_agrees_at_full_depth():
    config = PRESETS["minilm-l6"]
    expected = forward_backward_flops(config, 3, 31)
    assert traced(config, 3, 31, backward=True) == expected
    assert counted(config, 3, 31, backward=True) == expected


def test_405b_at_full_depth_in_jax_by_scan_and_in_torch_layer_by_layer():
    """A step passes 2^53, where floats lose the last digit; each layer of PyTorch's adds the same integer."""
    config, seq = PRESETS["llama3-405b"], 8192
    expected = forward_backward_flops(config, 1, seq)
    assert expected == 21_507_478_231_449_600 > 2**53
    assert traced(replace(config, scan_layers=True), 1, seq, backward=True) == expected
    one, two, three = (counted(replace(config, num_layers=layers), 1, seq, backward=True) for layers in (1, 2, 3))
    assert three - two == two - one
    assert one + (config.num_layers - 1) * (two - one) == expected


def test_recomputing_405b_costs_3744_times_forward():
    config = replace(PRESETS["llama3-405b"], recompute=True, scan_layers=True)
    expected = forward_backward_flops(config, 1, 8192)
    assert traced(config, 1, 8192, backward=True) == expected
    assert round(expected / forward_flops(config, 1, 8192), 3) == 3.744


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "and backward"])
def test_gpt2_xl_agrees_at_full_depth(backward):
    config = PRESETS["gpt2-xl"]
    expected = formula(config, 1, 1024, backward)
    assert traced(config, 1, 1024, backward) == expected
    assert counted(config, 1, 1024, backward) == expected


def test_bfloat16_costs_what_float32_costs():
    config = replace(PRESETS["tiny-llama"], kernel="fused", recompute=True)
    expected = forward_backward_flops(config, BATCH, SEQ)
    assert traced(config, BATCH, SEQ, True, dtype="bfloat16") == expected
    assert counted(config, BATCH, SEQ, True, dtype="bfloat16") == expected


# what the formula says by itself


def test_each_class_is_what_its_equation_says():
    config = ModelConfig(
        vocab_size=31, d_model=17, num_layers=3, num_heads=6, num_kv_heads=2, d_head=5, d_ff=19, max_seq_len=64,
        activation="swiglu", pooler=True,
    )  # fmt: skip
    assert matmul_flops(config, 7, 11) == {
        "q_proj": 3 * 2 * 77 * 17 * 30,
        "k_proj": 3 * 2 * 77 * 17 * 10,
        "v_proj": 3 * 2 * 77 * 17 * 10,
        "attention_logits": 3 * 2 * 7 * 11 * 11 * 30,
        "attention_values": 3 * 2 * 7 * 11 * 11 * 30,
        "o_proj": 3 * 2 * 77 * 30 * 17,
        "gate_proj": 3 * 2 * 77 * 17 * 19,
        "up_proj": 3 * 2 * 77 * 17 * 19,
        "down_proj": 3 * 2 * 77 * 19 * 17,
        "head": 2 * 77 * 17 * 31,
        "pooler": 2 * 7 * 17 * 17,
    }


def test_recompute_spares_the_last_matmul_of_a_pre_norm_block_only():
    pre = replace(PRESETS["tiny"], recompute=True)
    post = replace(pre, norm_position="post")
    assert recomputed_flops(post, 2, 13) - recomputed_flops(pre, 2, 13) == matmul_flops(pre, 2, 13)["down_proj"]
    assert recomputed_flops(replace(pre, recompute=False), 2, 13) == 0


@pytest.mark.parametrize(
    ("batch", "seq", "name"), [(0, 3, "batch"), (1, -2, "seq"), (1.5, 3, "batch"), (1, True, "seq")]
)
def test_impossible_sizes_are_refused(batch, seq, name):
    with pytest.raises(ValueError, match=rf"^{name}: a whole number, at least 1, got .*; correct it$"):
        forward_flops(PRESETS["tiny"], batch, seq)


def test_the_formula_loads_no_framework_and_no_numpy():
    script = (
        "import sys, parity.account.formula; print(*sorted(sys.modules.keys() & {'jax', 'torch', 'numpy', 'flax'}))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
    spoilt = subprocess.run(
        [sys.executable, "-c", "import numpy;" + script], capture_output=True, text=True, check=True
    )
    assert spoilt.stdout.split() == ["numpy"]


def test_one_token_is_where_pytorch_counts_less():
    """torch.einsum turns a contraction over one key into a multiplication, which is no matmul to its counter."""
    config = PRESETS["tiny"]
    missing = matmul_flops(config, 2, 1)["attention_values"]
    assert traced(config, 2, 1, backward=False) == forward_flops(config, 2, 1)
    assert counted(config, 2, 1, backward=False) == forward_flops(config, 2, 1) - missing


# planted faults: each count notices work that the others do not have


class ExtraMatmulJax(jaxcore.Transformer):
    def __call__(self, tokens):
        outputs = super().__call__(tokens)
        weight = self.layers[0].mlp.up_proj.weight[...]
        return outputs | {"hidden": outputs["hidden"] + outputs["hidden"] @ weight @ weight.T}


class ExtraMatmulTorch(torchref.Transformer):
    def forward(self, tokens):
        outputs = super().forward(tokens)
        weight = self.layers[0].mlp.up_proj.weight
        return outputs | {"hidden": outputs["hidden"] + outputs["hidden"] @ weight @ weight.T}


class HeadTwiceJax(jaxcore.Transformer):
    def __call__(self, tokens):
        outputs = super().__call__(tokens)
        again = jnp.einsum("btd,vd->btv", outputs["hidden"], self.token_embedding.weight[...])
        return outputs | {"logits": outputs["logits"] + again}


class HeadTwiceTorch(torchref.Transformer):
    def forward(self, tokens):
        outputs = super().forward(tokens)
        again = torch.einsum("btd,vd->btv", outputs["hidden"], self.token_embedding.weight)
        return outputs | {"logits": outputs["logits"] + again}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "and backward"])
@pytest.mark.parametrize(
    ("count", "model", "surplus"),
    [
        (traced, ExtraMatmulJax, 2 * 2 * BATCH * SEQ * 192 * 768),
        (counted, ExtraMatmulTorch, 2 * 2 * BATCH * SEQ * 192 * 768),
        (traced, HeadTwiceJax, 2 * BATCH * SEQ * 192 * 256),
        (counted, HeadTwiceTorch, 2 * BATCH * SEQ * 192 * 256),
    ],
)
def test_planted_matmuls_are_counted(count, model, surplus, backward):
    config = replace(PRESETS["tiny"], num_layers=1)
    expected = formula(config, BATCH, SEQ, backward)
    assert count(config, BATCH, SEQ, backward, model) == expected + surplus * (3 if backward else 1)


def test_the_formula_of_another_model_is_not_equal():
    config = replace(PRESETS["tiny"], num_layers=2)
    count = traced(config, BATCH, SEQ, backward=True)
    for wrong in ({"num_layers": 3}, {"d_ff": 767}, {"num_kv_heads": 2}, {"head": "none"}, {"pooler": True}):
        assert count != forward_backward_flops(replace(config, **wrong), BATCH, SEQ)


def test_the_raw_input_example_has_no_gradient_of_its_input():
    """Two layers on data: forward 655,360, backward 786,432, for below the first there is nothing to differentiate."""
    x, w1, w2 = (64, 64), (64, 64), (64, 16)
    forward, backward = 655_360, 786_432

    def in_jax(w1, w2, x):
        return (jnp.tanh(x @ w1) @ w2).sum()

    def in_torch(w1, w2, x):
        (torch.tanh(x @ w1) @ w2).sum().backward()

    abstract = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (w1, w2, x)]
    assert traced_flops(in_jax, *abstract) == forward
    assert traced_flops(jax.value_and_grad(in_jax, argnums=(0, 1)), *abstract) == forward + backward
    assert traced_flops(jax.value_and_grad(in_jax, argnums=(0, 1, 2)), *abstract) == 3 * forward
    weights = [torch.empty(shape, device="meta", requires_grad=True) for shape in (w1, w2)]
    assert counted_flops(in_torch, *weights, torch.empty(x, device="meta")) == forward + backward
    assert counted_flops(in_torch, *weights, torch.empty(x, device="meta", requires_grad=True)) == 3 * forward


def test_a_mask_that_a_module_makes_on_the_way_does_not_cost_the_count() -> None:
    class Causal(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen = torch.tril(torch.ones(7, 7, dtype=torch.bool))
            return torch.softmax((x @ x.mT).masked_fill(~seen, -torch.inf), -1)

    def causal(x: jax.Array) -> jax.Array:
        seen = jnp.tril(jnp.ones((7, 7), bool))
        return jax.nn.softmax(jnp.where(seen, x @ x.mT, -jnp.inf), -1)

    pair = parity.Pair("causal", Causal(), parity.Jax(causal), inputs=lambda g: (g.standard_normal((2, 7, 5)),))
    work = parity.check(pair, precisions=(), batches=1, steps=0).work
    assert (work.equal, work.flops["forward"]["torch"]) == (True, 2 * 2 * 7 * 7 * 5)
