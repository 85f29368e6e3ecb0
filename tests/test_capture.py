"""Seeing inside: one small model in five libraries, every point, value and gradient equal, and nothing changed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import jax
import numpy as np
import pytest
import torch
from models import FUNCTIONS, LAYERS, READOUT, TOKENS, torch_model, torch_run, weights, with_loss
from torch.utils.checkpoint import checkpoint

from parity import ParityUsageError
from parity.backends.jax.harvest import captured
from parity.backends.torch.capture import capturing
from parity.pairing import pair_points
from parity.taps import tap

pytestmark = pytest.mark.xdist_group("capture")  # one worker compiles each model once

#: float64 sums of at most 40 terms of size 1 in two orders
ROUNDING = 1e-13
MODULES = ["nnx", "nnx remat", "linen", "equinox"]


def jax_run(name, feed=None, gradients=True):
    with jax.enable_x64(True):
        (loss, outputs), capture = captured(with_loss(FUNCTIONS[name]), (weights(), TOKENS), feed, gradients)
        return np.asarray(loss), np.asarray(outputs), capture


@cache
def clean_jax_run(name):
    return jax_run(name)


def seen_in_jax(name):
    return clean_jax_run(name)[-1].distinct()


def torch_capture(model, **options):
    with capturing(model, **options) as recording:
        loss, outputs = torch_run(model)
    return loss, outputs, recording.capture()


@cache
def seen_in_torch(**faults):
    return torch_capture(torch_model(**faults))[-1].distinct()


def names_of(capture):
    return [point.name for point in capture.points]


def block_names(i):
    attention = [
        f"h.{i}.attn.qkv",
        f"h.{i}.attn/rearrange 'b t (s n h) -> s b n t h'",
        f"h.{i}.attn/einsum 'b n t h, b n u h -> b n t u'",
        "scores" if i == 0 else f"scores#{i + 1}",
        f"h.{i}.attn/einsum 'b n t u, b n u h -> b n t h'",
        f"h.{i}.attn/rearrange 'b n t h -> b t (n h)'",
        f"h.{i}.attn.out",
        f"h.{i}.attn",
    ]
    # what a module is given is a point where it is none already: the sum of residuals, the activation
    mlp = ["norm_2:in", "norm_2", "mlp.up", "mlp.down:in", "mlp.down", "mlp"]
    return [f"h.{i}.norm_1", *attention, *(f"h.{i}.{name}" for name in mlp), f"h.{i}"]


EVERY_NAME = ["embed", *block_names(0), *block_names(1), "norm_f", "reduce 'b t d -> b d'", "model"]


def test_every_module_einops_call_and_tap_of_torch_is_a_point():
    capture = seen_in_torch()
    assert names_of(capture) == EVERY_NAME
    assert capture.unseen == ()
    sources = {point.name: point.source for point in capture.points}
    assert sources["h.1.attn"] == "module"
    assert sources["scores#2"] == "tap"
    assert sources["reduce 'b t d -> b d'"] == "einops"
    assert all(point.where.startswith("models.py:") for point in capture.points if point.name != "model")
    assert capture["h.0.mlp.up"].shape == (2, 7, 40)


@pytest.mark.parametrize("name", MODULES)
def test_every_point_of_a_jax_library_has_the_same_name_value_and_gradient(name):
    capture, reference = seen_in_jax(name), seen_in_torch()
    found = [point.replace("h_", "h.") for point in names_of(capture)]
    assert found == EVERY_NAME
    assert capture.unseen == ()
    for point, other in zip(capture.points, reference.points, strict=True):
        assert (point.source, point.shape, point.dtype) == (other.source, other.shape, "float64"), point.name
        assert abs(point.value - other.value).max() < ROUNDING, point.name
        assert abs(point.gradient - other.gradient).max() < ROUNDING, point.name
        assert point.name == "model" or point.where.startswith("models.py:")


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - set(MODULES)))
def test_points_of_plain_functions_pair_by_value_with_equal_gradients(name):
    capture = seen_in_jax(name)
    pairing = pair_points(seen_in_torch(), capture)
    assert len(capture.points) == 11 * LAYERS + 2
    # all but the four linear maps, whose bias is added after the einsum, are points of the torch model too
    assert len(pairing.pairs) == 7 * LAYERS + 2
    assert {pair.how for pair in pairing.pairs} == {"value"}
    for pair in pairing.pairs:
        carried = pair.layout.there(pair.reference.gradient)
        assert abs(carried - pair.candidate.gradient).max() < ROUNDING, pair.candidate.name


def test_iterations_of_a_scan_are_points_of_their_own_in_data_order():
    found = names_of(seen_in_jax("scan"))
    assert found[0] == "norm_1[0]"
    assert found[2] == "[0]/rearrange 'b t (s n h) -> s b n t h'"
    assert [name for name in found if "scores" in name] == ["scores[0]", "scores[1]"]
    assert found.index("norm_2[0]") < found.index("norm_1[1]")
    assert [name for name in found if "i, i o" in name][3] == "[0]/einsum 'b t i, i o -> b t o'#4"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_capture_leaves_the_outputs_as_they_were(name):
    with jax.enable_x64(True):
        lowered = jax.jit(with_loss(FUNCTIONS[name])).lower(weights(), TOKENS)
        program = lowered.compile({"xla_backend_optimization_level": 0})  # compiles in half the time
        loss, outputs = program(weights(), TOKENS)
    runs = [clean_jax_run(name)] + ([jax_run(name, gradients=False)] if name == "nnx" else [])
    for seen_loss, seen_outputs, _ in runs:
        # the same operations, which XLA fuses differently once their results are asked for
        assert abs(seen_outputs - np.asarray(outputs)).max() <= 1e-15
        assert abs(seen_loss - np.asarray(loss)) <= 1e-14


def test_capture_leaves_every_bit_of_torch_as_it_was():
    bare, watched = torch_model(), torch_model()
    loss, outputs = torch_run(bare)
    seen_loss, seen_outputs, _ = torch_capture(watched)
    assert np.array_equal(outputs, seen_outputs)
    assert loss == seen_loss
    for one, other in zip(bare.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    assert not torch.nn.modules.module._has_any_global_hook()
    assert not any(module._forward_pre_hooks for module in watched.modules())


@pytest.mark.parametrize("name", ["nnx", "linen", "equinox", "plain", "scan"])
def test_a_fault_pairs_by_value_before_it_and_by_name_after_it(name):
    reference, capture = seen_in_torch(eps=1e-2), seen_in_jax(name)
    pairing = pair_points(reference, capture)
    told = len(pairing.pairs) * 2 + len(pairing.unmatched)
    assert told == len(reference.points) + len(capture.points)
    first = names_of(reference).index("h.1.norm_2")
    for pair in pairing.pairs:
        before = names_of(reference).index(pair.reference.name) < first
        assert (pair.how, pair.layout is None) == (("value", False) if before else ("name", True))
    if name in MODULES:
        assert not pairing.unmatched
        assert [pair.reference.name for pair in pairing.pairs if pair.how == "name"] == EVERY_NAME[first:]


@pytest.mark.parametrize("name", MODULES)
def test_swapped_queries_and_keys_show_in_the_layout_of_the_scores(name):
    pairing = pair_points(seen_in_torch(swapped=True), seen_in_jax(name))
    layouts = {pair.reference.name: str(pair.layout) for pair in pairing.pairs}
    assert layouts["scores"] == "same"
    assert layouts["scores#2"] == "a b c d -> a b d c"
    assert layouts["h.1.attn.qkv"] == "same"
    assert layouts["h.1.attn"] == "None"


@pytest.mark.parametrize(("faults", "point"), [({"eps": 1e-2}, "h.1.norm_2"), ({"swapped": True}, "h.1.attn")])
def test_feeding_the_right_value_after_a_torch_fault_heals_what_follows(faults, point):
    right = seen_in_torch()
    wrong_outputs = torch_capture(torch_model(**faults))[1]
    assert abs(wrong_outputs - right["model"].value).max() > 1e-4
    _, outputs, healed = torch_capture(torch_model(**faults), feed={point: right[point].value})
    assert np.array_equal(outputs, right["model"].value)
    # the point itself tells what it computes, and the gradients after it are right again
    assert abs(healed[point].value - right[point].value).max() > 1e-4
    after = EVERY_NAME[EVERY_NAME.index(point) :]
    assert all(np.array_equal(healed[name].gradient, right[name].gradient) for name in after)
    with pytest.raises(AssertionError):
        assert all(np.array_equal(healed[name].gradient, right[name].gradient) for name in EVERY_NAME)


FED = {"linen": "h_1.norm_2", "remat": "norm_2#2", "scan": "norm_2[1]"}


@pytest.mark.parametrize("name", FED)
def test_feeding_jax_a_faulty_value_gives_the_faulty_run(name):
    faulty, clean = seen_in_torch(eps=1e-2), seen_in_jax(name)
    _, outputs, fed = jax_run(name, feed={FED[name]: faulty["h.1.norm_2"].value})
    assert abs(outputs - faulty["model"].value).max() < ROUNDING
    assert np.array_equal(fed[FED[name]].value, clean[FED[name]].value)
    assert abs(fed[FED[name]].gradient - faulty["h.1.norm_2"].gradient).max() < ROUNDING


@pytest.mark.parametrize("side", ["jax", "torch"])
def test_a_feed_that_meets_no_point_or_has_another_shape_is_refused(side):
    def run(feed):
        return jax_run("plain", feed) if side == "jax" else torch_capture(torch_model(), feed=feed)

    with pytest.raises(ParityUsageError, match="feed: names of points of this run, got 'nowhere'"):
        run({"nowhere": np.ones(3)})
    with pytest.raises(ParityUsageError, match=r"feed: an array of the point's shape \(2, 3, 7, 7\), got \(3,\)"):
        run({"scores": np.ones(3)})


def seen(module, *args, backward=True, **options):
    """The capture of a small torch module, the sum of its float outputs being the loss."""
    with capturing(module, **options) as recording:
        output = module(*args)
        if backward:
            output.sum().backward()
    return output, recording.capture()


class Residual(torch.nn.Module):
    """An output that is the input itself, one that is written in place, one module that runs twice."""

    def __init__(self):
        super().__init__()
        self.same, self.linear = torch.nn.Identity(), torch.nn.Linear(3, 3)
        self.act = torch.nn.ReLU(inplace=True)
        self.again = self.linear

    def forward(self, x):
        y = self.again(self.act(self.linear(self.same(x))))
        y += 1
        return x + y


def test_values_stand_as_they_were_before_a_write_in_place():
    x = torch.randn(5, 3)
    _, capture = seen(module := Residual(), x)
    first, second = capture["linear"].value, capture["linear#2"].value
    assert names_of(capture) == ["same", "linear", "act", "linear#2", "model"]
    with torch.no_grad():
        want = module.linear(x)
        assert np.array_equal(first, want.numpy())
        assert np.array_equal(capture["act"].value, want.relu().numpy())
        assert np.array_equal(second, module.linear(want.relu()).numpy())
        slope = (want > 0) * module.linear.weight.sum(0)
    assert np.allclose(capture["linear"].gradient, slope.numpy(), rtol=1e-6)
    assert np.array_equal(capture["linear#2"].gradient, np.ones((5, 3), np.float32))


def test_gradient_at_an_output_that_is_the_input_is_of_what_follows_only():
    x = torch.randn(5, 3, requires_grad=True)
    _, capture = seen(Residual(), x)
    assert np.allclose(capture["same"].gradient + 1, x.grad.numpy(), rtol=1e-6)
    assert abs(capture["same"].gradient).max() > 0


def test_a_fed_value_may_be_written_in_place():
    module, fed = Residual(), np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)
    _, capture = seen(module, torch.randn(5, 3), feed={"linear": fed})
    assert np.array_equal(capture["act"].value, np.maximum(fed, 0))
    slope = (fed > 0) * module.linear.weight.detach().sum(0).numpy()
    assert np.allclose(capture["linear"].gradient, slope, rtol=1e-6)


def test_gradient_at_an_output_that_is_also_used_inside_is_of_what_follows_only():
    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x):
            y = self.linear(x)
            return y, y * 2

    module = Both()
    with capturing(module) as recording:
        once, double = module(torch.randn(5, 3))
        (once + double).sum().backward()
    gradients = {point.name: point.gradient for point in recording.capture().points}
    assert {name: set(gradient.reshape(-1)) for name, gradient in gradients.items()} == {
        "linear": {3.0},
        "model:0": {1.0},
        "model:1": {1.0},
    }


@dataclass
class Pair:
    first: torch.Tensor
    rest: dict


class Nested(torch.nn.Module):
    def forward(self, x):
        return Pair(x + 1, {"a": [x * 2, None], "b": "text"})


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Nested()

    def forward(self, x):
        pair = self.inner(x)
        return pair.first * pair.rest["a"][0]


def test_arrays_in_containers_have_their_slot_and_can_be_fed():
    x = torch.ones(3, requires_grad=True)
    output, capture = seen(Outer(), x)
    assert names_of(capture) == ["inner:first", "inner:rest.a.0", "model"]
    output, fed = seen(Outer(), x, feed={"inner:rest.a.0": np.full(3, 5.0)})
    assert np.array_equal(output.detach().numpy(), np.full(3, 10.0))
    assert np.array_equal(fed["inner:rest.a.0"].value, np.full(3, 2.0))
    assert np.array_equal(fed["inner:rest.a.0"].gradient, np.full(3, 2.0))


def test_an_output_of_an_unknown_kind_is_told():
    class Strange(torch.nn.Module):
        def forward(self, x):
            return {"x": x, "cache": object()}

    model = torch.nn.Sequential(Strange())
    with capturing(model) as recording:
        model(torch.ones(3))
    assert recording.capture().unseen == (
        "0:cache: an output of type object is not looked into",
        "model:cache: an output of type object is not looked into",
    )


def test_without_a_module_the_first_that_runs_gives_the_names():
    model = torch_model()
    with capturing() as recording:
        torch_run(model)
    assert names_of(recording.capture()) == EVERY_NAME


def test_only_what_is_wanted_is_kept_and_no_gradient_without_a_backward_pass():
    _, _, capture = torch_capture(torch_model(), keep=lambda name: name.startswith("scores"))
    assert names_of(capture) == ["scores", "scores#2"]
    _, capture = seen(torch_model(), torch.as_tensor(TOKENS), backward=False)
    assert all(point.gradient is None for point in capture.points)
    _, _, capture = torch_capture(torch_model(), gradients=False)
    assert all(point.gradient is None for point in capture.points)


def test_a_point_that_the_loss_does_not_reach_has_a_gradient_of_zeros():
    linear = torch.nn.Linear(3, 3)

    def run(x):
        tap("unused", linear(x))
        return linear(x)

    with capturing(linear) as recording:
        run(torch.randn(5, 3)).sum().backward()
    assert np.array_equal(recording.capture()["unused"].gradient, np.zeros((5, 3)))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_torch_checkpoint_is_seen_once_with_its_gradients(reentrant):
    class Checkpointed(torch.nn.Module):
        def __init__(self, block):
            super().__init__()
            self.block = block

        def forward(self, x):
            return checkpoint(self.block, x, use_reentrant=reentrant)

    model = torch_model()
    x = model.embed(torch.as_tensor(TOKENS)).detach().requires_grad_()
    _, want = seen(torch.nn.Sequential(model.h[0]), x)
    _, got = seen(Checkpointed(model.h[0]), x)
    assert [point.name.removeprefix("block") for point in got.points if point.source == "module"][:-1] == [
        point.name.removeprefix("0") for point in want.points if point.source == "module"
    ][:-1]
    for point, other in zip(got.points, want.points, strict=True):
        assert np.array_equal(point.value, other.value), point.name
        assert np.array_equal(point.gradient, other.gradient), point.name


@pytest.mark.parametrize("reentrant", [False, True])
def test_calls_of_one_module_that_are_recomputed_keep_their_gradients_and_feeds(reentrant):
    class Twice(torch.nn.Module):
        def __init__(self, recompute):
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())
            self.recompute = recompute

        def forward(self, x):
            for _ in range(3):
                x = checkpoint(self.inner, x, use_reentrant=reentrant) if self.recompute else self.inner(x)
            return x

    plain, recomputed = Twice(False), Twice(True)
    recomputed.load_state_dict(plain.state_dict())
    x = torch.randn(5, 3, requires_grad=True)
    for feed in ({}, {"inner.0#2": np.full((5, 3), 0.3, np.float32)}):
        _, want = seen(plain, x, feed=feed)
        _, got = seen(recomputed, x, feed=feed)
        assert names_of(got) == names_of(want)
        assert got.unseen == ()
        for point, other in zip(got.points, want.points, strict=True):
            assert np.array_equal(point.value, other.value), point.name
            assert np.array_equal(point.gradient, other.gradient), point.name
    assert abs(want["inner.0"].gradient).max() == 0
    assert abs(want["inner.0#2"].gradient).min() > 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_two_calls_inside_one_checkpoint_are_told_apart_by_their_values(reentrant):
    linear, x = torch.nn.Linear(3, 3), torch.randn(5, 3, requires_grad=True)

    def twice(x):
        return linear(torch.tanh(linear(x)))

    gradients = []
    for run in (twice, lambda x: checkpoint(twice, x, use_reentrant=reentrant)):
        with capturing(linear) as recording:
            run(x).sum().backward()
        capture = recording.capture()
        assert names_of(capture) == ["model", "model#2"]
        gradients.append([point.gradient for point in capture.points])
    assert np.array_equal(gradients[0], gradients[1])
    assert abs(gradients[0][0] - gradients[0][1]).max() > 0.1


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_of_equal_values_are_told_apart_by_their_order(reentrant):
    linear, x = torch.nn.Linear(3, 3), torch.randn(5, 3, requires_grad=True)
    with capturing(linear) as recording:
        two, three = (checkpoint(linear, x, use_reentrant=reentrant) * factor for factor in (2, 3))
        (two + three).sum().backward()
    capture = recording.capture()
    assert set(capture["model"].gradient.reshape(-1)) == {2.0}
    assert set(capture["model#2"].gradient.reshape(-1)) == {3.0}


def test_a_module_inside_a_torch_func_transformation_is_told():
    linear = torch.nn.Linear(3, 3)
    with capturing(linear) as recording:
        torch.func.vmap(linear)(torch.ones(5, 3))
    capture = recording.capture()
    assert capture.points == ()
    assert capture.unseen == ("model: runs inside a torch.func transformation, where it has no value of its own",)


def test_an_error_inside_leaves_no_hook_no_running_module_and_no_warning(recwarn):
    class Broken(torch.nn.Module):
        def forward(self, x):
            raise RuntimeError("broken")

    broken, linear = torch.nn.Sequential(Broken()), torch.nn.Linear(3, 3)
    with capturing(broken) as recording:
        with pytest.raises(RuntimeError, match="broken"):
            broken(torch.ones(3))
        linear(torch.ones(3))
    assert names_of(recording.capture()) == ["Linear:in", "Linear"]  # no longer inside "0"
    assert not recwarn.list
    assert not torch.nn.modules.module._has_any_global_hook()
    assert not any(module._forward_pre_hooks for module in (*broken.modules(), linear))


def test_the_gradient_check_can_fail():
    loss_readout = READOUT.copy()
    loss_readout[0, 0] += 1e-3
    capture = seen_in_torch()
    assert abs(capture["model"].gradient - READOUT).max() == 0
    assert abs(capture["model"].gradient - loss_readout).max() > ROUNDING
