"""Whether a difference may have come to a point past all points that values are fed in at.

A module is given its inputs, which are points; a call of einops or a tap is not, and a residual stream that no point
is of carries a first fault past everything that follows. So the value at the last point that agrees is moved, all
others being the reference's: a later point that moves with it is reached by what no point shows. If it moves as well
with the first point that differs and those after it, it lies behind them, and not beside them as a fault in another
branch would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from .capture import Capture, Point
from .findings import BORN, UNKNOWN, Finding
from .runs import is_float

#: What is fed in to see what it reaches.
MOVED = "values that were moved to see what they reach"
#: Points that are given no inputs.
PLAIN = ("einops", "tap")

ADVICE = (
    "may have been carried there past all points, by a residual stream for example; parity.tap(name, x) in the model "
    "marks what is carried"
)


def doubted(
    findings: Sequence[Finding],
    points: Sequence[Point],
    feed: Mapping[str, np.ndarray],
    local: Callable[[], Capture],
    run: Callable[[Mapping[str, np.ndarray], str], Capture],
) -> tuple[list[Finding], list[str]]:
    """The findings, those that may have been carried past the points being unknown, and a line that says so.

    Args:
        findings: of values, in data order.
        points: the candidate's of each finding.
        feed: what was fed in at each point.
        local: the run on these values.
        run: the candidate on other values, which a second argument names.
    """
    born = [k for k, finding in enumerate(findings) if finding.birth == BORN]
    later = [k for k in born[1:] if points[k].source in PLAIN]
    agreeing = [k for k in range(born[0] if born else 0) if findings[k].agrees and _can_move(points[k], feed)]
    if not later or not agreeing:
        return [*findings], []
    # what is reached from before the first birth, and from what comes after it: of faults side by side only the former
    behind = [points[k].name for k in range(born[0], len(points)) if _can_move(points[k], feed)]
    for sources in ([points[agreeing[-1]].name], behind):
        there = run({**feed, **{name: _moved(feed[name]) for name in sources}}, MOVED)
        if there.points:  # otherwise the model does not run on them, and the doubt stays
            later = [k for k in later if _differ(local().get(points[k].name), there.get(points[k].name))]
        if not later:
            return [*findings], []
    judged = [replace(finding, birth=UNKNOWN) if k in later else finding for k, finding in enumerate(findings)]
    return judged, [f"{len(later)} of the points that differ: what differs {ADVICE}"]


def _moved(value: np.ndarray) -> np.ndarray:
    """By as much as it is large, so that nothing rounds it away."""
    size = float(np.sqrt(np.mean(np.square(value)))) or 1.0
    return value + size * np.random.Generator(np.random.PCG64(0)).standard_normal(value.shape)


def _differ(one: Point | None, other: Point | None) -> bool:
    return one is not None and other is not None and not np.array_equal(one.value, other.value, equal_nan=True)


def _can_move(point: Point, feed: Mapping[str, np.ndarray]) -> bool:
    return point.name in feed and is_float(feed[point.name]) and feed[point.name].size > 0
