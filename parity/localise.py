"""Where a difference begins: the points of both sides in pairs, and one more run on the reference's own values.

The candidate is run a second time with the reference's value fed in at every point, after its own was recorded. What it
records is then worked out from the reference's values at the points before: a difference that stays was born there, one
that goes away was inherited, and a second fault behind a first one shows by itself.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from .bounds import Bound
from .bypass import doubted
from .capture import ROOT, Capture, Point
from .compare import relative
from .errors import ParityUsageError
from .findings import BORN, INHERITED, UNKNOWN, Finding, Unmatched
from .formats import FORMATS
from .layouts import Layout, layouts
from .memory import settle, shelved
from .pairing import PointPair, pair_points
from .point_names import site
from .result import Row
from .runs import Arrays, is_float
from .sides import Sides
from .yardsticks import Measure, Yardstick, apart

#: `Yardstick.rule`.
Rule = Callable[[str, str, np.ndarray], tuple[Measure, Bound]]
#: What a captured run returned, and what was seen inside.
Seen = tuple[Arrays, Capture]

#: Places that the reason of a verdict names.
MOST_BORN = 3

#: How many times as far apart values may be in a plainer layout: those of two functions are, in any layout, alike.
ABOUT_AS_NEAR = 2

#: What capturing may move an output by, in roundings: XLA fuses otherwise where more of its results are asked for.
MOVED = 2**9

#: Between fingerprints, and values relative to the largest, of points that are the same: in float64 and in float32.
SAME = {"float64": 1e-9, "float32": 2.0**-12}


@dataclass(frozen=True)
class Localised:
    """Rows for all pairs of points, findings for those that differ, and what was left out.

    `moved` has a line for each output that is another one where the side is looked into.
    """

    rows: tuple[Row, ...] = ()
    findings: tuple[Finding, ...] = ()
    unmatched: tuple[Unmatched, ...] = ()
    unseen: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()

    @property
    def begins(self) -> str:
        """What the reason of a verdict adds: the points where something is born, the first few of them.

        Of the parts that one module returns the first one stands for all, and the first layer for those of which the
        same line was run.
        """
        born = [finding for finding in self.findings if finding.birth == BORN]
        modules = {re.sub(r":(?!in\b).*", "", finding.name): finding for finding in reversed(born)}
        alike: dict[tuple[object, ...], list[str]] = defaultdict(list)
        for finding in reversed(modules.values()):
            alike[site(finding.reference).place, finding.what, finding.where].append(finding.name)
        places = [f"{first} and {len(rest)} more like it" if rest else first for first, *rest in alike.values()]
        more = f"; {len(places) - MOST_BORN} more places" if len(places) > MOST_BORN else ""
        return f"; it begins at {', at '.join(places[:MOST_BORN])}{more}" if places else ""


def localise(
    sides: Sides,
    weights: Arrays,
    batch: Arrays,
    points: Mapping[str, str],
    yardstick: Callable[[], Yardstick],
    bare: Sequence[Arrays],
    known: Sequence[Seen] = (),
    backward: bool = True,
    precision: str = "float64",
) -> Localised:
    """Where the two sides come apart, on one batch.

    Args:
        sides: ready to run; as they stand, or widened.
        weights: the reference's, in numbers of the precision.
        batch: one, in numbers of the precision.
        points: pairs of points that the caller gives, reference to candidate.
        yardstick: makes that of this batch, once both sides were captured.
        bare: the outputs of each side's run of this batch, in which nothing was captured.
        known: what `captured` gives for these sides and this batch; empty: it is asked.
        backward: whether the outputs agree, so that where all values do a gradient may be where it begins.
        precision: float64, or float32 where there is none.

    Raises:
        ParityUsageError: `points` names one that is not there; a side cannot be captured.
    """
    seen, moved, notes = [], [], []
    for label, alone, (outputs, capture) in zip(
        sides.labels, bare, known or captured(sides, weights, batch, precision), strict=True
    ):
        moved += _moved(label, outputs, alone, capture.uncompiled, precision)
        seen.append(capture)
        if capture.uncompiled:
            notes.append(f"{label}: compiled; its points are those of the uncompiled run")
    notes += _blind(sides.labels, seen)
    rule = yardstick().rule
    pairing = pair_points(seen[0], seen[1], points, SAME[precision], not backward, sides.holders)
    pairs = pairing.pairs
    chosen = chosen_layouts(pairs)

    fed = _fed(chosen)

    def run(feed: Mapping[str, np.ndarray], values: str = "the reference's values") -> Capture:
        try:
            return sides.capture(sides.candidate, weights, batch, precision, feed=feed, back=fed["back"])[1]
        except ParityUsageError as error:
            notes.append(f"the candidate could not be run on {values}: {error}")
            return Capture(())

    @cache
    def local() -> Capture:
        """The candidate on the reference's values: run only where something differs, for nothing else is told by it."""
        return run(fed["feed"])

    judged = [_value_finding(pair, chosen.get(pair), rule, local) for pair in pairs]
    judged, doubts = doubted(judged, [pair.candidate for pair in pairs], fed["feed"], local, run)
    notes += doubts
    if backward and all(finding.agrees for finding in judged):
        judged += _gradient_findings(pairs, chosen, rule, local)
    rows = [_row(finding, pair, sides.labels, precision) for finding, pair in judged_pairs(judged, pairs)]
    findings = tuple(finding for finding in judged if not finding.agrees)
    unseen = [f"{label}: {line}" for label, each in zip(sides.labels, seen, strict=True) for line in each.unseen]
    return Localised(tuple(rows), findings, pairing.unmatched, (*moved, *notes, *unseen), tuple(moved))


