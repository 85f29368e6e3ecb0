"""Which parameter of one side is which of the other, told from the numbers that they hold, in whatever layout.

A fingerprint is the sum of a mixed-up form of every element's bits: it does not depend on the order, it is exact but
for a chance of 2^-64, and that of a packed tensor is the sum of those of its parts.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from .layouts import find_layouts, layouts
from .links import Blocks, Cut, Move, part
from .runs import Arrays, is_float

Key = tuple[int, int]
Block = tuple[str, Cut | None]
Group = int | Key
Equal = Callable[[np.ndarray, np.ndarray], bool]

#: Between the rounding of float64 in a gradient and the gap between gradients that have nothing to do with each other;
#: in float32 half of its digits.
CLOSE, CLOSE_IN_FLOAT32 = 1e-6, 2.0**-12

#: Into how many parts a packed tensor is cut: keys and values; queries, keys and values; the gates of an LSTM.
PARTS = (2, 3, 4)

#: Words that the names of one parameter differ in between libraries: left out, or written as another.
FILLING = (
    "weight kernel scale embedding value params model module layers layer h block blocks gamma w running batch stats"
)
SYNONYMS = {"beta": "bias", "b": "bias", "norm": "ln", "layernorm": "ln"}


@dataclass(frozen=True)
class Matched:
    """A link, and the groups of moves in it that the numbers alone leave open (several tensors of zeros)."""

    link: Blocks
    open: tuple[tuple[Move, ...], ...] = ()

    def settled(self, reference: Arrays, candidate: Arrays, close: float) -> Matched:
        """The same with its open groups told apart by gradients, which are given under each side's own names.

        Gradients are equal that are `close`, relative to their largest element.
        """
        kept = [move for move in self.link.moves if not any(move in group for group in self.open)]
        for group in self.open:
            kept += _settled(group, reference, candidate, partial(_close, close=close))
        return Matched(replace(self.link, moves=tuple(kept)))


def match_values(reference: Arrays, candidate: Arrays) -> Matched:
    """Pairs every parameter whose numbers, as a multiset, stand on the other side too; whole tensors, then blocks."""
    finder = _Finder(*({name: _plain(array) for name, array in side.items()} for side in (reference, candidate)))
    finder.whole()
    finder.packed(0)
    finder.packed(1)
    finder.whole()  # what was one of too many is alone now
    # of zeros and ones the numbers say nothing: what is likely comes before what is possible
    finder.constants()
    finder.packed(0, constants=True)
    finder.packed(1, constants=True)
    finder.whole(reshaped=True)
    moves = finder.voted()
    found = {move.source for move in moves}, {move.target for move in moves}
    apart = (
        tuple(name for name in reference if name not in found[0]),
        tuple(name for name in candidate if name not in found[1]),
    )
    link = Blocks(
        moves=tuple(moves),
        sources={name: array.shape for name, array in reference.items()},
        targets={name: array.shape for name, array in candidate.items()},
        apart=apart,
        kept={name: candidate[name] for name in apart[1]},
    )
    groups = dict.fromkeys(index for index in finder.groups if index is not None)
    return Matched(
        link,
        tuple(tuple(m for m, g in zip(moves, finder.groups, strict=True) if g == group) for group in groups),
    )


def match_names(reference: Arrays, candidate: Arrays) -> list[tuple[str, str]]:
    """Pairs arrays of the same size by their names alone, the most alike first; whole numbers share at least a word."""
    pairs = []
    for size, is_whole in dict.fromkeys((array.size, not is_float(array)) for array in reference.values()):
        mine, theirs = (
            [(name, None) for name, array in side.items() if (array.size, not is_float(array)) == (size, is_whole)]
            for side in (reference, candidate)
        )
        found = _assigned(mine, theirs, lambda a, b: -alike(a[0], b[0]))
        pairs += [(a[0], b[0]) for a, b in found if not is_whole or alike(a[0], b[0])]
    return pairs


def fingerprint(array: np.ndarray) -> Key:
    """The number of elements, and the sum of their mixed bits modulo 2^64."""
    bits = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
    total = 0
    for start in range(0, bits.size, 2**16):  # in the cache
        mixed = bits[start : start + 2**16].astype(np.uint64)
        for factor, shift in ((0x9E3779B97F4A7C15, 29), (0xBF58476D1CE4E5B9, 32), (0x94D049BB133111EB, 31)):
            mixed = (mixed + np.uint64(1)) * np.uint64(factor)
            mixed ^= mixed >> np.uint64(shift)
        total = (total + int(np.add.reduce(mixed))) % 2**64
    return bits.size, total


def known_numbers(array: np.ndarray) -> Key | None:
    """The fingerprint of an array whose numbers tell it from others; None for a constant."""
    return None if _constant(array) else fingerprint(_plain(array))


def alike(a: str, b: str) -> float:
    """How much two names share: 0 to 1."""
    words = [Counter(_words(name)) for name in (a, b)]
    total = sum(sum(each.values()) for each in words)
    return 2 * sum((words[0] & words[1]).values()) / total if total else 1.0


def _plain(array: np.ndarray) -> np.ndarray:
    """float32, zero without a sign."""
    return np.asarray(array, np.float32) + np.float32(0)


class _Finder:
    """Collects moves between two sides; `groups` has a number for those whose partner or layout is open."""

    def __init__(self, left: Arrays, right: Arrays):
        self.sides = (left, right)
        self.moves: list[Move] = []
        self.groups: list[Group | None] = []

    def whole(self, reshaped: bool = False) -> None:
        """Tensors that hold the same numbers; constant ones have the same sizes as well, unless `reshaped`."""
        sources, targets = (self._by_sizes(side, reshaped) for side in self._left())
        for key, blocks in sources.items():
            if len(blocks) == len(targets.get(key, ())):
                self._take(blocks, targets[key])

    def constants(self) -> None:
        """Constant tensors of the same sizes of which one side has more: those that have the most fitting names."""
        sources, targets = (self._by_sizes(side, False) for side in self._left())
        for key, blocks in sources.items():
            if key[1] and key in targets:
                pairs = _assigned(blocks, targets[key], lambda a, b: -alike(a[0], b[0]))
                self._take([a for a, _ in pairs], [b for _, b in pairs])

    def _by_sizes(self, side: Arrays, reshaped: bool) -> dict[tuple[Key, tuple[int, ...]], list[Block]]:
        """Whole tensors by their numbers, and where these are all one by the sizes of their axes."""
        keyed: dict[tuple[Key, tuple[int, ...]], list[Block]] = defaultdict(list)
        for name, array in side.items():
            told = reshaped or not _constant(array)
            sizes = () if told else (1, *sorted(size for size in array.shape if size > 1))
            keyed[fingerprint(array), sizes].append((name, None))
        return keyed

    def packed(self, side: int, constants: bool = False) -> None:
        """Tensors of one side (0 or 1) that are several of the other's, joined along an axis or stacked.

        Constant ones are stacked; `constants` are joined too, and are all that is looked at then.
        """
        rest = self._left()
        keyed = _keyed(((name, None), array) for name, array in rest[1 - side].items())
        order = list(rest[1 - side])

        def fits(other: str, name: str) -> float:
            """How much better a name fits this one than any other: a last norm is no layer's."""
            return alike(other, name) - max((alike(other, each) for each in rest[side] if each != name), default=0.0)

        for name, array in rest[side].items():
            constant = _constant(array)
            if constants and not constant:
                continue
            for cuts in _cuts(array, stacked=constant and not constants):
                found = _keyed(((name, cut), part(array, cut)) for cut in cuts)
                if all(len(keyed.get(key, ())) >= len(blocks) for key, blocks in found.items()):
                    for key, blocks in found.items():
                        others = sorted(keyed[key], key=lambda other: -fits(other[0], name))[: len(blocks)]
                        keyed[key] = [other for other in keyed[key] if other not in others]
                        others.sort(key=lambda other: order.index(other[0]))
                        self._take(*((blocks, others) if side == 0 else (others, blocks)))
                    break

    def _left(self) -> list[dict[str, np.ndarray]]:
        """What is in no move yet, of either side."""
        done = {move.source for move in self.moves}, {move.target for move in self.moves}
        return [
            {name: array for name, array in each.items() if name not in taken}
            for each, taken in zip(self.sides, done, strict=True)
        ]

    def voted(self) -> list[Move]:
        """The moves; a layout that the numbers leave open (a square of zeros) is the one that its like have."""
        votes: dict[tuple[str, str, int], Counter[tuple[int, ...]]] = defaultdict(Counter)
        options = []
        for move in self.moves:
            a, b = self._block(0, (move.source, move.source_cut)), self._block(1, (move.target, move.target_cut))
            found = list(find_layouts(a, b, _equal)) if _constant(a) else [move.layout]
            options.append(found)
            if len(found) == 1:
                votes[_role(move)][move.layout.kind] += 1
        return [
            move._replace(layout=max(found, key=lambda layout: votes[_role(move)][layout.kind]))
            for move, found in zip(self.moves, options, strict=True)
        ]

    def _take(self, sources: Sequence[Block], targets: Sequence[Block]) -> None:
        """Moves between blocks of equal numbers; those of one group may be exchanged."""
        found = []
        for source, target in _assigned(sources, targets, lambda a, b: -alike(a[0], b[0])):
            layout = next(find_layouts(self._block(0, source), self._block(1, target), _equal), None)
            if layout is None:
                return  # the same numbers in an order that no layout explains
            found.append(Move(source[0], target[0], layout, source[1], target[1]))
        first = self._block(0, sources[0])
        group: Group | None = None
        if _constant(first):
            group = fingerprint(first)  # whatever else is of these numbers, in whichever tensor, may be meant
        elif len(found) > 1:
            group = len(self.moves)
        self.groups += [group] * len(found)
        self.moves += found

    def _block(self, side: int, block: Block) -> np.ndarray:
        return part(self.sides[side][block[0]], block[1])


