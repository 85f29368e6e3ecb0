"""Marks in every kind of JAX program: what is seen, what is told to be unseen, and that jit and grad work on it."""

from __future__ import annotations

from functools import partial

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from einops import rearrange, unpack
from flax import nnx
from models import equinox_model, equinox_parts, weights

from parity import ParityUsageError
from parity.backends.jax.harvest import captured, harvest
from parity.backends.jax.marks import marking
from parity.taps import tap

X = np.random.Generator(np.random.PCG64(5)).uniform(0.5, 1.5, (3, 5)).astype(np.float32)


def layer(x, scale=1.0):
    return tap("sine", jnp.sin(x) * scale)


def with_sum(function):
    """The sum of the result as a loss."""

    def run(*args):
        outputs = function(*args)
        return jnp.sum(outputs), outputs

    return run


def seen(function, *args, **options):
    (_, outputs), capture = captured(with_sum(function), args or (X,), **options)
    return np.asarray(outputs), capture


def names_of(capture):
    return [point.name for point in capture.points]


KINDS = {
    "plain": lambda x: layer(layer(x)),
    "jit": lambda x: jax.jit(layer)(jax.jit(layer)(x)),
    "checkpoint": lambda x: jax.checkpoint(layer)(jax.checkpoint(layer)(x)),
    "policy": jax.checkpoint(lambda x: layer(layer(x)), policy=jax.checkpoint_policies.dots_saveable),
    "vmap": jax.vmap(lambda row: layer(layer(row))),
    "jit of vmap of checkpoint": jax.jit(jax.vmap(jax.checkpoint(lambda row: layer(layer(row))))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_both_calls_are_seen_with_their_values_and_gradients(kind):
    outputs, capture = seen(KINDS[kind])
    once, twice = np.sin(X), np.sin(np.sin(X))
    assert names_of(capture) == ["sine", "sine#2"]
    assert capture.unseen == ()
    assert np.allclose(outputs, twice, rtol=1e-6)
    assert np.allclose(capture["sine"].value, once, rtol=1e-6)
    assert np.allclose(capture["sine#2"].value, twice, rtol=1e-6)
    assert np.allclose(capture["sine"].gradient, np.cos(once), rtol=1e-6)
    assert np.array_equal(capture["sine#2"].gradient, np.ones_like(X))


@pytest.mark.parametrize("kind", KINDS)
def test_feeding_changes_what_follows_and_not_the_point(kind):
    fed = X + 1
    outputs, capture = seen(KINDS[kind], feed={"sine": fed})
    assert np.allclose(outputs, np.sin(fed), rtol=1e-6)
    assert np.allclose(capture["sine"].value, np.sin(X), rtol=1e-6)
    assert np.allclose(capture["sine"].gradient, np.cos(fed), rtol=1e-6)


def scan(x, reverse=False, wrap=lambda body: body):
    def body(carry, row):
        carry = layer(carry + row)
        return carry, carry * 2

    carry, rows = jax.lax.scan(wrap(body), jnp.zeros(5), x, reverse=reverse)
    return rows + carry


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("wrap", [lambda body: body, jax.checkpoint, jax.jit])
def test_iterations_of_a_scan(reverse, wrap):
    outputs, capture = seen(partial(scan, reverse=reverse, wrap=wrap))
    order = [2, 1, 0] if reverse else [0, 1, 2]
    assert names_of(capture) == [f"sine[{i}]" for i in order]
    carry = np.zeros(5)
    for i in order:
        carry = np.sin(carry + X[i])
        assert np.allclose(capture[f"sine[{i}]"].value, carry, rtol=1e-5)
    last = capture[f"sine[{order[-1]}]"]
    assert np.allclose(last.gradient, 5)  # twice in its own row, once in each of three
    fed, _ = seen(partial(scan, reverse=reverse, wrap=wrap), feed={"sine[1]": np.ones(5)})
    assert np.allclose(fed[1] - fed[order[-1]], 2 - 2 * np.sin(1 + X[order[-1]]), atol=1e-5)
    assert abs(fed - outputs).max() > 1e-2


def test_a_scan_in_a_scan_has_two_iterations():
    def inner(carry, value):
        return layer(carry * value), None

    def outer(carry, row):
        return jax.lax.scan(inner, carry, row)[0], None

    outputs, capture = seen(lambda x: jax.lax.scan(outer, 1.0, x)[0])
    assert names_of(capture) == [f"sine[{i}][{j}]" for i in range(3) for j in range(5)]
    assert capture["sine[2][4]"].value == outputs
    fed, _ = seen(lambda x: jax.lax.scan(outer, 1.0, x)[0], feed={"sine[2][3]": np.float32(2)})
    assert np.isclose(fed, np.sin(2 * X[2, 4]), rtol=1e-6)


def test_what_was_traced_before_is_traced_again():
    compiled = jax.jit(layer)
    compiled(X)
    jax.make_jaxpr(compiled)(X)
    assert names_of(seen(compiled)[1]) == ["sine"]
    assert "parity:" not in str(jax.make_jaxpr(compiled)(X))
    assert "parity:" not in str(jax.make_jaxpr(jax.checkpoint(layer))(X))


def test_the_users_own_gradient_inside_is_seen():
    outputs, capture = seen(jax.grad(lambda x: jax.checkpoint(layer)(layer(x)).sum()))
    assert names_of(capture)[:2] == ["sine", "sine#2"]
    assert np.allclose(outputs, np.cos(np.sin(X)) * np.cos(X), rtol=1e-6)


def test_a_recomputation_is_recorded_once_and_told():
    program = jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(layer(x)))(x).sum())
    outputs, capture = seen(program)
    assert names_of(capture) == ["sine"]
    assert capture.unseen == ("sine: computed again, in a backward pass; recorded the first time",)
    assert np.allclose(outputs, np.cos(np.sin(X)) * np.cos(X), rtol=1e-6)
    fed, _ = seen(program, feed={"sine": X})
    # the derivative is part of the program already: only its value at the point is another, the recomputed one too
    assert np.allclose(fed, np.cos(X) * np.cos(X), rtol=1e-6)


