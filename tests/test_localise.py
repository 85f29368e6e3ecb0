"""Where a difference begins: each kind of fault, planted in the middle of six layers, is named, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import planted
import pytest
import torch
from flax import nnx
from planted import CANDIDATES, checked, torch_model

import parity.taps
from parity import Jax, Options, Pair, ParityUsageError, Torch
from parity.findings import BORN, INHERITED
from parity.preparation import prepare
from parity.stages import Stages

pytestmark = pytest.mark.xdist_group("localise")

SPLIT, ANGLES, MERGE = "rearrange 'b t (n h) -> b n t h'", "einsum 't, f -> t f'", "rearrange 'b n t h -> b t (n h)'"
SCORES = "einsum 'b n t h, b n u h -> b n t u'"
#: fault -> what is born in layer i where modules are points; taps are numbered from one
BIRTHS = {
    "norm eps": ["h.{i}.norm_1"],
    "gain forgotten": ["h.{i}.norm_1"],
    "unbiased variance": ["h.{i}.norm_2"],
    "mean not subtracted": ["h.{i}.norm_2"],
    "exact gelu": ["h.{i}.mlp.down:in"],
    "relu": ["h.{i}.mlp.down:in"],
    "attention unscaled": ["scores#{n}"],
    "mask shifted": ["mask#{n}"],
    "mask dropped": ["attention#{n}"],
    "softmax axis": ["attention#{n}"],
    "q and k weights swapped": ["h.{i}.attn.q_proj", "h.{i}.attn.k_proj"],
    "q and k swapped": ["h.{i}.attn/" + SCORES],
    "heads merged": ["h.{i}.attn/" + MERGE],
    "rope base": ["h.{i}.attn/" + ANGLES, "h.{i}.attn/" + ANGLES + "#2"],
    "rope interleaved": ["q#{n}", "k#{n}"],
    "rope position shifted": ["h.{i}.attn/" + ANGLES],
    "bias forgotten": ["h.{i}.attn.out"],
    "square weight not transposed": ["h.{i}.attn.out"],
    "one weight element": ["h.{i}.mlp.up"],
    "residual doubled": ["stream#{n}"],
    "residual missing": ["h.{i}"],
    "value scaled": ["h.{i}.attn/" + SPLIT + "#3"],
    "stop_gradient": ["h.{i}.attn/" + SPLIT + "#3"],
    "custom gradient": ["h.{i}.mlp.up"],
}
GRADIENT = ("stop_gradient", "custom gradient")
#: where a function that calls no modules shows them
FUNCTION = {
    "exact gelu": ["h.{i}.mlp"],
    "relu": ["h.{i}.mlp"],
    "q and k weights swapped": ["h.{i}.attn/" + SPLIT, "h.{i}.attn/" + SPLIT + "#2"],
    "bias forgotten": ["stream#{n}"],
    "square weight not transposed": ["stream#{n}"],
    "one weight element": ["h.{i}.mlp"],
    "custom gradient": ["h.{i}.norm_2"],
}


def test_every_candidate_has_faults():
    assert set(IN_JAX) | {"torch", "torch function"} == set(CANDIDATES)


def births(framework, **faults):
    found = []
    for layer, fault in faults.items():
        i = int(layer.removeprefix("h"))
        names = BIRTHS | (FUNCTION if framework in ("plain", "scan", "torch function") else {})
        found += [name.format(i=i, n=i + 1) for name in names[fault]]
    return found


def inside(pair):
    """What localising finds, without the rest of a check."""
    options = Options(precisions=(), steps=0, flops=False, batches=1)
    return Stages(prepare(pair, options), options, lambda message: None).localise()


def assert_localised(found, expected, what="value"):
    """Born are the expected points alone, the first of them is the first that differs, and all else is inherited."""
    born = [finding.reference for finding in found.findings if finding.birth == BORN]
    assert sorted(born) == sorted(expected)
    assert {finding.what for finding in found.findings} == {what}
    assert all(finding.birth in (BORN, INHERITED) for finding in found.findings)
    first = next(row for row in found.rows if row.verdict == "FAIL")
    assert first.name.removeprefix("gradient at ").removeprefix("point ").split(" = ")[0] == expected[0]
    names = [row.name.split(" = ")[0] for row in found.rows if row.name.startswith("point ")]
    if what == "value":
        before = {name.removeprefix("point ") for name in names[: names.index(f"point {expected[0]}")]}
        assert not before & {finding.reference for finding in found.findings}
    assert not found.unseen


@pytest.mark.parametrize("fault", BIRTHS)
@pytest.mark.parametrize("candidate", ["torch", pytest.param("torch function", marks=pytest.mark.slow)])
def test_every_fault_of_a_torch_side_is_named_at_the_innermost_point_that_shows_it(candidate, fault):
    result = checked(planted.pair(candidate, h3=fault))
    assert result.verdict == "FAIL"
    assert_localised(result, births(candidate, h3=fault), "gradient" if fault in GRADIENT else "value")
    assert "; it begins at " in result.reason


#: The fault that is met by default; the points of equinox and scans are in tests/test_capture.py.
IN_JAX = {
    "nnx": "mask shifted",
    "linen": "custom gradient",
    "equinox": None,
    "plain": "q and k weights swapped",
    "scan": None,
}
#: A scan has one body for all layers: what can go wrong in one of them alone is a factor that its weights come with.
IN_A_SCAN = ("residual missing", "attention unscaled", "residual doubled", "value scaled")


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("candidate", "fault"),
    [(name, fault) if fault == first else slow(name, fault) for name, first in IN_JAX.items() for fault in BIRTHS],
)
def test_every_fault_is_named_in_every_library_of_jax(candidate, fault):
    found = inside(planted.pair(candidate, h3=fault))
    assert_localised(found, births(candidate, h3=fault), "gradient" if fault in GRADIENT else "value")


@pytest.mark.slow
def test_a_check_names_it_first():
    result = checked(planted.pair("linen", h3="norm eps"))
    assert result.first_difference.name == "point h.3.norm_1 = h_3.norm_1"
    assert "it begins at h.3.norm_1 = h_3.norm_1" in result.reason


@pytest.mark.slow
def test_a_fault_of_the_reference_is_named_too():
    reference = torch_model({3: "mean not subtracted"})
    assert_localised(inside(planted.pair("scan", reference)), ["h.3.norm_2"])
    # and the other way round
    pair = planted.pair("scan", h3="value scaled")
    found = inside(replace(pair, reference=pair.candidate, candidate=pair.reference))
    (born,) = [finding for finding in found.findings if finding.birth == BORN]
    assert born.candidate == f"h.3.attn/{SPLIT}#3"


@pytest.mark.parametrize(
    ("candidate", "faults"),
    [
        ("torch", {"h1": "norm eps", "h4": "heads merged"}),
        ("torch", {"h1": "q and k weights swapped", "h4": "mask shifted"}),
        ("torch function", {"h1": "rope base", "h4": "relu"}),
        ("torch function", {"h1": "heads merged", "h4": "value scaled"}),
        ("torch function", {"h1": "stop_gradient", "h4": "custom gradient"}),
        slow("nnx", {"h1": "softmax axis", "h4": "exact gelu"}),
        slow("scan", {"h1": "residual missing", "h4": "value scaled"}),
        slow("plain", {"h1": "stop_gradient", "h4": "custom gradient"}),
    ],
)
def test_a_second_fault_is_named_behind_the_first(candidate, faults):
    what = "gradient" if "stop_gradient" in faults.values() else "value"
    expected = births(candidate, **faults)
    half = len(births(candidate, h1=faults["h1"]))
    # the backward pass comes to the later one first
    assert_localised(
        inside(planted.pair(candidate, **faults)),
        expected[half:] + expected[:half] if what == "gradient" else expected,
        what,
    )


@pytest.mark.parametrize("candidate", ["torch", "torch function", *map(slow, IN_JAX)])
def test_clean_models_agree_at_every_point_in_value_and_gradient(candidate):
    found = inside(planted.pair(candidate))
    assert not found.findings
    assert not found.unseen
    assert {row.verdict for row in found.rows} == {"PASS"}
    values = [row for row in found.rows if row.name.startswith("point ")]
    assert len(found.rows) > 1.8 * len(values)  # all but the masks have gradients, and angles have them in JAX alone
    if candidate in ("plain", "scan", "torch function"):
        assert {each.reason for each in found.unmatched} == {"the other side has no point of this value or name"}
    else:
        assert not found.unmatched


@pytest.mark.parametrize("candidate", ["torch", "torch function", slow("scan")])
def test_clean_models_pass_with_their_points(candidate):
    result = checked(planted.pair(candidate), points=True)
    assert result.verdict == "PASS", result.reason
    assert not result.findings
    assert {row.verdict for row in result.rows if row.name.startswith("point ")} == {"PASS"}


def rows_of(generator):
    return (generator.standard_normal((5, 6)),)


def born(result):
    return [finding.reference for finding in result.findings if finding.birth == BORN]


class Both(NamedTuple):
    value: torch.Tensor
    rest: dict


class Shared(torch.nn.Module):
    """One block twice, containers as its output, a weight that is tied."""

    def __init__(self, factor=1.0, second=1.0, slope=1.0):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.block, self.head = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6, bias=False)
        self.inner = Inner(factor)
        with torch.no_grad():
            for each in (self.block.weight, self.block.bias):
                each.copy_(torch.randn(each.shape, generator=generator).bfloat16() / 2)
        self.head.weight = self.block.weight
        self.second, self.slope = second, slope

    def forward(self, x):
        y = torch.tanh(self.block(x))
        both = self.inner(self.block(self.second * y))
        return self.head(both.value + both.rest["a"][0] * self.slope)


class Inner(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return Both(x * 2, {"a": [torch.tanh(x) * self.factor, None]})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("fault", "point"),
    [({"factor": 0.9}, "inner:rest.a.0"), ({"second": 0.9}, "block:in#2"), ({"slope": 0.9}, "head:in")],
)
def test_shared_modules_containers_tied_and_bfloat16_weights(fault, point, dtype):
    result = checked(Pair("shared", Shared().to(dtype), Shared(**fault).to(dtype), inputs=rows_of))
    assert (result.verdict, born(result)) == ("FAIL", [point])
    assert result.first_difference.name == f"point {point}"
    clean = checked(Pair("shared", Shared().to(dtype), Shared().to(dtype), inputs=rows_of), points=True)
    assert (clean.verdict, clean.findings, clean.unmatched) == ("PASS", (), ())


def test_a_module_that_is_run_by_call():
    call = lambda module, x: module(x + 1)  # noqa: E731
    pair = Pair("call", Torch(Shared(), call=call), Torch(Shared(second=0.9), call=call), inputs=rows_of)
    assert born(checked(pair)) == ["block:in#2"]


def taps(factor=1.0, name="b"):
    def function(x):
        y = parity.taps.tap("a", x * 3)
        y = parity.taps.tap(name, y * y * factor)
        return parity.taps.tap("c", y + x)

    return function


def test_functions_with_nothing_but_taps_in_both_frameworks():
    pair = Pair("taps", Torch(taps()), Jax(taps(0.9)), inputs=rows_of)
    assert born(checked(pair)) == ["b"]
    # under another name its place is unknown, it is told, and the next point stands for it; until it is given
    pair = replace(pair, candidate=Jax(taps(0.9, "other")))
    result = checked(pair)
    assert born(result) == ["c"]
    assert {(each.side, each.name, each.reason) for each in result.unmatched} == {
        ("reference", "b", "the other side has no point of this value or name"),
        ("reference", "model", "the other side has no point of this value or name"),  # a function that JAX does not see
        ("candidate", "other", "the other side has no point of this value or name"),
    }
    result = checked(replace(pair, points={"b": "other"}))
    assert (born(result), [each.name for each in result.unmatched]) == (["b"], ["model"])
    assert result.first_difference.name == "point b = other"
    with pytest.raises(ParityUsageError, match=r"points: names of points, .*, got 'nowhere'"):
        checked(replace(pair, points={"b": "nowhere"}))
    # where nothing differs nobody looks inside, and that is said
    result = checked(replace(pair, candidate=Jax(taps(1.0, "other")), points={"b": "nowhere"}))
    assert result.verdict == "PASS"
    assert any(note.startswith("points: not read, for nothing differs") for note in result.notes)


def test_a_capture_that_changes_the_outputs_is_told(monkeypatch):
    original = parity.taps.tap

    def wrong(name, x):
        return original(name, x) * (1 + 1e-6 * bool(parity.taps._listeners))

    def tapped(factor):
        return lambda x: wrong("a", x * factor) + 1

    pair = Pair("moved", Torch(tapped(1.0)), Torch(tapped(0.9), label="wrong"), inputs=rows_of)
    result = checked(pair)
    assert len([line for line in result.unseen if line.startswith("capturing moved")]) == 2
    assert born(result) == ["a"]
    monkeypatch.setattr(parity.taps, "tap", wrong)
    assert any(
        line.startswith("capturing moved torch's output by")
        for line in checked(replace(pair, candidate=Torch(taps(0.9), label="wrong"), reference=Torch(taps()))).unseen
    )


def cancelling(c):
    def function(x):
        return parity.taps.tap("after", parity.taps.tap("before", x * 2 + c) - c)

    return function


def test_errors_that_cancel_in_the_outputs_show_in_the_points():
    pair = Pair("cancel", Torch(cancelling(0.0)), Torch(cancelling(0.25), label="other"), inputs=rows_of)
    assert checked(pair).verdict == "PASS"
    result = checked(pair, points=True)
    assert (result.verdict, result.rung, result.exit_status) == ("FAIL", "different", 1)
    assert result.first_difference.name == "point before"
    assert result.reason.startswith("the outputs agree, but point before differs in float64: ")
    assert born(result) == ["before"]
    assert {row.name for row in result.rows if row.verdict == "PASS"} >= {"point after", "output"}


def odd(shift=0, phase=0.0, noise=0.0):
    """Whole numbers, truth values, complex numbers, and what is zero in theory."""

    def function(x):
        tap = parity.taps.tap
        index = tap("index", torch.argsort(x, -1) + shift)
        tap("mask", index > 2)
        tap("turned", torch.polar(torch.ones_like(x), x + phase))
        centred = x - x.mean(-1, keepdim=True)
        tap("zero", centred.mean(-1) + noise)
        return centred * 1.5

    return function


@pytest.mark.parametrize(
    ("fault", "points"),
    [
        ({}, []),
        ({"shift": 1}, ["index"]),
        ({"phase": 1e-9}, ["turned"]),
        ({"noise": 1e-9}, ["zero"]),
        ({"noise": 1e-17}, []),
    ],
)
def test_points_of_every_kind_are_compared(fault, points):
    result = checked(Pair("odd", Torch(odd()), Torch(odd(**fault), label="other"), inputs=rows_of), points=True)
    assert born(result) == points
    assert result.verdict == ("FAIL" if points else "PASS")
    assert len([row for row in result.rows if row.name.startswith("point ")]) == 5


def test_a_side_without_points_is_told_how_to_get_some():
    plain = Pair("plain", Torch(taps()), Torch(lambda x: x * 4 - 7, label="bare"), inputs=rows_of)
    (line,) = [line for line in checked(plain).unseen if "parity.tap" in line]
    assert line == "bare: nothing of it was seen but what it returns; parity.tap(name, x) in it marks a point"


def test_layers_in_which_one_line_is_wrong_are_named_once():
    def chain(*factors):
        def function(x):
            for index, factor in enumerate(factors):
                x = parity.taps.tap(f"p{index}", x * factor)
            return x

        return function

    pair = Pair("chain", Torch(chain(1, 1, 1, 1, 1)), Torch(chain(2, 1, 2, 3, 2), label="other"), inputs=rows_of)
    assert checked(pair).reason.endswith("; it begins at p0 and 3 more like it")


def test_more_places_than_the_verdict_names_are_counted():
    def chain(*factors):
        def function(x):
            for name, factor in zip("abcde", factors, strict=True):
                x = parity.taps.tap(name, x * factor)
            return x

        return function

    pair = Pair("chain", Torch(chain(1, 1, 1, 1, 1)), Torch(chain(2, 3, 2, 3, 2), label="other"), inputs=rows_of)
    assert checked(pair).reason.endswith("; it begins at a, at b, at c; 2 more places")


def test_a_fault_behind_the_last_point_is_no_fault_of_it():
    def tail(tanh, factor):
        def function(x):
            y = parity.taps.tap("b", parity.taps.tap("a", x * 2) + 1)
            return tanh(y * factor)

        return function

    result = checked(Pair("tail", Torch(tail(torch.tanh, 1.0)), Jax(tail(jnp.tanh, 1.001)), inputs=rows_of))
    assert not result.findings
    assert result.reason.endswith("; it begins after b, the last point that agrees")
    assert "all 2 points of both sides agree, the last one b" in str(result)


@pytest.mark.parametrize("name", ["h", "block", "layer", "blocks"])
def test_a_point_that_is_called_like_a_layer_is_no_first_layer(name):
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.LayerNorm(6), torch.nn.Tanh())
    weights = {key: value.detach().numpy() for key, value in model.named_parameters()}

    def port(params, x):
        y = x @ params["0.weight"].T + params["0.bias"]
        y = (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 1e-3)
        return jnp.tanh(parity.tap(name, y * params["1.weight"] + params["1.bias"]))

    pair = Pair("named", model, Jax(port), weights, lambda generator: (generator.normal(size=(5, 6)),))
    assert not [finding for finding in checked(pair).findings if finding.reference == "0"]


def test_maps_of_equal_sides_keep_their_places():
    """Batch, height and width are all 4: by their shapes they could be any one of them."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.c, self.d = torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.Conv2d(6, 5, 3, padding=1)

        def forward(self, x):
            return self.d(torch.relu(self.c(x)))

    def port(params, x):
        def convolve(x, name, padding):
            numbers = ("NHWC", "OIHW", "NHWC")
            y = jax.lax.conv_general_dilated(x, params[f"{name}.weight"], (1, 1), padding, dimension_numbers=numbers)
            return parity.tap(name, y + params[f"{name}.bias"])

        y = convolve(x.transpose(0, 2, 3, 1), "c", [(0, 2), (0, 2)])  # the padding is all on one side
        return convolve(jax.nn.relu(y), "d", [(1, 1), (1, 1)]).transpose(0, 3, 1, 2)

    model = Net()
    weights = {key: value.detach().numpy() for key, value in model.named_parameters()}
    result = checked(Pair("maps", model, Jax(port), weights, lambda g: (g.normal(size=(4, 3, 4, 4)),)))
    assert born(result) == ["c"]


