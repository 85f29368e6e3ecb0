"""Mutation: what is planted is another function, what a check notices is counted, and what it cannot see is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from typing import Any

import jax.numpy as jnp
import jsonschema
import numpy as np
import optax
import pytest
import torch

import parity
from parity import Options, Pair, Result
from parity.findings import FAILED, KILLED, SURVIVED, UNTOUCHED, Planted, mutation_score
from parity.mutants import EACH, NONE, Mutant, mutants
from parity.planting import Mutated, Remembered
from parity.preparation import prepare
from parity.stages import Stages
from parity.unreached import acts_alike

RATE = 0.01
QUICK = Options(precisions=(), batches=1, steps=2, flops=False, mutate=True)
SCHEMA = json.loads(resources.files("parity").joinpath("schema/result.schema.json").read_text())


def weights() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(83)
    return {
        "square": np.asarray(0.4 * generator.standard_normal((6, 6)), np.float32),
        "twin": np.asarray(0.4 * generator.standard_normal((6, 6)), np.float32),
        "gain": np.asarray(1 + 0.1 * generator.standard_normal(6), np.float32),
        "bias": np.zeros(6, np.float32),
    }


def batch(generator: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "x": generator.standard_normal((4, 5, 6)).astype(np.float32),
        "mask": np.asarray(generator.random((4, 5)) > 0.3),
    }


def with_jax(params: Any, x: Any, mask: Any) -> dict[str, Any]:
    hidden = jnp.tanh(x @ params["square"]) * params["gain"] + params["bias"]
    hidden = hidden @ params["twin"] * mask[..., None]
    return {"hidden": hidden, "positive": hidden > 0}


def with_torch(params: Any, x: Any, mask: Any) -> dict[str, Any]:
    hidden = torch.tanh(x @ params["square"]) * params["gain"] + params["bias"]
    hidden = hidden @ params["twin"] * mask[..., None]
    return {"hidden": hidden, "positive": hidden > 0}


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.1)


PAIR = Pair(
    "mutated",
    parity.Torch(with_torch, optimizer=adamw),
    parity.Jax(with_jax, optimizer=optax.adamw(RATE, weight_decay=0.1)),
    weights=weights(),
    inputs=batch,
)


@pytest.fixture(scope="module")
def result() -> Result:
    return parity.check(PAIR, replace(QUICK, precisions=("float32",)))


def stages(pair: Pair = PAIR, **options: Any) -> Stages:
    options = replace(QUICK, **options)
    return Stages(prepare(pair, options), options, lambda message: None)


def catalogue(**changes: Any) -> list[Mutant]:
    given = {"seed": 0, "precisions": ("float32", "bfloat16"), "optimizes": True, "moments": True, **changes}
    first = batch(np.random.default_rng(1))
    return list(mutants(weights(), first, {"hidden": first["x"], "positive": first["mask"]}, **given))


def test_every_kind_is_planted_and_killed(result: Result) -> None:
    assert (result.verdict, result.rung) == ("PASS", "same-function")
    assert {(each.kind, each.name, each.outcome, each.by) for each in result.planted if each.outcome != KILLED} == set()
    planted = {(each.kind, each.name) for each in result.planted}
    assert {each.kind for each in result.planted} == {mutant.kind for mutant in catalogue(precisions=("float32",))}
    assert ("input ignored", "mask") in planted
    assert ("square matrix transposed", "square") in planted
    assert ("two parameters of one shape exchanged", "square and twin") in planted
    assert ("one element of whole numbers or truth values changed", "positive") in planted
    assert all(each.by for each in result.planted)


def test_what_kills_a_fault_is_where_it_is(result: Result) -> None:
    by = {(each.kind, each.name): each.by for each in result.planted}
    assert by["gradient stopped", "gain"] == "gradient gain in float64"
    assert by["parameter left out of the optimizer", "twin"] == "step parameters twin in float64"
    assert by["gradient in an input stopped", "x"] == "gradient input x in float64"
    (accuracy,) = (each for each in result.planted if each.kind.startswith("float32 run"))
    assert accuracy.by == "hidden in float32"


def test_the_report_and_the_json_hold_the_score(result: Result) -> None:
    text, document = str(result), json.loads(result.to_json())
    number = len(result.planted)
    assert f"mutation score: {number} of {number} faults with an effect (100.0%)" in text
    assert max(map(len, parity.report.to_text(result, 80).splitlines())) <= 80
    jsonschema.validate(document, SCHEMA)
    assert document["mutation"]["score"] == 1
    assert len(document["mutation"]["planted"]) == number


def test_the_score_leaves_out_what_has_no_effect() -> None:
    outcomes = [KILLED, KILLED, SURVIVED, UNTOUCHED, KILLED]
    assert mutation_score([Planted("kind", "name", outcome, "") for outcome in outcomes]) == 0.75
    assert mutation_score([Planted("kind", "name", UNTOUCHED, "")]) is None


def test_outputs_alone_do_not_see_a_forgotten_bias_of_zeros() -> None:
    blind = parity.check(PAIR, replace(QUICK, grads=False))
    outcomes = {(each.kind, each.name): each.outcome for each in blind.planted}
    assert not any("gradient" in kind or "optimizer" in kind for kind, _ in outcomes)
    assert blind.verdict == "PASS"
    assert "parameter off by 0.001" in {kind for (kind, name), what in outcomes.items() if what == KILLED}
    ignored = {name: what for (kind, name), what in outcomes.items() if kind == "parameter ignored"}
    drawn_bias = "bias" in ignored
    assert ignored.get("bias", UNTOUCHED) == UNTOUCHED
    assert drawn_bias or len(ignored) == EACH


@pytest.mark.parametrize("mutant", [each for each in catalogue() if each.precision is None], ids=lambda each: each.kind)
def test_a_faulty_side_is_a_function_with_its_own_gradient(mutant: Mutant) -> None:
    # or else the gradient would give away what outputs alone should show
    if "rounded" in mutant.kind or "gradient" in mutant.kind or "output" in mutant.kind:
        pytest.skip("it is no linear change of what goes in")
    runner = Mutated(stages().sides.candidate, mutant)
    generator = np.random.default_rng(5)
    start, first = {k: v.astype(np.float64) for k, v in weights().items()}, batch(generator)
    first["x"] = first["x"].astype(np.float64)
    towards = {name: generator.standard_normal(array.shape) for name, array in start.items()}
    along = generator.standard_normal(first["x"].shape)

    def loss(step: float) -> float:
        moved = {name: array + step * towards[name] for name, array in start.items()}
        return runner.run(moved, {**first, "x": first["x"] + step * along}, "float64").loss

    run = runner.run(start, first, "float64")
    taken = sum(float(np.sum(run.gradients[name] * towards[name])) for name in start)
    taken += float(np.sum(run.inputs["x"] * along))
    quotient = (loss(1e-5) - loss(-1e-5)) / 2e-5
    assert taken == pytest.approx(quotient, rel=1e-7, abs=1e-8)


def test_no_fault_changes_nothing() -> None:
    first = stages()
    plain = first.sides.candidate
    numbers, inputs = first.weights, first.pooled[0]
    mine, theirs = (runner.run(numbers, inputs, "float64") for runner in (Mutated(plain, NONE), plain))
    assert all(np.array_equal(mine.derivatives[name], array) for name, array in theirs.derivatives.items())
    steps = [list(runner.steps([numbers], [inputs], "float64")) for runner in (Mutated(plain, NONE), plain)]
    (after,), (usual,) = steps
    assert all(np.array_equal(after.parameters[name], array) for name, array in usual.parameters.items())


def test_eight_times_smaller_gradients_are_an_eps_eight_times_larger() -> None:
    (larger,) = (each for each in catalogue() if each.kind.startswith("eps"))
    first = stages()
    stream = [{"p": np.asarray([3e-9, 1e-8, -4e-9])}] * 2
    points = [{"p": np.ones(3)}] * 2
    side = replace(PAIR.candidate, optimizer=optax.adamw(RATE, eps=8e-8, weight_decay=0.1))
    other = stages(replace(PAIR, candidate=side)).sides.candidate
    faulty = Mutated(first.sides.candidate, larger).follow(points, stream, "float64")
    for mine, theirs in zip(faulty, other.follow(points, stream, "float64"), strict=True):
        for a, b in ((mine.parameters, theirs.parameters), (mine.mu, theirs.mu), (mine.nu, theirs.nu)):
            assert np.allclose(a["p"], b["p"], rtol=1e-12, atol=0)


def test_a_run_is_remembered_until_learning_ends() -> None:
    first = stages()
    calls: list[str] = []

    class Counted(Remembered):
        pass

    inner = first.sides.reference
    run = inner.run
    inner.run = lambda *given, **how: calls.append(given[2]) or run(*given, **how)  # type: ignore[method-assign]
    side = Counted(inner)
    once = side.run(first.weights, first.pooled[0], "float64")
    assert side.run(dict(first.weights), dict(first.pooled[0]), "float64") is once
    side.run(first.weights, first.pooled[0], "float32")
    other = {**first.weights, "bias": first.weights["bias"] + 1}
    side.run(other, first.pooled[0], "float64")
    assert calls == ["float64", "float32", "float64"]
    side.learning = False
    new = {**first.weights, "bias": first.weights["bias"] + 2}
    side.run(new, first.pooled[0], "float64")
    side.run(new, first.pooled[0], "float64")
    assert len(calls) == 5


def test_no_more_is_remembered_than_there_is_room_for() -> None:
    first = stages()
    side = Remembered(first.sides.reference, bytes_left=100)
    side.run(first.weights, first.pooled[0], "float64")
    assert (side.known, side.bytes_left) == ({}, 100)


def test_a_check_that_nothing_can_fail_is_vacuous() -> None:
    # nothing that a fault could change reaches the output
    inputs = {"x": np.arange(6, dtype=np.int64).reshape(2, 3)}
    pair = Pair("constant", parity.Torch(lambda x: 0 * x), parity.Jax(lambda x: 0 * x), inputs=inputs)
    options = Options(precisions=(), flops=False)
    assert parity.check(pair, options).verdict == "PASS"
    found = parity.check(pair, options, mutate=True)
    (changed,) = (each for each in found.planted if each.outcome == KILLED)
    assert changed.kind == "one element of whole numbers or truth values changed"
    assert {each.outcome for each in found.planted if each is not changed} == {UNTOUCHED}
    assert "change no figure here by more than rounding" in str(found)


def test_none_killed_is_vacuous(monkeypatch: pytest.MonkeyPatch) -> None:
    survived = [Planted("kind", "name", SURVIVED, ""), Planted("kind", "other", UNTOUCHED, "")]
    monkeypatch.setattr("parity.verdict.planted", lambda stages: survived)
    found = parity.check(PAIR, QUICK)
    assert (found.verdict, found.rung, found.exit_status) == ("VACUOUS", None, 1)
    assert found.reason == "none of 2 faults that were planted into this check makes it fail"
    assert "survived: kind, name" in str(found)
    assert "mutation score: 0 of 1 faults with an effect (0.0%)" in str(found)


def jax_with(change: Callable[[Any], Any]) -> Pair:
    def function(params: Any, x: Any, mask: Any) -> dict[str, Any]:
        return with_jax(change(params), x, mask)

    return replace(PAIR, candidate=replace(PAIR.candidate, function=function))


def twice_the_gain(pair: Pair) -> Pair:
    def function(params: Any, x: Any, mask: Any) -> dict[str, Any]:
        return with_torch({**params, "gain": 2 * params["gain"]}, x, mask)

    return replace(pair, reference=replace(pair.reference, function=function))


def rounded_otherwise(params: Any) -> Any:
    return {**params, "gain": params["gain"] / 3 * 3 + 0.1 - 0.1}


def broken() -> Pair:
    raise parity.ParityUsageError("weights: what it needs, got none; give them")


def test_faults_of_the_pairs_own() -> None:
    own = {
        "gain left out": lambda: jax_with(lambda params: {**params, "gain": jnp.ones(6)}),
        "nothing at all": lambda: jax_with(lambda params: params),
        "another rounding": lambda: jax_with(rounded_otherwise),
        "it cannot be built": broken,
        "it is no pair": lambda: None,
        "it raises": lambda: 1 / 0,
        "its side raises": lambda: jax_with(lambda params: {"gain": params["gain"]}),
        # a fault of both sides is no difference between them
        "its reference is another one": lambda: twice_the_gain(jax_with(lambda p: {**p, "gain": 2 * p["gain"]})),
        "another optimizer": lambda: replace(PAIR, candidate=replace(PAIR.candidate, optimizer=optax.adamw(0.02))),
    }
    found = parity.check(replace(PAIR, mutants=own), QUICK)
    given = {each.name: each for each in found.planted if each.kind == "fault of the pair's own"}
    assert {name: each.outcome for name, each in given.items()} == {
        "gain left out": KILLED,
        "nothing at all": UNTOUCHED,
        "another rounding": UNTOUCHED,
        "it cannot be built": FAILED,
        "it is no pair": FAILED,
        "it raises": FAILED,
        "its side raises": KILLED,
        "its reference is another one": SURVIVED,
        "another optimizer": KILLED,
    }
    assert given["it raises"].by.startswith("ZeroDivisionError at test_mutation.py:")
    assert given["it is no pair"].by == "mutants: functions that return a Pair, got NoneType; return the pair"
    assert given["it cannot be built"].by == "weights: what it needs, got none; give them"
    assert given["another optimizer"].by.startswith("step parameters")


def test_bits_tell_whether_a_fault_is_run_at_all() -> None:
    first = stages(precisions=("bfloat16",))
    usual = Remembered(first.sides.candidate)

    def alike(pair: Pair) -> bool:
        return acts_alike(first, usual, prepare(pair, first.options))

    assert alike(PAIR)
    assert alike(jax_with(lambda params: params))
    assert not alike(jax_with(rounded_otherwise))
    assert not alike(jax_with(lambda params: {**params, "bias": params["bias"] + 1e-7}))
    assert not alike(replace(PAIR, candidate=replace(PAIR.candidate, optimizer=optax.adamw(RATE, eps=2e-8))))
    # float16 loses nothing that bfloat16 has: only the float64 runs tell
    assert not alike(jax_with(lambda params: {k: v.astype("float16").astype(v.dtype) for k, v in params.items()}))


def test_what_fails_has_no_faults_planted() -> None:
    found = parity.check(jax_with(lambda params: {**params, "bias": params["bias"] + 1}), QUICK)
    assert (found.verdict, found.planted) == ("FAIL", ())
    assert "mutation: left out, for faults show only in a check that passes" in found.notes


def test_a_budget_ends_the_planting(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr("parity.stages.time.perf_counter", lambda: float(next(clock)))
    found = parity.check(PAIR, QUICK, budget=12)
    assert 0 < len(found.planted) < 12
    assert any(note.startswith("left out, 12 s being over: faults from ") for note in found.notes)
    assert found.verdict == "PASS"


def test_an_island_is_judged_with_its_float32_widened() -> None:
    def function(params: Any, x: Any, mask: Any) -> dict[str, Any]:
        narrow = jnp.tanh((x @ params["square"]).astype("float32").astype(x.dtype))
        hidden = (narrow * params["gain"] + params["bias"]) @ params["twin"] * mask[..., None]
        return {"hidden": hidden, "positive": hidden > 0}

    pair = replace(PAIR, candidate=replace(PAIR.candidate, function=function))
    found = parity.check(pair, replace(QUICK, steps=0))
    assert (found.verdict, found.rung) == ("PASS", "float32-island")
    kinds = {each.outcome for each in found.planted if "off by" in each.kind}
    assert kinds == {KILLED}


def test_a_check_of_a_function_without_effect_is_vacuous():
    """Nothing is replaced here: whatever weights it gets, the output is zero."""
    x = np.random.Generator(np.random.PCG64(9)).normal(size=(4, 5)).astype(np.float32)
    pair = parity.Pair("zero", parity.Torch(lambda x: 0.0 * x), parity.Jax(lambda x: 0.0 * x), inputs=(x,))
    result = parity.check(pair, mutate=True, grads=False)
    assert result.verdict == "VACUOUS"
