"""The proof of a float32 island that cannot be widened: a table that was worked out in float32 before the run.

Widening recomputes what a program computes. A table of sines that the model holds as float32 numbers keeps its
rounding, and two sides that rounded theirs at other places stay apart. It is no more than that if (1) every difference
that is left is born, on equal values, inside a module in which such a table meets the data, and (2) moving the tables
by as many units in their last place as float32 may have them off moves the result as far.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .capture import owner
from .compare import error_of, rms
from .findings import BORN, Finding, Unmatched
from .islands import Island
from .result import Row
from .rows import label_of
from .runs import Arrays, Run, is_float
from .sides import Sides

#: Nudges of the tables, whose largest effect counts: where few entries of a table meet, one may cancel another's.
NUDGES = 6

#: Units in the last place that a table may be off by. 10^6 (the largest base of rotary angles in use) to a power that
#: float32 has rounded is off by ln(10^6) / 4 of them, the power itself by 1 and its reciprocal by 1/2: 8 is next above.
TABLE_UNITS = 8


def elsewhere(findings: Sequence[Finding], islands: Sequence[Island], unmatched: Sequence[Unmatched]) -> list[str]:
    """The points at which something is born, and no float32 table met the data just before.

    A table meets the data in the module that the point is part of, in the point's own module, or in a neighbour of it
    that is no point of the other side (rotary positions in a module of their own).
    """
    # a module is no point of the other side if its first output is none
    alone = {tuple(_words(each.name)) for each in unmatched if each.name.partition(":")[2] in ("", "0")}
    names = [name for each in findings for name in (each.reference, each.candidate)]
    first = {words[0] for words in map(_words, [*names, *(each.name for each in unmatched)]) if words}
    tables = []
    for island in islands:
        if island.operation == "constant" and island.meets:
            # a function that is made by another one is named after both, the root module's own call after the call
            table = _words(island.meets.rpartition("<locals>.")[2].removesuffix("__call__"))
            # linen's paths begin with the whole model's class
            tables.append(table if table and table[0] in first else table[1:])

    def explained(name: str) -> bool:
        words = _words(name)
        around = words[:-1]
        return any(
            table in (around, words) or (len(table) == len(words) and table[:-1] == around and tuple(table) in alone)
            for table in tables
        )

    born = [finding for finding in findings if finding.birth == BORN]
    return [finding.name for finding in born if not (explained(finding.reference) or explained(finding.candidate))]


def excused(
    rows: Sequence[Row],
    exact: tuple[list[Run], list[Run]],
    sides: Sides,
    tables: Collection[str],
    weights: Arrays,
    batches: Sequence[Arrays],
    seed: int,
) -> list[Row]:
    """The rows that fail in a widened run, judged by how far the float32 tables of the sides that hold them move it.

    As a whole, and vector by vector along the last axis: what the tables do not move (the first position, which is not
    rotated) has to agree to float64 rounding, or a fault that is smaller than their rounding would pass with them.
    """
    moves = {row.name: _Moves() for row in rows if row.verdict == "FAIL" and row.compared}
    for runner, base in zip((sides.reference, sides.candidate), map(_tensors, exact), strict=True):
        for nudge in range(NUDGES if runner.label in tables else 0):
            moved = _tensors(sides.nudged(runner, weights, batches, seed + nudge))
            for name in moves.keys() & moved.keys() & base.keys():
                moves[name].meet(moved[name], base[name])
    reference, candidate = map(_tensors, exact)
    return [moves[row.name].judged(row, reference, candidate) if row.name in moves else row for row in rows]


@dataclass
class _Moves:
    """How far nudges of the tables move one tensor: relative to the whole, and each vector of each batch."""

    whole: float = 0.0
    vectors: list[np.ndarray] = field(default_factory=list)

    def meet(self, moved: Sequence[np.ndarray], base: Sequence[np.ndarray]) -> None:
        """What one side gave with nudged tables, and without."""
        self.whole = max(self.whole, error_of(moved, base))
        found = [_lengths(a, b) for a, b in zip(moved, base, strict=True)]
        self.vectors = [np.maximum(a, b) for a, b in zip(self.vectors or found, found, strict=True)]

    def judged(self, row: Row, reference: Mapping[str, Any], candidate: Mapping[str, Any]) -> Row:
        """The row by this bound; it fails too if a vector is further apart than its tables move it."""
        bound, share = TABLE_UNITS * self.whole, 0.0
        for moved, a, b in zip(self.vectors, reference[row.name], candidate[row.name], strict=True):
            allowed = 2 * TABLE_UNITS * moved + row.bound * rms(a)  # twice, for nudges of a few entries may cancel
            share = max(share, float(np.max(_lengths(a, b) / np.maximum(allowed, np.finfo(float).tiny), initial=0)))
        why = (
            f"{TABLE_UNITS} x what one unit in the last place of the float32 tables moves: "
            f"{self.whole:.2g}; of a single vector along the last axis at most {share:.2g} of that"
        )
        passes = row.measured <= bound and share <= 1
        return replace(row, bound=bound, derivation=why, verdict="PASS" if passes else "FAIL")


def _tensors(runs: Sequence[Run]) -> dict[str, list[np.ndarray]]:
    """Outputs and gradients of every batch, by the names of their rows."""
    found: dict[str, list[np.ndarray]] = defaultdict(list)
    for run in runs:
        for kind, arrays in (("output", run.outputs), ("gradient", run.derivatives)):
            for name, array in arrays.items():
                if is_float(array):
                    found[label_of(kind, name)].append(array)
    return found


def _lengths(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Root mean squares of a - b along the last axis; of a vector or a number, one. Infinities are not counted."""
    with np.errstate(invalid="ignore"):
        apart = np.atleast_1d(a - b)
    return np.atleast_1d(np.sqrt(np.mean(np.square(np.where(np.isfinite(apart), apart, 0)), axis=-1)))


def _words(name: str) -> list[str]:
    return [part for part in re.split(r"[./:]", owner(name)) if part and not part.isdigit()]
