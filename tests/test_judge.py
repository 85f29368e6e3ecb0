"""Verdicts on arrays: what has to fail fails, what cannot be judged says so, and nothing passes by being left out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from parity.compare import errors_by_name, keep_largest, rms
from parity.judge import Judge
from parity.result import Row
from parity.rows import Batches, group_of
from parity.runs import Path, Step, walk

JUDGE = Judge(("reference", "candidate"), roundings=100)
SHAPE = (19, 23)
NAN, INF = math.nan, math.inf


def normal(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def noisy(array: np.ndarray, relative: float, seed: int = 7) -> np.ndarray:
    return np.where(np.isfinite(array), array + relative * rms(array) * normal(seed, array.shape), array)


def float64_rows(
    reference: Mapping[str, Any], candidate: Mapping[str, Any], error32: float = 1e-7, kind: str = "output"
) -> dict[str, Row]:
    """The float64 rule on one batch; the reference's float32 run is off by `error32`."""
    low = {name: noisy(np.asarray(value, np.float64), error32).astype(np.float32) for name, value in reference.items()}
    return {row.name: row for row in JUDGE.same_function(Batches(kind, [reference], [candidate]), [low])}


def accuracy_row(exact: np.ndarray, reference: np.ndarray, candidate: np.ndarray, precision: str = "float32") -> Row:
    """The accuracy rule on one tensor and one batch, with one float64 truth."""
    truth, low = (
        Batches("output", [{"x": exact}], [{"x": exact}]),
        Batches("output", [{"x": reference}], [{"x": candidate}]),
    )
    (row,) = JUDGE.same_accuracy(truth, low, precision)
    return row


def test_rounding_passes_and_a_difference_of_a_billionth_fails() -> None:
    x = normal(0)
    rows = float64_rows({"x": x}, {"x": noisy(x, 1e-16)}) | float64_rows({"y": x}, {"y": noisy(x, 1e-9)})
    assert (rows["x"].verdict, rows["y"].verdict) == ("PASS", "FAIL")
    assert rows["y"].measured == pytest.approx(1e-9, rel=0.1)
    assert rows["y"].headroom < 1e-3
    assert rows["y"].required == rows["y"].measured


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e200])
def test_the_verdict_does_not_depend_on_the_scale(scale: float) -> None:
    x = normal(0) * scale
    low = {"x": noisy(x, 1e-7)}

    def verdict(other: np.ndarray) -> str:
        (row,) = JUDGE.same_function(Batches("output", [{"x": x}], [{"x": other}]), [low])
        return row.verdict

    assert verdict(noisy(x, 1e-16)) == "PASS"
    assert verdict(noisy(x, 1e-9)) == "FAIL"


# ---- ways in which a published check has passed what was wrong; each must fail here


def test_a_signed_difference_does_not_pass() -> None:
    x = normal(0)
    for other in (x - 1, x + 1, -x):
        assert float64_rows({"x": x}, {"x": other})["x"].verdict == "FAIL"


def test_equal_means_do_not_pass() -> None:
    x = normal(0)
    assert float64_rows({"x": x}, {"x": np.random.default_rng(1).permutation(x)})["x"].verdict == "FAIL"


def test_a_missing_or_surplus_name_fails() -> None:
    x = normal(0)
    rows = float64_rows({"x": x, "y": x}, {"x": x, "z": x})
    assert {name: row.verdict for name, row in rows.items()} == {"output y": "FAIL", "output z": "FAIL", "x": "PASS"}
    assert rows["output y"].derivation == "only the reference has it"
    assert (rows["output y"].measured, rows["output y"].bound) == (INF, 0.0)


@pytest.mark.parametrize("other", [normal(0)[:, :-1], normal(0)[None], normal(0).astype(np.float32)])
def test_another_shape_or_type_fails_without_broadcasting(other: np.ndarray) -> None:
    (row,) = float64_rows({"x": normal(0)}, {"x": other}).values()
    assert row.verdict == "FAIL"


