"""What a module is given is a point where it is none already, and a fault between two modules is named there."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from parity import Linen, Pair, ParityUsageError, check
from parity.backends.jax.harvest import captured
from parity.backends.torch.capture import capturing
from parity.capture import Capture, Point, owner

X = np.random.default_rng(0).standard_normal((3, 4))
QUICK = {"precisions": (), "steps": 0, "flops": False}


def rows_of(generator):
    return {"x": generator.standard_normal((3, 4)).astype(np.float32)}


def names_of(capture):
    return [point.name for point in capture.points]


class Inner(torch.nn.Module):
    """Takes a first argument, another one, one by keyword and a cache that it writes to."""

    def forward(self, first, second, *, third, cache):
        cache["written"] = first + second
        return first * second + third


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.inner = torch.nn.Linear(4, 4), Inner()

    def forward(self, x):
        up, cache = self.up(x), {"other": x + 1}
        out = self.inner(torch.tanh(up), up, third=torch.sin(up), cache=cache)
        return out + cache["written"]


class JaxInner(nnx.Module):
    def __call__(self, first, second, *, third, cache):
        cache["written"] = first + second
        return first * second + third


class JaxOuter(nnx.Module):
    def __init__(self, weight, bias):
        self.up, self.inner = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), JaxInner()
        self.up.kernel[...], self.up.bias[...] = jnp.asarray(weight), jnp.asarray(bias)

    def __call__(self, x):
        up, cache = self.up(x), {"other": x + 1}
        out = self.inner(jnp.tanh(up), up, third=jnp.sin(up), cache=cache)
        return out + cache["written"]


def both():
    """The same model in PyTorch and in flax.nnx, as captured in float64, with what it returned."""
    model = Outer().double()
    with capturing(model) as recording:
        x = torch.tensor(X, requires_grad=True)
        returned = model(x)
        returned.sum().backward()
    with jax.enable_x64(True):
        weight, bias = model.up.weight.detach().numpy().T, model.up.bias.detach().numpy()
        graph, state = nnx.split(nnx.eval_shape(lambda: JaxOuter(weight, bias)))
        state = jax.tree.map(lambda leaf: jnp.asarray(weight if leaf.ndim == 2 else bias), state)

        def function(state, x):
            out = nnx.merge(graph, state)(x)
            return out.sum(), out

        (_, out), capture = captured(function, (state, X))
    return (returned.detach().numpy(), recording.capture()), (np.asarray(out), capture)


def test_positions_and_keywords_are_points_with_the_same_values_and_gradients_in_both_frameworks():
    (returned, seen), (out, other) = both()
    assert names_of(seen) == ["up", "inner:in", "inner:in.third", "inner", "model"]  # `second` is `up`, a point already
    assert names_of(other) == names_of(seen)
    np.testing.assert_allclose(out, returned, rtol=1e-12)
    for name in seen.names:
        np.testing.assert_allclose(other[name].value, seen[name].value, rtol=1e-12)
        np.testing.assert_allclose(other[name].gradient, seen[name].gradient, rtol=1e-12)
    assert {point.source for point in seen.points if ":in" in point.name} == {"input"}


def test_the_gradient_is_that_of_what_the_module_does_with_it_alone():
    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Sigmoid()

        def forward(self, x):
            both = x * 2
            return self.inner(both) + both  # the second use is none of the module's

    model = Branches()
    with capturing(model) as recording:
        model(torch.tensor(X, requires_grad=True)).sum().backward()
    sigmoid = 1 / (1 + np.exp(-2 * X))
    np.testing.assert_allclose(recording.capture()["inner:in"].gradient, sigmoid * (1 - sigmoid), rtol=1e-12)


def test_an_input_is_numbered_by_the_call_that_it_belongs_to():
    class Shared(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.block(torch.tanh(self.block(self.block(x))))

    class LinenShared(nn.Module):
        @nn.compact
        def __call__(self, x):
            block = nn.Dense(4, name="block")
            return block(jnp.tanh(block(block(x))))

    model = Shared()
    with capturing(model) as recording:
        model(torch.tensor(X, dtype=torch.float32))
    names = ["block", "block#2", "block:in#3", "block#3", "model"]
    assert names_of(recording.capture()) == names
    parameters = LinenShared().init(jax.random.key(0), X)

    def function(parameters, x):
        out = LinenShared().apply(parameters, x)
        return out.sum(), out

    assert names_of(captured(function, (parameters, jnp.asarray(X)))[1]) == names


def test_what_a_checkpoint_gives_its_modules_has_its_gradient():
    class Checkpointed(torch.nn.Module):
        def __init__(self, recompute):
            super().__init__()
            self.block, self.recompute = torch.nn.Linear(4, 4), recompute

        def forward(self, x):
            for _ in range(2):
                run = lambda x: self.block(torch.tanh(x))  # noqa: E731
                x = torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False) if self.recompute else run(x)
            return x

    plain, recomputed = Checkpointed(False), Checkpointed(True)
    recomputed.load_state_dict(plain.state_dict())
    found = []
    for model in (plain, recomputed):
        with capturing(model) as recording:
            model(torch.tensor(X, dtype=torch.float32, requires_grad=True)).sum().backward()
        found.append(recording.capture())
    assert names_of(found[0]) == names_of(found[1]) == ["block:in", "block", "block:in#2", "block#2", "model"]
    for point in found[0].points:
        assert np.abs(point.gradient).max() > 0
        np.testing.assert_array_equal(found[1][point.name].gradient, point.gradient)


def test_numbers_that_stand_earlier_or_are_the_models_own_inputs_are_left_out():
    def point(name, source, value):
        return Point(name, source, "", value.shape, "float64", value)

    y = np.tanh(X)
    points = [
        point("a:in", "input", X.T),  # the model's input, in another layout
        point("a", "module", y),
        point("b:in", "input", y.reshape(4, 3)),
        point("b", "module", y),  # an output stays
        point("c:in", "input", y[:, :2]),  # fewer of them
        point("d:in", "input", y * (1 + 1e-9)),
    ]
    assert names_of(Capture(tuple(points)).distinct([X])) == ["a", "b", "c:in", "d:in"]
    assert names_of(Capture(tuple(points)).distinct()) == ["a:in", "a", "b", "c:in", "d:in"]


def test_the_owner_of_an_input_is_the_module_that_is_given_it():
    inputs = ("h.0.norm:in", "h.0.norm:in#2", "h.0.norm:in.mask", "h.0.norm:in.1#3")
    assert {owner(name) for name in inputs} == {"h.0.norm"}
    others = ("h.0.norm", "h.0.attn:0", "h.0.attn:rest.in", "h.in", "h.0/einsum 'a b -> b'")
    assert [owner(name) for name in others] == [*others]


class Residual(torch.nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.up, self.norm, self.factor = torch.nn.Linear(4, 4), torch.nn.LayerNorm(4, eps=1e-5), factor

    def forward(self, x):
        return self.norm(x + self.up(x) * self.factor)


class LinenResidual(nn.Module):
    factor: float = 1.0

    @nn.compact
    def __call__(self, x):
        return nn.LayerNorm(epsilon=1e-5, name="norm")(x + nn.Dense(4, name="up")(x) * self.factor)


@pytest.mark.parametrize("factor", [1.0, 0.9])
def test_a_fault_between_two_modules_is_born_in_what_the_second_is_given(factor):
    model = Residual()
    parameters = {
        "params": {
            "up": {"kernel": model.up.weight.detach().numpy().T.copy(), "bias": model.up.bias.detach().numpy()},
            "norm": {"scale": model.norm.weight.detach().numpy(), "bias": model.norm.bias.detach().numpy()},
        }
    }
    pair = Pair("residual", model, Linen(LinenResidual(factor), parameters), inputs=rows_of)
    result = check(pair, points=True, **QUICK)
    born = [finding.name for finding in result.findings if finding.birth == "born here"]
    assert (result.verdict, born) == (("PASS", []) if factor == 1 else ("FAIL", ["norm:in"]))
    assert not result.unmatched


class Stream(torch.nn.Module):
    """A stream that a norm is given and that is read again after it, as in a block before its norms."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor
        self.up, self.down = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.first, self.second = torch.nn.LayerNorm(4, eps=1e-5), torch.nn.LayerNorm(4, eps=1e-5)

    def forward(self, x):
        x = self.up(x) * self.factor
        x = x + self.down(self.first(x))
        return x + torch.sin(self.second(x))