@pytest.mark.parametrize("kind", ["custom_jvp", "custom_vjp"])
def test_inside_a_custom_rule_values_only_and_the_rule_is_kept(kind):
    rule = getattr(jax, kind)(lambda x: tap("inside", jnp.sin(x)))
    if kind == "custom_jvp":
        rule.defjvp(lambda primals, tangents: (rule(*primals), 3 * tangents[0]))
    else:
        rule.defvjp(lambda x: (rule(x), None), lambda _, gradient: (3 * gradient,))

    def function(x):
        return rule(tap("before", x * 1))

    outputs, capture = seen(function)
    assert np.allclose(outputs, np.sin(X), rtol=1e-6)
    assert names_of(capture) == ["before", "inside"]
    assert np.array_equal(capture["inside"].value, outputs)
    assert capture["inside"].gradient is None
    assert np.array_equal(capture["before"].gradient, np.full_like(X, 3))
    assert capture.unseen == (f"inside: inside a {kind}_call: its value only, no gradient, no feed",)
    with pytest.raises(ParityUsageError, match="feed: points outside custom_jvp and custom_vjp rules, got 'inside'"):
        seen(function, feed={"inside": X})


def test_a_custom_rule_around_what_has_no_derivative_stays_differentiable():
    def sine(x):
        return tap("inside", jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x))

    rule = jax.custom_vjp(sine)
    rule.defvjp(lambda x: (sine(x), x), lambda x, gradient: (gradient * jnp.cos(x),))
    outputs, capture = seen(lambda x: rule(tap("before", x * 1)))
    assert np.array_equal(capture["inside"].value, outputs)
    assert np.allclose(capture["before"].gradient, np.cos(X), rtol=1e-6)


def test_the_users_gradient_of_a_recomputed_scan_is_seen_once_and_fed_in_both_passes():
    def program(x):
        def body(carry, row):
            return jnp.sin(layer(carry + row)), None

        return jax.grad(lambda x: jax.lax.scan(jax.checkpoint(body), jnp.zeros(5), x)[0].sum())(x)

    outputs, capture = seen(program)
    assert np.allclose(outputs, program(X), rtol=1e-6)
    assert names_of(capture) == ["sine[0]", "sine[1]", "sine[2]"]
    assert capture.unseen == ("sine: computed again, in a backward pass; recorded the first time",)
    carry = np.sin(capture["sine[1]"].value)
    assert np.allclose(capture["sine[2]"].value, np.sin(carry + X[2]), rtol=1e-5)
    fed, _ = seen(program, feed={"sine[2]": np.full(5, 0.25)})
    assert np.allclose(fed[2], np.cos(0.25) * np.cos(carry + X[2]), rtol=1e-5)
    assert abs(outputs[2] - fed[2]).max() > 1e-2