def test_a_name_that_only_one_batch_has_fails() -> None:
    x = normal(0)
    batches = [{"x": x}, {"x": x, "late": x}]
    rows = {row.name: row for row in JUDGE.same_function(Batches("output", batches, batches), batches)}
    assert rows["output late"].verdict == "FAIL"
    assert rows["output late"].derivation == "some batches have it and others have not"


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_nan_and_infinity_on_one_side_fail_and_in_place_on_both_do_not(bad: float) -> None:
    x = normal(0)
    broken = x.copy()
    broken[3, 4] = bad
    assert float64_rows({"x": x}, {"x": broken})["x"].verdict == "FAIL"
    row = float64_rows({"x": broken}, {"x": x})["x"]
    assert row.verdict == "FAIL"
    assert row.derivation == "NaN and infinity must stand in the same places, they do not at 1 elements"
    assert float64_rows({"x": broken}, {"x": broken})["x"].verdict == "PASS"
    moved_away = x.copy()
    moved_away[4, 3] = bad
    assert "at 2 elements" in float64_rows({"x": broken}, {"x": moved_away})["x"].derivation


def test_infinities_of_opposite_sign_fail() -> None:
    assert float64_rows({"x": np.array([INF, 1.0])}, {"x": np.array([-INF, 1.0])})["x"].verdict == "FAIL"


@pytest.mark.parametrize("array", [np.full(3, NAN), np.full(3, INF), np.zeros((0, 4))])
def test_where_nothing_finite_is_left_the_row_is_vacuous(array: np.ndarray) -> None:
    row = float64_rows({"x": array}, {"x": array})["x"]
    assert row.verdict == "VACUOUS"
    what = "no element is finite" if array.size else "it has no elements"
    assert row.derivation == f"{what}, so that nothing was compared"


def test_a_value_where_the_reference_is_zero_fails() -> None:
    zeros = np.zeros(SHAPE)
    assert float64_rows({"x": zeros}, {"x": zeros})["x"].verdict == "PASS"
    row = float64_rows({"x": zeros}, {"x": 1e-30 * normal(0)})["x"]
    assert (row.verdict, row.measured) == ("FAIL", INF)


def test_one_batch_of_zeros_does_not_hide_a_difference_in_it() -> None:
    x, zeros = normal(0), np.zeros(SHAPE)
    exact = Batches("output", [{"x": x}, {"x": zeros}], [{"x": x}, {"x": 0.1 * x}])
    (row,) = JUDGE.same_function(exact, [{"x": noisy(x, 1e-7)}, {"x": zeros}])
    assert row.verdict == "FAIL"


def test_a_difference_in_one_batch_of_eight_is_not_averaged_away() -> None:
    xs = [normal(seed) for seed in range(8)]
    others = [noisy(x, 1e-9) if seed == 5 else x for seed, x in enumerate(xs)]
    exact = Batches("output", [{"x": x} for x in xs], [{"x": x} for x in others])
    (row,) = JUDGE.same_function(exact, [{"x": noisy(x, 1e-7)} for x in xs])
    assert row.verdict == "FAIL"


@pytest.mark.parametrize(("other", "verdict"), [([1, 2, 3], "PASS"), ([1, 2, 4], "FAIL")])
@pytest.mark.parametrize("dtype", [np.int32, bool])
def test_whole_numbers_have_to_be_equal(other: list[int], verdict: str, dtype: type) -> None:
    a, b = np.array([1, 2, 3]), np.array(other)
    if dtype is bool:
        a, b = a > 3, b > 3
    assert float64_rows({"x": a.astype(dtype)}, {"x": b.astype(dtype)})["x"].verdict == verdict


# ---- accuracy


def test_equally_accurate_sides_pass_and_a_needlessly_inaccurate_one_fails_on_either_side() -> None:
    x = normal(0, (61, 67))
    good, bad = noisy(x, 1e-6, 1).astype(np.float32), noisy(x, 1e-4, 2).astype(np.float32)
    assert accuracy_row(x, good, noisy(x, 1.5e-6, 3).astype(np.float32)).verdict == "PASS"
    for sides, label in (((good, bad), "candidate"), ((bad, good), "reference")):
        row = accuracy_row(x, *sides)
        assert row.verdict == "FAIL"
        assert row.derivation.startswith(f"{label} is further from its float64: ")