def _keyed(blocks: Iterable[tuple[Block, np.ndarray]]) -> dict[Key, list[Block]]:
    keyed: dict[Key, list[Block]] = defaultdict(list)
    for block, array in blocks:
        keyed[fingerprint(array)].append(block)
    return keyed


def _cuts(array: np.ndarray, stacked: bool) -> Iterator[list[Cut]]:
    """Ways to cut an array: into the entries of its first axis, or, unless `stacked`, into equal ranges along any."""
    if array.ndim > 1 and array.shape[0] > 1:
        yield [(0, index, None) for index in range(array.shape[0])]
    if stacked:
        return
    for axis, size in enumerate(array.shape):
        for count in PARTS:
            if size % count == 0 and size > count:
                width = size // count
                yield [(axis, start, start + width) for start in range(0, size, width)]


def _assigned(
    sources: Sequence[Block], targets: Sequence[Block], cost: Callable[[Block, Block], float]
) -> list[tuple[Block, Block]]:
    """One target for each source, the cheapest pairs first, then in order."""
    costs = sorted(
        (cost(source, target), abs(i - j), i, j) for i, source in enumerate(sources) for j, target in enumerate(targets)
    )
    taken: tuple[set[int], set[int]] = (set(), set())
    pairs = []
    for _, _, i, j in costs:
        if i not in taken[0] and j not in taken[1]:
            taken[0].add(i)
            taken[1].add(j)
            pairs.append((i, sources[i], targets[j]))
    return [(source, target) for _, source, target in sorted(pairs, key=lambda pair: pair[0])]


