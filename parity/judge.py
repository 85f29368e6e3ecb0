"""From runs to rows: every tensor measured by `compare` and held against a bound of `bounds`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from . import alike
from .bounds import (
    NO_FLOOR,
    Bound,
    accuracy_bound,
    float64_bound,
    lucky_bound,
    own_bound,
    own_floor,
    path_floor,
    zero_bound,
)
from .compare import (
    Structure,
    different,
    distance,
    error_of,
    independent_errors,
    misplaced,
    nearest,
    non_finite,
    not_a_number,
    one_rounding,
    pooled,
    relative,
    rms,
    structure,
)
from .formats import FORMATS
from .result import Row
from .runs import INPUT, Arrays, is_float
from .scale import same_scale

Errors = Mapping[str, float]


@dataclass(frozen=True)
class Batches:
    """One kind of tensors (outputs, gradients, moments) of both sides, a dict of arrays per batch."""

    kind: str
    reference: Sequence[Arrays]
    candidate: Sequence[Arrays]

    def problems(self) -> list[Structure]:
        """What cannot be compared: names, shapes and types that differ in any batch, each once."""
        found: dict[str, Structure] = {}
        for reference, candidate in zip(self.reference, self.candidate, strict=True):
            for problem in structure(reference, candidate):
                found.setdefault(problem.name, problem)
            for name in reference.keys() ^ self.reference[0].keys():
                found.setdefault(name, Structure(name, "some batches have it and others have not"))
        return list(found.values())

    def names(self, floating: bool = True) -> Iterator[str]:
        """Tensors that both sides have in the same shape, floats or (whole numbers, truth values) the others."""
        broken = {problem.name for problem in self.problems()}
        for name, array in self.reference[0].items():
            if name not in broken and is_float(array) == floating:
                yield name


@dataclass(frozen=True)
class Judge:
    """Makes rows for one pair.

    `labels` are the names of reference and candidate; `roundings` counts the products along the longest path, `sums` is
    the `summation_factor`; `rounds` is False for a function of whole numbers alone.
    """

    labels: tuple[str, str]
    roundings: int
    sums: float = 1.0
    rounds: bool = True

    def same_function(self, exact: Batches, low: Sequence[Arrays], zero: frozenset[str] = frozenset()) -> list[Row]:
        """float64 against float64, the reference's own float32 error setting the scale (bounds.float64_bound)."""
        rows = self._broken(exact, "float64")
        for name in exact.names():
            if name in zero:
                continue
            truth = [batch[name] for batch in exact.reference]
            other = [batch[name] for batch in exact.candidate]
            coarse = [batch[name] for batch in low]
            bound = float64_bound(relative(coarse, truth), independent_errors(coarse, truth), self.sums)
            if any(misplaced(a, b) for a, b in zip(coarse, truth, strict=True)):
                # float32 has left its range and cannot be the scale
                bound = max(bound, path_floor("float64", self.roundings), key=lambda each: each.value)
            rows.append(self._row(exact, name, "float64", relative(other, truth), bound, other))
        for name in exact.names(floating=False):
            sides = [[batch[name] for batch in side] for side in (exact.reference, exact.candidate)]
            share = pooled([different(a, b) for a, b in zip(*sides, strict=True)])
            rows.append(self._row(exact, name, "float64", share, Bound(0.0, "no float: every element equal"), sides[1]))
        return rows

    def in_range(self, given: Arrays, narrow: Arrays, precision: str) -> list[Row]:
        """Weights that a precision cannot hold: both sides would compute with infinities, and agree."""
        rows = []
        for name, array in given.items():
            beyond = np.isfinite(array) & ~np.isfinite(narrow[name])
            if beyond.any():
                why = f"{np.count_nonzero(beyond)} of {array.size} numbers are beyond the range of {precision}"
                row = Row(
                    f"weight {name}",
                    "weights",
                    self.labels,
                    array.shape,
                    precision,
                    precision,
                    np.inf,
                    0.0,
                    why,
                    "FAIL",
                )
                rows.append(row)
        return rows

    def zero_gradients(self, exact: Batches, low: Sequence[Arrays]) -> tuple[frozenset[str], list[Row]]:
        """Gradients that vanish in theory (a key bias under softmax) on both sides; rows for those that do on one."""
        zero: set[str] = set()
        vanished = 0
        rows = []
        for name in exact.names():
            sides = [[batch[name] for batch in side] for side in (exact.reference, exact.candidate)]
            noise = pooled([distance(a[name], b) for a, b in zip(low, sides[0], strict=True)])
            bound = zero_bound(noise)
            norms = [pooled([rms(array) for array in side]) for side in sides]
            vanishes = [norm <= bound.value for norm in norms]
            if all(vanishes):
                vanished += not name.startswith(INPUT)
                if noise:  # an exact zero carries none, and is compared
                    zero.add(name)
            elif any(vanishes):
                # a constraint that only one of them obeys, or a gradient that one of them stops
                without, having = self.labels if vanishes[0] else self.labels[::-1]
                bound = Bound(bound.value, f"{without}'s is zero and {having}'s is not; {bound.derivation}")
                rows.append(self._row(exact, name, "float64", max(norms), bound, sides[1]))
        if vanished and vanished == sum(not name.startswith(INPUT) for name in exact.reference[0]):
            first = next(exact.names())
            why = Bound(0.0, "every gradient is zero on both sides, so that the loss depends on no parameter")
            row = self._row(exact, first, "float64", 0.0, why, [batch[first] for batch in exact.candidate])
            rows.append(replace(row, verdict="VACUOUS"))
        return frozenset(zero), rows

    def same_accuracy(
        self,
        exact: Batches,
        low: Batches,
        precision: str,
        zero: frozenset[str] = frozenset(),
        floor: Bound | None = None,
        spread: tuple[Errors, Errors] = ({}, {}),
        response: Callable[[str], float] | None = None,
    ) -> list[Row]:
        """Each side's error against its own float64 run, the worse bounded by the better (bounds.accuracy_bound).

        `spread` holds, for each side, the largest errors of its twins: a side is as accurate as its worst neighbour.
        `response(name)` is how far one unit in the last place moves the exact tensor: what is much further from it is
        wrong on both sides (bounds.own_bound), as is what has left the range of the format (alike.in_range).
        """
        rows = self._broken(low, precision)
        for name in low.names():
            if name in zero or name not in exact.reference[0] or name not in exact.candidate[0]:
                continue
            truths = [[batch[name] for batch in side] for side in (exact.reference, exact.candidate)]
            values = [[batch[name] for batch in side] for side in (low.reference, low.candidate)]
            errors = [error_of(value, truth) for value, truth in zip(values, truths, strict=True)]
            worse = int(errors[1] > errors[0])
            once = relative([nearest(array, values[0][0].dtype) for array in truths[0]], truths[0])
            # from the yardstick alone: one element that is wrong would excuse itself as a rare event
            count = independent_errors(values[1 - worse], truths[1 - worse])
            yardstick = max(errors[1 - worse], spread[1 - worse].get(name, 0.0))
            least = floor or path_floor(precision, self.roundings)
            lucky = not yardstick and least is NO_FLOOR
            bound = lucky_bound(once, precision) if lucky else accuracy_bound(yardstick, once, count, least)
            whose = f"{self.labels[worse]} is further from its float64"
            left_range = min(errors) == np.inf
            if left_range:
                whose = f"both have left the range of {precision}, or are not zero where their float64 is"
            bound = Bound(bound.value, f"{whose}: {bound.derivation}")
            truth = truths[0] if left_range else ()
            row = self._row(low, name, precision, errors[worse], bound, values[1], truth)
            overflowed = any(misplaced(value, exact) for value, exact in zip(values[worse], truths[worse], strict=True))
            row = alike.in_range(alike.undecided(row, errors, truths), values, truths, precision)
            held = overflowed or alike.held(exact.kind, precision, min(errors), count)
            if response and held and any(map(rms, truths[0])):
                # a sum of equal numbers may need no rounding, by luck
                least_once = max(once, FORMATS[precision].unit_roundoff / math.sqrt(12))
                own = partial(own_bound, least_once, count, own_floor(precision, self.roundings))
                row = alike.accurate(row, min(errors), own, partial(response, name))
            if exact.kind == "output" and path_floor(precision, 1) is NO_FLOOR:
                row = same_scale(row, values, truths, errors, once, count)
            rows.append(row)
        return rows + [self._same_choices(exact, low, name, precision) for name in low.names(floating=False)]

    def _same_choices(self, exact: Batches, low: Batches, name: str, precision: str) -> Row:
        """Whole numbers and truth values of each side against its float64 run, the worse side's.

        Rounding may turn what is as good as tied (argmax, top-k, routing): then nothing is said.
        """
        shares = [
            pooled([different(a[name], b[name]) for a, b in zip(values, truths, strict=True)])
            for values, truths in ((low.reference, exact.reference), (low.candidate, exact.candidate))
        ]
        worse = int(shares[1] > shares[0])
        why = f"{self.labels[worse]}: no float, every element that of its float64 run"
        row = self._row(low, name, precision, shares[worse], Bound(0.0, why), [each[name] for each in low.candidate])
        if row.verdict == "FAIL" and self.rounds:
            what = (
                f"{shares[worse]:.1%} of {self.labels[worse]}'s are not those of float64: ties, or nearer than rounding"
            )
            return replace(row, verdict="ABSTAIN", derivation=what)
        return row

    def operation(
        self,
        name: str,
        exact: Sequence[Sequence[np.ndarray]],
        low: Sequence[Sequence[np.ndarray]],
        precision: str,
        bound: Bound,
    ) -> list[Row]:
        """One operation: rms error over rms of rounding the exact result once, for the worse side."""
        figures = []
        for truth, values in zip(exact, low, strict=True):
            error = pooled([distance(a, b) for a, b in zip(values, truth, strict=True)])
            once = pooled([one_rounding(b, a.dtype) for a, b in zip(values, truth, strict=True)])
            figures.append(error / once if once else (0.0 if not error else np.inf))
        worse = int(figures[1] > figures[0])
        kind = Batches("operation", [{name: value} for value in low[0]], [{name: value} for value in low[1]])
        rows = self._broken(kind, precision)
        if rows:
            return rows
        bound = Bound(bound.value, f"{self.labels[worse]}, in units of one rounding: {bound.derivation}")
        return [self._row(kind, name, precision, figures[worse], bound, low[1], cap=np.inf)]

    def _row(
        self,
        batches: Batches,
        name: str,
        stage: str,
        measured: float,
        bound: Bound,
        values: Sequence[np.ndarray],
        truth: Sequence[np.ndarray] = (),
        cap: float = 1.0,
    ) -> Row:
        """A verdict: FAIL above the bound or for misplaced infinities, ABSTAIN where the bound is the tensor itself."""
        wrong = sum(
            misplaced(a[name], b[name], truth[index] if truth else None)
            for index, (a, b) in enumerate(zip(batches.reference, batches.candidate, strict=True))
        )
        total = sum(array.size for array in values)
        left_out = sum(map(non_finite, values))
        derivation, verdict = bound.derivation, "PASS"
        if wrong:
            measured, verdict = np.inf, "FAIL"
            derivation = f"NaN and infinity must stand in the same places, they do not at {wrong} elements"
        elif bound.value < np.inf and left_out == total:
            verdict, derivation = "VACUOUS", "no element is finite, so that nothing was compared"
        elif stage == "float64" and batches.kind == "gradient" and (nan := sum(map(not_a_number, values))):
            # a mask may hold infinities; a gradient that is no number trains nothing, whatever the two agree on
            verdict, derivation = "VACUOUS", f"{nan} of {total} elements are NaN on both sides, where nothing compares"
        elif not measured <= bound.value:
            verdict = "FAIL"
        elif bound.value >= cap:
            verdict, derivation = "ABSTAIN", f"the bound is as large as the tensor: {derivation}"
        elif 2 * left_out > total:
            verdict = "ABSTAIN"
        if left_out and not wrong and verdict != "VACUOUS":
            derivation = f"{left_out} of {total} elements are NaN or infinite on both sides, uncompared; {derivation}"
        shape, dtype = values[0].shape, values[0].dtype.name
        return Row(
            label_of(batches.kind, name),
            group_of(batches.kind, name),
            self.labels,
            shape,
            dtype,
            stage,
            measured,
            bound.value,
            derivation,
            verdict,
        )

    def _broken(self, batches: Batches, stage: str) -> list[Row]:
        return [
            Row(
                f"{batches.kind} {problem.name}",
                group_of(batches.kind, problem.name),
                self.labels,
                (),
                "",
                stage,
                float("inf"),
                0.0,
                problem.problem,
                "FAIL",
            )
            for problem in batches.problems()
        ]


def label_of(kind: str, name: str) -> str:
    """What the row of a tensor is called."""
    return name if kind in ("output", "operation") else f"{kind} {name}"


def group_of(kind: str, name: str) -> str:
    """The table's line for a tensor: its module for a gradient, layers taken together; else its kind."""
    if kind in ("output", "operation"):
        return name
    if kind != "gradient":
        return kind.removesuffix(" parameters").removesuffix(" mu").removesuffix(" nu") if "stream" in kind else kind
    parts = [part for part in name.split(".") if not re.fullmatch(r"\d+", part)]
    head = ".".join(parts[: 2 if parts[0] == "layers" else 1])
    return f"{kind} {head}"
