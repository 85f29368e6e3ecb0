"""What a check costs: the benchmark's figures have sense, and the runs of a check are no more than it says."""

from __future__ import annotations

import math
import time
from collections import Counter

import numpy as np
import pytest

import parity
import parity.taps
from benchmarks.check_cost import (
    BARE,
    CHECK,
    EVERY,
    RATIOS,
    Cost,
    Costs,
    Watched,
    costs_of,
    counted_runs,
    least,
    measure,
    measure_apart,
)
from parity import check

#: one process has the figures of all: two processes would each measure them
pytestmark = pytest.mark.xdist_group("check_cost")

PRESET = "tiny-bert", 1, 8
SHORT = {"batches": 1, "steps": 0, "flops": False}


def scaled(params, x):
    return {"y": parity.tap("scaled", x * params["w"]) ** 2}


#: Small, and in both frameworks: how often a side is run does not depend on what it computes.
PAIR = parity.Pair(
    "scaled",
    parity.Torch(scaled, label="torchref"),
    parity.Jax(scaled, label="jaxcore"),
    {"w": np.linspace(0.5, 2, 15, dtype=np.float32)},
    lambda generator: {"x": generator.normal(size=(7, 15))},
)


def cost(wall: float, **figures) -> Cost:
    return Cost(wall, 2 * wall, peak=3, loaded=1, **figures)


def test_a_known_ratio_comes_out():
    works = {name: cost(1.0, compile_wall=0.5, compile_cpu=0.25) for name in BARE}
    costs = Costs({**works, CHECK: cost(12.0)})
    assert costs.ratio("wall", compiled=False, twice=False) == 3.0
    assert costs.ratio("wall", twice=False) == 2.0
    assert costs.ratio("cpu", twice=False) == 24 / 9
    assert costs.ratio("wall") == 12 / 8
    assert costs.memory_ratio == 1.0


def test_the_least_of_the_repeats_is_shown():
    slow, fast = cost(2.0, runs={"slow": 1}), cost(1.0, runs={"fast": 1})
    fast.peak = 7
    assert least([slow, fast]) == Cost(1.0, 2.0, peak=3, loaded=1, runs={"fast": 1})


@pytest.fixture(scope="module")
def costs() -> Costs:
    return costs_of(*PRESET, repeat=1, measure=measure)  # in this process: five imports of two frameworks take long


def test_a_process_of_its_own_gives_its_figures():
    found = measure_apart(BARE[0], *PRESET, points=True)
    assert min(found.wall, found.cpu, found.loaded) > 0
    assert found.peak >= found.loaded


def test_memory_that_came_and_went_is_seen():
    with Watched() as watched:
        before = watched.look()
        many = np.ones(2**25)
        time.sleep(20 * EVERY)
        del many
    assert watched.peak - before > 0.9 * 2**28


def test_the_figures_have_sense(costs):
    assert set(costs.works) == {*BARE, CHECK}
    assert costs.check.verdict == "PASS"
    for clock in ("wall", "cpu"):
        first, second, third = (costs.ratio(clock, *how) for _, *how in RATIOS)
        assert 0 < first < second < third < math.inf
    for each in costs.works.values():
        assert 0 < each.loaded <= each.peak
    assert costs.memory_ratio > 0


def test_the_stages_sum_up_to_the_whole(costs):
    for which, total in enumerate((costs.check.wall, costs.check.cpu)):
        assert sum(each[which] for each in costs.check.stages.values()) == pytest.approx(total)
    assert "float32: outputs and gradients" in costs.check.stages
    assert "float64: looking inside for where it begins" in costs.check.stages


def test_the_table_tells_every_work_and_ratio(costs):
    shown = str(costs)
    for words in (*BARE, CHECK, *(f"check / {words}:" for words, _, _ in RATIOS), "largest bare run"):
        assert words in shown


#: Runs of a check of one batch in float64 and float32: once, and in float64 once more, so that chance is refused.
BARE_CHECK = {"torchref float64": 2, "jaxcore float64": 2, "torchref float32": 1, "jaxcore float32": 1}
#: With its points the second float64 run is the one that is seen inside; the reference's float32 points set its scale.
WITH_POINTS = {
    **dict.fromkeys(("torchref float64", "jaxcore float64", "torchref float32", "jaxcore float32"), 1),
    **dict.fromkeys(("torchref float64 captured", "jaxcore float64 captured", "torchref float32 captured"), 1),
}


@pytest.mark.parametrize(("points", "expected"), [(False, BARE_CHECK), (True, WITH_POINTS)])
def test_a_check_makes_no_more_runs_than_it_needs(points, expected):
    counts: Counter[str] = Counter()
    with counted_runs(counts):
        result = check(PAIR, precisions=("float32",), points=points, **SHORT)
    assert result.verdict == "PASS"
    assert counts == expected


def test_a_run_too_many_is_counted():
    counts: Counter[str] = Counter()
    with counted_runs(counts):
        check(PAIR, precisions=("float32",), **{**SHORT, "batches": 2})
    assert counts["torchref float32"] == 2 * BARE_CHECK["torchref float32"]
    assert counts["torchref float64"] == BARE_CHECK["torchref float64"] + 1
