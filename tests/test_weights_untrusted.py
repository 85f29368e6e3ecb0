"""Broken and hostile checkpoint folders: one line each that names file, key, expected, found and what to do."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from jaxcore.config import ModelConfig
from jaxcore.parameters import initial_parameters
from jaxcore.presets import PRESETS, shrink
from parity.errors import ParityUsageError
from parity.weights import load_checkpoint, save_checkpoint
from parity.weights.files import open_tensors

GPT2 = ModelConfig(vocab_size=13, d_model=6, num_layers=2, num_heads=3, d_ff=11, max_seq_len=5)
CONFIGS = {
    "gpt2": GPT2,
    "llama": shrink(PRESETS["llama3-8b"]),
    "qwen3": shrink(PRESETS["qwen3-0.6b"]),
    "bert": shrink(PRESETS["bert-base"]),
}
LN = "transformer.h.1.ln_1.weight"
FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folders = {}
    for family, config in CONFIGS.items():
        folders[family] = tmp_path_factory.mktemp(family)
        save_checkpoint(folders[family], config, initial_parameters(config, randomise_constants=True), family)
    return folders


@pytest.fixture
def gpt2(originals, tmp_path):
    shutil.copytree(originals["gpt2"], tmp_path / "copy")
    return tmp_path / "copy"


def refusal(folder):
    """The one line; every refusal has its form."""
    with pytest.raises(ParityUsageError) as caught:
        load_checkpoint(folder)
    line = str(caught.value)
    assert line.isprintable(), line
    assert ", got " in line, line
    assert "; " in line.split(", got ", 1)[1], line
    assert len(line) < 1500, line
    return line


def edit(folder, **changes):
    """Set fields of config.json; `...` removes one."""
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not ...}))


def rewrite(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def raw(header, body=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}

BROKEN = {
    "empty": (b"", "got 0 bytes: "),
    "seven bytes": (b"1234567", "got 7 bytes: "),
    "header beyond the file": (raw({"a": F32}, b"\0" * 8, 10**6), "header"),
    "absurd header length": (raw({"a": F32}, b"\0" * 8, 2**63), "header too large"),
    "header of all ones": (raw({"a": F32}, b"\0" * 8, 2**64 - 1), "header too large"),
    "no JSON": (raw(b"{not json"), "JSON"),
    "a list": (raw(b"[]"), "JSON"),
    "no UTF-8": (raw(b'{"\xff": 1}'), "UTF-8"),
    "nested": (raw(b'{"a":' * 50_000), "recursion limit"),
    "data missing": (raw({"a": F32}, b"\0" * 4), "not fully covered"),
    "data left over": (raw({"a": F32}, b"\0" * 12), "not fully covered"),
    "overlap": (raw({"a": F32, "b": F32 | {"data_offsets": [4, 12]}}, b"\0" * 12), "invalid offset"),
    "hole": (raw({"a": F32, "b": F32 | {"data_offsets": [12, 20]}}, b"\0" * 20), "invalid offset"),
    "offset beyond the file": (raw({"a": F32 | {"data_offsets": [0, 800]}}, b"\0" * 8), "offset"),
    "negative offset": (raw({"a": F32 | {"data_offsets": [-8, 0]}}, b"\0" * 8), "-8"),
    "shape beyond the data": (raw({"a": F32 | {"shape": [3]}}, b"\0" * 8), "invalid shape"),
    "shape that overflows": (raw({"a": F32 | {"shape": [2**62, 2**62]}}, b"\0" * 8), "overflow"),
    "unknown type": (raw({"a": F32 | {"dtype": "F31"}}, b"\0" * 8), "F31"),
    "metadata that is no text": (raw({"__metadata__": {"a": 1}}), "expected a string"),
    "a key twice": (raw(b'{"a":%b,"a":%b}' % ((json.dumps(F32).encode(),) * 2), b"\0" * 8), "a: each key once"),
    "a pickle": (pickle.dumps({"a": np.ones(400)}), "bytes: "),
    "a zip file": (b"PK\x03\x04" + b"\0" * 100, "bytes: "),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_safetensors_file_is_named_with_the_reason(gpt2, kind):
    content, says = BROKEN[kind]
    (gpt2 / "model.safetensors").write_bytes(content)
    line = refusal(gpt2)
    assert line.startswith(f"{gpt2 / 'model.safetensors'}: ")
    assert says in line


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(gpt2, share):
    path = gpt2 / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert "a whole safetensors file, got " in refusal(gpt2)
    assert "; download it again" in refusal(gpt2)


def test_names_in_a_file_cannot_break_the_line_or_the_terminal(gpt2):
    rewrite(gpt2, lambda tensors: tensors.update({"a\nb\x1b[31m\u202e": np.ones(2, np.float32)}))
    assert r"surplus: a\nb\x1b[31m\u202e" in refusal(gpt2)
    rewrite(gpt2, lambda tensors: tensors.update({"x" * 10_000: np.ones(2, np.float32)}))
    refusal(gpt2)


def test_a_missing_and_a_surplus_key_are_named(gpt2):
    file = gpt2 / "model.safetensors"
    rewrite(gpt2, lambda tensors: tensors.pop(LN))
    expected = f"{file}: the 28 tensors that config.json calls for, got missing: {LN}, surplus: none; take config.json"
    assert refusal(gpt2).startswith(expected)
    rewrite(gpt2, lambda tensors: tensors.update({"transformer.h.2.ln_1.weight": np.ones(6, np.float32)}))
    assert f"missing: {LN}, surplus: transformer.h.2.ln_1.weight" in refusal(gpt2)


@pytest.mark.parametrize(
    ("name", "make", "says"),
    [
        ("transformer.wte.weight", np.ones((14, 6), "f4"), "shape (13, 6) by config.json, got (14, 6)"),
        ("transformer.h.0.attn.c_attn.weight", np.ones((18, 6), "f4"), "shape (6, 18) by config.json, got (18, 6)"),
        (LN, np.ones((6, 1), "f4"), "shape (6,) by config.json, got (6, 1)"),
        (LN, np.ones((), "f4"), "shape (6,) by config.json, got ()"),
        (LN, np.ones(6, "i4"), "one of F64, F32, F16, BF16, got I32"),
        (LN, np.ones(6, "u1"), "one of F64, F32, F16, BF16, got U8"),
        (LN, np.ones(6, "?"), "one of F64, F32, F16, BF16, got BOOL"),
        (LN, np.ones(6, ml_dtypes.float8_e4m3fn), "one of F64, F32, F16, BF16, got F8_E4M3"),
    ],
)
def test_a_wrong_shape_or_type_is_named_with_both(gpt2, name, make, says):
    rewrite(gpt2, lambda tensors: tensors.update({name: make}))
    assert f"{gpt2 / 'model.safetensors'}: {name}: {says}; " in refusal(gpt2)


def test_a_file_that_shrinks_after_its_header_was_read_is_refused(gpt2):
    tensors = open_tensors(gpt2)
    path = gpt2 / "model.safetensors"
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(ParityUsageError, match=r"wte\.weight: 78 elements, got 77; the file changed"):
        tensors[max(tensors, key=lambda name: tensors.stored[name].start)]


def test_nothing_is_read_before_everything_is_checked(gpt2, monkeypatch):
    """The last tensor of the model is wrong: no value of any other may have been read by then."""
    rewrite(gpt2, lambda tensors: tensors.update({"transformer.ln_f.bias": np.ones(6, np.int8)}))
    monkeypatch.setattr(np, "fromfile", lambda *_, **__: pytest.fail("a value was read"))
    assert "ln_f.bias: one of F64" in refusal(gpt2)


CONFIG_FILES = {
    "no JSON": (b"{", "a JSON object, got no JSON"),
    "empty": (b"", "a JSON object, got no JSON"),
    "no UTF-8": (b'{"a": "\xff"}', "a JSON object, got no JSON"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "a JSON object, got no JSON"),
    "a list": (b"[1, 2]", "a JSON object, got [1, 2]; "),
    "a number": (b"3", "a JSON object, got 3; "),
    "null": (b"null", "a JSON object, got None; "),
    "nested": (b'{"a":' * 200_000, "a JSON object, got one nested too deeply"),
    "a long number": (b'{"a": ' + b"9" * 5000 + b"}", "a JSON object, got no JSON"),
    "a key twice": (b'{"n_layer": 1, "n_layer": 2}', "n_layer: each key once, got it twice"),
}


@pytest.mark.parametrize("kind", CONFIG_FILES)
def test_a_config_that_is_no_json_object_is_refused(gpt2, kind):
    content, says = CONFIG_FILES[kind]
    (gpt2 / "config.json").write_bytes(content)
    line = refusal(gpt2)
    assert line.startswith(f"{gpt2 / 'config.json'}: ")
    assert says in line


def test_a_missing_config_and_a_missing_folder_are_said(gpt2):
    (gpt2 / "config.json").unlink()
    assert f"{gpt2 / 'config.json'}: a file" in refusal(gpt2)
    assert ", got no such file; " in refusal(gpt2)
    (gpt2 / "config.json").mkdir()
    assert ", got something else; " in refusal(gpt2)
    assert ": a checkpoint folder, got no such folder; " in refusal(gpt2 / "none")
    assert ": a checkpoint folder, got a file; " in refusal(gpt2 / "model.safetensors")


def test_an_absurdly_large_config_is_not_read(gpt2):
    with (gpt2 / "config.json").open("ab") as stream:
        stream.truncate(2**36)  # sparse: takes no room on the disk
    assert f"config.json: at most {64 * 2**20} bytes, got {2**36}" in refusal(gpt2)


def test_a_pipe_in_the_place_of_a_file_does_not_block(gpt2):
    (gpt2 / "config.json").unlink()
    os.mkfifo(gpt2 / "config.json")
    assert ", got something else; " in refusal(gpt2)


#: family, changed fields (`...`: removed), the field that the line names and what it says
FIELDS = [
    ("gpt2", {"architectures": ["T5Model"]}, "architectures: one of GPT2LMHeadModel, GPT2Model, LlamaForCausalLM"),
    ("gpt2", {"architectures": ["MambaForCausalLM"]}, "got ['MambaForCausalLM']; use another checkpoint"),
    ("gpt2", {"architectures": ...}, "architectures: a list with one name, got no such field"),
    ("gpt2", {"architectures": []}, "architectures: a list with one name, got []"),
    ("gpt2", {"architectures": ["GPT2Model", "BertModel"]}, "architectures: a list with one name"),
    ("gpt2", {"architectures": "GPT2Model"}, "architectures: a list with one name, got 'GPT2Model'"),
    ("gpt2", {"architectures": [{"a": 1}]}, "architectures: a list with one name"),
    ("gpt2", {"model_type": "bert"}, 'model_type: "gpt2", got \'bert\''),
    ("gpt2", {"n_embd": ...}, "n_embd: a whole number, at least 1, got no such field"),
    ("gpt2", {"n_embd": "6"}, "n_embd: a whole number, at least 1, got '6'"),
    ("gpt2", {"n_embd": 6.0}, "n_embd: a whole number, at least 1, got 6.0"),
    ("gpt2", {"n_embd": True}, "n_embd: a whole number, at least 1, got True"),
    ("gpt2", {"n_embd": -6}, "n_embd: a whole number, at least 1, got -6"),
    ("gpt2", {"n_embd": 0}, "n_embd: a whole number, at least 1, got 0"),
    ("gpt2", {"hidden_size": 9}, "hidden_size: the same as n_embd 6, got 9; remove one"),
    ("gpt2", {"n_embd": 9}, "transformer.wte.weight: shape (13, 9) by config.json, got (13, 6)"),
    ("gpt2", {"vocab_size": 17}, "transformer.wte.weight: shape (17, 6) by config.json, got (13, 6)"),
    ("gpt2", {"n_inner": None}, "mlp.c_fc.weight: shape (6, 24) by config.json, got (6, 11)"),
    ("gpt2", {"n_layer": 3}, "missing: transformer.h.2.ln_1.weight"),
    ("gpt2", {"n_layer": 1}, "surplus: transformer.h.1."),
    ("gpt2", {"n_layer": 10**15}, "number of layers: no more than the 28 tensors"),
    ("gpt2", {"n_head": 4}, "d_model: must be a multiple of num_heads 4, got 6"),
    ("gpt2", {"layer_norm_epsilon": "1e-5"}, "layer_norm_epsilon: a finite number, got '1e-5'"),
    ("gpt2", {"layer_norm_epsilon": float("nan")}, "layer_norm_epsilon: a finite number, got nan"),
    ("gpt2", {"layer_norm_epsilon": 10**400}, "layer_norm_epsilon: a finite number, got 1000"),
    ("gpt2", {"layer_norm_epsilon": -1}, "norm_eps: must not be negative, got -1"),
    ("gpt2", {"activation_function": "gelu_fast"}, "activation_function: one of gelu_new"),
    ("gpt2", {"activation_function": ["gelu"]}, "activation_function: one of gelu_new"),
    ("gpt2", {"tie_word_embeddings": "yes"}, "tie_word_embeddings: true or false, got 'yes'"),
    ("gpt2", {"tie_word_embeddings": False}, "missing: lm_head.weight"),
    ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights: true, got False"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: false, got True"),
    ("gpt2", {"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn: false, got True"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention: null or false, got True"),
    ("gpt2", {"quantization_config": {"bits": 4}}, "quantization_config: null, got {'bits': 4}; save the checkpoint"),
    ("gpt2", {"auto_map": {"AutoModel": "x.Y"}}, "auto_map: null or {}, got {'AutoModel': 'x.Y'}; use a model"),
    ("gpt2", {"pruned_heads": {"0": [1]}}, "pruned_heads: null or {}, got"),
    ("llama", {"hidden_act": "relu"}, "hidden_act: one of silu, swish, gelu"),
    ("llama", {"rope_theta": 0}, "rope_theta: must be positive, got 0.0"),
    ("llama", {"rope_theta": None}, "rope_theta: a finite number, got None"),
    ("llama", {"rope_scaling": "llama3"}, "rope_scaling: an object or null, got 'llama3'"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "beta_fast": 8}}, "rope_type: one of default, llama3, got 'yarn'"),
    ("llama", {"rope_scaling": {"type": "dynamic"}}, "rope_scaling: type: one of default, llama3, got 'dynamic'"),
    ("llama", {"rope_scaling": {"type": "linear"}}, "rope_scaling: type: one of default, llama3, got 'linear'"),
    ("llama", {"rope_scaling": {"rope_type": "longrope"}}, "one of default, llama3, got 'longrope'"),
    ("llama", {"rope_scaling": {"rope_type": "default", "type": "llama3"}}, "type: the same as rope_type 'default'"),
    ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "low_freq_factor: a finite number, got no such"),
    ("llama", {"rope_scaling": {"rope_type": "default", "mscale": 2}}, "rope_scaling: mscale: one of rope_type"),
    ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1,
      "original_max_position_embeddings": 32}}, "0 < low_freq_factor < high_freq_factor, got 4.0 and 1.0"),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, "remove one"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: null or 1 or 1.0, got 0.5"),
    ("llama", {"sliding_window": 4096}, "sliding_window: null, got 4096"),
    ("llama", {"num_key_value_heads": 1}, "k_proj.weight: shape (16, 64) by config.json, got (32, 64)"),
    ("llama", {"num_key_value_heads": 3}, "num_heads: must be a multiple of num_kv_heads 3"),
    ("llama", {"head_dim": 8}, "q_proj.weight: shape (32, 64) by config.json, got (64, 64)"),
    ("llama", {"attention_bias": True}, "missing: model.layers.0.self_attn.q_proj.bias"),
    ("llama", {"mlp_bias": 1}, "mlp_bias: true or false, got 1"),
    ("llama", {"tie_word_embeddings": True}, "lm_head.weight: the bits of model.embed_tokens.weight"),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
     "max_window_layers: a sliding window in every layer or in none, got 1"),
    ("qwen3", {"use_sliding_window": True, "layer_types": [FULL, SLIDING]}, "a sliding window in every layer or in"),
    ("qwen3", {"layer_types": [SLIDING] * 2}, "use_sliding_window: true, for layer_types"),
    ("qwen3", {"layer_types": [FULL]}, "layer_types: 2 of full_attention and sliding_attention"),
    ("qwen3", {"use_sliding_window": True, "max_window_layers": "0"}, "max_window_layers: a whole number, got '0'"),
    ("qwen3", {"head_dim": None}, "head_dim: a whole number, at least 1, got None"),
    ("qwen3", {"architectures": ["LlamaForCausalLM"]}, 'model_type: "llama", got \'qwen3\''),
    ("qwen3", {"architectures": ["LlamaForCausalLM"], "model_type": ...}, "surplus: model.layers.0.self_attn.k_norm"),
    ("bert", {"position_embedding_type": "relative_key"}, 'position_embedding_type: "absolute", got \'relative_key\''),
    ("bert", {"is_decoder": True}, "is_decoder: false, got True"),
    ("bert", {"hidden_act": "silu"}, "hidden_act: one of gelu_new"),
    ("bert", {"type_vocab_size": 3}, "token_type_embeddings.weight: shape (3, 32) by config.json, got (2, 32)"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "changes", "says"), FIELDS)
def test_a_field_that_changes_the_function_is_refused_by_name(originals, tmp_path, family, changes, says):
    folder = tmp_path / "copy"
    shutil.copytree(originals[family], folder)
    edit(folder, **changes)
    line = refusal(folder)
    assert line.startswith((f"{folder / 'config.json'}: ", f"{folder / 'model.safetensors'}: "))
    assert says in line


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("gpt2", {"n_embd": ..., "hidden_size": 6}, {}),
        ("gpt2", {"layer_norm_epsilon": ...}, {"norm_eps": 1e-5}),
        ("gpt2", {"resid_pdrop": 0.5, "torch_dtype": "bfloat16", "use_cache": True, "my_note": "x"}, {}),
        ("llama", {"rms_norm_eps": ..., "hidden_act": ...}, {"norm_eps": 1e-6}),
        ("llama", {"rope_scaling": ..., "rope_theta": ...}, {"rope_theta": 10_000.0, "rope_scaling": None}),
        ("llama", {"rope_scaling": {"rope_type": "default"}}, {"rope_scaling": None}),
        ("llama", {"rope_scaling": ..., "rope_theta": ..., "rope_parameters": {"type": "default", "rope_theta": 7}},
         {"rope_theta": 7.0, "rope_scaling": None}),
        ("llama", {"head_dim": None}, {}),
        ("qwen3", {"use_sliding_window": False, "sliding_window": 3}, {"window": None}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2}, {"window": None}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 3, "layer_types": [FULL] * 2}, {"window": None}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 3, "layer_types": [SLIDING] * 2}, {"window": 3}),
        ("bert", {"layer_norm_eps": 0.25}, {"norm_eps": 0.25}),
    ],
)  # fmt: skip
def test_a_field_that_does_not_is_read_or_passed_over(originals, tmp_path, family, changes, expected):
    folder = tmp_path / "copy"
    shutil.copytree(originals[family], folder)
    edit(folder, **changes)
    config = load_checkpoint(folder).config
    wanted = {field: getattr(CONFIGS[family], field) for field in config.__dataclass_fields__} | expected
    assert {field: getattr(config, field) for field in wanted} == wanted


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pkl", "last.ckpt", "consolidated.00.pth"])
def test_pickles_are_refused_and_never_opened(gpt2, name):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(gpt2 / "exploded"),)

    (gpt2 / "model.safetensors").unlink()
    (gpt2 / name).write_bytes(pickle.dumps(Bomb()))
    line = refusal(gpt2)
    assert f"got only {name}, pickle files, which can run code when they are read" in line
    assert "convert the checkpoint to safetensors" in line
    assert not (gpt2 / "exploded").exists()


def test_a_pickle_renamed_to_safetensors_is_not_executed(gpt2):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(gpt2 / "exploded"),)

    (gpt2 / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    assert "a whole safetensors file" in refusal(gpt2)
    assert not (gpt2 / "exploded").exists()


def test_a_folder_without_weights_an_adapter_and_two_sets_of_weights_are_refused(gpt2, tmp_path):
    (tmp_path / "none").mkdir()
    assert ", got an empty folder; give a checkpoint folder" in refusal(tmp_path / "none")
    (gpt2 / "adapter_config.json").write_text("{}")
    assert "got an adapter (adapter_config.json); merge it" in refusal(gpt2)
    (gpt2 / "adapter_config.json").unlink()
    (gpt2 / "model.safetensors.index.json").write_text("{}")
    assert "got both; remove the one that is out of date" in refusal(gpt2)


@pytest.fixture
def sharded(gpt2):
    tensors = load_file(gpt2 / "model.safetensors")
    (gpt2 / "model.safetensors").unlink()
    places = {}
    for number, names in enumerate([sorted(tensors)[:10], sorted(tensors)[10:]]):
        shard = f"model-{number}.safetensors"
        save_file({name: tensors[name] for name in names}, gpt2 / shard)
        places |= dict.fromkeys(names, shard)
    write_index(gpt2, places)
    return gpt2, places


def write_index(folder, places):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


@pytest.mark.parametrize(
    "place", ["../x.safetensors", "/x.safetensors", "a/x.safetensors", "..", ".", "", "a\\b", "x\0y", "./m.safetensors"]
)
def test_an_index_that_points_outside_the_folder_is_refused(sharded, place):
    folder, places = sharded
    assert len(load_checkpoint(folder).parameters) > 28
    write_index(folder, places | {LN: place})
    line = refusal(folder)
    assert line.startswith(f"{folder / 'model.safetensors.index.json'}: names of files in its own folder, got ")
    assert line.endswith("; do not trust this checkpoint")


def test_a_link_out_of_the_folder_is_refused_and_the_hub_cache_is_not(sharded, tmp_path):
    folder, _ = sharded
    (folder / "model-0.safetensors").rename(tmp_path / "elsewhere")
    (folder / "model-0.safetensors").symlink_to(tmp_path / "elsewhere")
    assert f"model-0.safetensors: within its own folder, got a link to {tmp_path / 'elsewhere'}" in refusal(folder)
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    blobs = snapshot.parent.parent / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in folder.iterdir():
        shutil.copy(path.resolve(), blobs / f"sha-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/sha-{path.name}")
    assert load_checkpoint(snapshot).config == GPT2
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(tmp_path / "elsewhere")
    assert "config.json: within its own folder, got a link" in refusal(snapshot)


def test_a_link_to_itself_is_refused(gpt2):
    (gpt2 / "config.json").unlink()
    (gpt2 / "config.json").symlink_to("config.json")
    assert f"{gpt2 / 'config.json'}: " in refusal(gpt2)


def test_index_and_shards_must_agree(sharded):
    folder, places = sharded
    first, second = folder / "model-0.safetensors", folder / "model-1.safetensors"
    write_index(folder, places | {"transformer.extra": "model-0.safetensors"})
    expected = f"{first}: transformer.extra: in model-0.safetensors, as model.safetensors.index.json says, got no such"
    assert refusal(folder).startswith(expected)
    here, there = places[LN], {"model-0.safetensors": second, "model-1.safetensors": first}[places[LN]]
    write_index(folder, places | {LN: there.name})
    assert (
        f"{folder / here}: {LN}: listed in model.safetensors.index.json under this shard, got '{there.name}'"
        in refusal(folder)
    )
    write_index(folder, {name: shard for name, shard in places.items() if name != LN})
    assert f"{LN}: listed in model.safetensors.index.json under this shard, got None" in refusal(folder)
    write_index(folder, places)
    both = load_file(there) | {LN: load_file(folder / here)[LN]}
    save_file(both, there)
    assert f"{LN}: " in refusal(folder)
    second.unlink()
    assert f"{second}: a file, named by {folder / 'model.safetensors.index.json'}, got no such file" in refusal(folder)


def test_the_same_key_in_two_shards_is_refused(sharded):
    folder, places = sharded
    one = next(name for name, shard in places.items() if shard == "model-0.safetensors")
    save_file(load_file(folder / "model-1.safetensors") | {one: np.ones(2, "f4")}, folder / "model-1.safetensors")
    line = refusal(folder)
    assert f"model-1.safetensors: {one}: each tensor in one shard, got another in model-0.safetensors" in line


@pytest.mark.parametrize("places", [None, [], {}, "x", {"a": 1}, {"a": None}])
def test_an_index_without_a_map_is_refused(sharded, places):
    folder, _ = sharded
    write_index(folder, places)
    assert "weight_map: tensor names to file names, got " in refusal(folder)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_corrupted_bytes_load_or_are_refused_in_one_line(originals, tmp_path_factory, data):
    """Random bytes in the header, in config.json or a cut anywhere: never another exception, never a hang."""
    folder = tmp_path_factory.mktemp("fuzz")
    for path in originals["gpt2"].iterdir():
        shutil.copy(path, folder)
    path = folder / data.draw(st.sampled_from(["model.safetensors", "config.json"]))
    content = bytearray(path.read_bytes())
    end = min(len(content), 2600)  # header and a little data
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    path.write_bytes(content)
    try:
        checkpoint = load_checkpoint(folder)
    except ParityUsageError:
        refusal(folder)
    else:
        assert set(checkpoint.parameters) == set(initial_parameters(checkpoint.config))


def test_loading_holds_no_second_copy_of_the_file(tmp_path):
    """Peak of all allocations while loading: the parameters and at most one tensor with its working copy."""
    import tracemalloc

    config = ModelConfig(vocab_size=2003, d_model=96, num_layers=6, num_heads=3, d_ff=384, max_seq_len=64)
    save_checkpoint(tmp_path, config, initial_parameters(config), "gpt2")
    load_checkpoint(tmp_path)
    tracemalloc.start()
    checkpoint = load_checkpoint(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    sizes = [value.nbytes for value in checkpoint.parameters.values()]
    assert peak < sum(sizes) + 2 * max(sizes) + 500_000, (peak, sum(sizes), max(sizes))


def test_loading_needs_no_framework(originals):
    code = (
        "import sys; from pathlib import Path; from parity.weights import load_checkpoint; "
        "load_checkpoint(Path(sys.argv[1])); "
        "print([name for name in ('jax', 'torch', 'flax', 'optax', 'transformers') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(originals["llama"])], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"
