"""How one side's parameters lie in those of the other: blocks of numbers under two names and in two layouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from .errors import ParityUsageError
from .layouts import Layout
from .runs import Arrays
from .weights.rules import Rule
from .weights.weight_map import WeightMap

#: Which part of an array: a range along one axis, or an index of it (`stop` None); None: all of it.
Cut = tuple[int, int, int | None]
#: Ways to hold numbers that a note names.
MOST_WAYS = 4


class Move(NamedTuple):
    """A block of a reference parameter and the block of a candidate's that holds the same numbers."""

    source: str
    target: str
    layout: Layout
    source_cut: Cut | None = None
    target_cut: Cut | None = None

    @property
    def as_is(self) -> bool:
        """Whether both sides hold it in one layout."""
        return str(self.layout) == "same"

    @property
    def way(self) -> str:
        """How the candidate holds it, in words."""
        layout = "unchanged" if self.as_is else "transposed" if self.layout.transposes else f"as {self.layout}"
        return f"in parts, {layout}" if self.source_cut or self.target_cut else layout

    def __str__(self) -> str:
        names = [
            name + ("" if cut is None else f"[{':, ' * cut[0]}{cut[1]}{'' if cut[2] is None else f':{cut[2]}'}]")
            for name, cut in ((self.source, self.source_cut), (self.target, self.target_cut))
        ]
        return f"{names[0]} = {names[1]}: {self.layout}"


class Link(Protocol):
    """Takes parameters, and all that has their shapes, from the reference's names and layouts to the candidate's.

    Where numbers are moved and nothing is computed from them, gradients and moments go the way that parameters go.
    """

    @property
    def pairs(self) -> Iterable[tuple[str, str]]:
        """Parameters of the reference and of the candidate that hold the same numbers, by name."""

    def forward(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """The candidate's out of the reference's."""

    def backward(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """The reference's gradients and first moments out of the candidate's."""

    def squares(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """The reference's second moments out of the candidate's."""
        return self.backward(arrays)

    def gradients(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """The candidate's gradients out of the reference's."""
        return self.forward(arrays)

    def stepped(self, arrays: Arrays, start: Arrays) -> dict[str, np.ndarray]:
        """The reference's parameters out of the candidate's, after a step from the reference's `start`."""
        return self.backward(arrays)


@dataclass(frozen=True)
class Blocks(Link):
    """A link by moves.

    `sources` and `targets` are the shapes of each side's parameters. `apart` are those that have no counterpart: they
    keep the candidate's own numbers, which are `kept`.
    """

    moves: tuple[Move, ...]
    sources: Mapping[str, tuple[int, ...]]
    targets: Mapping[str, tuple[int, ...]]
    apart: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    kept: Arrays = field(default_factory=dict)

    @property
    def pairs(self) -> Iterable[tuple[str, str]]:
        """Those of the moves."""
        return ((move.source, move.target) for move in self.moves)

    @property
    def trivial(self) -> bool:
        """Whether both sides have the same names and shapes, so that nothing has to be moved."""
        plain = all(move.source == move.target and move.as_is for move in self.moves)
        return plain and not any(self.apart) and not any(move.source_cut or move.target_cut for move in self.moves)

    @property
    def told(self) -> str:
        """How the candidate holds the reference's numbers, in words, the commonest way first."""
        ways = Counter(move.way for move in self.moves)
        told = [f"{count} {way}" for way, count in ways.most_common(MOST_WAYS)]
        return ", ".join([*told, *(["..."] if len(ways) > MOST_WAYS else [])])

    def forward(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """The candidate's parameters; what has no counterpart is its own."""
        moved: dict[str, np.ndarray] = {}
        for move in self.moves:
            if move.source in arrays:
                value = move.layout.there(part(arrays[move.source], move.source_cut))
                put(moved, move.target, move.target_cut, value, self.targets)
        if any(name in self.sources for name in arrays):
            moved |= self.kept
        return {name: moved[name] for name in self.targets if name in moved}

    def backward(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """Under the reference's names and in its layout; what has no counterpart is left out."""
        moved: dict[str, np.ndarray] = {}
        for move in self.moves:
            if move.target in arrays:
                value = move.layout.back(part(arrays[move.target], move.target_cut))
                put(moved, move.source, move.source_cut, value, self.sources)
        return {name: moved[name] for name in self.sources if name in moved}


@dataclass(frozen=True)
class Mapped(Link):
    """A link by a WeightMap, whose sources are the reference's parameters and whose targets are the candidate's."""

    rules: tuple[Rule, ...]
    sources: Mapping[str, tuple[int, ...]]
    sizes: Mapping[str, Mapping[str, int]]

    @property
    def pairs(self) -> Iterable[tuple[str, str]]:
        """Those of the rules."""
        return ((rule.source, rule.target) for rule in self.rules)

    @classmethod
    def of(cls, weight_map: WeightMap, reference: Arrays, candidate: Arrays) -> Mapped:
        """The map bound to two sides, every parameter of both used once.

        Raises:
            ParityUsageError: names a parameter that no rule writes or reads, or one of another shape.
        """
        spelled = weight_map.spelled_like(reference)
        rules, sizes = [], {}
        for target, array in candidate.items():
            found = [rule for each in spelled.rules if (rule := each.at(target))]
            if len(found) != 1 or found[0].source not in reference:
                what = f"written by one rule out of {', '.join(list(reference)[:4])}, ..."
                got = f"{len(found)} rules" if len(found) != 1 else f"none named {found[0].source}"
                raise ParityUsageError(f"weight map: {target}: {what}, got {got}; complete the map")
            rules.append(found[0])
            sizes[target] = found[0].solve(reference[found[0].source].shape, array.shape)
        ignored = {name for name in reference if spelled.reason_to_ignore(name) is not None}
        if left := [name for name in reference if name not in ignored | {rule.source for rule in rules}]:
            raise ParityUsageError(f"weight map: {left[0]}: read by a rule or ignored, got neither; complete the map")
        return cls(tuple(rules), {name: array.shape for name, array in reference.items() if name not in ignored}, sizes)

    def forward(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """The candidate's parameters."""
        return {
            rule.target: rule.forward(np.asarray(arrays[rule.source]), self.sizes[rule.target])
            for rule in self.rules
            if rule.source in arrays
        }

    def backward(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """The reference's."""
        moved: dict[str, np.ndarray] = {}
        for rule in self.rules:
            if rule.target in arrays:
                value = arrays[rule.target]
                whole = moved.setdefault(rule.source, np.zeros(self.sources[rule.source], value.dtype))
                rule.backward(value, whole, self.sizes[rule.target])
        return {name: moved[name] for name in self.sources if name in moved}


def part(array: np.ndarray, cut: Cut | None) -> np.ndarray:
    """The block of an array that a cut names."""
    return array if cut is None else array[_index(cut)]


def _index(cut: Cut) -> tuple[slice | int, ...]:
    axis, start, stop = cut
    return (*[slice(None)] * axis, start if stop is None else slice(start, stop))


def put(
    moved: dict[str, np.ndarray], name: str, cut: Cut | None, value: np.ndarray, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Writes a block into its place in an array of `moved`."""
    if cut is None:
        moved[name] = value
    else:
        moved.setdefault(name, np.zeros(shapes[name], value.dtype))[_index(cut)] = value