def test_inside_a_while_or_a_cond_is_told():
    def loop(x):
        return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, layer(c[1])), (0, x))[1]

    outputs, capture = seen(loop, gradients=False)
    assert capture.points == ()
    assert capture.unseen == ("sine: inside a while, whose values are not kept",)
    assert np.allclose(outputs, np.sin(np.sin(np.sin(X))), rtol=1e-6)
    _, capture = seen(lambda x: jax.lax.cond(x[0, 0] > 0, layer, lambda x: x, x))
    assert capture.unseen == ("sine: inside a cond, whose values are not kept",)


def test_a_custom_rule_without_marks_stays_whole():
    _, capture = seen(lambda x: tap("after", jax.nn.relu(tap("before", x - 1))))
    assert names_of(capture) == ["before", "after"]
    assert np.array_equal(capture["before"].gradient, (X > 1).astype(np.float32))


def test_whole_numbers_have_values_and_no_gradient_and_constants_are_told():
    def function(x):
        rearrange(np.ones((2, 3)), "a b -> b a")
        return x[tap("index", jnp.argmax(x[:, 0]))]

    _, capture = seen(function)
    assert capture["index"].value == X[:, 0].argmax()
    assert capture["index"].gradient is None
    assert capture.unseen == ("rearrange 'a b -> b a': a NumPy array, a constant of the program",)


def test_several_outputs_of_a_call_have_their_slots():
    _, capture = seen(lambda x: sum(unpack(x, [(), (4,)], "a *")[1:]))
    assert names_of(capture) == ["unpack 'a *':0", "unpack 'a *':1"]
    assert capture["unpack 'a *':1"].shape == (3, 4)


def test_a_harvest_is_pure_and_needs_one_compilation():
    program = harvest(lambda x: layer(layer(x)), X)
    compiled = jax.jit(program.call)
    for x in (X, X + 1):
        outputs, values = compiled((x,), {}, program.zeros())
        assert np.allclose(outputs, np.sin(np.sin(x)), rtol=1e-6)
        assert set(values) == set(program.names) == {"sine", "sine#2"}
    assert compiled._cache_size() == 1
    assert [spec.dtype for spec in program.points] == ["float32", "float32"]
    assert program.points[0].where.startswith("test_harvest.py:")


def test_only_what_is_wanted_is_kept():
    _, capture = seen(lambda x: layer(layer(x)), keep=lambda name: name == "sine#2")
    assert names_of(capture) == ["sine#2"]
    assert np.array_equal(capture["sine#2"].gradient, np.ones_like(X))


def test_a_perturbation_is_added():
    program = harvest(lambda x: layer(layer(x)), X)
    outputs, values = program.call((X,), perturbation={"sine": jnp.full(X.shape, 0.5)})
    assert np.allclose(outputs, np.sin(np.sin(X) + 0.5), rtol=1e-6)
    assert np.allclose(values["sine"], np.sin(X), rtol=1e-6)


def test_marking_restores_every_class():
    kinds = [nnx.Linear, eqx.nn.Linear]
    before = [vars(kind)["__call__"] for kind in kinds]

    def fail():
        with marking():
            assert all(vars(kind)["__call__"] is not call for kind, call in zip(kinds, before, strict=True))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert all(vars(kind)["__call__"] is call for kind, call in zip(kinds, before, strict=True))
    assert tap("x", 1) == 1


class Scaled(nnx.Linear):
    """Calls its parent class."""

    def __call__(self, x):
        return super().__call__(x) * 2


class Inherited(nnx.Linear):
    """Has no call of its own."""


class Stack(nnx.Module):
    """A module that is shared, one that calls its parent class, one that inherits its call."""

    def __init__(self, rngs):
        self.scaled, self.inherited = Scaled(5, 5, rngs=rngs), Inherited(5, 5, rngs=rngs)
        self.shared = self.inherited

    def __call__(self, x):
        return {"y": self.shared(self.inherited(self.scaled(x))), "none": None}


def nnx_seen(model, function):
    definition, state = nnx.split(model)
    return captured(with_sum(lambda state, x: function(nnx.merge(definition, state), x)), (state, X))[1]


def test_nnx_shared_inherited_and_parent_calls():
    capture = nnx_seen(Stack(nnx.Rngs(0)), lambda model, x: model(x)["y"])
    assert names_of(capture) == ["scaled", "inherited", "inherited#2", "model:y"]