class LinenStream(nn.Module):
    factor: float = 1.0

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4, name="up")(x) * self.factor
        x = x + nn.Dense(4, name="down")(nn.LayerNorm(epsilon=1e-5, name="first")(x))
        return x + jnp.sin(nn.LayerNorm(epsilon=1e-5, name="second")(x))


def stream_parameters(model):
    """Those of `Stream` under linen's names."""
    kernels = {name: {"kernel": getattr(model, name).weight.detach().numpy().T.copy()} for name in ("up", "down")}
    scales = {name: {"scale": getattr(model, name).weight.detach().numpy()} for name in ("first", "second")}
    biases = {name: {"bias": getattr(model, name).bias.detach().numpy()} for name in (*kernels, *scales)}
    return {"params": {name: {**kernels.get(name, {}), **scales.get(name, {}), **biases[name]} for name in biases}}


@pytest.mark.parametrize("is_torch", [True, False])
def test_who_reads_what_a_module_was_given_again_goes_on_with_the_fed_value(is_torch):
    model = Stream(0.9 if is_torch else 1.0)
    linen = Linen(LinenStream(1.0 if is_torch else 0.9), stream_parameters(model))
    sides = (linen, model) if is_torch else (model, linen)
    result = check(Pair("stream", *sides, inputs=rows_of), points=True, **QUICK)
    born = [finding.name for finding in result.findings if finding.birth == "born here"]
    assert (result.verdict, born) == ("FAIL", ["first:in"])


