"""From runs to rows: every tensor measured by `compare` and held against a bound of `bounds`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
    different,
    distance,
    error_of,
    independent_errors,
    misplaced,
    nearest,
    one_rounding,
    pooled,
    relative,
    rms,
)
from .formats import FORMATS
from .parallel import side_by_side
from .result import Row
from .rows import Batches, RowMaker
from .runs import INPUT, Arrays
from .scale import same_scale

Errors = Mapping[str, float]


@dataclass(frozen=True)
class Judge(RowMaker):
    """Judges one pair, tensor by tensor.

    `labels` are the names of reference and candidate; `roundings` counts the products along the longest path, `sums` is
    the `summation_factor`; `rounds` is False for a function of whole numbers alone.
    """

    roundings: int
    sums: float = 1.0
    rounds: bool = True

    def same_function(self, exact: Batches, low: Sequence[Arrays], zero: frozenset[str] = frozenset()) -> list[Row]:
        """float64 against float64, the reference's own float32 error setting the scale (bounds.float64_bound)."""

        def judged(name: str) -> Row:
            truth = [batch[name] for batch in exact.reference]
            other = [batch[name] for batch in exact.candidate]
            coarse = [batch[name] for batch in low]
            bound = float64_bound(relative(coarse, truth), independent_errors(coarse, truth), self.sums)
            if any(misplaced(a, b) for a, b in zip(coarse, truth, strict=True)):
                # float32 has left its range and cannot be the scale
                bound = max(bound, path_floor("float64", self.roundings), key=lambda each: each.value)
            return self.row(exact, name, "float64", relative(other, truth), bound, other)

        names = [name for name in exact.names() if name not in zero]
        return [*self.broken(exact, "float64"), *side_by_side(judged, names), *self.choices(exact, "float64")]

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
        names = [*exact.names()]

        def measured(name: str) -> tuple[float, list[float]]:
            """The reference's noise in float32, and both sides' sizes."""
            sides = [[batch[name] for batch in side] for side in (exact.reference, exact.candidate)]
            noise = pooled([distance(a[name], b) for a, b in zip(low, sides[0], strict=True)])
            return noise, [pooled([rms(array) for array in side]) for side in sides]

        for name, (noise, norms) in zip(names, side_by_side(measured, names), strict=True):
            bound = zero_bound(noise)
            vanishes = [norm <= bound.value for norm in norms]
            if all(vanishes):
                vanished += not name.startswith(INPUT)
                if noise:  # an exact zero carries none, and is compared
                    zero.add(name)
            elif any(vanishes):
                # a constraint that only one of them obeys, or a gradient that one of them stops
                without, having = self.labels if vanishes[0] else self.labels[::-1]
                bound = Bound(bound.value, f"{without}'s is zero and {having}'s is not; {bound.derivation}")
                theirs = [batch[name] for batch in exact.candidate]
                rows.append(self.row(exact, name, "float64", max(norms), bound, theirs))
        if vanished and vanished == sum(not name.startswith(INPUT) for name in exact.reference[0]):
            first = names[0]
            why = Bound(
                0.0,
                "every gradient is zero on both sides, so that the loss depends on no parameter, or the model runs "
                "without gradients (no_grad); Options(grads=False) compares the outputs alone",
            )
            row = self.row(exact, first, "float64", 0.0, why, [batch[first] for batch in exact.candidate])
            rows.append(replace(row, verdict="VACUOUS"))
        return frozenset(zero), rows

    def same_accuracy(
        self,
        exact: Batches,
        low: Batches,
        precision: str,
        zero: frozenset[str] = frozenset(),
        floor: Callable[[str], Bound] | None = None,
        spread: tuple[Errors, Errors] = ({}, {}),
        response: Callable[[str], float] | None = None,
    ) -> list[Row]:
        """Each side's error against its own float64 run, the worse bounded by the better (bounds.accuracy_bound).

        `spread` holds, for each side, the largest errors of its twins: a side is as accurate as its worst neighbour.
        `floor(name)` is what is never too much.
        `response(name)` is how far one unit in the last place moves the exact tensor: what is much further from it is
        wrong on both sides (bounds.own_bound), as is what has left the range of the format (alike.in_range).
        """
        rows = self.broken(low, precision)
        names = [name for name in low.names() if name not in zero]
        names = [name for name in names if name in exact.reference[0] and name in exact.candidate[0]]

        def arrays(name: str) -> tuple[list[list[np.ndarray]], list[list[np.ndarray]]]:
            """Both sides' in float64, and in the precision."""
            truths = [[batch[name] for batch in side] for side in (exact.reference, exact.candidate)]
            return truths, [[batch[name] for batch in side] for side in (low.reference, low.candidate)]

        def measured(name: str) -> tuple[list[float], float, int]:
            """Both sides' errors, that of rounding once, and how many are independent."""
            truths, values = arrays(name)
            errors = [error_of(value, truth) for value, truth in zip(values, truths, strict=True)]
            better = 1 - int(errors[1] > errors[0])
            once = relative([nearest(array, values[0][0].dtype) for array in truths[0]], truths[0])
            # from the yardstick alone: one element that is wrong would excuse itself as a rare event
            return errors, once, independent_errors(values[better], truths[better])

        for name, (errors, once, count) in zip(names, side_by_side(measured, names), strict=True):
            truths, values = arrays(name)
            worse = int(errors[1] > errors[0])
            yardstick = max(errors[1 - worse], spread[1 - worse].get(name, 0.0))
            least = floor(name) if floor else path_floor(precision, self.roundings)
            lucky = not yardstick and least is NO_FLOOR
            bound = lucky_bound(once, precision) if lucky else accuracy_bound(yardstick, once, count, least)
            whose = f"{self.labels[worse]} is further from its float64"
            left_range = min(errors) == np.inf
            if left_range:
                whose = f"both have left the range of {precision}, or are not zero where their float64 is"
            bound = Bound(bound.value, f"{whose}: {bound.derivation}")
            truth = truths[0] if left_range else ()
            row = self.row(low, name, precision, errors[worse], bound, values[1], truth)
            overflowed = errors[worse] == np.inf and any(
                misplaced(value, exact) for value, exact in zip(values[worse], truths[worse], strict=True)
            )
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
        row = self.row(low, name, precision, shares[worse], Bound(0.0, why), [each[name] for each in low.candidate])
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
        rows = self.broken(kind, precision)
        if rows:
            return rows
        bound = Bound(bound.value, f"{self.labels[worse]}, in units of one rounding: {bound.derivation}")
        return [self.row(kind, name, precision, figures[worse], bound, low[1], cap=np.inf)]