def _fed(chosen: Mapping[PointPair, Layout]) -> dict[str, dict[str, np.ndarray]]:
    """The reference's values and gradients in the candidate's layouts, wherever they can be fed in."""
    changeable = {pair: layout for pair, layout in chosen.items() if pair.candidate.changeable}
    feed = {pair.candidate.name: layout.there(pair.reference.value) for pair, layout in changeable.items()}
    back = {
        pair.candidate.name: layout.there(gradient)
        for pair, layout in changeable.items()
        if (gradient := real_gradient(pair.reference)) is not None and real_gradient(pair.candidate) is not None
    }
    return {"feed": feed, "back": back}


def real_gradient(point: Point) -> np.ndarray | None:
    """Its gradient; none for complex ones, which are conjugated in one framework and not in the other."""
    return point.gradient if point.gradient is not None and is_float(point.gradient) else None


def captured(sides: Sides, weights: Arrays, batch: Arrays, precision: str = "float64") -> list[Seen]:
    """A run of one batch on each side, seen inside; the reference's values are out of memory while the other runs."""
    first, capture = sides.capture(sides.reference, weights, batch, precision)
    hollow, arrays = capture.hollow()
    del capture
    arrays = shelved(arrays)
    second, candidate = sides.capture(sides.candidate, weights, batch, precision)
    settle()
    reference = hollow.filled(arrays)
    return [(outputs, each.distinct([*batch.values()])) for outputs, each in ((first, reference), (second, candidate))]


def _blind(labels: Sequence[str], seen: Sequence[Capture]) -> list[str]:
    """A line for a side that shows nothing inside: a function of plain operations."""
    advice = "nothing of it was seen but what it returns; parity.tap(name, x) in it marks a point"
    within = [{name.partition(":")[0] for name in capture.names} - {ROOT} for capture in seen]
    return [f"{label}: {advice}" for label, names in zip(labels, within, strict=True) if not names]


def _moved(label: str, seen: Arrays, bare: Arrays, uncompiled: bool, precision: str) -> list[str]:
    """A line for each output that capturing changed, or compiling."""
    lines = []
    for name, value in seen.items():
        gap = relative([value], [bare[name]]) if is_float(value) else float((value != bare[name]).any())
        if gap > MOVED * FORMATS[precision].unit_roundoff:
            how = f"compiling changes {label}'s {name}" if uncompiled else f"capturing moved {label}'s {name}"
            lines.append(f"{how} by {gap:.2g}: its points are not those of a bare run")
    return lines