def test_a_module_that_the_function_imports_is_seen_and_one_that_it_defines_is_told():
    kinds = []

    def define():
        class Late(nnx.Module):
            def __call__(self, x):
                return x + 1

        kinds.append(Late)
        return Late

    def imports(x):
        return (kinds[0] if kinds else define())()(x)

    def defines(x):
        return define()()(x)

    _, capture = seen(imports)
    assert names_of(capture) == ["model"]
    assert capture.unseen == ()
    _, capture = seen(defines)
    assert capture.points == ()
    assert [line.rpartition(".")[2] for line in capture.unseen] == [
        "Late: a class that the function itself defines; define it outside"
    ]


def test_nnx_layers_in_a_scan_and_in_nnx_jit():
    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(5, 5, rngs=rngs)

        def __call__(self, x):
            return jnp.sin(self.linear(x))

    class Model(nnx.Module):
        def __init__(self):
            self.layers = nnx.vmap(Layer)(nnx.Rngs(0).split(3))

        def __call__(self, x):
            run = nnx.scan(lambda x, one: one(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            return run(x, self.layers)

    capture = nnx_seen(Model(), nnx.jit(lambda model, x: model(x)))
    inner = [name for i in range(3) for name in (f"layers.linear[{i}]", f"layers[{i}]")]
    assert names_of(capture.distinct([X])) == [*inner, "model"]


def test_parts_of_a_tree_that_are_called_by_themselves_get_their_names_by_naming():
    with jax.enable_x64(True):
        tokens = np.arange(5)

        def function(w, tokens):
            model = equinox_model(w)
            if named:
                marks.naming(model)
            return equinox_parts(model, tokens)

        found = {}
        for named in (False, True):
            with marking() as marks:
                jax.make_jaxpr(function)(weights(), tokens)
            found[named] = list(dict.fromkeys(mark.path for mark in marks.marks if not mark.label))
    assert found[True][:3] == ["embed", "h.1.norm_1", "h.1.attn.qkv"]
    assert found[False][:3] == ["model", "LayerNorm", "EquinoxAttention.qkv"]


def test_equinox_modules_that_a_jit_rebuilt_keep_their_names():
    class Model(eqx.Module):
        first: eqx.nn.Linear
        rest: list

        def __call__(self, x):
            return eqx.filter_jit(self.rest[1])(eqx.filter_checkpoint(self.first)(x))

    keys = jax.random.split(jax.random.key(0), 3)
    model = Model(eqx.nn.Linear(5, 5, key=keys[0]), [None, eqx.nn.MLP(5, 5, 7, 1, key=keys[1])])
    parameters, static = eqx.partition(model, eqx.is_array)
    _, capture = captured(with_sum(lambda p, x: eqx.combine(p, static)(x)), (parameters, X[0]))
    assert [name for name in names_of(capture.distinct([X[0]])) if "activation" not in name] == [
        "first",
        "rest.1.layers.0",
        "rest.1.layers.1:in",  # the activation, inside a vmap
        "rest.1.layers.1",
        "rest.1",
        "model",
    ]


def test_linen_methods_parent_calls_and_modules_applied_by_themselves():
    class Base(nn.Module):
        def setup(self):
            self.dense, self.head = nn.Dense(5), nn.Dense(5, use_bias=False)

        def encode(self, x):
            return rearrange(self.dense(x), "a b -> b a")

        def __call__(self, x):
            return self.encode(x)

    class Tied(Base):
        def whole(self, x):
            return self(x)

        def __call__(self, x):
            hidden = super().__call__(x).T
            return self.head.apply({"params": {"kernel": self.dense.variables["params"]["kernel"].T}}, hidden)

    model = Tied()
    parameters = model.init(jax.random.key(0), X)
    for method in ("__call__", "whole"):
        _, capture = captured(with_sum(partial(model.apply, method=method)), (parameters, X))
        assert names_of(capture) == ["dense", "rearrange 'a b -> b a'", "head:in", "head", "model"]
        assert names_of(capture.distinct()) == ["dense", "rearrange 'a b -> b a'", "head", "model"]


def test_linen_shared_scanned_and_rematerialised_modules():
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return jnp.sin(nn.Dense(5, name="dense")(x)), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            shared = nn.remat(nn.Dense)(5, name="shared")
            scanned = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
            return scanned(name="layers")(shared(shared(x)), None)[0]

    model = Model()
    parameters = model.init(jax.random.key(0), X)
    _, capture = captured(with_sum(model.apply), (parameters, X))
    inner = [name for i in range(3) for name in (f"layers.dense[{i}]", f"layers[{i}]:0")]
    assert [name for name in names_of(capture.distinct([X])) if name != "layers:0"] == [
        "shared",
        "shared#2",
        *inner,
        "model",
    ]
