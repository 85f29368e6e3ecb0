"""The interleaved timer, on clocks whose every second is known."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from benchmarks.timer import Timing, compare


class Machine:
    """A clock that only work moves: each call of a side takes the next of its durations, the last one for ever."""

    def __init__(self, *durations: list[float]):
        self.now = 0.0
        self.order: list[int] = []
        self.works = tuple(self._work(side, values) for side, values in enumerate(durations))

    def _work(self, side: int, values: list[float]):
        left = itertools.chain(values, itertools.repeat(values[-1]))

        def work():
            self.order.append(side)
            self.now += next(left)

        return work

    def clock(self) -> float:
        return self.now

    def compare(self, **options) -> Timing:
        return compare(("a", "b"), self.works, clock=self.clock, **options)


def test_sides_take_turns_and_the_first_changes():
    machine = Machine([1.0], [1.0])
    machine.compare(turns=4, warmup=2)
    warmup, probe, turns = machine.order[:4], machine.order[4:6], machine.order[6:]
    assert warmup == [0, 0, 1, 1]
    assert probe == [0, 1]
    assert turns == [0, 1, 1, 0, 0, 1, 1, 0]


def test_a_known_ratio_comes_out():
    timing = Machine([3.0], [2.0]).compare(turns=5)
    assert timing.ratio == 1.5
    assert timing.spread == (1.5, 1.5)
    assert timing.decides


def test_warmup_is_not_timed():
    # compilation: the first call of one side takes a hundred times longer
    timing = Machine([100.0, 100.0, 1.0], [1.0]).compare(turns=3, warmup=2)
    assert timing.ratio == 1.0
    assert Machine([100.0] * 5 + [1.0], [1.0]).compare(turns=3, warmup=2).ratio != 1.0


def test_a_slow_spell_hits_both_and_leaves_the_ratio():
    # warm-up, probe, then turns; the machine runs at a third of its speed from the third turn on
    timing = Machine([2.0] * 5 + [6.0], [1.0] * 5 + [3.0]).compare(turns=6)
    assert timing.ratio == 2.0
    assert timing.spread == (2.0, 2.0)
    assert min(timing.seconds[0]) == 2.0


def test_noise_that_covers_the_difference_decides_nothing():
    noisy = Machine([1.0, 1.0, 1.0, 0.8, 1.3, 0.9, 1.2, 1.0], [1.0]).compare(turns=5)
    low, high = noisy.spread
    assert low < 1 < high
    assert not noisy.decides
    assert "no difference" in str(noisy)
    assert "no difference" not in str(Machine([2.0], [1.0]).compare(turns=3))


def test_short_work_is_repeated_within_a_turn():
    timing = Machine([2.0**-10], [1.0]).compare(turns=3)
    assert timing.calls == (16, 1)
    assert timing.seconds[0] == (2.0**-10,) * 3


def test_the_report_has_every_figure():
    assert str(Timing(("jaxcore", "torchref"), ((0.002, 0.004, 0.002), (1.0, 1.0, 4e-6)), (8, 1))).splitlines() == [
        "                     min      median  calls/turn",
        "jaxcore          2.00 ms     2.00 ms           8",
        "torchref         4.00 us      1.00 s           1",
        "jaxcore / torchref = 0.00 (middle half 0.00 to 250.00, 3 turns): no difference that these turns can show",
    ]


@pytest.mark.parametrize("options", [{"turns": 2}, {"turns": 3, "warmup": -1}])
def test_too_few_turns_are_refused(options):
    with pytest.raises(ValueError, match=r"turns and warmup: at least 3 and 0, got .*; a spread needs three turns"):
        Machine([1.0], [1.0]).compare(**options)


@pytest.mark.parametrize("preset", ["tiny-llama", "tiny-bert"])
def test_the_pair_is_timed_from_the_shell(preset, request):
    call = [sys.executable, "-m", "benchmarks.timer", preset, "--batch", "1", "--seq", "8", "--turns", "3"]
    process = subprocess.run(call, capture_output=True, text=True, check=False, cwd=request.config.rootpath)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert lines[0] == f"{preset}, batch 1 x 8, float32, forward and backward"
    assert lines[-1].startswith("jaxcore / torchref = ")


def test_a_wrong_preset_is_one_line(request):
    call = [sys.executable, "-m", "benchmarks.timer", "tinny"]
    process = subprocess.run(call, capture_output=True, text=True, check=False, cwd=request.config.rootpath)
    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.startswith("error: PRESET: one of tiny")
    assert len(process.stderr.splitlines()) == 1
