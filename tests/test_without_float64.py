"""Sides that refuse float64: the other side's is the truth, or twins give the bounds; faults are found either way."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from calibrate_twins import rows_by_twins
from flax import nnx

import parity
from parity import Jax, Pair, ParityUsageError, Torch, check
from parity.bounds import OWN_SLACK, path_floor, twin_bound
from parity.findings import BORN

REFUSED = "this kernel takes float32, bfloat16 and float16"


class Kernel(torch.nn.Module):
    """A small model that may refuse float64, as a hand-written kernel does."""

    def __init__(self, refuses=True, factor=1.0, eps=1e-5):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm, self.down = torch.nn.Linear(16, 32), torch.nn.LayerNorm(32, eps=eps), torch.nn.Linear(32, 8)
        self.refuses, self.factor = refuses, factor

    def forward(self, x):
        if self.refuses and x.dtype == torch.float64:
            raise TypeError(REFUSED)
        return self.down(torch.tanh(self.norm(self.up(x))) * self.factor)


def jax_kernel(refuses=True, factor=1.0):
    """The same in JAX."""

    def function(p, x):
        if refuses and x.dtype == jnp.float64:
            raise TypeError(REFUSED)
        hidden = x @ p["up.weight"].T + p["up.bias"]
        hidden = hidden - hidden.mean(-1, keepdims=True)
        hidden = hidden / jnp.sqrt((hidden**2).mean(-1, keepdims=True) + 1e-5)
        hidden = jnp.tanh(hidden * p["norm.weight"] + p["norm.bias"]) * factor
        return parity.tap("hidden", hidden) @ p["down.weight"].T + p["down.bias"]

    return Jax(function, {name: tensor.detach().numpy() for name, tensor in Kernel().named_parameters()})


def rows_of(generator):
    return {"x": generator.standard_normal((5, 16)).astype(np.float32)}


def line_of(kernel, text="raise TypeError"):
    """Where it refuses, as a reason says it."""
    lines, start = inspect.getsourcelines(kernel)
    return f"{Path(__file__).name}:{start + next(i for i, line in enumerate(lines) if text in line)}"


def instead(reference_refuses, candidate_refuses):
    refused = f"TypeError at {line_of(Kernel if reference_refuses else jax_kernel)}: {REFUSED}"
    if reference_refuses and candidate_refuses:
        return f"twins of torch give the bounds, both sides having no float64: {refused}"
    able, unable = ("jax", "torch") if reference_refuses else ("torch", "jax")
    return f"{able}'s float64 is the truth for both, {unable} having no float64: {refused}"


WHO = [(True, False), (False, True), (True, True)]


@pytest.mark.parametrize("who", WHO)
def test_a_pair_without_float64_passes_without_a_rung_and_says_by_what(who):
    result = check(Pair("kernel", Kernel(who[0]), jax_kernel(who[1]), inputs=rows_of))
    assert (result.verdict, result.rung, result.reason) == ("PASS", None, instead(*who))
    assert {row.stage for row in result.rows} == {"float32", "bfloat16"}
    assert all(0 < row.bound < 1 for row in result.rows if row.stage == "float32")
    assert json.loads(result.to_json())["without_float64"] == result.without_float64 == instead(*who)
    assert "proves no function" in str(result)
    assert "against its own float64 run" not in str(result).replace("\n", " ").replace("  ", " ")


@pytest.mark.parametrize("who", WHO)
def test_a_fault_fails_in_float32_and_begins_where_it_was_made(who):
    points = {"down:in": "hidden"}  # of other names, and of values that differ
    result = check(Pair("kernel", Kernel(who[0]), jax_kernel(who[1], factor=1.001), inputs=rows_of, points=points))
    assert (result.verdict, result.rung) == ("FAIL", None)
    assert result.reason.startswith("output in float32: differs: 0.00096, bound ")
    assert result.reason.endswith(f"; {instead(*who)}; it begins at down:in = hidden")
    assert [each.candidate for each in result.findings if each.birth == BORN] == ["hidden"]
    assert next(row for row in result.rows if row.name == "point down:in = hidden").stage == "float32"


def test_a_wrong_gradient_is_found_without_float64():
    class Stopped(Kernel):
        def forward(self, x):
            hidden = self.norm(self.up(x))
            return self.down(torch.tanh(hidden) + 0.01 * (hidden - hidden.detach()))

    result = check(Pair("kernel", Kernel(), Stopped(False), inputs=rows_of))
    assert result.verdict == "FAIL"
    assert result.reason.startswith("gradient up.weight in float32: differs: ")
    assert {each.what for each in result.findings} == {"gradient"}


@pytest.mark.parametrize("who", WHO)
def test_optimizers_are_compared_alone_and_with_the_model_where_one_side_has_float64(who):
    adamw = lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)  # noqa: E731
    wrong = lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, eps=1e-6)  # noqa: E731
    sides = Torch(Kernel(who[0]), optimizer=adamw), Torch(Kernel(who[1]), optimizer=adamw)
    pair = Pair("kernel", *sides, inputs=rows_of)
    result = check(pair, steps=2)
    assert result.verdict == "PASS"
    groups = {row.group for row in result.rows}
    assert any(group.startswith("step") for group in groups) == (not all(who))
    assert "near-eps stream" in groups
    left_out = "optimizer steps on the model's gradients: left out, for the model has no float64"
    assert (left_out in result.notes) == all(who)
    result = check(replace(pair, candidate=Torch(Kernel(who[1]), optimizer=wrong)), steps=2)
    assert result.verdict == "FAIL"
    assert result.reason.startswith("ordinary stream parameters matrix in float64: ")


def test_what_asks_in_float64_is_left_out_and_said():
    result = check(
        Pair("kernel", Kernel(), Kernel(), inputs=rows_of), thorough=True, mutate=True, precisions=("float32",)
    )
    assert result.verdict == "PASS"
    assert {f"{stage}: left out, for it asks in float64" for stage in ("thorough", "mutation")} <= set(result.notes)


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("chance", [0, 1])
def test_a_side_that_is_a_matter_of_chance_is_told_without_float64_too(who, chance):
    class Drawn(Kernel):
        def forward(self, x):
            return torch.nn.functional.dropout(super().forward(x), 0.5)

    count = iter(range(1000))
    kernel = jax_kernel(who[1])
    noisy = Jax(lambda p, x: kernel.function(p, x) * (1 + next(count)), kernel.params, jit=False)
    sides = (Drawn(who[0]), kernel) if chance == 0 else (Kernel(who[0]), noisy)
    label = ("torch", "jax")[chance]
    with pytest.raises(ParityUsageError, match=rf"^{label}: a function of its weights and inputs alone, got 'output'"):
        check(Pair("chance", *sides, inputs=rows_of))


class Dropping(Kernel):
    def forward(self, x):
        return torch.nn.functional.dropout(super().forward(x), 0.5)


class NnxDropping(nnx.Module):
    def __init__(self, refuses):
        self.kernel = jax_kernel(refuses)
        self.weights = nnx.Param({name: jnp.asarray(value) for name, value in self.kernel.params.items()})
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.dropout(self.kernel.function(self.weights.get_value(), x))


@pytest.mark.parametrize("who", WHO)
def test_dropout_is_shared_without_float64_too(who):
    pair = Pair("dropout", Dropping(who[0]), NnxDropping(who[1]), inputs=rows_of, dropout="shared")
    result = check(pair, steps=0)
    assert (result.verdict, result.reason.replace("nnx", "jax")) == ("PASS", instead(*who))
    assert "dropout: 1 draws in each run, the same ones on both sides" in result.notes
    with pytest.raises(ParityUsageError, match="dropout: the same draws in the same order on both sides, got 0 of"):
        check(replace(pair, reference=Kernel(who[0])))


def test_a_side_that_runs_in_nothing_is_refused_with_its_own_error():
    class Broken(torch.nn.Module):
        def forward(self, x):
            raise TypeError("broken everywhere")

    with pytest.raises(ParityUsageError, match=r"in float64, got TypeError at \S+:\d+: broken everywhere"):
        check(Pair("broken", Broken(), Broken(), inputs=rows_of))
    with pytest.raises(ParityUsageError, match=f"in float64, got TypeError at {line_of(Kernel)}: {REFUSED}"):
        check(Pair("kernel", Kernel(), Kernel(), inputs=rows_of), precisions=())


def test_whole_numbers_that_a_twin_changes_too_abstain_and_others_fail():
    class Chosen(Kernel):
        def forward(self, x):
            return {"choice": super().forward(x).argmax(-1)}

    pair = Pair("kernel", Chosen(), Chosen(), inputs=rows_of)
    assert check(pair, precisions=("float32",)).verdict == "PASS"
    result = check(replace(pair, candidate=Chosen(factor=-1.0)), precisions=("float32",))
    assert result.verdict == "FAIL"
    assert result.reason.startswith("choice in float32: differs: ")


class Pixels(Kernel):
    """Whole numbers of which rounding tips a few."""

    def __init__(self, refuses=True, off=0):
        super().__init__(refuses)
        self.off = off

    def forward(self, x):
        values = torch.sigmoid(super().forward(x))
        return {"values": values, "pixels": (values * 255).round().to(torch.int64) + self.off}


@pytest.mark.parametrize("who", WHO)
def test_whole_numbers_of_the_two_sides_are_held_against_each_other(who):
    many = lambda generator: {"x": generator.standard_normal((20_000, 16)).astype(np.float32)}  # noqa: E731
    options = {"precisions": ("float32",), "batches": 1}
    pair = Pair("pixels", Pixels(who[0]), Pixels(who[1]), inputs=many)
    assert check(pair, **options).verdict == "PASS"
    result = check(replace(pair, candidate=Pixels(who[1], off=1)), **options)
    assert result.verdict == "FAIL"
    assert result.reason.startswith("pixels in float32: differs: 1, bound 0; ")
    # a rounding here and there tips what is as good as tied, and nothing else
    result = check(replace(pair, candidate=Rearranged(who[1])), **options)
    row = next(row for row in result.rows if row.name == "pixels")
    assert (result.verdict, row.verdict) == ("PASS", "ABSTAIN")
    assert "all as good as tied" in row.derivation


class Rearranged(Pixels):
    """The same function, rounded otherwise."""

    def forward(self, x):
        values = Pixels.forward(self, x)["values"]
        values = values * (1 + 2.0**-22)  # by two roundings
        return {"values": values, "pixels": (values * 255).round().to(torch.int64) + self.off}


class Mixed(torch.nn.Module):
    """Makes a float32 matrix on the way, which PyTorch multiplies with nothing else than float32."""

    def __init__(self, factor=1.0, cast=False):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.factor, self.cast = torch.nn.Linear(16, 8), torch.nn.Linear(8, 3), factor, cast

    def forward(self, x):
        mixing = torch.eye(8) * 0.5 + torch.linspace(0, 1, 64).reshape(8, 8)
        hidden = torch.tanh(self.up(x)) * self.factor
        return self.down(hidden @ (mixing.to(x.dtype) if self.cast else mixing))


@pytest.mark.parametrize("cast", [False, True])
def test_float32_that_stops_a_float64_run_is_widened_and_then_the_functions_are_compared(cast):
    result = check(Pair("mixed", Mixed(), Mixed(cast=cast), inputs=rows_of))
    assert (result.verdict, result.rung) == ("PASS", "float32-island")
    where = line_of(Mixed, "self.down(hidden")
    raised = f"RuntimeError at {where}: expected m1 and m2 to have the same dtype, but got: double != float"
    label = "torch (reference)"
    assert f"float64 with float32 widened alone, for as it stands {label} raises {raised}" in result.notes
    assert {(each.side, each.operation) for each in result.islands} >= {(label, "eye.default")}
    assert "float64, float32 widened" in str(result)
    # in bfloat16 it does not run either; float32 has been judged, and the rest is said
    assert result.reason.startswith(f"what was compared agrees; left out: bfloat16, in which {label} raises Runtime")
    assert {row.stage for row in result.rows} == {"float64", "float32"}
    with pytest.raises(ParityUsageError, match=r"got RuntimeError at \S+: expected m1 and m2 to have the same dtype"):
        check(Pair("mixed", Mixed(), Mixed(), inputs=rows_of), precisions=("bfloat16",))
    assert check(Pair("mixed", Mixed(), Mixed(cast=cast), inputs=rows_of), precisions=()).rung == "float32-island"
    result = check(Pair("mixed", Mixed(), Mixed(1.001, cast), inputs=rows_of))
    assert (result.verdict, result.rung) == ("FAIL", "different")
    assert result.reason.endswith("; it begins at down:in")


def test_the_bound_is_what_its_derivation_says():
    bound = twin_bound(1e-8, 10_000, path_floor("float32", 1), 1e-6)
    assert bound.value == pytest.approx(OWN_SLACK * 1.01e-6)
    assert bound.derivation.startswith("32 (convention) x (one rounding + 1e-06, by which the reference moves")
    assert twin_bound(0.0, 10_000, path_floor("float32", 100), 0.0) == path_floor("float32", 100)
    assert (
        twin_bound(1e-8, 2, path_floor("float32", 1), 1e-6)
        .derivation.split(" x ")[0]
        .endswith("(chance over 2 errors)")
    )


@pytest.mark.parametrize("index", [0, 7, *(pytest.param(index, marks=pytest.mark.slow) for index in range(20, 40))])
def test_clean_models_of_two_frameworks_stay_below_half_of_what_twins_allow(index):
    rows = [row for row in rows_by_twins(13, index, "float32") if row.bound and row.verdict != "ABSTAIN"]
    assert len(rows) > 10
    assert max(row.measured / row.bound for row in rows) < 0.5
