"""What was found beside the rows: where a difference is born, what has no partner, which planted faults show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: What is said of a point that differs.
BORN, INHERITED, UNKNOWN = "born here", "inherited", "unknown"
#: What becomes of a planted fault: a row fails, none fails, or no figure is another one than without it.
KILLED, SURVIVED, UNTOUCHED = "killed", "survived", "without effect"
#: Or it could not be planted.
FAILED = "not planted"


@dataclass(frozen=True)
class Finding:
    """One point that differs, in the reference's data order.

    Args:
        reference: the point's name on the reference side.
        candidate: the point's name on the candidate's.
        what: "value", or "gradient" of the loss there.
        where: file and line of each side's own code, "" where none is known.
        birth: "born here": from equal values before it comes another one; "inherited": from equal values comes an equal
            one; "unknown": it could not be run on the other side's values, or may have been reached past them.
        measured: how far the two are apart, relative to the reference's value; NaN where they have no layout in common.
        bound: what rounding explains.
        local: the same with the reference's values fed in at every point before; NaN where that could not be done.
    """

    reference: str
    candidate: str
    what: str
    where: tuple[str, str]
    birth: str
    measured: float
    bound: float
    local: float

    @property
    def name(self) -> str:
        """Of the point, on both sides where they differ."""
        return self.reference if self.reference == self.candidate else f"{self.reference} = {self.candidate}"

    @property
    def agrees(self) -> bool:
        """Whether rounding explains it."""
        return self.measured <= self.bound


@dataclass(frozen=True)
class Unmatched:
    """A point of one side that no point of the other is; `side` is "reference" or "candidate"."""

    side: str
    name: str
    reason: str


@dataclass(frozen=True)
class Planted:
    """A fault that was planted into a check that had passed, and what became of it.

    Args:
        kind: what it is, in words.
        name: where it is.
        outcome: "killed", "survived", "without effect" or "not planted".
        by: the row or the error that killed it, or why it could not be planted; "" for the others.
    """

    kind: str
    name: str
    outcome: str
    by: str


def mutation_score(planted: Sequence[Planted]) -> float | None:
    """The share of killed faults among those that have an effect; None where there are none.

    A fault without effect is no other function on these numbers (an equivalent mutant), or the check does not reach it.
    """
    outcomes = [each.outcome for each in planted if each.outcome in (KILLED, SURVIVED)]
    return outcomes.count(KILLED) / len(outcomes) if outcomes else None
