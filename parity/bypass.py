"""Whether a difference may have come to a point past all points that values are fed in at.

A module is given its inputs, which are points; a call of einops or a tap is not, and a residual stream that no point
is of carries a first fault past everything that follows. So the value at the last point that agrees is moved, all
others being the reference's: a later point that moves with it is reached by what no point shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from .capture import Capture, Point
from .findings import BORN, UNKNOWN, Finding
from .runs import is_float

#: Points that are given no inputs.
PLAIN = ("einops", "tap")
#: By how much of its size the value is moved: by as much as it is large, so that nothing rounds it away.
MOVED = 1.0

ADVICE = (
    "may have been carried there past all points, by a residual stream for example; parity.tap(name, x) in the model "
    "marks what is carried"
)


def doubted(
    findings: Sequence[Finding],
    points: Sequence[Point],
    feed: Mapping[str, np.ndarray],
    local: Callable[[], Capture],
    run: Callable[[Mapping[str, np.ndarray]], Capture],
) -> tuple[list[Finding], list[str]]:
    """The findings, those that may have been carried past the points being unknown, and a line that says so.

    Args:
        findings: of values, in data order.
        points: the candidate's of each finding.
        feed: what was fed in at each point.
        local: the run on these values.
        run: the candidate on other values.
    """
    born = [k for k, finding in enumerate(findings) if finding.birth == BORN]
    later = [k for k in born[1:] if points[k].source in PLAIN]
    agreeing = [k for k in range(born[0] if born else 0) if findings[k].agrees and _can_move(points[k], feed)]
    if not later or not agreeing:
        return [*findings], []
    name = points[agreeing[-1]].name
    generator = np.random.Generator(np.random.PCG64(0))
    value = feed[name]
    size = float(np.sqrt(np.mean(np.square(value)))) or 1.0
    moved = run({**feed, name: value + MOVED * size * generator.standard_normal(value.shape)})
    judged = [*findings]
    for k in later:
        fed, there = local().get(points[k].name), moved.get(points[k].name)
        if fed is not None and there is not None and not np.array_equal(fed.value, there.value, equal_nan=True):
            judged[k] = replace(findings[k], birth=UNKNOWN)
    doubts = sum(finding.birth == UNKNOWN for finding in judged) - sum(each.birth == UNKNOWN for each in findings)
    return judged, [f"{doubts} of the points that differ: what differs {ADVICE}"] if doubts else []


def _can_move(point: Point, feed: Mapping[str, np.ndarray]) -> bool:
    return point.name in feed and is_float(feed[point.name]) and feed[point.name].size > 0
