"""From runs to rows: every tensor measured by `compare` and held against a bound of `bounds`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .bounds import Bound, accuracy_bound, float64_bound, twin_bound, zero_bound
from .compare import Arrays, Structure, distance, misplaced, pooled, rms, rounding, structure
from .result import Row
from .runs import is_float


@dataclass(frozen=True)
class Batches:
    """One kind of tensors (outputs, gradients, moments) of both sides, a dict of arrays per batch."""

    kind: str
    reference: Sequence[Arrays]
    candidate: Sequence[Arrays]

    def problems(self) -> list[Structure]:
        """Names, shapes and types that differ in any batch, each once."""
        found = {}
        for reference, candidate in zip(self.reference, self.candidate, strict=True):
            for problem in structure(reference, candidate):
                found.setdefault(problem.name, problem)
        return list(found.values())

    def names(self) -> Iterator[str]:
        """Float tensors that both sides have in the same shape, in the order of the reference."""
        broken = {problem.name for problem in self.problems()}
        for name, array in self.reference[0].items():
            if name not in broken and is_float(array):
                yield name


@dataclass(frozen=True)
class Judge:
    """Makes rows for one pair; `labels` are the names of reference and candidate."""

    labels: tuple[str, str]
    roundings: int

    def same_function(self, exact: Batches, low: Sequence[Arrays], zero: frozenset[str] = frozenset()) -> list[Row]:
        """float64 against float64, the reference's own float32 error setting the scale (bounds.float64_bound)."""
        rows = self._broken(exact, "float64")
        for name in exact.names():
            if name in zero:
                continue
            truth = [batch[name] for batch in exact.reference]
            other = [batch[name] for batch in exact.candidate]
            error32 = _relative([batch[name] for batch in low], truth)
            rows.append(self._row(exact, name, "float64", _relative(other, truth), float64_bound(error32), other))
        return rows

    def zero_gradients(self, exact: Batches, low: Sequence[Arrays]) -> tuple[frozenset[str], list[Row]]:
        """Gradients that vanish in theory (a key bias under softmax) on both sides; a row for those that do on one only."""
        zero, rows = set(), []
        for name in exact.names():
            sides = [[batch[name] for batch in side] for side in (exact.reference, exact.candidate)]
            noise = pooled([distance(a[name], b) for a, b in zip(low, sides[0], strict=True)])
            bound = zero_bound(noise)
            norms = [pooled([rms(array) for array in side]) for side in sides]
            vanishes = [norm <= bound.value for norm in norms]
            if all(vanishes):
                zero.add(name)
            elif any(vanishes):
                # one side has the gradient and the other has not: a constraint that only one of them obeys
                rows.append(self._row(exact, name, "float64", max(norms), bound, sides[1]))
        return frozenset(zero), rows

    def same_accuracy(
        self,
        exact: Batches,
        low: Batches,
        precision: str,
        zero: frozenset[str] = frozenset(),
        roundings: int | None = None,
    ) -> list[Row]:
        """Each side's error against its own float64 run, the worse one bounded by the better (bounds.accuracy_bound)."""
        rows = self._broken(low, precision)
        for name in low.names():
            if name in zero or name not in exact.reference[0] or name not in exact.candidate[0]:
                continue
            truth = [batch[name] for batch in exact.reference]
            values = [batch[name] for batch in low.reference], [batch[name] for batch in low.candidate]
            errors = (
                _relative(values[0], truth),
                _relative(values[1], [batch[name] for batch in exact.candidate]),
            )
            worse = int(errors[1] > errors[0])
            once = _relative([array.astype(values[0][0].dtype) for array in truth], truth)
            bound = accuracy_bound(
                errors[1 - worse], once, precision, self.roundings if roundings is None else roundings, _count(truth)
            )
            bound = Bound(bound.value, f"{self.labels[worse]} is further from its float64: {bound.derivation}")
            rows.append(self._row(low, name, precision, errors[worse], bound, values[1]))
        return rows

    def within_twins(
        self, exact: Batches, low: Batches, twins: Sequence[Arrays], precision: str, zero: frozenset[str]
    ) -> list[Row]:
        """The candidate's distance from its float64 run against that of the reference's twins (bounds.twin_bound)."""
        rows = self._broken(low, precision)
        for name in low.names():
            if name in zero or name not in exact.reference[0] or name not in exact.candidate[0]:
                continue
            truth, values = exact.reference[0][name], low.candidate[0][name]
            envelope = max(_relative([each[name]], [truth]) for each in (low.reference[0], *twins))
            bound = twin_bound(envelope, precision, self.roundings, len(twins))
            measured = _relative([values], [exact.candidate[0][name]])
            rows.append(self._row(low, name, precision, measured, bound, [values]))
        return rows

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
            once = pooled([rounding(b, a.dtype) for a, b in zip(values, truth, strict=True)])
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
        cap: float = 1.0,
    ) -> Row:
        """A verdict: FAIL above the bound or for misplaced infinities, ABSTAIN where the bound is the tensor itself."""
        wrong = sum(misplaced(a[name], b[name]) for a, b in zip(batches.reference, batches.candidate, strict=True))
        derivation, verdict = bound.derivation, "PASS"
        if wrong:
            measured, verdict = np.inf, "FAIL"
            derivation = f"NaN and infinity must stand in the same places, they do not at {wrong} elements"
        elif not any(np.isfinite(np.asarray(array, np.float64)).any() for array in values):
            verdict, derivation = "VACUOUS", "no element is finite, so that nothing was compared"
        elif not measured <= bound.value:
            verdict = "FAIL"
        elif bound.value >= cap:
            verdict, derivation = "ABSTAIN", f"the bound is as large as the tensor: {derivation}"
        shape, dtype = values[0].shape, values[0].dtype.name
        label = name if batches.kind in ("output", "operation") else f"{batches.kind} {name}"
        return Row(
            label,
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


def group_of(kind: str, name: str) -> str:
    """The table's line for a tensor: its module for a gradient, layers taken together; else its kind."""
    if kind in ("output", "operation"):
        return name
    if kind != "gradient":
        return kind.removesuffix(" parameters").removesuffix(" mu").removesuffix(" nu") if "stream" in kind else kind
    parts = [part for part in name.split(".") if not re.fullmatch(r"\d+", part)]
    head = ".".join(parts[: 2 if parts[0] == "layers" else 1])
    return f"{kind} {head}"


def _relative(values: Sequence[np.ndarray], truth: Sequence[np.ndarray]) -> float:
    """Root mean square error over root mean square of the truth, pooled over the batches."""

    def one(value: np.ndarray, exact: np.ndarray) -> float:
        error, scale = distance(value, exact), rms(exact)
        return error / scale if scale else (np.inf if error else 0.0)

    return pooled([one(value, exact) for value, exact in zip(values, truth, strict=True)])


def _count(arrays: Sequence[np.ndarray]) -> int:
    return sum(array.size for array in arrays)


def moved(start: Arrays, end: Arrays, nu: Arrays | None = None) -> dict[str, np.ndarray]:
    """How far each parameter went, in Adam's own metric where `nu` is given.

    Adam divides by sqrt(nu): noise in a gradient near zero becomes a whole step. Multiplying by sqrt(nu) of the exact run
    undoes that, so that errors are as large as the noise that caused them.
    """
    step = {name: end[name].astype(np.float64) - start[name].astype(np.float64) for name in end}
    if not nu:
        return step
    return {name: value * np.sqrt(nu[name].astype(np.float64)) for name, value in step.items()}