def test_a_gradient_goes_back_past_a_fed_value_to_who_reads_it_again():
    """Its values agree everywhere; all that is wrong is the gradient of the last sine's argument."""
    model = Stream()
    pair = Pair("stream", model, Linen(LinenStream(), stream_parameters(model)), inputs=rows_of)
    wrong = Pair("wrong", model, Linen(WrongBackwards(), stream_parameters(model)), inputs=rows_of)
    for each, expected in ((pair, []), (wrong, ["second"])):
        swapped = replace(each, reference=each.candidate, candidate=each.reference)
        for either in (each, swapped):
            result = check(either, points=True, **QUICK)
            born = [(finding.name, finding.what) for finding in result.findings if finding.birth == "born here"]
            assert born == [(name, "gradient") for name in expected], (either.name, either is swapped)


class WrongBackwards(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4, name="up")(x)
        x = x + nn.Dense(4, name="down")(nn.LayerNorm(epsilon=1e-5, name="first")(x))
        normed = nn.LayerNorm(epsilon=1e-5, name="second")(x)
        return x + jnp.sin(0.5 * normed + 0.5 * jax.lax.stop_gradient(normed))


def test_what_is_fed_to_who_reads_it_again_is_taken_back():
    """A buffer that is given to a module holds its own numbers when the capture has ended."""

    class Holder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.ones(4))
            self.norm = torch.nn.LayerNorm(4)

        def forward(self, x):
            return self.norm(self.table) + self.table + x

    model, table = Holder(), np.arange(4.0, dtype=np.float32)
    with capturing(model, feed={"norm:in": table}):
        fed = model(torch.zeros(4))
    assert torch.equal(fed, model.norm(torch.from_numpy(table)) + torch.from_numpy(table))
    assert torch.equal(model.table, torch.ones(4))


class WrongWhenCompiled(torch.nn.Module):
    """A stand-in for a compiler's mistake."""

    def __init__(self, wrong):
        super().__init__()
        self.up, self.down, self.wrong = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), wrong

    def forward(self, x):
        hidden = torch.relu(self.up(x))
        return self.down(hidden * 1.001 if self.wrong and torch.compiler.is_compiling() else hidden)


@pytest.mark.filterwarnings("ignore:.*not a leaf Tensor:UserWarning")  # PyTorch's own, of a copy of the input
@pytest.mark.parametrize("points", [False, True])
def test_a_compiled_side_is_seen_as_it_runs_uncompiled_and_what_compiling_changes_is_named(points):
    torch._dynamo.reset()
    for wrong in (False, True):
        model = WrongWhenCompiled(wrong)
        pair = Pair("compiled", model, torch.compile(model, backend="eager"), inputs=rows_of)
        result = check(pair, points=points, **QUICK)
        if not wrong:
            assert result.verdict == "PASS"
            assert (
                not points or "torch (candidate): compiled; its points are those of the uncompiled run" in result.unseen
            )
            assert not points or {row.name for row in result.rows} >= {"point up", "point down:in", "point down"}
        else:
            assert (result.verdict, result.findings) == ("FAIL", ())
            assert "; compiling changes torch (candidate)'s output by " in result.reason


