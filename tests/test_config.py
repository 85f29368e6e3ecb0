"""ModelConfig refuses what no model can be, in one line; parameters: their streams, their layout, their names."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, asdict, fields, replace

import numpy as np
import pytest
import torch
from flax import nnx
from sides import JAX, TORCH, both_sides

import jaxcore
import torchref

SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_seq_len": 32}
REFUSALS = {
    "vocab_size: a whole number, at least 1, got 0; correct it": {"vocab_size": 0},
    "d_model: a whole number, at least 1, got -24; correct it": {"d_model": -24},
    "num_layers: a whole number, at least 1, got 0; correct it": {"num_layers": 0},
    "num_heads: a whole number, at least 1, got 2.5; correct it": {"num_heads": 2.5},
    "num_kv_heads: a whole number, at least 1, got 0; correct it": {"num_kv_heads": 0},
    "d_ff: a whole number, at least 1, got True; correct it": {"d_ff": True},
    "max_seq_len: a whole number, at least 1, got '17'; correct it": {"max_seq_len": "17"},
    "token_types: a whole number, at least 0, got -1; correct it": {"token_types": -1},
    "window: a whole number, at least 1, got 0; correct it": {"window": 0},
    "d_head: a whole number, at least 1, got 0; correct it": {"d_head": 0},
    "d_model: must be a multiple of num_heads 4, got 25; or give d_head as well": {"d_model": 25},
    "num_heads: must be a multiple of num_kv_heads 3, got 4; each key head serves a whole group of query heads": {
        "num_kv_heads": 3
    },
    "norm_eps: must not be negative, got -1e-05; give the checkpoint's own": {"norm_eps": -1e-5},
    "norm_eps: must not be negative, got nan; give the checkpoint's own": {"norm_eps": float("nan")},
    "norm: one of layer_norm, rms_norm, rms_norm_plus_one, got 'batch_norm'; choose one of them": {
        "norm": "batch_norm"
    },
    "norm_position: one of pre, post, got 'sandwich'; choose one of them": {"norm_position": "sandwich"},
    "position: one of learned, rope, none, got 'alibi'; choose one of them": {"position": "alibi"},
    "rope_layout: one of half, interleaved, got 'thirds'; choose one of them": {"rope_layout": "thirds"},
    "activation: one of gelu, gelu_tanh, relu, swiglu, geglu, geglu_tanh, got 'silu'; choose one of them": {
        "activation": "silu"
    },
    "head: one of tied, untied, none, got None; choose one of them": {"head": None},
    "kernel: one of einsum, fused, got 'flash'; choose one of them": {"kernel": "flash"},
    "causal: True or False, got 'no'; correct it": {"causal": "no"},
    "rope_fraction: in (0, 1], got 1.5; 1 rotates the whole head": {"position": "rope", "rope_fraction": 1.5},
    "rope_fraction: must rotate an even number of elements, got 3 of d_head 6; choose another fraction": {
        "position": "rope",
        "rope_fraction": 0.5,
    },
    "rope_theta: must be positive, got 0; 10000 is usual": {"position": "rope", "rope_theta": 0},
}


@both_sides
@pytest.mark.parametrize("words", REFUSALS)
def test_a_config_that_no_model_can_have_is_refused_in_one_line(side, words):
    with pytest.raises(ValueError, match="got") as refusal:
        side.config(**REFUSALS[words])
    assert str(refusal.value) == words


@both_sides
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"low_freq_factor": 4.0},
            "rope_scaling: 0 < low_freq_factor < high_freq_factor, got 4.0 and 4.0; "
            "give the two as the checkpoint has them",
        ),
        ({"factor": 0.0}, "rope_scaling.factor: must be positive, got 0.0; correct it"),
        ({"original_max_seq_len": -1}, "rope_scaling.original_max_seq_len: must be positive, got -1; correct it"),
    ],
)
def test_a_scaling_that_no_table_can_have_is_refused(side, changes, words):
    with pytest.raises(ValueError, match="rope_scaling") as refusal:
        side.package.RopeScaling(**{**SCALING, **changes})
    assert str(refusal.value) == words


@both_sides
def test_defaults_are_filled_in(side):
    config = side.config(d_model=24, num_heads=4)
    assert (config.kv_heads, config.head_width, config.rotary_width) == (4, 6, 6)
    assert side.config(d_head=5).head_width == 5
    assert [side.config(activation=name).gated for name in ("gelu", "swiglu", "geglu")] == [False, True, True]


@both_sides
def test_a_config_is_frozen_hashable_and_survives_json(side):
    config = side.config(position="rope", rope_scaling=side.package.RopeScaling(**SCALING), window=3)
    with pytest.raises(FrozenInstanceError):
        config.causal = False
    assert side.package.config_from_dict(json.loads(json.dumps(asdict(config)))) == config
    assert hash(replace(config)) == hash(config)
    assert replace(config, window=5) != config


@both_sides
def test_an_unknown_field_is_named(side):
    with pytest.raises(ValueError, match=r"^ModelConfig: fields are .*vocab_size.*, got dropout, heads; remove them$"):
        side.package.config_from_dict({**asdict(side.config()), "heads": 4, "dropout": 0.1})


@both_sides
def test_every_true_or_false_field_is_checked(side):
    """A new switch without its check would take the string "false" for true."""
    config = side.config()
    flags = [field.name for field in fields(config) if isinstance(getattr(config, field.name), bool)]
    assert len(flags) == 11
    for name in flags:
        with pytest.raises(ValueError, match=f"^{name}: True or False, got 'false'; correct it$"):
            side.config(**{name: "false"})


# parameters

WIDE = {"norm": "layer_norm", "head": "untied", "token_types": 2, "embedding_norm": True, "pooler": True}


@both_sides
def test_each_tensor_has_a_stream_of_its_own(side):
    """Another choice adds or removes tensors and leaves every other as it was."""
    bare = side.config(qkv_bias=False, head="tied", position="none")
    rich = side.config(qkv_bias=True, head="untied", qk_norm=True, **{k: WIDE[k] for k in ("token_types", "pooler")})
    fewer, more = (side.package.initial_parameters(c, 3, randomise_constants=True) for c in (bare, rich))
    assert fewer.keys() < more.keys()
    for name, value in fewer.items():
        np.testing.assert_array_equal(value, more[name], err_msg=name)
    flat = [value.ravel()[:16].tobytes() for value in more.values()]
    assert len(set(flat)) == len(flat), "two tensors share their numbers"
    other = side.package.initial_parameters(rich, 4, randomise_constants=True)
    assert all((other[name] != value).any() for name, value in more.items())


@both_sides
def test_both_packages_start_from_the_same_bits(side):
    ours = side.package.initial_parameters(side.config(**WIDE), 5)
    theirs = jaxcore.initial_parameters(JAX.config(**WIDE), 5)
    assert list(ours) == list(theirs)
    assert all(ours[name].tobytes() == theirs[name].tobytes() for name in theirs)


@both_sides
def test_starting_values_have_the_published_spread(side):
    """0.02 for weights, GPT's 0.02 / sqrt(2 L) into the residual stream and 0.01 for positions, constants as they are.

    The sample deviation of n normal numbers is off by 1 / sqrt(2 n) of itself; 4 of those are allowed.
    """
    config = side.config(d_model=64, d_ff=128, vocab_size=256, max_seq_len=64, num_layers=8)
    expected = {"o_proj.weight": 0.005, "down_proj.weight": 0.005, "position_embedding.weight": 0.01}
    for name, value in side.package.initial_parameters(config, 0).items():
        if "norm.weight" in name:
            np.testing.assert_array_equal(value, 1)
        elif name.endswith("bias"):
            np.testing.assert_array_equal(value, 0)
        else:
            std = next((std for part, std in expected.items() if name.endswith(part)), 0.02)
            assert abs(value.std() / std - 1) <= 4 / np.sqrt(2 * value.size), name
    llama = side.config(norm="rms_norm_plus_one", position="rope", d_model=64, d_ff=128, num_layers=8)
    values = side.package.initial_parameters(llama, 0)
    np.testing.assert_array_equal(values["final_norm.weight"], 0)
    assert abs(values["layers.7.mlp.down_proj.weight"].std() / 0.02 - 1) < 0.05


@both_sides
def test_randomised_constants_move_off_zero_and_one(side):
    config = side.config(d_model=64, **WIDE)
    plain, moved = (side.package.initial_parameters(config, 0, randomise_constants=on) for on in (False, True))
    for name, value in moved.items():
        constant = "norm.weight" in name or name.endswith("bias")
        assert (value != plain[name]).all() if constant else (value == plain[name]).all(), name
        if constant:
            assert abs(value.mean() - plain[name].mean()) < 0.1
            assert 0.02 < value.std() < 0.2


@both_sides
def test_float64_starts_from_the_numbers_that_float32_has(side):
    narrow, wide = (side.package.initial_parameters(side.config(), 1, dtype=d) for d in (np.float32, np.float64))
    assert all(wide[name].dtype == np.float64 and (wide[name] == value).all() for name, value in narrow.items())


@both_sides
def test_stacking_and_unstacking_are_inverse_in_any_order_of_names(side):
    """Sorted names put layers.10 before layers.2: the layer's number decides, not its place."""
    config = side.config(num_layers=12, d_model=8, d_ff=3)
    flat = side.package.initial_parameters(config, 0)
    stacked = side.package.stack_layers(flat)
    assert stacked["layers.mlp.up_proj.weight"].shape == (12, 8, 3)
    assert list(side.package.unstack_layers(stacked)) == list(flat)
    scrambled = side.package.stack_layers(dict(sorted(flat.items())))
    for source in (stacked, scrambled):
        back = side.package.unstack_layers(source)
        assert back.keys() == flat.keys()
        assert all((back[name] == value).all() for name, value in flat.items())
    scanned = side.package.initial_parameters(replace(config, scan_layers=True), 0)
    assert all((scanned[name] == value).all() for name, value in stacked.items())


