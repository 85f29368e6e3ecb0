"""Correct pairs never fail: random models of every choice that a ModelConfig has, through the whole check."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import pytest
from random_configs import CHOICES, COUNT, ROPE_ONLY, random_check, random_configs

from jaxcore.config import ModelConfig

#: what a default run takes; the hundreds of all SEEDS together are `slow`
SLICE = (18, 19, 48, 78, 86, 99)
LEAST = 5
SEEDS = (0, 1, 2)

CONFIGS = random_configs(seed=0)


def assert_no_false_alarm(config: ModelConfig, index: int, *precisions: str, **options: Any) -> None:
    result = random_check(config, index, precisions=precisions, **options)
    wrong = [
        (row.name, row.stage, row.measured, row.bound) for row in result.rows if row.verdict in ("FAIL", "VACUOUS")
    ]
    assert wrong == [], f"{config}"
    assert result.work.equal, result.work
    assert (result.verdict, result.rung, result.islands) == ("PASS", "same-function", ())
    assert {row.stage for row in result.rows} == {"float64", *precisions}
    exact = [row for row in result.rows if row.stage == "float64"]
    assert all(row.verdict == "PASS" for row in exact), "in float64 nothing is left undecided"


@pytest.mark.parametrize("place", range(len(SLICE)), ids=map(str, SLICE))
def test_a_correct_pair_passes(place: int, request: pytest.FixtureRequest) -> None:
    # XLA without its costly passes, float32 and bfloat16 by turns, two batches: a quarter of the time
    jax.config.update("jax_disable_most_optimizations", True)
    request.addfinalizer(lambda: jax.config.update("jax_disable_most_optimizations", False))
    assert_no_false_alarm(CONFIGS[SLICE[place]], SLICE[place], ("float32", "bfloat16")[place % 2], batches=2)


@pytest.mark.slow
@pytest.mark.parametrize("index", range(COUNT))
@pytest.mark.parametrize("seed", SEEDS)
def test_every_correct_pair_passes(seed: int, index: int) -> None:
    assert_no_false_alarm(random_configs(seed)[index], index, "float32", "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("index", SLICE)
def test_a_correct_pair_passes_eagerly(index: int) -> None:
    result = random_check(CONFIGS[index], index, jit=False)
    assert (result.verdict, result.rung, result.islands) == ("PASS", "same-function", ()), result.reason


def effective(config: ModelConfig) -> dict[str, Any]:
    """The choices that make a difference to this model: RoPE's fields only where there is RoPE."""
    values = {name: getattr(config, name) for name in CHOICES if name != "group"}
    values["group"] = config.num_heads // config.kv_heads
    values["rope_fraction"] = min(CHOICES["rope_fraction"], key=lambda choice: abs(choice - config.rope_fraction))
    return {name: value for name, value in values.items() if config.position == "rope" or name not in ROPE_ONLY}


@pytest.mark.parametrize("name", CHOICES)
def test_every_choice_of_every_field_is_made_often(name: str) -> None:
    made = Counter(str(effective(config).get(name)) for config in CONFIGS)
    for choice in CHOICES[name]:
        assert made[str(choice)] >= LEAST, f"{name}={choice}: {made}"


def test_the_slice_holds_the_choices_that_are_programs_of_their_own() -> None:
    for name in (
        "norm",
        "norm_position",
        "position",
        "kernel",
        "head",
        "qk_norm",
        "scan_layers",
        "recompute",
        "causal",
    ):
        found = {getattr(CONFIGS[index], name) for index in SLICE}
        assert found == set(CHOICES[name]), name


def test_the_configs_do_not_depend_on_anything_but_their_seed() -> None:
    assert random_configs(seed=0) == CONFIGS
    assert random_configs(seed=1) != CONFIGS
    assert len(set(map(str, CONFIGS))) == COUNT
