"""Training over seeds: the interval is Student's, equal trainings are equivalent, faults are not, few seeds say so."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import optax
import pytest
import torch
from calibrate_seeds import drawn_losses, outcomes
from scipy.stats import ttest_1samp

import parity
from parity import Options, ParityUsageError, Result, Row
from parity.cli import main
from parity.seeds import final_loss_row, interval, seed_batches, seeds_needed

STEPS = 20
RATE = 0.05
SEEDS = 6
TRUTH = np.array([1.0, -2.0, 0.5, 1.5, -1.0], np.float32)
START = np.array([0.3, 0.1, -0.2, 0.4, 0.7], np.float32)


def batch(generator: np.random.Generator) -> dict[str, np.ndarray]:
    x = generator.normal(size=(13, 5)).astype(np.float32)
    return {"x": x, "y": x @ TRUTH + generator.normal(size=13).astype(np.float32)}


def predict(params: Any, x: Any, y: Any) -> dict[str, Any]:
    return {"out": x @ params["w"], "y": y}


def mean_square(outputs: Any) -> Any:
    return ((outputs["out"] - outputs["y"]) ** 2).mean()


def regression(rate: float = RATE, reference_rate: float = RATE, **changes: Any) -> parity.Pair:
    pair = parity.Pair(
        "regression",
        parity.Torch(predict, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=reference_rate)),
        parity.Jax(predict, optimizer=optax.sgd(rate)),
        weights={"w": START},
        inputs=batch,
        loss=mean_square,
    )
    return replace(pair, **changes)


def trained(pair: parity.Pair, **options: Any) -> Result:
    given = {"precisions": (), "batches": 2, "steps": 0, "curve": STEPS, "seeds": SEEDS, "flops": False}
    return parity.check(pair, **{**given, **options})


def final(result: Result) -> Row:
    (row,) = [row for row in result.rows if row.group == "final loss"]
    return row


def numbers(derivation: str, word: str) -> float:
    return float(derivation.partition(f"{word} ")[2].split()[0].rstrip(",:;"))


def test_the_same_training_is_equivalent():
    result = trained(regression())
    row = final(result)
    assert (result.verdict, result.reason) == ("PASS", "")
    assert (row.name, row.shape, row.stage) == (f"final loss over {SEEDS} seeds", (SEEDS,), "float32")
    assert 0 < row.measured < 1e-5 < 1e-2 < row.bound
    assert row.derivation.startswith("is equivalent: mean difference ")
    assert "; margin " in row.derivation
    assert ": 2 (convention) x " in row.derivation
    assert row.derivation.endswith(", the standard deviation of the reference between seeds")


def test_the_final_losses_are_those_of_gradient_descent():
    pair, options = regression(), Options(seed=3, batches=2, curve=STEPS, seeds=SEEDS)
    own = np.random.Generator(np.random.PCG64(3))
    common = [batch(own) for _ in range(2)]

    def loss(w: np.ndarray) -> float:
        return float(np.mean([np.mean(np.square(each["x"] @ w - each["y"])) for each in common]))

    losses = []
    for index in range(SEEDS):
        w = START.astype(np.float64)
        for each in seed_batches(pair, options, index):
            w = w - RATE * 2 / 13 * each["x"].T @ (each["x"] @ w - each["y"])
        losses.append(loss(w))
    row = final(trained(pair, seed=3))
    assert numbers(row.derivation, " of") == pytest.approx(np.mean(losses), rel=1e-3)
    assert numbers(row.derivation, "convention) x") == pytest.approx(np.std(losses, ddof=1), rel=1e-2)
    assert row.bound == pytest.approx(2 * np.std(losses, ddof=1) / np.mean(losses), rel=1e-4)


def test_the_batches_of_a_seed_are_its_own_and_come_again():
    pair, options = regression(), Options(curve=3, seeds=2)
    first, again, second = (seed_batches(pair, options, index) for index in (0, 0, 1))
    own = np.random.Generator(np.random.PCG64(options.seed))
    drawn = [*first, *second, *(batch(own) for _ in range(8))]
    assert len({each["x"].tobytes() for each in drawn}) == len(drawn)
    assert all(np.array_equal(a["x"], b["x"]) for a, b in zip(first, again, strict=True))
    other = seed_batches(pair, replace(options, seed=1), 0)
    assert not np.array_equal(first[0]["x"], other[0]["x"])


def test_the_row_comes_again():
    assert final(trained(regression(), seeds=2, curve=4)) == final(trained(regression(), seeds=2, curve=4))


FAULTS = {
    "half the learning rate": regression(RATE / 2),
    "a learning rate that decays to nothing": regression(
        candidate=parity.Jax(predict, optimizer=optax.sgd(optax.linear_schedule(RATE, 0.0, 6)))
    ),
    "a side that never learns": regression(0.0),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_training_that_ends_elsewhere_fails(name):
    result = trained(FAULTS[name])
    row = final(result)
    assert (result.verdict, row.verdict) == ("FAIL", "FAIL")
    assert row.measured > row.bound
    assert f"final loss over {SEEDS} seeds differs by more than the margin" in result.reason


def test_a_training_that_diverges_on_one_side_fails():
    result = trained(regression(1e6))
    assert (result.verdict, final(result).verdict) == ("FAIL", "FAIL")
    assert final(result).measured == np.inf
    assert "is NaN or infinite on one side alone: 0 of torch's and 6 of jax's 6 trainings" in final(result).derivation
    assert json.loads(result.to_json())


def test_a_training_that_diverges_on_both_sides_is_vacuous():
    result = trained(regression(1e6, 1e6), seeds=2)
    assert (result.verdict, final(result).verdict) == ("VACUOUS", "VACUOUS")
    assert "final loss over 2 seeds is finite in no seed of either side" in result.reason
    assert "final loss" in str(result)


def test_a_curve_without_a_number_is_vacuous_unless_it_failed_before():
    def explodes(params: Any, x: Any, y: Any) -> dict[str, Any]:
        return predict(params, x, y + 1e20)

    pair = regression(
        reference=parity.Torch(explodes, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=RATE)),
        candidate=parity.Jax(explodes, optimizer=optax.sgd(RATE)),
    )
    result = trained(pair, curve=3, seeds=0)
    assert result.verdict == "VACUOUS"
    assert "the functions agree, but training loss has a finite value at no step of either side" in result.reason

    def differs(params: Any, x: Any, y: Any) -> dict[str, Any]:
        return {**explodes(params, x, y), "out": 2 * (x @ params["w"])}

    result = trained(replace(pair, candidate=parity.Jax(differs, optimizer=optax.sgd(RATE))), curve=3, seeds=0)
    assert (result.verdict, result.rung) == ("FAIL", "different")


def test_seeds_that_end_alike_decide_nothing_and_the_reason_says_so():
    fixed = batch(np.random.default_rng(0))
    result = trained(regression(inputs=lambda generator: fixed), seeds=2)
    assert (result.verdict, final(result).verdict, result.exit_status) == ("PASS", "ABSTAIN", 0)
    assert "but final loss over 2 seeds is undecided, for the reference ends alike in every seed" in result.reason
    assert result.reason in " ".join(str(result).split())


def test_the_report_has_a_section_and_an_output_may_be_called_final():
    pair = regression(
        reference=parity.Torch(
            lambda params, x, y: {**predict(params, x, y), "final": x @ params["w"]},
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=RATE),
        ),
        candidate=parity.Jax(
            lambda params, x, y: {**predict(params, x, y), "final": x @ params["w"]}, optimizer=optax.sgd(RATE)
        ),
    )
    text = str(trained(pair, seeds=2, curve=4))
    assert "float32, training, 2 seeds  As good in the end?" in text
    assert text.count("float64  Same mathematics?") == 1
    assert "float64, training" not in text


def test_no_seed_is_begun_after_the_budget(monkeypatch):
    monkeypatch.setattr("parity.stages.Stages.in_time", lambda self, stage: stage != "training over seeds")
    assert [row.group for row in trained(regression()).rows if row.stage == "float32"] == ["training curve"] * 3


REFUSED = {
    "no curve": ({"curve": 0}, "seeds: trainings of as many steps as --curve (curve=) says, got 6 without it; give"),
    "one seed": ({"seeds": 1}, "seeds: at least 2, since one has no spread, got 1; give 6 or more for a decision"),
    "fewer than none": ({"seeds": -2}, "seeds: at least 0, got -2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_spread_is_refused(name):
    options, line = REFUSED[name]
    with pytest.raises(ParityUsageError) as error:
        trained(regression(), **options)
    assert str(error.value).startswith(line)


def test_two_seeds_that_scatter_abstain_beside_a_curve_that_fails():
    result = trained(regression(0.8 * RATE), seeds=2)
    assert final(result).verdict == "ABSTAIN"
    assert "seeds would decide: mean difference" in final(result).derivation
    assert result.verdict == "FAIL"
    assert "final loss" not in result.reason


def test_one_fixed_batch_is_refused():
    with pytest.raises(ParityUsageError) as error:
        trained(regression(inputs=batch(np.random.default_rng(0))))
    assert str(error.value).startswith("seeds: inputs that are a function of a Generator, got one fixed batch; ")


def test_the_command_line_refuses_in_one_line(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["check", "tiny", "--seeds", "4"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("error: seeds: trainings of as many steps as --curve")


LABELS = ("torch", "jax")


def judged(reference: Any, difference: Any, untrained: float = 100.0) -> Row:
    reference = np.asarray(reference, float)
    return final_loss_row(LABELS, reference, reference + np.asarray(difference, float), untrained)


@pytest.mark.parametrize("count", [2, 3, 6, 19])
def test_the_interval_is_that_of_a_t_test(count):
    differences = np.random.default_rng(count).normal(0.3, 0.2, count)
    mean, half = interval(differences)
    expected = ttest_1samp(differences, 0.0).confidence_interval(0.90)
    np.testing.assert_allclose((mean - half, mean + half), (expected.low, expected.high), rtol=1e-12)


def test_measured_and_bound_are_relative_to_the_mean_loss():
    reference, differences = np.array([9.0, 10.0, 11.0]), np.array([0.1, 0.2, 0.3])
    row = judged(reference, differences)
    expected = ttest_1samp(differences, 0.0).confidence_interval(0.90)
    assert row.measured == pytest.approx(expected.high / 10)
    assert row.bound == pytest.approx(2 * 1.0 / 10)
    assert row.verdict == "PASS"


def test_a_wide_interval_abstains_and_says_how_many_seeds_would_decide():
    row = judged([9.0, 11.0], [-2.0, 2.1])
    assert row.verdict == "ABSTAIN"
    needed = seeds_needed(np.array([-2.0, 2.1]), 2 * np.sqrt(2))
    assert f"over the margin, known to a factor of 16, and about {needed} seeds would decide" in row.derivation
    # that many pairs of the same mean and spread do decide, one fewer do not
    for count, expected in ((needed, True), (needed - 1, False)):
        scattered = np.linspace(-1, 1, count)
        scattered *= np.std([-2.0, 2.1], ddof=1) / scattered.std(ddof=1)
        mean, half = interval(scattered + 0.05)
        assert (abs(mean) + half < 2 * np.sqrt(2)) == expected


def test_a_difference_at_the_margin_needs_more_seeds_than_are_counted():
    margin = 2 * np.std([9.0, 11.0], ddof=1)
    assert "more than 1,000 seeds would decide" in judged([9.0, 11.0], [margin - 1e-3, margin + 1e-3]).derivation


def test_bits_that_are_equal_are_equivalent():
    row = judged([9.0, 10.0, 11.0], [0.0, 0.0, 0.0])
    assert (row.verdict, row.measured) == ("PASS", 0.0)


def test_a_margin_as_large_as_what_training_changes_proves_nothing():
    assert judged([9.0, 10.0, 11.0], [0.0, 0.0, 0.0], untrained=12.1).verdict == "PASS"
    row = judged([9.0, 10.0, 11.0], [0.0, 0.0, 0.0], untrained=11.9)
    assert row.verdict == "ABSTAIN"
    assert "the margin being as large as what training changes (-1.9)" in row.derivation


def test_a_spread_of_rounding_alone_fails_nobody():
    assert judged([1.0, 1.0 + 1e-8, 1.0 - 1e-8], [0.1, 0.1, 0.1]).verdict == "ABSTAIN"


def test_some_trainings_that_diverge_alike_decide_nothing():
    reference = np.array([9.0, np.nan, 11.0])
    assert final_loss_row(LABELS, reference, np.array([9.0, np.inf, 11.0]), 100.0).verdict == "ABSTAIN"
    assert final_loss_row(LABELS, reference, np.array([np.nan, 9.0, 11.0]), 100.0).verdict == "FAIL"


def test_the_interval_covers_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(0)
    count = 4000
    hits = 0
    for _ in range(count):
        mean, half = interval(generator.normal(0.7, 1.0, 6))
        hits += abs(mean - 0.7) <= half
    assert abs(hits / count - 0.90) < 4 * np.sqrt(0.9 * 0.1 / count)


def test_equal_trainings_that_share_nothing_are_seldom_called_different():
    found = outcomes(6, 0.0, paired=False, count=1000)
    assert found["FAIL"] <= 0.003  # 0.1% of 4,000 (docs/numerics.md)
    assert 0.6 < found["PASS"] < 0.8


def test_trainings_four_spreads_apart_never_pass():
    assert outcomes(6, 4.0, paired=False, count=400)["PASS"] <= 0.01
    # the margin is known to a factor of 2.1 with six seeds
    assert outcomes(6, 4.0, paired=True, count=400)["FAIL"] > 0.5
    assert outcomes(6, 10.0, paired=True, count=400)["FAIL"] > 0.98


def test_losses_that_are_paired_differ_by_rounding_alone():
    reference, candidate = drawn_losses(np.random.default_rng(0), 6, 0.0, paired=True)
    assert 0 < np.abs(reference - candidate).max() < 1e-6 < reference.std()
