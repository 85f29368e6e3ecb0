"""The proof of a float32 island that cannot be widened: a table that was worked out in float32 before the run.

Widening recomputes what a program computes. A table of sines that the model holds as float32 numbers keeps its
rounding, and two sides that rounded theirs at other places stay apart. It is no more than that if (1) every difference
that is left is born, on equal values, inside a module in which such a table meets the data, and (2) moving the tables
by one unit in their last place moves the result as far: rounding them once is half a unit at most.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from .bounds import LESS_ACCURATE
from .capture import owner
from .compare import errors_by_name, keep_largest
from .findings import BORN, Finding, Unmatched
from .islands import Island
from .kinds import kinds_of
from .result import Row
from .rows import label_of
from .runs import Arrays, Run
from .sides import Sides

#: Nudges of the tables, whose largest effect counts.
NUDGES = 2


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
    weights: Arrays,
    batches: Sequence[Arrays],
    seed: int,
) -> list[Row]:
    """The rows that fail in a widened run, judged by how far the float32 tables of either side move the same tensor."""
    spread: dict[str, float] = {}
    for nudge in range(NUDGES):
        moved = sides.nudged(weights, batches, seed + nudge)
        for kind, base in zip(kinds_of(moved), kinds_of(exact), strict=True):
            for side, other in ((kind.reference, base.reference), (kind.candidate, base.candidate)):
                errors = errors_by_name(side, other)
                keep_largest(spread, {label_of(kind.kind, name): error for name, error in errors.items()})
    return [_judged(row, spread.get(row.name, 0.0)) if row.verdict == "FAIL" else row for row in rows]


def _judged(row: Row, moved: float) -> Row:
    bound = LESS_ACCURATE * moved
    why = f"{LESS_ACCURATE} (convention) x what one unit in the last place of the float32 tables moves: {moved:.2g}"
    return replace(row, bound=bound, derivation=why, verdict="PASS" if row.measured <= bound else "FAIL")


def _words(name: str) -> list[str]:
    return [part for part in re.split(r"[./:]", owner(name)) if part and not part.isdigit()]
