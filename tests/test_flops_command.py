"""`parity flops`: five counts side by side, by class and by layer; own code; what it says of the rules of thumb."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from dataclasses import replace
from importlib import resources

import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest
import torch

from jaxcore import PRESETS
from parity.account.einsum import parse_einsum
from parity.account.laws import laws, matmul_parameters, model_flops, overtaking
from parity.backends.torch.placed import placed_flops
from parity.cli import main
from parity.errors import ParityUsageError
from parity.flops.counts import Flops, by_class, by_layer
from parity.flops.own import read_inputs
from parity.flops.preset import preset_flops
from parity.models import count_parameters
from parity.work import Work

SCHEMA = json.loads(resources.files("parity").joinpath("schema/flops.schema.json").read_text())
EQUAL = ("formula", "einops", "jaxpr", "torch")
TINY = ["tiny", "tiny-llama", "tiny-qwen3", "tiny-bert"]
VARIANTS = {
    "plain": {},
    "recompute": {"recompute": True},
    "fused": {"kernel": "fused"},
    "fused and recompute": {"kernel": "fused", "recompute": True},
}

OWN = """
import jax.numpy as jnp
import numpy as np
import torch
import parity

net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
frozen = torch.nn.Sequential(torch.nn.Linear(8, 16).requires_grad_(False), torch.nn.ReLU(), torch.nn.Linear(16, 4))

class Vector(torch.nn.Linear):
    def forward(self, x):
        return torch.mv(self.weight, x)

vector = Vector(8, 4)

def function(x, w):
    return jnp.tanh(x @ w)

def looked_up(tokens, table):
    return table[tokens] @ table.T

def with_w(params, x):
    return x @ params["w"]

