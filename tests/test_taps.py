"""Taps and einops calls: heard however early they were imported, unchanged, and everything as before afterwards."""

from __future__ import annotations

from pathlib import Path

import einops
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from einops import EinopsError, einsum, pack, rearrange, reduce, repeat, unpack
from einops.layers.flax import EinMix as FlaxEinMix
from einops.layers.flax import Rearrange as FlaxRearrange
from einops.layers.flax import Reduce as FlaxReduce
from einops.layers.torch import EinMix, Rearrange, Reduce

from parity.einops_calls import hearing_einops
from parity.taps import hearing_taps, tap

X = np.arange(6.0).reshape(2, 3)


def heard(call, change=lambda output: output):
    """What a call gives under a listener, and what the listener heard."""
    calls = []

    def listener(call, output):
        calls.append(call[:3])
        return change(output)

    with hearing_einops(listener):
        output = call()
    return output, calls


def test_tap_gives_its_argument_itself():
    x = object()
    assert tap("x", x) is x
    seen = []
    with hearing_taps(lambda name, value: seen.append((name, value)) or value):
        assert tap("x", x) is x
    assert seen == [("x", x)]
    tap("x", x)
    assert len(seen) == 1


def test_the_innermost_listener_hears_a_tap_and_may_replace_it():
    with hearing_taps(lambda name, x: x + 1):
        with hearing_taps(lambda name, x: x + 10):
            assert tap("x", 0) == 10
        assert tap("x", 0) == 1


FUNCTIONS = {
    "rearrange": (lambda x: rearrange(x, "a b -> b a"), "a b -> b a"),
    "reduce": (lambda x: reduce(x, "a b -> a", "sum"), "a b -> a"),
    "repeat": (lambda x: repeat(x, "a b -> a b c", c=2), "a b -> a b c"),
    "einsum": (lambda x: einsum(x, x, "a b, c b -> a c"), "a b, c b -> a c"),
}


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray, torch.as_tensor])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_function_imported_before_is_heard_once_with_its_line(kind, array):
    call, pattern = FUNCTIONS[kind]
    want = call(array(X))
    got, calls = heard(lambda: call(array(X)))
    line = call.__code__.co_firstlineno
    assert calls == [(kind, pattern, f"{Path(__file__).name}:{line}")]
    assert np.array_equal(got, want)
    assert type(got) is type(want)


def test_keyword_pattern_is_heard():
    assert [call[:2] for call in heard(lambda: rearrange(X, pattern="a b -> b a"))[1]] == [("rearrange", "a b -> b a")]


def test_pack_and_unpack_are_heard_without_their_shapes():
    outputs = []
    (packed, shapes), calls = heard(lambda: pack([X, X], "a *"), lambda output: outputs.append(output) or output)
    assert calls[0][:2] == ("pack", "a *")
    assert outputs[0] is packed
    parts, calls = heard(lambda: unpack(packed, shapes, "a *"))
    assert calls[0][:2] == ("unpack", "a *")
    assert all(np.array_equal(part, X) for part in parts)


def test_the_listeners_output_is_what_the_model_gets():
    got, _ = heard(lambda: rearrange(X, "a b -> b a"), lambda output: output + 1)
    assert np.array_equal(got, X.T + 1)


def test_functions_keep_their_identity_and_are_restored_after_an_error():
    before = {kind: getattr(einops, kind) for kind in (*FUNCTIONS, "pack", "unpack")}
    codes = {kind: function.__code__ for kind, function in before.items()}

    def fail():
        with hearing_einops(lambda *_: None):
            assert all(getattr(einops, kind) is function for kind, function in before.items())
            assert all(function.__code__ is not codes[kind] for kind, function in before.items())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert all(function.__code__ is codes[kind] for kind, function in before.items())
    assert np.array_equal(rearrange(X, "a b -> b a"), X.T)


def test_an_einops_error_is_the_same_and_leaves_the_ears_open():
    def call():
        with pytest.raises(EinopsError, match="a b c"):
            rearrange(X, "a b c -> a")
        return rearrange(X, "a b -> b a")

    assert len(heard(call)[1]) == 1


def test_nested_listeners_the_inner_one_hears():
    outer, inner = [], []
    with hearing_einops(lambda *call: outer.append(call) or call[-1]):
        with hearing_einops(lambda *call: inner.append(call) or call[-1]):
            rearrange(X, "a b -> b a")
        reduce(X, "a b -> a", "sum")
    assert [call.kind for call, _ in inner] == ["rearrange"]
    assert [call.kind for call, _ in outer] == ["reduce"]


TORCH_LAYERS = {
    "rearrange": Rearrange("a b -> b a"),
    "reduce": Reduce("a b -> a", "sum"),
    "einmix": EinMix("a (b c) -> a (d c)", weight_shape="b d", bias_shape="d", b=3, d=5, c=1),
}


@pytest.mark.parametrize("kind", TORCH_LAYERS)
def test_torch_layer_is_heard_once(kind):
    layer, x = TORCH_LAYERS[kind], torch.as_tensor(X).float()
    want = layer(x)
    got, calls = heard(lambda: layer(x))
    assert [call[:2] for call in calls] == [(kind, layer.pattern)]
    assert torch.equal(got, want)
    assert len(heard(lambda: None)[1]) == 0


FLAX_LAYERS = {
    "rearrange": lambda: FlaxRearrange("a b -> b a"),
    "reduce": lambda: FlaxReduce("a b -> a", "sum"),
    "einmix": lambda: FlaxEinMix("a (b c) -> a (d c)", "b d", "d", sizes={"b": 3, "d": 5, "c": 1}),
}


@pytest.mark.parametrize("kind", FLAX_LAYERS)
def test_flax_layer_is_heard_once(kind):
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return FLAX_LAYERS[kind]()(x)

    model, x = Model(), jnp.asarray(X)
    parameters = model.init(jax.random.key(0), x)
    want = model.apply(parameters, x)
    got, calls = heard(lambda: model.apply(parameters, x))
    assert [call[0] for call in calls] == [kind]
    assert np.array_equal(got, want)