def chosen_layouts(pairs: Sequence[PointPair]) -> dict[PointPair, Layout]:
    """The layout of each pair: the one that most of the same place in other layers have, the plainest of equals.

    Values that differ have none of their own. Swapped queries and keys give equal numbers in another order: their own
    layout would hide them. Where no layer tells it is the order of axes that most other points have; where none of
    these is possible and the shapes differ, the plainest of those in which they are about as near as in any.
    """
    votes: dict[tuple[object, ...], Counter[Layout]] = defaultdict(Counter)
    orders: Counter[tuple[int, ...]] = Counter()
    for pair in pairs:
        if pair.layout is not None:
            votes[_place(pair)][pair.layout] += 1
            orders[pair.layout.kind] += 1
    chosen = {}
    for pair in pairs:
        own = votes[_place(pair)]
        value, other = pair.reference.value, pair.candidate.value
        possible = [*own, *layouts(value.shape, other.shape)]
        usual = max((orders[each.kind] for each in possible), default=0)
        if not own and not usual and value.shape != other.shape and possible:
            far = {each: apart(other, each.there(value)) for each in possible}
            nearest = min(far.values())
            # numbers that have nothing to do with each other are nearest by chance
            near = [each for each in possible if not far[each] > ABOUT_AS_NEAR * nearest]
            chosen[pair] = min(near or possible, key=lambda each: each.complexity)
        elif possible:
            chosen[pair] = min(possible, key=lambda each: (-own[each], -orders[each.kind], str(each) != "same"))
    return chosen


def _place(pair: PointPair) -> tuple[object, ...]:
    """What a point shares with its like in other layers: its place, and both shapes."""
    return site(pair.reference.name).place, pair.reference.value.shape, pair.candidate.value.shape


def _value_finding(pair: PointPair, layout: Layout | None, rule: Rule, local: Callable[[], Capture]) -> Finding:
    """How far the values of one pair are apart, by themselves and on the reference's values."""
    nearby = partial(_value_at, pair.candidate.name, local)
    return _finding(pair, "value", layout, pair.reference.value, rule, pair.candidate.value, nearby)


def _gradient_findings(
    pairs: Sequence[PointPair],
    chosen: Mapping[PointPair, Layout],
    rule: Rule,
    local: Callable[[], Capture],
) -> list[Finding]:
    """The gradients at points whose values agree, as the backward pass comes to them: the last point first."""
    findings: list[Finding] = []
    for pair in reversed(pairs):
        exact, mine = pair.reference.gradient, pair.candidate.gradient
        if exact is None or mine is None or pair not in chosen:
            continue
        nearby = partial(_gradient_at, pair.candidate.name, local)
        findings.append(_finding(pair, "gradient", chosen[pair], exact, rule, mine, nearby))
    return findings


def _value_at(name: str, capture: Callable[[], Capture]) -> np.ndarray | None:
    point = capture().get(name)
    return None if point is None else point.value


def _gradient_at(name: str, capture: Callable[[], Capture]) -> np.ndarray | None:
    point = capture().get(name)
    return None if point is None else point.gradient


def _finding(
    pair: PointPair,
    what: str,
    layout: Layout | None,
    exact: np.ndarray,
    rule: Rule,
    mine: np.ndarray,
    nearby: Callable[[], np.ndarray | None],
) -> Finding:
    """One pair's arrays judged: the candidate's own, and where it differs the one from the reference's numbers.

    `nearby()` is the latter, computed from the reference's numbers at all other points.
    """
    measure, bound = rule(pair.reference.name, what, exact)

    def gap(other: np.ndarray | None) -> float:
        return float("nan") if other is None or layout is None else measure(other, layout.there(exact))

    measured = gap(mine)
    local = float("nan") if measured <= bound.value else gap(nearby())
    birth = UNKNOWN if np.isnan(local) else (INHERITED if local <= bound.value else BORN)
    where = pair.reference.where, pair.candidate.where
    return Finding(pair.reference.name, pair.candidate.name, what, where, birth, measured, bound.value, local)


def judged_pairs(findings: Sequence[Finding], pairs: Sequence[PointPair]) -> Iterator[tuple[Finding, PointPair]]:
    """Each finding with its pair."""
    by_name = {pair.reference.name: pair for pair in pairs}
    for finding in findings:
        yield finding, by_name[finding.reference]


def _row(finding: Finding, pair: PointPair, labels: tuple[str, str], precision: str) -> Row:
    said = "agrees"
    if not finding.agrees:
        said = finding.birth
        if not np.isnan(finding.local):
            said += f", {finding.local:.2g} on {labels[0]}'s values before it"
    what = "gradient at point" if finding.what == "gradient" else "point"
    return Row(
        name=f"{what} {finding.name}",
        group=f"{what}s ({pair.reference.source})",
        side_names=labels,
        shape=pair.candidate.shape,
        dtype=pair.candidate.dtype,
        stage=precision,
        measured=finding.measured,
        bound=finding.bound,
        derivation=f"{said}; paired by {pair.how}",
        verdict="PASS" if finding.agrees else "FAIL",
    )
