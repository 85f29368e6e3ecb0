"""Where a difference begins: the points of both sides in pairs, and one more run on the reference's own values.

The candidate is run a second time with the reference's value fed in at every point, after its own was recorded. What it
records is then worked out from the reference's values at the points before: a difference that stays was born there, one
that goes away was inherited, and a second fault behind a first one shows by itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from .bounds import Bound, float64_bound, zero_bound
from .capture import ROOT, Capture, Point
from .compare import different, distance, error_of, independent_errors, misplaced, relative, rms
from .errors import ParityUsageError
from .findings import BORN, INHERITED, UNKNOWN, Finding, Unmatched
from .layouts import Layout, layouts
from .pairing import PointPair, moderate, pair_points, site
from .result import Row
from .runs import Arrays, is_float
from .sides import Sides

Measure = Callable[[np.ndarray, np.ndarray], float]
#: What a captured run returned, and what was seen inside.
Seen = tuple[Arrays, Capture]

#: How many times as far apart values may be in a plainer layout: those of two functions are, in any layout, alike.
ABOUT_AS_NEAR = 2

#: What capturing may move an output by: XLA fuses otherwise where more of its results are asked for.
MOVED = 2.0**-44


@dataclass(frozen=True)
class Localised:
    """Rows for all pairs of points, findings for those that differ, and what was left out."""

    rows: tuple[Row, ...] = ()
    findings: tuple[Finding, ...] = ()
    unmatched: tuple[Unmatched, ...] = ()
    unseen: tuple[str, ...] = ()


def localise(
    sides: Sides,
    weights: Arrays,
    batch: Arrays,
    points: Mapping[str, str],
    sums: float,
    bare: Sequence[Arrays],
    known: Sequence[Seen] = (),
    backward: bool = True,
) -> Localised:
    """Where the two sides come apart, on one batch in float64.

    Args:
        sides: ready to run; as they stand, or widened.
        weights: the reference's.
        batch: one.
        points: pairs of points that the caller gives, reference to candidate.
        sums: `summation_factor`.
        bare: the outputs of each side's float64 run of this batch, in which nothing was captured.
        known: what `captured` gives for these sides and this batch; empty: it is asked.
        backward: whether the outputs agree, so that where all values do a gradient may be where it begins.

    Raises:
        ParityUsageError: `points` names one that is not there; a side cannot be captured.
    """
    seen, notes = [], []
    for label, alone, (outputs, capture) in zip(
        sides.labels, bare, known or captured(sides, weights, batch), strict=True
    ):
        notes += _moved(label, outputs, alone)
        seen.append(capture)
    notes += _blind(sides.labels, seen)
    _, coarse = sides.capture(sides.reference, weights, batch, "float32")
    pairing = pair_points(seen[0], seen[1], points)
    pairs = pairing.pairs
    chosen = chosen_layouts(pairs)

    @cache
    def local() -> Capture:
        """The candidate on the reference's values: run only where something differs, for nothing else is told by it."""
        try:
            return sides.capture(sides.candidate, weights, batch, "float64", **_fed(chosen))[1]
        except ParityUsageError as error:
            notes.append(f"the candidate could not be run on the reference's values: {error}")
            return Capture(())

    judged = [_value_finding(pair, chosen.get(pair), coarse, local, sums) for pair in pairs]
    if backward and all(finding.agrees for finding in judged):
        judged += _gradient_findings(pairs, chosen, coarse, local, sums)
    rows = [_row(finding, pair, sides.labels) for finding, pair in judged_pairs(judged, pairs)]
    findings = tuple(finding for finding in judged if not finding.agrees)
    unseen = [f"{label}: {line}" for label, each in zip(sides.labels, seen, strict=True) for line in each.unseen]
    return Localised(tuple(rows), findings, pairing.unmatched, (*notes, *unseen))


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


def captured(sides: Sides, weights: Arrays, batch: Arrays) -> list[Seen]:
    """A float64 run of one batch on each side, seen inside."""
    return [sides.capture(runner, weights, batch, "float64") for runner in (sides.reference, sides.candidate)]


def _blind(labels: Sequence[str], seen: Sequence[Capture]) -> list[str]:
    """A line for a side that shows nothing inside: a function of plain operations."""
    advice = "nothing of it was seen but what it returns; parity.tap(name, x) in it marks a point"
    within = [{name.partition(":")[0] for name in capture.names} - {ROOT} for capture in seen]
    return [f"{label}: {advice}" for label, names in zip(labels, within, strict=True) if not names]


def _moved(label: str, seen: Arrays, bare: Arrays) -> list[str]:
    """A line for each output that capturing changed."""
    lines = []
    for name, value in seen.items():
        gap = relative([value], [bare[name]]) if is_float(value) else float((value != bare[name]).any())
        if gap > MOVED:
            lines.append(f"capturing moved {label}'s {name} by {gap:.2g}: its points are not those of a bare run")
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
            apart = {each: _apart(other, each.there(value)) for each in possible}
            nearest = min(apart.values())
            # numbers that have nothing to do with each other are nearest by chance
            near = [each for each in possible if not apart[each] > ABOUT_AS_NEAR * nearest]
            chosen[pair] = min(near or possible, key=lambda each: each.complexity)
        elif possible:
            chosen[pair] = min(possible, key=lambda each: (-own[each], -orders[each.kind], str(each) != "same"))
    return chosen


