"""Rows: one tensor of both sides, what was measured of it, the bound, and the verdict that follows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .bounds import Bound
from .compare import Structure, different, misplaced, non_finite, not_a_number, pooled, structure
from .result import Row
from .runs import Arrays, is_float

#: How many names a sentence has.
MOST_NAMED = 4
#: What is said of a tensor that is no number in float64, whatever the two sides agree on.
NO_NUMBER = "are NaN on both sides"
NOTHING_FINITE = "no element is finite, so that nothing was compared"


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
class RowMaker:
    """Makes rows for one pair; `labels` are the names of reference and candidate."""

    labels: tuple[str, str]

    def row(
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
            verdict, derivation = (
                "VACUOUS",
                NOTHING_FINITE if total else "it has no elements, so that nothing was compared",
            )
        elif stage == "float64" and batches.kind == "gradient" and (nan := sum(map(not_a_number, values))):
            # a mask may hold infinities; a gradient that is no number trains nothing, whatever the two agree on
            verdict, derivation = "VACUOUS", f"{nan} of {total} elements {NO_NUMBER}, where nothing compares"
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

    def choices(self, batches: Batches, stage: str) -> list[Row]:
        """Whole numbers and truth values of one side against the other's: a share of 0 differs."""
        rows = []
        for name in batches.names(floating=False):
            mine, theirs = ([batch[name] for batch in side] for side in (batches.reference, batches.candidate))
            share = pooled([different(a, b) for a, b in zip(mine, theirs, strict=True)])
            rows.append(self.row(batches, name, stage, share, Bound(0.0, "no float: every element equal"), theirs))
        return rows

    def broken(self, batches: Batches, stage: str) -> list[Row]:
        """Rows for the tensors that cannot be compared."""
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


def some(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


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
