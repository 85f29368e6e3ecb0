"""The matmul work of a pair by every method: the counts side by side, whether they agree, what could not be counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .errors import ANYTHING
from .frames import told

Counts = Mapping[str, Mapping[str, int | None]]
#: Pass -> path of the module that wrote it, "" for none -> FLOPs.
Placed = Mapping[str, Mapping[str, int]]

#: What is counted: one call of the model, and a call with the gradient of every parameter.
FORWARD, FORWARD_BACKWARD = "forward", "forward_backward"

#: XLA's own analysis has elementwise work in it too: shown, never compared.
SHOWN_ONLY = "xla_lowered"


@dataclass(frozen=True)
class Reconciliation:
    """XLA's figure beside the parts of which it should be the sum.

    Args:
        parts: kind of instruction -> FLOPs, exact integers.
        transcendentals: exp, tanh, rsqrt ..., which are in no part.
        figure: what XLA says, the body of a loop as often as it runs.
        rounding: how far XLA's float32 sum may be from the exact one.
        unread: instructions for which there is no rule here: `figure` has them, `parts` do not.
    """

    parts: Mapping[str, int]
    transcendentals: int
    figure: int
    rounding: float = 0.0
    unread: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return sum(self.parts.values())

    @property
    def explained(self) -> bool:
        """Whether the parts add up to XLA's figure: exactly, or above 2^24 within the rounding of its own sum."""
        return not self.unread and abs(self.figure - self.total) <= self.rounding

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "unread": list(self.unread), "total": self.total, "explained": self.explained}


@dataclass(frozen=True)
class Work:
    """Matmul FLOPs of one batch.

    `flops` has the count of each method for "forward" and "forward_backward", None where `notes` say why there is none.
    A method is "formula", "jaxpr", "torch" or "xla_lowered"; of a shared one the candidate's is "jaxpr LABEL".
    `reconciled` takes apart what XLA counts, by method and pass.
    """

    flops: Counts = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reconciled: Mapping[str, Mapping[str, Reconciliation]] = field(default_factory=dict)

    @property
    def methods(self) -> list[str]:
        """The methods whose counts must be one integer."""
        return [method for method in next(iter(self.flops.values()), {}) if not method.startswith(SHOWN_ONLY)]

    @property
    def differing(self) -> set[str]:
        """The passes of which two methods count other numbers."""
        return {
            name for name, counts in self.flops.items() if len({counts[each] for each in self.methods} - {None}) > 1
        }

    @property
    def equal(self) -> bool | None:
        """Whether these counts are one integer; None: fewer than two could be made, or one could not."""
        found = [{counts[method] for method in self.methods} for counts in self.flops.values()]
        if self.differing:
            return False
        whole = len(self.methods) > 1 and all(None not in numbers for numbers in found)
        return True if whole else None


def merge(reference: Work, candidate: Work, label: str, formula: Mapping[str, int] | None) -> Work:
    """Both sides' counts and the formula's; `label` is the candidate's, for what both sides count."""
    flops, reconciled = {}, dict(reference.reconciled)
    for method, passes in candidate.reconciled.items():
        reconciled[f"{method} {label}" if method in reconciled else method] = passes
    for name, counts in reference.flops.items():
        own = candidate.flops[name]
        apart = {(f"{method} {label}" if method in counts else method): count for method, count in own.items()}
        both = {**counts, **apart}
        flops[name] = {each: both[each] for each in sorted(both)}
        if formula is not None:
            flops[name] = {"formula": formula[name], **flops[name]}
    return Work(flops, tuple(dict.fromkeys((*reference.notes, *candidate.notes))), reconciled)


def collect(methods: Sequence[tuple[str, str, Callable[[], int | None]]], label: str) -> Work:
    """Counts from (pass, method, count) of the side `label`; one that raises is None, with a note.

    A model that cannot be counted is no worse a model. Whatever is raised becomes the note: somebody's model that is
    traced, or run on the meta device, may raise anything.
    """
    notes: list[str] = []
    flops: dict[str, dict[str, int | None]] = {}
    for name, method, count in methods:
        try:
            found = count()
        except ANYTHING as error:
            found = None
            notes.append(f"{label} by {method}: no count, {told(error)}")
        flops.setdefault(name, {})[method] = found
    return Work(flops, tuple(dict.fromkeys(notes)))