def test_the_root_has_the_line_of_its_own_code():
    class Root(torch.nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.inner, self.factor = torch.nn.Identity(), factor

        def forward(self, x):
            return self.inner(x) * self.factor

    result = checked(Pair("root", Root(1.0), Torch(Root(1.01), label="other"), inputs=rows_of))
    (finding,) = result.findings
    line = Root.forward.__code__.co_firstlineno
    assert finding.where == (f"test_localise.py:{line}",) * 2  # and not that of whoever called the check


def test_modules_that_hold_the_same_weights_are_the_same_place():
    """An nn.Sequential has numbers for names: a norm whose eps differs is known by its weights."""

    class Named(nnx.Module):
        def __init__(self, like, eps):
            self.lift, self.scale = nnx.Linear(4, 8, rngs=nnx.Rngs(0)), nnx.LayerNorm(8, epsilon=eps, rngs=nnx.Rngs(0))
            self.drop = nnx.Linear(8, 3, rngs=nnx.Rngs(0))
            for mine, theirs in ((self.lift, like[0]), (self.drop, like[3])):
                mine.kernel[...], mine.bias[...] = theirs.weight.detach().numpy().T, theirs.bias.detach().numpy()
            self.scale.scale[...] = like[1].weight.detach().numpy()
            self.scale.bias[...] = like[1].bias.detach().numpy()

        def __call__(self, x):
            return self.drop(jax.nn.gelu(self.scale(self.lift(x)), approximate=False))

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    torch.nn.init.normal_(module[1].weight)
    torch.nn.init.normal_(module[1].bias)
    pair = Pair("sequential", module, Named(module, 1e-6), inputs=lambda g: (g.standard_normal((3, 4)),))
    result = checked(pair)
    assert result.reason.endswith("; it begins at 1 = scale")


def test_taps_of_a_scan_are_the_modules_of_a_list_by_their_last_word():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.fc = torch.nn.LayerNorm(4), torch.nn.Linear(4, 4)

        def forward(self, x):
            return x + torch.relu(self.fc(self.norm(x)))

    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(Block() for _ in range(3)))
    stacked = {
        name: np.stack([dict(block.named_parameters())[name].detach().numpy() for block in layers])
        for name, _ in layers[0].named_parameters()
    }

    def scanned(eps):
        def layer(x, p):
            mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
            normed = (x - mean) / jnp.sqrt(var + eps) * p["norm.weight"] + p["norm.bias"]
            normed = parity.tap("norm", normed)
            return parity.tap("block", x + jax.nn.relu(normed @ p["fc.weight"].T + p["fc.bias"])), None

        return Jax(lambda p, x: jax.lax.scan(layer, x, p)[0], stacked)

    pair = Pair("scanned", layers, scanned(1e-6), inputs=lambda g: (g.standard_normal((3, 4)),))
    assert checked(replace(pair, candidate=scanned(1e-5))).passed
    assert "; it begins at 0.norm = norm[0] and 2 more like it" in checked(pair).reason
