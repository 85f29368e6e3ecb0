"""The matmul work of a pair by every method: the counts side by side, whether they agree, what could not be counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

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
class Work:
    """Matmul FLOPs of one batch.

    `flops` has the count of each method for "forward" and "forward_backward", None where `notes` say why there is none.
    A method is "formula", "jaxpr", "torch" or "xla_lowered"; of a shared one the candidate's is "jaxpr LABEL".
    """

    flops: Counts = field(default_factory=dict)
    notes: tuple[str, ...] = ()

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
    flops = {}
    for name, counts in reference.flops.items():
        own = candidate.flops[name]
        apart = {(f"{method} {label}" if method in counts else method): count for method, count in own.items()}
        both = {**counts, **apart}
        flops[name] = {each: both[each] for each in sorted(both)}
        if formula is not None:
            flops[name] = {"formula": formula[name], **flops[name]}
    return Work(flops, tuple(dict.fromkeys((*reference.notes, *candidate.notes))))


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