def _place(pair: PointPair) -> tuple[object, ...]:
    """What a point shares with its like in other layers: its place, and both shapes."""
    return site(pair.reference.name).place, pair.reference.value.shape, pair.candidate.value.shape


def _value_finding(
    pair: PointPair, layout: Layout | None, coarse: Capture, local: Callable[[], Capture], sums: float
) -> Finding:
    """How far the values of one pair are apart, by themselves and on the reference's values."""
    name, exact = pair.reference.name, pair.reference.value
    low = coarse[name].value if name in coarse.names else None
    nearby = partial(_value_at, pair.candidate.name, local)
    return _finding(pair, "value", layout, exact, low, pair.candidate.value, nearby, sums)


def _gradient_findings(
    pairs: Sequence[PointPair],
    chosen: Mapping[PointPair, Layout],
    coarse: Capture,
    local: Callable[[], Capture],
    sums: float,
) -> list[Finding]:
    """The gradients at points whose values agree, as the backward pass comes to them: the last point first."""
    findings: list[Finding] = []
    for pair in reversed(pairs):
        name, exact, mine = pair.reference.name, pair.reference.gradient, pair.candidate.gradient
        if exact is None or mine is None or pair not in chosen:
            continue
        low = coarse[name].gradient if name in coarse.names else None
        nearby = partial(_gradient_at, pair.candidate.name, local)
        findings.append(_finding(pair, "gradient", chosen[pair], exact, low, mine, nearby, sums))
    return findings


def _value_at(name: str, capture: Callable[[], Capture]) -> np.ndarray | None:
    return capture()[name].value if name in capture().names else None


def _gradient_at(name: str, capture: Callable[[], Capture]) -> np.ndarray | None:
    return capture()[name].gradient if name in capture().names else None


def _finding(
    pair: PointPair,
    what: str,
    layout: Layout | None,
    exact: np.ndarray,
    low: np.ndarray | None,
    mine: np.ndarray,
    nearby: Callable[[], np.ndarray | None],
    sums: float,
) -> Finding:
    """One pair's arrays judged: the candidate's own, and where it differs the one from the reference's numbers.

    `nearby()` is the latter, computed from the reference's numbers at all other points.
    """
    measure, bound = _rule(exact, low, sums)

    def apart(other: np.ndarray | None) -> float:
        return float("nan") if other is None or layout is None else measure(other, layout.there(exact))

    measured = apart(mine)
    local = float("nan") if measured <= bound.value else apart(nearby())
    birth = UNKNOWN if np.isnan(local) else (INHERITED if local <= bound.value else BORN)
    where = pair.reference.where, pair.candidate.where
    return Finding(pair.reference.name, pair.candidate.name, what, where, birth, measured, bound.value, local)


def _rule(exact: np.ndarray, low: np.ndarray | None, sums: float) -> tuple[Measure, Bound]:
    """How one point is measured, and the bound from the reference's own float32 run.

    Whole numbers and truth values are equal or not. What is zero in theory is noise, in another order on every side: it
    has to be that small on both.
    """
    if exact.dtype.kind in "biu":
        return different, Bound(0.0, "no float: every element equal")
    if low is None:
        return _apart, float64_bound(0.0, 1, sums)
    fine, rough = _real(exact), _real(low)
    noise = distance(rough, fine)
    zero = zero_bound(noise)
    if noise and rms(fine) <= zero.value:
        return _sizes, zero
    return _apart, float64_bound(relative([rough], [fine]), independent_errors([rough], [fine]), sums)


def _apart(value: np.ndarray, exact: np.ndarray) -> float:
    """As `relative`; what is huge is a mask's, and has to be huge on both sides."""
    return error_of([_real(value)], [_real(exact)])


def _sizes(value: np.ndarray, exact: np.ndarray) -> float:
    """The larger of the two; infinite where one of them is huge and the other is not."""
    value, exact = _real(value), _real(exact)
    return np.inf if misplaced(value, exact) else max(rms(value), rms(exact))


def _real(array: np.ndarray) -> np.ndarray:
    """The array in float64, NaN for what is huge; a complex number is two."""
    array = np.ascontiguousarray(moderate(array))
    return array.view(np.float64) if array.dtype.kind == "c" else array


def judged_pairs(findings: Sequence[Finding], pairs: Sequence[PointPair]) -> Iterator[tuple[Finding, PointPair]]:
    """Each finding with its pair."""
    by_name = {pair.reference.name: pair for pair in pairs}
    for finding in findings:
        yield finding, by_name[finding.reference]


def _row(finding: Finding, pair: PointPair, labels: tuple[str, str]) -> Row:
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
        stage="float64",
        measured=finding.measured,
        bound=finding.bound,
        derivation=f"{said}; paired by {pair.how}",
        verdict="PASS" if finding.agrees else "FAIL",
    )