pair = parity.Pair(
    "lines", parity.Torch(with_w), parity.Jax(with_w), {"w": np.ones((5, 3))}, (np.ones((7, 5)),)
)
twice = parity.Pair(
    "twice", parity.Torch(with_w), parity.Jax(lambda p, x: with_w(p, x) + with_w(p, 2 * x)), pair.weights, pair.inputs
)
"""


def counted(name: str, batch: int, seq: int, **changes) -> Flops:
    config = replace(PRESETS[name], **changes)
    return preset_flops(name, config, count_parameters(config), batch, seq, lambda message: None)


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main.main(["flops", *arguments])
    shown = capsys.readouterr()
    return int(stopped.value.code or 0), shown.out, shown.err


#: Of each preset one variant, so that every one of them is met; the others in the long run.
SLICE = dict(zip(TINY, VARIANTS, strict=True))


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        pytest.param(name, variant, marks=() if SLICE[name] == variant else pytest.mark.slow)
        for name in TINY
        for variant in VARIANTS
    ],
)
def test_four_counts_are_equal_in_all_in_every_class_and_in_every_layer(name, variant):
    found = counted(name, 2, 16, **VARIANTS[variant])
    assert found.equal is True
    for counts in found.work.flops.values():
        assert len({counts[method] for method in EQUAL}) == 1
        assert counts["xla_lowered"] > counts["formula"]  # elementwise work is in it
    for classes in found.classes.values():
        assert all(set(counts) == set(EQUAL) and len(set(counts.values())) == 1 for counts in classes.values())
    config = PRESETS[name]
    for each, methods in found.layers.items():
        assert set(methods) == set(EQUAL)
        assert len({tuple(layers) for layers in methods.values()}) == 1
        layers = methods["torch"]
        assert len(layers) == config.num_layers
        outside = sum(found.classes[each].get(name, {"torch": 0})["torch"] for name in ("head", "pooler"))
        assert sum(layers) + outside == found.work.flops[each]["torch"]
    needed = found.model["forward_backward"]
    assert (found.work.flops["forward_backward"]["formula"] > needed) == VARIANTS[variant].get("recompute", False)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", [name for name in PRESETS if name not in TINY])
def test_every_published_preset_at_full_depth(name, variant):
    config = PRESETS[name]
    found = counted(name, 1, min(config.max_seq_len, 512), **VARIANTS[variant])
    assert found.equal is True
    assert len(found.layers["forward"]["einops"]) == config.num_layers


def test_a_published_preset_at_full_depth():
    found = counted("gpt2-xl", 1, 1024)
    assert found.equal is True
    assert found.work.flops["forward_backward"]["torch"] == 10_520_110_694_400
    assert len(set(found.layers["forward_backward"]["torch"])) == 1
    assert len(found.layers["forward_backward"]["torch"]) == 48
    assert any("XLA's count of 48 layers is that of one" in note for note in found.work.notes)


def test_xlas_count_from_two_depths_is_that_of_the_whole_model():
    from parity.flops import preset

    config = replace(PRESETS["tiny-llama"], num_layers=5)
    with pytest.MonkeyPatch.context() as patch:
        whole, _ = preset.xla_flops(config, 1, 8)
        patch.setattr(preset, "MOST_LOWERED", 1)
        shallow, notes = preset.xla_flops(config, 1, 8)
    assert shallow == whole  # below 2^24 XLA's own arithmetic is exact
    assert "XLA's count of 5 layers is that of one, and 4 times what a second one adds" in notes


def test_a_wrong_count_is_not_equal():
    found = counted("tiny-bert", 1, 8)
    classes = json.loads(json.dumps(found.classes))
    classes["forward"]["up_proj"]["torch"] -= 2
    wrong = replace(found, classes=classes)
    assert (found.exit_status, wrong.equal, wrong.exit_status) == (0, False, 1)
    layers = json.loads(json.dumps(found.layers))
    layers["forward"]["einops"][1] += 2
    assert replace(found, layers=layers).exit_status == 1
    flops = json.loads(json.dumps(found.work.flops))
    flops["forward_backward"]["jaxpr"] += 2
    assert replace(found, work=Work(flops)).exit_status == 1


def test_three_equal_projections_of_one_input_cost_the_same_backward():
    """PyTorch's own table of modules gives them 3, 5 and 7 parts."""

    class Three(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (torch.nn.Linear(8, 8, bias=False) for _ in range(3))

        def forward(self, x):
            return self.a(x) + self.b(x) + self.c(x)

    def step(module, x):
        module(x).sum().backward()

    x = torch.empty(4, 8, requires_grad=True)
    found = placed_flops(step, Three(), x)["torch"]
    one = 2 * 4 * 8 * 8
    assert found["forward"] == {"a": one, "b": one, "c": one}
    assert found["forward_backward"] == {"a": 3 * one, "b": 3 * one, "c": 3 * one}


def test_an_operand_without_a_gradient_costs_none_backward():
    from einops import einsum

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (torch.nn.Parameter(torch.zeros(6, 6)) for _ in range(2))
            self.unused = torch.nn.Parameter(torch.zeros(6, 6))

        def forward(self, x):
            hidden = einsum(x, self.first, "b d, d e -> b e")
            einsum(x, self.unused, "b d, d e -> b e")  # nothing depends on it
            return einsum(hidden, self.second, "b d, d e -> b e")

    def step(module, x):
        module(x).sum().backward()

    found = placed_flops(step, Layers(), torch.empty(4, 6), patterns=True)
    one = 2 * 4 * 6 * 6
    assert found["einops"] == found["torch"] == {"forward": {"": 3 * one}, "forward_backward": {"": (3 + 1 + 2) * one}}


@pytest.mark.parametrize(
    ("pattern", "shapes", "forward", "backward"),
    [
        ("b d, d f -> b f", [(2, 3), (3, 5)], 60, (60, 60)),
        ("b t k g h, b s k h -> b k g t s", [(2, 3, 2, 2, 5), (2, 7, 2, 5)], 2 * 2 * 3 * 2 * 2 * 5 * 7, None),
        ("b d, b d -> b d", [(2, 3), (2, 3)], 0, (12 * 0, 0)),  # element by element
        ("b d -> b", [(2, 3)], 0, (0,)),  # a sum is no product
        ("i, j -> i j", [(2,), (3,)], 0, (12, 12)),  # an outer product: its gradients are matmuls
    ],
)
def test_a_pattern_costs_twice_its_distinct_axes(pattern, shapes, forward, backward):
    parsed = parse_einsum(pattern, shapes)
    assert parsed.forward == forward
    if backward is not None:
        assert tuple(parsed.backward(index) for index in range(len(shapes))) == backward
    else:
        assert {parsed.backward(0), parsed.backward(1)} == {forward}


@pytest.mark.parametrize(
    ("pattern", "shapes", "told"),
    [
        ("a b, b c, c d -> a d", [(2, 2)] * 3, "einsum: one or two operands, got 3 in 'a b, b c, c d -> a d'"),
        ("... d, d f -> ... f", [(2, 3), (3, 5)], "einsum: a pattern of named axes"),
        ("b d, d f -> b f", [(2, 3), (4, 5)], "einsum: one size of 'd' in"),
        ("b d, d f -> b f", [(2, 3, 1), (3, 5)], "einsum: 2 axes for 'b d', got shape (2, 3, 1)"),
    ],
)
def test_what_cannot_be_counted_by_its_pattern_is_told(pattern, shapes, told):
    with pytest.raises(ParityUsageError) as raised:
        parse_einsum(pattern, shapes)
    assert str(raised.value).startswith(told)


def test_the_rules_of_thumb_come_to_what_they_should():
    config = PRESETS["gpt2"]
    needed = model_flops(config, 1, 1024)
    found = {law.name: law.value for law in laws(config, 1, 1024, 124_439_808, needed["forward_backward"])}
    assert found["backward / forward"] == 2
    assert found["attention / forward"] == pytest.approx(4 * 1024 * 1024 * 768 * 12 / needed["forward"])
    assert found["causal half"] == pytest.approx(found["attention / forward"] * 1025 / 2048)
    # all weights of a block are 12 H^2, and attention is 12 L H N^2 of a step: N / 6H over 6 N P
    blocks = 12 * 12 * 768**2
    assert 12 * 12 * 768 * 1024**2 / (6 * 1024 * blocks) == pytest.approx(1024 / (6 * 768))
    assert matmul_parameters(config) == blocks + 768 * 50_257
    length = round(overtaking(config))
    at = replace(config, max_seq_len=2 * length)
    assert {law.name: law.value for law in laws(at, 1, length, 1, needed["forward_backward"])}[
        "attention / forward"
    ] == pytest.approx(0.5, abs=1e-3)


def test_places_become_classes_and_layers():
    placed = {"forward": {"layers.0.mlp.up_proj": 2, "layers.1.mlp.up_proj": 2, "layers.1.attention": 3, "": 5}}
    assert by_class(placed) == {"forward": {"up_proj": 4, "attention": 3, "head": 5}}
    assert by_layer(placed) == {"forward": [2, 5]}


def test_the_command_prints_and_writes(capsys, tmp_path):
    place = tmp_path / "flops.json"
    status, shown, _ = run(capsys, "tiny-bert", "--batch", "3", "--seq", "8", "--json", str(place))
    assert status == 0
    assert "einops, formula, jaxpr" in shown or "formula, einops, jaxpr, torch are equal integers" in shown
    assert "each of 2 layers" in shown
    document = json.loads(place.read_text())
    jsonschema.validate(document, SCHEMA)
    assert set(document["forward"]) == {"formula", "einops", "jaxpr", "torch", "xla_lowered"}
    assert document["forward_backward"]["torch"] == 3 * document["forward"]["torch"]
    assert document["environment"]["versions"]["torch"] == torch.__version__


def test_json_on_standard_output_is_alone_there(capsys):
    status, shown, _ = run(capsys, "tiny-bert", "--seq", "8", "--json", "-")
    assert status == 0
    jsonschema.validate(json.loads(shown), SCHEMA)


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_flops_target.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield "own_flops_target.py"
    sys.modules.pop("own_flops_target", None)


def figures(capsys, *arguments: str) -> dict:
    status, shown, error = run(capsys, *arguments, "--json", "-")
    assert shown, error
    return {"status": status, **json.loads(shown)}


def test_a_module_of_ones_own(capsys, own):
    found = figures(capsys, f"{own}:net", "--input", "float32[3,8]")
    assert (found["status"], found["forward"]["torch"]) == (0, 2 * 3 * (8 * 16 + 16 * 4))
    assert found["forward_backward"]["torch"] == 3 * found["forward"]["torch"] - 2 * 3 * 8 * 16  # no dx of the input
    assert found["parameters"] == 8 * 16 + 16 + 16 * 4 + 4
    assert set(found["classes"]["forward"]) == {"0", "2"}


def test_what_cannot_be_counted_is_status_3_with_its_reason(capsys, own):
    found = figures(capsys, f"{own}:vector", "--input", "float32[8]")
    assert (found["status"], found["forward"]) == (3, {})
    assert "got aten::mv" in found["notes"][0]


def test_frozen_parameters_count_in_no_gradient(capsys, own):
    found = figures(capsys, f"{own}:frozen", "--input", "float32[3,8]")
    first, second = 2 * 3 * 8 * 16, 2 * 3 * 16 * 4
    assert found["forward_backward"]["torch"] == first + 2 * second  # of the last layer dw alone
    assert found["parameters"] == 16 * 4 + 4


def test_a_function_of_ones_own(capsys, own):
    found = figures(capsys, f"{own}:function", "--input", "x:float32[3,8]", "--input", "w:float32[8,5]")
    assert found["forward"]["jaxpr"] == 2 * 3 * 8 * 5
    assert found["forward_backward"]["jaxpr"] == 3 * 2 * 3 * 8 * 5
    found = figures(capsys, f"{own}:looked_up", "--input", "int32[7]", "--input", "float32[11,5]")
    assert found["forward_backward"]["jaxpr"] == 3 * 2 * 7 * 5 * 11


def test_a_pair_of_ones_own(capsys, own):
    found = figures(capsys, f"{own}:pair")
    assert (found["status"], found["equal"]) == (0, True)
    assert found["forward"]["jaxpr"] == found["forward"]["torch"] == 2 * 7 * 5 * 3
    found = figures(capsys, f"{own}:twice")
    assert (found["status"], found["equal"]) == (1, False)
    assert found["forward"]["jaxpr"] == 2 * found["forward"]["torch"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["gtp2"], "error: PRESET: one of tiny, "),
        (["tiny", "--batch", "0"], "error: --batch: a whole number, at least 1, got '0'; give another"),
        (["tiny", "--seq", "100000"], "error: --seq: at most the model's "),
        (["tiny", "--set", "num_heads=5"], "error: --set: d_model: must be a multiple of num_heads 5"),
        (["tiny", "--input", "float32[2]"], "error: --input: only with code of your own, got the preset tiny"),
        (["OWN:net"], "error: --input: one for each argument of own_flops_target.py:net, got none"),
        (["OWN:net", "--input", "float32(3,8)"], "error: --input: NAME:TYPE[SIZES] or TYPE[SIZES], got 'float32(3,8)'"),
        (["OWN:net", "--input", "text[3]"], "error: --input: NAME:TYPE[SIZES] or TYPE[SIZES], got 'text[3]'"),
        (["OWN:function", "--input", "x:float32[3,8]", "--input", "float32[8,5]"], "error: --input: names for all or"),
        (["OWN:pair", "--input", "float32[7,5]"], "error: --input: with a module or a JAX function, got the Pair"),
        (["OWN:pair", "--seq", "7"], "error: --seq: only with a preset, got own_flops_target.py:pair"),
        (["OWN"], "error: own_flops_target.py: one Pair, got 2; name the one that is meant"),
        (["nothing.py:net", "--input", "float32[3,8]"], "error: nothing.py: a Python file, got none there"),
        (["tiny", "--json", "/nowhere/there.json"], "error: --json: a file that can be written, got '/nowhere/"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(capsys, own, arguments, told):
    status, shown, error = run(capsys, *(each.replace("OWN", own) for each in arguments))
    assert (status, shown) == (2, "")
    (line,) = [line for line in error.splitlines() if not line.startswith("[")]
    assert line.startswith(told)


def test_inputs_are_read():
    tokens, x = read_inputs(["int32[2,128]", "float32[]"])
    assert (tokens.shape, tokens.dtype, x.shape) == ((2, 128), np.int32, ())
    assert list(read_inputs(["a:bool[3]", "b: float16[1, 2]"])) == ["a", "b"]
    assert jnp.asarray(read_inputs(["a:bool[3]"])["a"]).shape == (3,)


@pytest.mark.slow
def test_the_largest_preset_takes_half_a_minute_and_allocates_nothing():
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "parity", "flops", "llama3-405b", "--seq", "8192", "--json", "-"],
        capture_output=True,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(done.stdout)
    assert found["equal"] is True
    assert found["forward_backward"]["torch"] == 21_507_478_231_449_600
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 60  # two cores for half a minute
    assert after.ru_maxrss * 1024 < 2e9
