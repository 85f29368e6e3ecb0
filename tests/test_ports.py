"""Ports that nobody here wrote: the flax models of transformers 4.57 against its PyTorch models, weights randomised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_flax_pytorch_utils import convert_pytorch_state_dict_to_flax

from parity import Linen, Options, Pair, Torch, check

SHORT = Options(precisions=("float32",), batches=2, steps=0)
VOCABULARY = 97
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}


def randomised(module: torch.nn.Module) -> torch.nn.Module:
    """Gains and biases too: a bias of zero hides where it is added."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return module.eval()


def positions(ids: Any) -> Any:
    return jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)


def pair(name: str, config: Any, reference: type, candidate: type, **calls: Callable[..., Any]) -> Pair:
    module = randomised(reference(config))
    port = candidate(config, seed=0)
    weights = convert_pytorch_state_dict_to_flax(module.state_dict(), port)
    return Pair(
        name,
        Torch(module, call=calls["torch"]),
        Linen(port.module, {"params": weights}, call=calls["flax"]),
        inputs=draw,
    )


def draw(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Tokens, none of them the padding token 0, and a mask whose last row is short."""
    mask = np.ones((2, 13), np.int64)
    mask[1, 9:] = 0
    return generator.integers(1, VOCABULARY, (2, 13)), mask


def last_hidden(module: Any, ids: torch.Tensor, mask: torch.Tensor) -> Any:
    return module(input_ids=ids, attention_mask=mask).last_hidden_state * mask[..., None]


def flax_last_hidden(module: Any, ids: Any, mask: Any) -> Any:
    return module(ids, mask, positions(ids)).last_hidden_state * mask[..., None]


def gpt2(**changes: Any) -> Pair:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=24, n_layer=2, n_head=4, n_positions=32, attn_implementation="eager", **changes
    )
    return pair(
        "gpt2",
        config,
        transformers.GPT2Model,
        transformers.FlaxGPT2Model,
        torch=last_hidden,
        flax=flax_last_hidden,
    )


def bert() -> Pair:
    config = transformers.BertConfig(
        **SIZES, intermediate_size=29, max_position_embeddings=32, attn_implementation="eager"
    )
    return pair(
        "bert",
        config,
        transformers.BertModel,
        transformers.FlaxBertModel,
        torch=lambda module, ids, mask: tuple(module(input_ids=ids, attention_mask=mask).to_tuple()),
        flax=lambda module, ids, mask: module(ids, mask, jnp.zeros_like(ids), positions(ids)).to_tuple()[:2],
    )


def llama(**changes: Any) -> Pair:
    config = transformers.LlamaConfig(
        **SIZES, num_key_value_heads=2, intermediate_size=29, max_position_embeddings=32, attn_implementation="eager"
    )
    given = pair(
        "llama",
        config,
        transformers.LlamaModel,
        transformers.FlaxLlamaModel,
        torch=last_hidden,
        flax=flax_last_hidden,
    )
    port = given.candidate.module
    other = transformers.LlamaConfig(**{**config.to_dict(), **changes})
    return replace(given, candidate=replace(given.candidate, module=port.clone(config=other)))


@pytest.mark.parametrize("make", [gpt2, bert])
def test_gpt2_and_bert_are_the_same_function_in_flax_and_pytorch(make: Callable[[], Pair]) -> None:
    result = check(make(), SHORT)
    assert (result.verdict, result.rung, result.islands) == ("PASS", "same-function", ()), result.reason
    assert result.work.equal
    assert sum(row.name.startswith("gradient") for row in result.rows if row.stage == "float64") > 20


@pytest.mark.slow
def test_another_eps_is_found_in_a_port_of_somebody_else() -> None:
    right = gpt2()
    other = right.candidate.module
    wrong = replace(
        right.candidate,
        module=other.clone(config=transformers.GPT2Config(**{**other.config.to_dict(), "layer_norm_epsilon": 1e-6})),
    )
    result = check(replace(right, candidate=wrong), SHORT)
    assert (result.verdict, result.rung) == ("FAIL", "different")


def test_bert_in_pytorch_gives_its_padding_token_no_gradient_and_flax_does() -> None:
    """padding_idx of nn.Embedding: with a padding token among the inputs the two train otherwise."""

    def padded(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        ids, mask = draw(generator)
        return ids * mask, mask

    result = check(replace(bert(), inputs=padded), SHORT)
    assert (result.verdict, result.first_difference.name) == ("FAIL", "gradient embeddings.word_embeddings.weight")


def test_llama_is_float32_islands_in_their_places_and_tables_that_no_widening_closes() -> None:
    result = check(llama(), replace(SHORT, precisions=()))
    assert (result.verdict, result.rung) == ("PASS", "float32-island"), result.reason
    places = {side: [each.place for each in result.islands if each.side == side] for side in ("torch", "linen")}
    assert places["torch"] == [
        "layers.0.input_layernorm",
        "rotary_emb.inv_freq",
        "rotary_emb",
        "layers.0.self_attn",
    ]
    assert [place.partition("/")[2] for place in places["linen"]] == [
        "layers/0/input_layernorm",
        "layers/0/self_attn/rotary_emb",
        "layers/0/self_attn",
    ]
    tables = [row for row in result.rows if "float32 tables" in row.derivation]
    assert tables
    assert all(row.headroom > 4 for row in tables)


@pytest.mark.slow
def test_no_fault_hides_behind_the_islands_of_llama() -> None:
    """An eps that is off by a thousandth moves less than float32 does, and stands where no table meets the data."""
    result = check(llama(rms_norm_eps=1.001e-6), replace(SHORT, precisions=(), flops=False))
    assert (result.verdict, result.rung) == ("FAIL", "different")
    assert "it begins at layers.0.input_layernorm" in result.reason
    assert result.rows[0].measured < 1e-6