@both_sides
@pytest.mark.parametrize("scan", [False, True])
def test_a_model_names_its_parameters_as_the_table_does(side, scan):
    config = side.config(scan_layers=scan, qk_norm=True, activation="swiglu", **WIDE)
    parameters = side.package.initial_parameters(config, 0)
    model = side.package.Transformer(config, parameters)
    if side is JAX:
        held = {".".join(map(str, path)): value for path, value in nnx.to_flat_state(nnx.state(model, nnx.Param))}
        graph, state = nnx.split(model)
        assert nnx.merge(graph, state).config == config
    else:
        held = model.state_dict()
        assert held.keys() == dict(model.named_parameters()).keys()
    table = {n: p.shape for n, p in side.package.parameter_table(config).items()}
    assert held.keys() == parameters.keys()
    assert scan or {name: tuple(value.shape) for name, value in held.items()} == table


@both_sides
def test_axes_and_shapes_of_the_table_agree(side):
    config = side.config(d_head=5, num_kv_heads=2, activation="swiglu", **WIDE)
    sizes = {"v": 37, "t": 17, "y": 2, "d": 24, "e": 24, "n": 4, "k": 2, "h": 5, "f": 29}
    for name, parameter in side.package.parameter_table(config).items():
        assert parameter.shape == tuple(sizes[axis] for axis in parameter.axes.split()), name