@pytest.mark.filterwarnings("ignore:.*not a leaf Tensor:UserWarning")
def test_a_fault_of_the_model_that_is_compiled_is_found_inside_it():
    torch._dynamo.reset()
    reference, wrong = Residual(), Residual(0.9)
    wrong.load_state_dict(reference.state_dict())
    pair = Pair("compiled", reference, torch.compile(wrong, backend="eager"), inputs=rows_of)
    for candidate in (pair.candidate, wrong):
        result = check(replace(pair, candidate=candidate), **QUICK)
        assert [finding.candidate for finding in result.findings if finding.birth == "born here"] == ["norm:in"]
        assert not torch.nn.modules.module._has_any_global_hook()


class Between(torch.nn.Module):
    """An activation between two modules, or none; as a module of its own, or not."""

    def __init__(self, activation="tanh", module=False):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)
        self.act = {"tanh": torch.nn.Tanh(), "relu": torch.nn.ReLU()}[activation] if module else None
        self.activation = activation

    def forward(self, x):
        hidden = self.up(x)
        if self.act is not None:
            return self.down(self.act(hidden))
        return self.down(
            {"tanh": torch.tanh, "relu": torch.relu, "none": lambda hidden: hidden}[self.activation](hidden)
        )


class NnxBetween(nnx.Module):
    def __init__(self, activation="tanh"):
        self.up, self.down = nnx.Linear(4, 8, rngs=nnx.Rngs(0)), nnx.Linear(8, 3, rngs=nnx.Rngs(0))
        self.activation = activation
        for name, layer in Between().named_children():
            mine = getattr(self, name)
            mine.kernel[...], mine.bias[...] = (
                jnp.asarray(each.detach().numpy()) for each in (layer.weight.T, layer.bias)
            )

    def __call__(self, x):
        hidden = self.up(x)
        return self.down(
            {"tanh": jnp.tanh, "relu": jax.nn.relu, "none": lambda hidden: hidden}[self.activation](hidden)
        )


def born(reference, candidate, inputs=rows_of):
    result = check(Pair("between", reference, candidate, inputs=inputs), **QUICK)
    assert result.verdict == "FAIL"
    assert not [line for line in result.unseen if "capturing moved" in line]
    return [finding.name for finding in result.findings if finding.birth == "born here"]


@pytest.mark.parametrize(
    ("reference", "candidate", "name"),
    [
        (Between(), Between("none"), "down:in"),
        (Between("none"), Between(), "down:in"),
        (Between(), NnxBetween("none"), "down:in"),
        (Between("none"), NnxBetween(), "down:in"),
        (NnxBetween(), Between("none"), "down:in"),
        (Between("tanh", True), NnxBetween("relu"), "act = down:in"),
        (NnxBetween("relu"), Between("tanh", True), "down:in = act"),
        (Between("tanh", True), Between("none"), "act = down:in"),
        (Between("none"), Between("tanh", True), "down:in = act"),
    ],
)
def test_what_one_side_alone_computes_is_born_in_what_the_next_module_is_given(reference, candidate, name):
    assert born(reference, candidate) == [name]


class Twice(torch.nn.Module):
    """One tensor given twice to a module that asks whether it is one, and to another one for the second time."""

    class Same(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.key = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), None

        def forward(self, q, k):
            before, self.key = self.key, k
            return self.one(q) if q is k or before is k else self.two(q) + self.one(k)

    def __init__(self, eps=1e-5):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.same, self.norm = torch.nn.Linear(4, 4), self.Same(), torch.nn.LayerNorm(4, eps=eps)

    def forward(self, x):
        hidden = self.up(x) + 1
        return self.norm(self.same(hidden, hidden) + self.same(self.up(x), hidden))