def test_statistics_in_bfloat16_inside_a_float32_run_fail() -> None:
    x = normal(0, (61, 67))

    def layer_norm(x: np.ndarray, statistics: Any) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True).astype(statistics).astype(x.dtype)
        scale = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return centred * scale.astype(statistics).astype(x.dtype)

    exact, good = (
        layer_norm(x.astype(np.float32).astype(np.float64), np.float64),
        layer_norm(x.astype(np.float32), np.float32),
    )
    assert accuracy_row(exact, good, good).verdict == "PASS"
    assert accuracy_row(exact, good, layer_norm(x.astype(np.float32), ml_dtypes.bfloat16)).verdict == "FAIL"


def test_a_bound_as_large_as_the_tensor_abstains() -> None:
    x = normal(0)
    row = accuracy_row(x, noisy(x, 0.8, 1).astype(np.float32), noisy(x, 0.8, 2).astype(np.float32))
    assert row.verdict == "ABSTAIN"
    assert row.bound >= 1
    assert row.derivation.startswith("the bound is as large as the tensor: ")


def test_overflow_on_both_sides_abstains_where_the_truth_is_finite() -> None:
    exact = np.array([1.0, 2.0, 70_000.0])
    low = np.array([1.0, 2.0, INF], np.float16)
    assert accuracy_row(exact, low, low, "float16").verdict == "ABSTAIN"
    assert accuracy_row(exact, low, np.array([1.0, 2.0, 65_504.0], np.float16), "float16").verdict == "FAIL"
    exact[2] = INF
    assert accuracy_row(exact, low, low, "float16").verdict == "PASS"


@pytest.mark.parametrize(
    ("bad", "precision", "dtype"),
    [(NAN, "float16", np.float16), (-INF, "bfloat16", ml_dtypes.bfloat16), (NAN, "float32", np.float32)],
)
def test_what_is_no_number_on_both_sides_fails_where_the_truth_is_one_in_range(
    bad: float, precision: str, dtype: Any
) -> None:
    exact = np.zeros(SHAPE)  # a step from a gradient of zero: no response is asked for, the truth moves nowhere
    low = exact.astype(dtype)
    assert accuracy_row(exact, low, low, precision).verdict == "PASS"
    low[3, 4] = bad
    row = accuracy_row(exact, low, low, precision)
    assert (row.verdict, row.measured, row.bound) == ("FAIL", INF, 0.0)
    what = "1 of 437 elements are NaN or infinite, their float64 is finite and in range"
    assert row.derivation == f"both sides are wrong alike: {what}"
    elsewhere = exact.astype(dtype)
    elsewhere[5, :2] = bad
    assert accuracy_row(exact, low, elsewhere, precision).derivation == f"both sides are wrong alike: 1 and 2{what[1:]}"


def test_the_side_that_is_no_number_is_named_where_the_other_is_wrong_otherwise() -> None:
    exact = np.zeros(SHAPE)
    nan, small = exact.astype(np.float16), exact.astype(np.float16)
    nan[3, 4], small[3, 4] = NAN, 1e-3
    for sides, label in (((nan, small), "reference"), ((small, nan), "candidate")):
        row = accuracy_row(exact, *sides, "float16")
        assert row.verdict == "FAIL"
        assert row.derivation.startswith(f"{label} is wrong: 1 of 437 elements")


@pytest.mark.parametrize(
    ("kind", "precision", "dtype", "verdict"),
    [
        ("output", "float32", np.float32, "FAIL"),
        ("gradient", "float32", np.float32, "PASS"),
        ("output", "bfloat16", ml_dtypes.bfloat16, "FAIL"),
        ("gradient", "bfloat16", ml_dtypes.bfloat16, "FAIL"),
        ("output", "float16", np.float16, "FAIL"),
        ("gradient", "float16", np.float16, "PASS"),
    ],
)
def test_two_sides_that_are_wrong_alike_are_held_against_what_one_unit_does(
    kind: str, precision: str, dtype: Any, verdict: str
) -> None:
    x = normal(0, (61, 67))
    wrong = noisy(x, 0.3).astype(dtype)
    exact, low = Batches(kind, [{"x": x}], [{"x": x}]), Batches(kind, [{"x": wrong}], [{"x": wrong}])

    def judged(response: float) -> Row:
        (row,) = JUDGE.same_accuracy(exact, low, precision, response=lambda name: response)
        return row

    assert judged(1e-4).verdict == verdict
    assert judged(1e-2).verdict == "PASS", "an ill-conditioned function is as far off by itself"
    if verdict == "FAIL":
        assert judged(1e-4).derivation.startswith(
            "both sides are wrong alike: 32 (convention) x (one rounding + 0.0001"
        )


