"""What was seen inside one side: points by name with their values and gradients, in NumPy. Loads no framework."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from .errors import ParityUsageError
from .fingerprints import Fingerprint, distances, fingerprint
from .trees import rebuilt

#: what the outermost module is called
ROOT = "model"
#: the source of a point that is what a module is given
GIVEN = "input"
#: stands for a value that is kept elsewhere
NOTHING = np.zeros(0)
#: between fingerprints of the same numbers that were computed, or are added up, in another order
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Point:
    """One place in a run and what passed there.

    Args:
        name: the module's path ("h.1.ln_2"), with ":in" for what it is given where that is no point already, the path
            and the call ("h.1.attn/rearrange 'b t d -> b d t'"), or the tap's own name; repeated names end in "#2" (an
            input in the number of the call), an iteration of a scan stands after the path ("h.ln_2[1]"), the place
            within an output of several arrays after a colon ("h.0.attn:0").
        source: "module", "input", "einops" or "tap".
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
    """The points of one run in data order, and a line for each thing that could not be seen and why.

    `uncompiled`: what is compiled (torch.compile) was seen as it runs uncompiled. `aliases`: inputs of modules that are
    no points of their own, by the names that they would have, and the points that they are.
    """

    points: tuple[Point, ...]
    unseen: tuple[str, ...] = ()
    uncompiled: bool = False
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Point:
        """The point of that name.

        Raises:
            KeyError: there is none.
        """
        return self._by_name[name]

    def get(self, name: str) -> Point | None:
        """The point of that name, or that an input of that name is; None where there is neither."""
        return self._by_name.get(name) or self._by_name.get(self.aliases.get(name, ""))

    def hollow(self) -> tuple[Capture, dict[str, np.ndarray]]:
        """The same without its values and gradients, and these, for `filled`."""
        arrays: dict[str, np.ndarray] = {}
        points = []
        for k, point in enumerate(self.points):
            arrays[f"{k} value"] = point.value
            if point.gradient is not None:
                arrays[f"{k} gradient"] = point.gradient
            points.append(replace(point, value=NOTHING, gradient=None))
        return replace(self, points=tuple(points)), arrays

    def filled(self, arrays: Mapping[str, np.ndarray]) -> Capture:
        """A hollow one with its values and gradients again."""
        points = (
            replace(point, value=arrays[f"{k} value"], gradient=arrays.get(f"{k} gradient"))
            for k, point in enumerate(self.points)
        )
        return replace(self, points=tuple(points))

    @property
    def names(self) -> Collection[str]:
        """Of all points."""
        return self._by_name.keys()

    def distinct(self, batch: Sequence[np.ndarray] = ()) -> Capture:
        """Without inputs of modules that hold the numbers of a point before them, or of what the model was given.

        Behind a transformation (remat, scan) such a one is another object, and is not recognised while it runs.
        """
        known = [fingerprint(array) for array in batch] + [point.fingerprint for point in self.points]
        asked = {k: point.fingerprint for k, point in enumerate(self.points, len(batch)) if point.source == GIVEN}
        if not asked:
            return self
        near = distances([*asked.values()], known) <= ROUNDING
        first: dict[int, int] = {}  # of an input that stands earlier: where
        for k, row in zip(asked, near, strict=True):
            same = (other for other in range(k) if row[other] and known[other].numel == known[k].numel)
            if (other := next(same, None)) is not None:
                first[k] = first.get(other, other)
        kept = tuple(point for k, point in enumerate(self.points, len(batch)) if k not in first)
        names = [""] * len(batch) + [point.name for point in self.points]
        dropped = {names[k]: names[other] for k, other in first.items() if names[other]}
        aliases = {name: dropped.get(point, point) for name, point in self.aliases.items()}
        return replace(self, points=kept, aliases={**aliases, **dropped})

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
        return numbered(name, self._seen[name])


def numbered(name: str, number: int) -> str:
    """A name as it is given for the first time, or for another one."""
    return name if number == 1 else f"{name}#{number}"


def call_label(path: str, kind: str, pattern: str) -> str:
    """What follows the path in the name of an einops call."""
    return f"{'/' if path else ''}{kind} '{pattern}'"


def map_inputs(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], visit: Callable[[str, Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and keywords of a module's own function with `visit(label, argument)` in place of each.

    The label follows the path in the name of an input: ":in" for the first parameter, ":in.mask" for another one,
    however it is given.
    """
    names = _parameters(function)
    labels = [f":in.{names[k] if k < len(names) else k}" if k else ":in" for k in range(len(args))]
    first = names[0] if names else None
    return (
        tuple(map(visit, labels, args)),
        {name: visit(":in" if name == first else f":in.{name}", given) for name, given in kwargs.items()},
    )


@cache
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of those that may be given by position, without the module itself; none where nothing is known."""
    try:
        parameters = [*inspect.signature(function).parameters.values()][1:]
    except (TypeError, ValueError):
        return ()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(each.name for each in parameters if each.kind in positional)


def owner(name: str) -> str:
    """The module whose point that is: for an input the one that is given it, whose caller has computed it."""
    return re.sub(r":in(\.[^#]*)?(#\d+)?$", "", name)


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
