"""What runs leave behind, sorted into the kinds that are judged alike: outputs, gradients, movements, moments."""

from __future__ import annotations

from collections.abc import Sequence

from .compare import same_bits
from .judge import Judge
from .result import Row
from .rows import Batches
from .runs import Run, Trained


def kinds_of(runs: tuple[list[Run], list[Run]]) -> tuple[Batches, Batches]:
    """Outputs and gradients of both sides."""
    return (
        Batches("output", *([run.outputs for run in side] for side in runs)),
        Batches("gradient", *([run.derivatives for run in side] for side in runs)),
    )


def same_runs(
    judge: Judge, exact: tuple[list[Run], list[Run]], low: Sequence[Run], grads: bool = True
) -> tuple[list[Row], frozenset[str]]:
    """Rows of outputs and, with `grads`, of gradients of two sides' float64 runs, and the gradients that are zero.

    `low` are the reference's in float32, the scale of the rule.
    """
    outputs, gradients = kinds_of(exact)
    coarse = [run.derivatives for run in low]
    rows = judge.same_function(outputs, [run.outputs for run in low])
    zero, one_sided = judge.zero_gradients(gradients, coarse)
    if not any(outputs.names()):  # of whole numbers alone there is nothing to differentiate
        one_sided = [row for row in one_sided if row.verdict != "VACUOUS"]
    if grads:
        rows += one_sided + judge.same_function(gradients, coarse, zero)
    return rows, zero


def step_kinds(kind: str, trained: tuple[Trained, Trained]) -> list[Batches]:
    """Movement and both moments of both sides, where the optimizer has them."""
    kinds = []
    for what in ("parameters", "mu", "nu"):
        reference, candidate = (getattr(side, what) for side in trained)
        if reference and candidate:  # `only_one_keeps` says where one has none
            kinds.append(Batches(f"{kind} {what}", [reference], [candidate]))
    return kinds


def only_one_keeps(trained: tuple[Trained, Trained], labels: tuple[str, str]) -> tuple[str, ...]:
    """A line for each moment that one optimizer keeps and the other has no counterpart of."""
    notes = []
    for what in ("mu", "nu"):
        keeps = [bool(getattr(side, what)) for side in trained]
        if any(keeps) and not all(keeps):
            notes.append(f"only {labels[keeps.index(True)]}'s optimizer keeps {what}: not compared")
    return tuple(notes)


def all_same_bits(runs: tuple[Sequence[Run], Sequence[Run]]) -> bool:
    """Whether outputs and gradients of every batch are the same bits on both sides."""
    return all(
        a.keys() == b.keys() and all(same_bits(a[name], b[name]) for name in a)
        for reference, candidate in zip(*runs, strict=True)
        for a, b in ((reference.outputs, candidate.outputs), (reference.derivatives, candidate.derivatives))
    )