def test_half_of_the_digits_of_float32_may_be_lost_on_both_sides() -> None:
    x = normal(0, (61, 67))
    exact = Batches("output", [{"x": x}], [{"x": x}])
    for error, verdict in ((2.0**-12.5, "PASS"), (2.0**-11.5, "FAIL")):
        low = Batches("output", *([{"x": noisy(x, error).astype(np.float32)}] for _ in range(2)))
        (row,) = JUDGE.same_accuracy(exact, low, "float32", response=lambda name: 0.0)
        assert row.verdict == verdict


def test_an_output_without_a_digit_in_float32_or_of_few_numbers_is_not_held_against_one_unit() -> None:
    """1 - sum(softmax(x)) is zero in theory; sin(x) - sin(1.0000001 x) is a remainder of a constant's last place."""

    def judged(error: float, shape: tuple[int, ...], precision: str = "float32") -> str:
        x = normal(0, shape)
        low = x + error * rms(x) * np.sign(normal(1, shape))
        exact, both = (
            Batches("output", [{"x": x}], [{"x": x}]),
            Batches("output", *([{"x": low.astype(np.float32)}],) * 2),
        )
        (row,) = JUDGE.same_accuracy(exact, both, precision, response=lambda name: 1e-9)
        return row.verdict

    assert judged(0.3, (61, 67)) == "FAIL"
    assert judged(1.5, (61, 67)) == "ABSTAIN"
    assert judged(0.3, (1,)) == "ABSTAIN"
    assert judged(INF, (61, 67)) == "FAIL"


def scaled_row(factor: float, batches: int = 8, kind: str = "output", shape: tuple[int, ...] = (61, 67)) -> Row:
    """The candidate multiplies by a factor before it rounds to bfloat16; the exact results of both are the same."""
    xs = [normal(seed, shape) for seed in range(batches)]
    sides = [[{"x": (x * times).astype(ml_dtypes.bfloat16)} for x in xs] for times in (1.0, factor)]
    exact = [{"x": x} for x in xs]
    (row,) = JUDGE.same_accuracy(Batches(kind, exact, exact), Batches(kind, *sides), "bfloat16")
    return row


@pytest.mark.parametrize(("factor", "how"), [(55.5 / 3072**0.5, "large"), (1 - 1.3e-3, "small")])
def test_a_constant_that_one_side_rounds_is_found_by_the_sign_of_its_errors(factor: float, how: str) -> None:
    row = scaled_row(factor)
    assert row.verdict == "FAIL"
    assert row.derivation.startswith(f"candidate is 0.0013 too {how} throughout, as if a constant had been rounded")
    assert row.measured == pytest.approx(abs(factor - 1), rel=0.05)


def test_a_scale_is_no_matter_of_chance_or_of_little_or_of_gradients() -> None:
    wrong = 55.5 / 3072**0.5
    assert scaled_row(1.0).verdict == "PASS"
    assert scaled_row(1 + 2e-4).verdict == "PASS", "float32 inside may add as much"
    assert scaled_row(wrong, batches=1).verdict == "PASS"
    assert scaled_row(wrong, batches=2).verdict == "PASS"
    assert scaled_row(wrong, shape=()).verdict == "PASS", "eight numbers may be rounded alike"
    assert scaled_row(wrong, kind="gradient").verdict == "PASS"


def test_bfloat16_arrays_are_judged() -> None:
    x = normal(0, (61, 67))
    rounded = x.astype(ml_dtypes.bfloat16)
    row = accuracy_row(x, rounded, rounded, "bfloat16")
    assert (row.verdict, row.dtype) == ("PASS", "bfloat16")
    assert accuracy_row(x, rounded, (x * 1.02).astype(ml_dtypes.bfloat16), "bfloat16").verdict == "FAIL"


