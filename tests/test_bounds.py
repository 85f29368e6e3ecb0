"""Each rule is calibrated on clean runs, catches what it is there for, and says in words what it computes."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from parity import bounds
from parity.bounds import (
    NO_FLOOR,
    accuracy_bound,
    chance,
    float64_bound,
    optimizer_floor,
    own_bound,
    own_floor,
    path_floor,
    scale_bound,
    sinh_chance,
    zero_bound,
)
from parity.formats import FORMATS

error = st.floats(1e-12, 1e-2)
count = st.integers(1, 10**7)


def test_unit_roundoffs_are_those_of_the_formats() -> None:
    assert FORMATS["float64"].unit_roundoff / FORMATS["float32"].unit_roundoff == bounds.FLOAT64_TO_FLOAT32
    assert 4 * np.finfo(np.float64).eps / 2 == bounds.FLOAT64_FLOOR


@pytest.mark.parametrize("errors", [1, 2, 3, 8, 50])
def test_chance_is_the_quantile_of_simulated_ratios(errors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # at one in a thousand, where a simulation of a million can see it
    monkeypatch.setattr(bounds, "FALSE_ALARMS", 1e-3)
    predicted = chance.__wrapped__(errors)
    generator = np.random.default_rng(errors)
    a, b = (np.sqrt(generator.chisquare(errors, 1_000_000)) for _ in range(2))
    beyond = np.mean(np.maximum(a / b, b / a) > predicted)
    assert 0.8e-3 < beyond < 1.2e-3


def test_chance_has_the_closed_form_of_one_and_of_two_errors() -> None:
    # one: the ratio of two normal numbers is Cauchy; two: F(2, 2) exceeds f with probability 1 / (1 + f)
    assert chance(1) == pytest.approx(1 / math.tan(math.pi / 4 * bounds.FALSE_ALARMS), rel=0.05)
    assert chance(2) == pytest.approx(math.sqrt(2 / bounds.FALSE_ALARMS), rel=0.02)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_more_errors_leave_less_to_chance(a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert chance(low) >= chance(high) > 1


def test_chance_tends_to_the_normal_law() -> None:
    # Fisher: the logarithm of the ratio has the standard deviation 1 / sqrt(errors); 4.89 of them are one in a million
    assert math.log(chance(10**6)) == pytest.approx(4.89 / 1000, rel=0.01)


def test_one_number_that_float32_had_by_luck_is_no_false_alarm() -> None:
    # the exact loss lies next to a float32 number: its error says nothing about float64
    usual, lucky = 1e-7, 1e-10
    gap64 = usual * bounds.FLOAT64_TO_FLOAT32
    assert float64_bound(lucky, 1).value > gap64
    assert float64_bound(lucky, 1000).value == bounds.FLOAT64_FLOOR
    assert float64_bound(usual, 1).value < 1e-9, "and a wrong loss is seen all the same"


@given(error, error, count)
def test_a_larger_float32_error_allows_a_larger_distance(a: float, b: float, errors: int) -> None:
    low, high = sorted((a, b))
    assert float64_bound(low, errors).value <= float64_bound(high, errors).value


@given(error, count, count)
def test_fewer_errors_allow_more(size: float, a: int, b: int) -> None:
    few, many = sorted((a, b))
    assert float64_bound(size, few).value >= float64_bound(size, many).value
    assert accuracy_bound(size, 0, few, NO_FLOOR).value >= accuracy_bound(size, 0, many, NO_FLOOR).value


@given(error, error, st.sampled_from(["float32", "bfloat16", "float16"]), st.integers(1, 10**6), count)
def test_an_accurate_side_binds_the_other_and_never_below_one_rounding(
    other: float, rounded: float, dtype: str, roundings: int, errors: int
) -> None:
    floor = path_floor(dtype, roundings)
    bound = accuracy_bound(other, rounded, errors, floor).value
    assert bound >= max(rounded, 2 * other, floor.value)
    assert bound <= accuracy_bound(2 * other, rounded, errors, floor).value


def test_sixteen_bit_formats_have_no_floor_of_their_path() -> None:
    assert path_floor("bfloat16", 10_000) == path_floor("float16", 10_000) == NO_FLOOR
    assert path_floor("float32", 10_000).value == pytest.approx(8 * 2.0**-24 * 100)


def test_both_sides_may_lose_half_of_the_digits_of_float32_and_none_of_sixteen_bits() -> None:
    assert own_floor("bfloat16", 100) == own_floor("float16", 100) == NO_FLOOR
    assert own_floor("float32", 100).value == 2.0**-12
    assert own_floor("float32", 10**6) == path_floor("float32", 10**6), "a longer path may lose more"


@given(error, error, count)
def test_both_sides_are_held_against_what_one_unit_does(rounded: float, response: float, errors: int) -> None:
    bound = own_bound(rounded, errors, NO_FLOOR, response).value
    assert bound >= bounds.OWN_SLACK * (rounded + response) * (1 - 1e-12)
    assert own_bound(rounded, errors, NO_FLOOR, 2 * response).value > bound
    assert own_bound(1e-9, 1000, own_floor("float32", 100), 1e-9) == own_floor("float32", 100)


@pytest.mark.parametrize("degrees", [1, 3, 7, 50])
def test_students_t_follows_from_chance(degrees: int) -> None:
    expected = float(student.isf(bounds.FALSE_ALARMS / 2, degrees))
    assert math.sqrt(degrees) * sinh_chance(degrees) == pytest.approx(expected, rel=0.05)


def test_a_scale_is_held_against_both_chances_and_a_convention() -> None:
    many = 10**6
    assert scale_bound([1e-3, 1e-3], (1e-6, 1e-6), 1e-3, many).value == bounds.SCALE_SHARE * 1e-3
    few = scale_bound([1e-3] * 8, (3e-3, 4e-3), 1e-3, 8)
    assert few.value == pytest.approx(5e-3 * sinh_chance(8)), "the errors may be the same in every batch"
    wide = scale_bound([1e-3, -1e-3], (1e-6, 1e-6), 1e-3, many)
    assert wide.value == pytest.approx(1e-3 * sinh_chance(1)), "two batches tell next to nothing"
    assert wide.value > 100


def test_the_floor_of_optimizers_is_what_optax_needs_and_not_much_more() -> None:
    # Adam's step is m / sqrt(v / (1 - b^t)); b and its power in float32, as optax has them
    worst = 0.0
    for t in range(1, 21):
        exact = 1 - 0.999**t
        rounded = float(np.float32(1) - np.float32(0.999) ** np.float32(t))
        worst = max(worst, abs(math.sqrt(rounded / exact) - 1))
    assert optimizer_floor().value / 10 < worst < optimizer_floor().value


def test_the_zero_rule_stands_halfway_between_noise_and_a_gradient() -> None:
    noise32, gradient = 3e-9, 3e-9
    noise64 = noise32 * bounds.FLOAT64_TO_FLOAT32
    bound = zero_bound(noise32).value
    assert bound / noise64 == pytest.approx(2**14.5)
    assert gradient / bound == pytest.approx(2**14.5), "a gradient as small as its own noise is still a gradient"


@pytest.mark.parametrize("errors", [1, 5, 1000])
@pytest.mark.parametrize("size", [1e-7, 1e-3])
def test_a_derivation_contains_the_numbers_that_it_is_made_of(size: float, errors: int) -> None:
    def numbers(text: str) -> list[float]:
        return [float(found) for found in re.findall(r"\d+\.?\d*(?:e[+-]\d+)?", text)]

    bound = float64_bound(size, errors)
    slack = numbers(bound.derivation)[0]
    assert bound.value == pytest.approx(slack * size * 2.0**-29, rel=0.01)
    assert ("convention" in bound.derivation) == (slack == bounds.FLOAT64_SLACK)

    bound = accuracy_bound(size, 1e-9, errors, NO_FLOOR)
    factor = numbers(bound.derivation)[0]
    assert bound.value == pytest.approx(factor * size + 1e-9, rel=0.06)

    bound = accuracy_bound(1e-12, 1e-12, 1000, path_floor("float32", 625))
    assert bound.derivation == "8 (convention) x u x sqrt(625 roundings)"
    assert bound.value == 8 * 2.0**-24 * 25

    bound = zero_bound(size)
    assert bound.value == pytest.approx(size * 2**-14.5)
    assert f"{size:.2g}" in bound.derivation


def matmul_chain(generator: np.random.Generator, dtype: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A chain of products and norms in float64 and in `dtype`, the sums taken in two orders."""
    x, ws = generator.standard_normal((13, 29)), [generator.standard_normal((29, 29)) for _ in range(4)]
    x, ws = x.astype(np.float32), [w.astype(np.float32) for w in ws]

    def run(dtype: type, reverse: bool) -> np.ndarray:
        y = x.astype(dtype)
        for w in ws:
            products = y[:, :, None] * w[None].astype(dtype)
            y = sum(products[:, ::-1].swapaxes(0, 1)) if reverse else products.sum(1)
            y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + dtype(1e-5))
        return y

    return run(np.float64, False), run(np.float64, True), run(dtype, False)


def test_clean_runs_stay_a_third_below_the_float64_rule() -> None:
    needed = []
    for seed in range(40):
        a, b, low = matmul_chain(np.random.default_rng([seed, 4711]), np.float32)
        error32 = np.sqrt(np.mean((low - a) ** 2) / np.mean(a**2))
        gap = np.sqrt(np.mean((b - a) ** 2) / np.mean(a**2))
        needed.append(gap / float64_bound(float(error32), a.size).value)
    assert 0.003 < np.median(needed) < 0.2, "a rule far above what clean runs need would prove nothing"
    assert max(needed) < 1 / 3


@pytest.mark.parametrize("fault", [1e-6, 1e-9, 1e-11])
def test_the_float64_rule_sees_what_no_tolerance_does(fault: float) -> None:
    a, _, low = matmul_chain(np.random.default_rng(5), np.float32)
    error32 = float(np.sqrt(np.mean((low - a) ** 2) / np.mean(a**2)))
    assert fault > float64_bound(error32, a.size).value
