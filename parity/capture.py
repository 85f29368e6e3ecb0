"""What was seen inside one side: points by name with their values and gradients, in NumPy. Loads no framework."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .errors import ParityUsageError
from .fingerprints import Fingerprint, fingerprint
from .trees import rebuilt

#: what the outermost module is called
ROOT = "model"


@dataclass(frozen=True, eq=False)
class Point:
    """One place in a run and what passed there.

    Args:
        name: the module's path ("h.1.ln_2"), the path and the call ("h.1.attn/rearrange 'b t d -> b d t'"), or the
            tap's own name; repeated names end in "#2", an iteration of a scan stands after the path ("h.ln_2[1]"), the
            place within an output of several arrays after a colon ("h.0.attn:0").
        source: "module", "einops" or "tap".
        where: file and line of the model's own code that asked for it, "" where none is known.
        value: what was computed there, before anything was fed in; None where it could not be kept.
        gradient: of the loss in what the run went on with; None for whole numbers and where none was taken.
        changeable: whether a value can be fed in.
    """

    name: str
    source: str
    where: str
    shape: tuple[int, ...]
    dtype: str
    value: np.ndarray
    gradient: np.ndarray | None = None
    changeable: bool = True

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The value's, computed once."""
        return fingerprint(self.value)


@dataclass(frozen=True, eq=False)
class Capture:
    """The points of one run in data order, and a line for each thing that could not be seen and why."""

    points: tuple[Point, ...]
    unseen: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Point:
        """The point of that name.

        Raises:
            KeyError: there is none.
        """
        return self._by_name[name]

    @property
    def names(self) -> Collection[str]:
        """Of all points."""
        return self._by_name.keys()

    @cached_property
    def _by_name(self) -> dict[str, Point]:
        return {point.name: point for point in self.points}


class Names:
    """Gives the second of a name "#2", the third "#3"."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def unique(self, name: str) -> str:
        """The name, numbered if it was given before."""
        self._seen[name] += 1
        return name if self._seen[name] == 1 else f"{name}#{self._seen[name]}"


def call_label(path: str, kind: str, pattern: str) -> str:
    """What follows the path in the name of an einops call."""
    return f"{'/' if path else ''}{kind} '{pattern}'"


def map_arrays(output: Any, visit: Callable[[str, Any], Any], opaque: tuple[type, ...] = ()) -> Any:
    """`output` with `visit(slot, leaf)` in place of every leaf of its tuples, lists, mappings and dataclasses.

    The slot is "" for a lone leaf, else ":0" or ":cache.key". What nothing changed in stays the same object; an
    instance of `opaque` is a leaf itself.
    """
    return rebuilt(output, lambda path, leaf: visit(f":{path}" if path else "", leaf), opaque, alone="")


def check_fed(name: str, given: Any, shape: Sequence[int]) -> None:
    """A value to feed in at a point.

    Raises:
        ParityUsageError: its shape is not the point's.
    """
    if np.shape(given) != tuple(shape):
        raise ParityUsageError(
            f"feed: an array of the point's shape {tuple(shape)}, got {np.shape(given)} for {name!r}; carry it there"
        )


def refuse_unknown(feed: Mapping[str, Any], known: Sequence[str]) -> None:
    """Whatever is fed must meet its point.

    Raises:
        ParityUsageError: a name that no point has.
    """
    if missing := sorted(set(feed) - set(known)):
        raise ParityUsageError(f"feed: names of points of this run, got {missing[0]!r}; see the points of a capture")