@both_sides
def test_a_model_does_not_depend_on_the_order_of_its_parameters(side):
    """Eleven layers and names sorted as strings: the model is the same, to the bit."""
    config = side.config(num_layers=11, d_model=8, d_ff=3)
    flat = side.package.initial_parameters(config, 0, randomise_constants=True)
    tokens = side.array(np.arange(34).reshape(2, 17), "int")
    models = [side.compiled(side.package.Transformer(config, p)) for p in (flat, dict(sorted(flat.items())))]
    first, second = (side.numpy(model(tokens)["logits"]) for model in models)
    np.testing.assert_array_equal(first, second)


@both_sides
def test_missing_surplus_and_misshapen_parameters_are_named(side):
    config = side.config()
    right = side.package.initial_parameters(config, 0)
    without = {name: value for name, value in right.items() if name != "final_norm.bias"}
    with pytest.raises(ValueError, match=r"^parameters: the 36 names .* missing \['final_norm.bias'\], surplus \[\]; "):
        side.package.Transformer(config, without)
    with pytest.raises(ValueError, match=r"missing \[\], surplus \['head.weight'\]; build them with"):
        side.package.Transformer(config, {**right, "head.weight": right["final_norm.bias"]})
    with pytest.raises(ValueError, match=r"^final_norm.bias: shape \(24,\), got \(23,\); the config and the weights"):
        side.package.Transformer(config, {**right, "final_norm.bias": right["final_norm.bias"][1:]})


@both_sides
def test_a_model_owns_its_parameters(side):
    """torch.as_tensor shares a NumPy array's memory and jnp.asarray may: training one side would move the other."""
    config = side.config()
    parameters = side.package.initial_parameters(config, 0)
    model = side.package.Transformer(config, parameters)
    parameters["token_embedding.weight"][:] = 7.0
    assert (side.numpy(model.token_embedding.weight[...]) != 7.0).all()
    if side is TORCH:
        before = torch.tensor(parameters["final_norm.weight"])
        held = torchref.Transformer(config, {**parameters, "final_norm.weight": before})
        with torch.no_grad():
            held.final_norm.weight.fill_(3.0)
        assert (before == 1.0).all()


@both_sides
def test_text_longer_than_the_learned_positions_is_refused(side):
    """JAX would read NaN past the end of the table, PyTorch raise an IndexError."""
    config = side.config(max_seq_len=5)
    model = side.package.Transformer(config, side.package.initial_parameters(config))
    words = "^tokens: at most max_seq_len 5 positions, got 6; cut the text$"
    with pytest.raises(ValueError, match=words):
        model(side.array(np.zeros((1, 6), int), "int"))