def _role(move: Move) -> tuple[str, str, int]:
    return move.source.rpartition(".")[2], move.target.rpartition(".")[2], len(move.layout.origin)


def _settled(group: Sequence[Move], reference: Arrays, candidate: Arrays, equal: Equal) -> list[Move]:
    """The moves of a group with the partners and layouts that their gradients show."""
    mine = {(move.source, move.source_cut): part(reference[move.source], move.source_cut) for move in group}
    theirs = {(move.target, move.target_cut): part(candidate[move.target], move.target_cut) for move in group}
    ordered = [{block: np.sort(array, axis=None) for block, array in side.items()} for side in (mine, theirs)]

    def cost(source: Block, target: Block) -> float:
        return 2 * (not equal(ordered[0][source], ordered[1][target])) - alike(source[0], target[0])

    settled = []
    for source, target in _assigned(list(mine), list(theirs), cost):
        a, b = mine[source], theirs[target]
        guess = next(layouts(a.shape, b.shape))
        for move in group:  # the layout that was thought likely, where gradients say nothing
            guess = move.layout if (move.layout.origin, move.layout.merged) == (a.shape, b.shape) else guess
        layout = next(find_layouts(a, b, equal), guess)
        settled.append(Move(source[0], target[0], layout, source[1], target[1]))
    return settled


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.array_equal(a, b, equal_nan=True))


def _close(a: np.ndarray, b: np.ndarray, close: float) -> bool:
    scale = max(float(np.abs(a).max(initial=0.0)), float(np.abs(b).max(initial=0.0)))
    return bool(np.abs(a - b).max(initial=0.0) <= close * scale)


def _constant(array: np.ndarray) -> bool:
    return array.size > 0 and bool((array == array.flat[0]).all())


def _words(name: str) -> list[str]:
    parts = re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())
    return [SYNONYMS.get(part, part) for part in parts if part not in FILLING.split()]