class Attends(torch.nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.attention, self.factor = torch.nn.MultiheadAttention(4, 2, batch_first=True), factor

    def forward(self, x):
        hidden = torch.tanh(x[None]) * self.factor
        return self.attention(hidden, hidden, hidden, need_weights=False)[0]


class Gives(torch.nn.Module):
    """Modules that give nothing, are given a parameter, or fail and are called again."""

    class Cache(torch.nn.Module):
        def forward(self, x, items):
            items.append(x)

    class Gate(torch.nn.Module):
        def forward(self, x, w):
            return x * w if isinstance(w, torch.nn.Parameter) else x * w * 2

    class Narrow(torch.nn.Linear):
        def forward(self, x):
            if x.shape[-1] != 4:
                raise ValueError("narrow")
            return super().forward(x)

    def __init__(self, factor=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.cache, self.gate, self.narrow = self.Cache(), self.Gate(), self.Narrow(4, 4)
        self.weight, self.factor = torch.nn.Parameter(torch.rand(4)), factor

    def forward(self, x):
        items = []
        self.cache(x * 2, items)
        self.cache(torch.tanh(x) * self.factor, items)
        with suppress(ValueError):
            self.narrow(x[:, :3] * 2)
        return self.narrow(self.gate(sum(items), self.weight))


@pytest.mark.parametrize(
    ("reference", "candidate", "names"),
    [
        (Twice(), Twice(1e-3), ["norm"]),
        (Attends(), Attends(0.9), ["attention:in"]),
        (Gives(), Gives(0.9), ["cache:in#2"]),
    ],
)
def test_capture_keeps_what_modules_ask_of_their_arguments(reference, candidate, names):
    assert born(reference, candidate) == names


def test_a_constant_that_is_read_as_a_number_stays_one_in_jax():
    scale = jnp.asarray(1.5)

    class Scaled(nnx.Module):
        def __init__(self, factor):
            self.linear, self.factor = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), factor

        def __call__(self, x, scale):
            return self.linear(x) * float(scale) * self.factor

    class Outer(nnx.Module):
        def __init__(self, factor=1.0):
            self.scaled, self.out = Scaled(factor), nnx.Linear(4, 4, rngs=nnx.Rngs(1))

        def __call__(self, x):
            return self.out(self.scaled(jnp.sin(x), scale=scale))

    assert born(Outer(), Outer(1.01)) == ["scaled"]


def test_a_shared_module_that_is_compiled_keeps_its_names():
    class Shared(torch.nn.Module):
        def __init__(self, factor=1.0, compiled=False):
            super().__init__()
            torch.manual_seed(0)
            block = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
            self.block, self.factor = torch.compile(block, backend="eager") if compiled else block, factor

        def forward(self, x):
            return self.block(torch.cos(self.block(torch.sin(self.block(x)) * self.factor)))

    torch._dynamo.reset()
    assert born(Shared(), Shared(1.01, compiled=True)) == ["block:in#2"]


def test_a_module_that_compiled_itself_is_refused_for_a_copy_would_not_be():
    model = Residual()
    model.norm.compile(backend="eager")
    with pytest.raises(ParityUsageError, match=r"got LayerNorm after its own compile\(\).*give torch.compile"):
        check(Pair("compiled", Residual(), model, inputs=rows_of), **QUICK)


def test_a_scripted_module_is_compared_and_shows_what_it_returns():
    assert born(torch.jit.script(Residual()), Residual(0.9)) == ["model"]


def test_layers_in_a_scan_are_those_of_a_list():
    layers = [torch.nn.Linear(4, 4).double() for _ in range(3)]

    class Listed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(layers)

        def forward(self, x):
            for layer in self.layers:
                x = layer(torch.tanh(x))
            return x

    class Scanned(nnx.Module):
        def __init__(self, factor):
            self.layers = nnx.vmap(lambda rngs: nnx.Linear(4, 4, rngs=rngs))(nnx.Rngs(0).split(3))
            self.layers.kernel[...] = jnp.stack([jnp.asarray(each.weight.detach().numpy().T) for each in layers])
            self.layers.bias[...] = jnp.stack([jnp.asarray(each.bias.detach().numpy()) for each in layers])
            self.factor = factor

        def __call__(self, x):
            def one(layer, x):
                return layer(jnp.tanh(x) * self.factor)

            return nnx.scan(one, in_axes=(0, nnx.Carry), out_axes=nnx.Carry)(self.layers, x)

    assert born(Listed().float(), Scanned(0.9)) == [f"layers.{i}:in = layers[{i}]:in" for i in range(3)]