def test_one_number_says_little_about_accuracy_and_much_about_the_function() -> None:
    x = np.array(3.7)
    lucky, usual = np.array(3.7 * (1 + 1e-9)), np.array(3.7 * (1 + 1e-4))
    assert accuracy_row(x, lucky, usual).verdict == "PASS"
    assert float64_rows({"x": x}, {"x": x * (1 + 1e-9)})["x"].verdict == "FAIL"


def test_the_largest_error_of_the_twins_is_kept() -> None:
    x = normal(0, (61, 67))
    spread: dict[str, float] = {}
    for twin in (1e-4, 4e-4, 2e-4):
        keep_largest(spread, errors_by_name([{"w": noisy(x, twin, 3), "new": x}], [{"w": x}]))
    assert spread == {"w": pytest.approx(4e-4, rel=0.05)}


def test_a_side_is_as_accurate_as_its_worst_twin() -> None:
    """A kink that one run fell over and the other did not is in the other's twins; a real loss of accuracy is not."""
    x = normal(0, (61, 67))
    exact = Batches("gradient", [{"w": x}], [{"w": x}])
    low = Batches("gradient", [{"w": noisy(x, 1e-1, 1)}], [{"w": noisy(x, 1e-2, 2)}])
    errors = [errors_by_name(side, [{"w": x}])["w"] for side in (low.reference, low.candidate)]
    assert errors == pytest.approx([1e-1, 1e-2], rel=0.1)

    def verdict(reference_twin: float, candidate_twin: float) -> str:
        spread = {"w": reference_twin}, {"w": candidate_twin}
        (row,) = JUDGE.same_accuracy(exact, low, "bfloat16", spread=spread)
        return row.verdict

    assert verdict(1e-1, 1e-2) == "FAIL"
    assert verdict(1e-1, 8e-2) == "PASS"
    assert verdict(9e-1, 1e-2) == "FAIL", "the worse side's own twins excuse nothing"


def test_one_wrong_element_does_not_excuse_itself() -> None:
    """Its error is one rare event, but chance is counted over the more accurate side alone."""
    x = normal(0, (37, 23))
    wrong = noisy(x, 1e-7, 1)
    wrong[0, 0] += 5e-3
    exact = Batches("output", [{"y": x}], [{"y": x}])
    (row,) = JUDGE.same_accuracy(exact, Batches("output", [{"y": noisy(x, 1e-7, 2)}], [{"y": wrong}]), "float32")
    assert row.verdict == "FAIL"


def test_infinities_in_place_are_counted_and_most_of_a_tensor_abstains() -> None:
    few, most = normal(0, (10, 10)), normal(1, (10, 10))
    few[0, :3] = np.nan
    most[:, 1:] = np.inf
    rows = float64_rows({"few": few, "most": most}, {"few": few, "most": most})
    assert rows["few"].verdict == "PASS"
    assert rows["few"].derivation.startswith("3 of 100 elements are NaN or infinite on both sides")
    assert rows["most"].verdict == "ABSTAIN"


# ---- gradients that are zero in theory


def zero_rows(norm: float, other: float, noise: float = 1e-9) -> tuple[frozenset[str], list[Row]]:
    x, rest = normal(0), normal(1)
    exact = Batches("gradient", [{"k.bias": norm * x, "q": rest}], [{"k.bias": other * normal(2), "q": rest}])
    low = {"k.bias": norm * x + noise * normal(3), "q": noisy(rest, 1e-7)}
    return JUDGE.zero_gradients(exact, [low])


@pytest.mark.parametrize("norm", [0.0, 1e-18, 1e-17, 3e-17])
def test_rounding_noise_is_recognised_on_both_sides(norm: float) -> None:
    zero, rows = zero_rows(norm, norm)
    assert (zero, rows) == ({"k.bias"}, [])


@pytest.mark.parametrize("norm", [1e-12, 1e-9, 1e-7, 1.0])
def test_a_small_gradient_is_a_gradient(norm: float) -> None:
    zero, rows = zero_rows(norm, norm)
    assert (zero, rows) == (frozenset(), [])


@pytest.mark.parametrize("sides", [(1e-18, 1e-7), (1e-7, 1e-18)])
def test_a_gradient_that_only_one_side_has_fails(sides: tuple[float, float]) -> None:
    zero, rows = zero_rows(*sides)
    assert not zero
    assert [(row.name, row.verdict) for row in rows] == [("gradient k.bias", "FAIL")]


def test_where_every_gradient_is_zero_the_check_is_vacuous() -> None:
    zeros = {"w": np.zeros(SHAPE), "b": np.zeros(5)}
    zero, rows = JUDGE.zero_gradients(Batches("gradient", [zeros], [zeros]), [zeros])
    assert zero == frozenset(), "exact zeros carry no noise and are compared"
    assert [row.verdict for row in rows] == ["VACUOUS"]
    assert rows[0].derivation.startswith(
        "every gradient is zero on both sides, so that the loss depends on no parameter"
    )
    assert JUDGE.zero_gradients(Batches("gradient", [{}], [{}]), [{}]) == (frozenset(), []), (
        "no parameters is no mistake"
    )


def test_zero_gradients_are_left_out_of_later_rows_and_no_others() -> None:
    x = normal(0)
    exact = Batches("gradient", [{"k": x, "q": x}], [{"k": -x, "q": x}])
    rows = JUDGE.same_function(exact, [{"k": x, "q": noisy(x, 1e-7)}], frozenset({"k"}))
    assert [row.name for row in rows] == ["gradient q"]


# ---- operations


def test_an_operation_is_measured_in_units_of_one_rounding() -> None:
    from parity.bounds import Bound

    x = normal(0, (61, 67))
    once = x.astype(ml_dtypes.bfloat16)
    twice = noisy(x, 2.0**-8).astype(ml_dtypes.bfloat16)
    for sides, label, verdict in (
        ((once, once), "", "PASS"),
        ((once, twice), "candidate", "FAIL"),
        ((twice, once), "reference", "FAIL"),
    ):
        (row,) = JUDGE.operation("gelu", [[x], [x]], [[sides[0]], [sides[1]]], "bfloat16", Bound(1.1, "one rounding"))
        assert row.verdict == verdict
        assert row.derivation.startswith(label)
    assert row.measured > 2


def test_rows_are_grouped_as_the_table_shows_them() -> None:
    assert group_of("output", "logits") == "logits"
    assert group_of("gradient", "layers.11.attention.q_proj.weight") == "gradient layers.attention"
    assert group_of("gradient", "layers.attention.q_proj.weight") == "gradient layers.attention"
    assert group_of("gradient", "token_embedding.weight") == "gradient token_embedding"
    assert group_of("step mu", "layers.0.mlp.up_proj.weight") == "step mu"
    assert group_of("near-eps stream nu", "matrix") == "near-eps stream"


def test_movement_in_adams_own_units_is_as_large_as_the_noise_that_caused_it() -> None:
    # one element's gradient is noise: Adam makes a whole step of it, in either direction
    start, unit = {"w": np.zeros(2)}, {"w": np.array([1.0, 1e-9])}
    up, down = (Step({"w": np.array([-1e-3, sign * 1e-3])}, {}, {}) for sign in (1, -1))
    plain, weighted = (
        walk(path, [up]).parameters["w"] - walk(path, [down]).parameters["w"]
        for path in (Path([start]), Path([start], [unit]))
    )
    assert abs(plain[1]) == 2e-3
    assert abs(weighted[1]) == pytest.approx(2e-12)


def test_steps_are_added_up_from_the_points_of_the_path() -> None:
    path = Path([{"w": np.array([1.0])}, {"w": np.array([10.0])}], [{"w": np.array([2.0])}, {"w": np.array([3.0])}])
    steps = [Step({"w": np.array([1.5], np.float32)}, {"w": mu}, {}) for mu in (1, 2)]
    trained = walk(path, steps)
    assert trained.parameters["w"] == pytest.approx([2 * 0.5 + 3 * (1.5 - 10)])
    assert (trained.mu, trained.nu) == ({"w": 2}, {})
    assert path.points[0]["w"] == 1.0, "the points are as they were"
