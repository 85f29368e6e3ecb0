"""Layouts: the axis orders, splits, merges and orders along an axis under which two arrays hold the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations

import numpy as np

Shape = tuple[int, ...]

#: Axes that are told apart: more of them would be tried for too long.
MOST_AXES = 6


@dataclass(frozen=True)
class Layout:
    """`there(a)` is `a.reshape(split).transpose(order).reshape(merged)`, then `moved`; `back` undoes it.

    `moved` has, for each axis of the result, the index that each of its entries had before; empty: all stay.
    """

    origin: Shape
    split: Shape
    order: tuple[int, ...]
    merged: Shape
    moved: tuple[tuple[int, ...], ...] = ()

    def there(self, array: np.ndarray) -> np.ndarray:
        """The array in the other layout; a view where it can be one."""
        array = array.reshape(self.split).transpose(self.order).reshape(self.merged)
        return array[np.ix_(*self.moved)] if self.moved else array

    def back(self, array: np.ndarray) -> np.ndarray:
        """The inverse of `there`."""
        if self.moved:
            array = array[np.ix_(*(np.argsort(indices) for indices in self.moved))]
        cut = tuple(self.split[axis] for axis in self.order)
        return array.reshape(cut).transpose(np.argsort(self.order)).reshape(self.origin)

    @property
    def kind(self) -> tuple[int, ...]:
        """What layouts of arrays of other sizes have in common."""
        return (len(self.split), *self.order)

    @property
    def transposes(self) -> bool:
        """Whether it takes a matrix to its transpose."""
        return self.order == (1, 0) and len(self.origin) == len(self.merged) == 2 and not self.moved

    @property
    def complexity(self) -> tuple[int, int]:
        """How many axes it splits or merges, and how many pairs of them it exchanges."""
        pairs = combinations(self.order, 2)
        return abs(len(self.split) - len(_without_ones(self.origin))), sum(first > second for first, second in pairs)

    def __str__(self) -> str:
        if self.moved:
            axes = [str(axis) for axis, indices in enumerate(self.moved) if indices != tuple(range(len(indices)))]
            return f"{replace(self, moved=())}, reordered along axis {' and '.join(axes)}"
        if self.origin == self.merged and self.order == tuple(range(len(self.order))):
            return "same"
        names = "abcdefgh"[: len(self.split)]
        left = _grouped(names, self.split, self.origin)
        moved = [names[axis] for axis in self.order]
        return f"{left} -> {_grouped(moved, [self.split[axis] for axis in self.order], self.merged)}"


def layouts(origin: Shape, target: Shape) -> Iterator[Layout]:
    """Every layout from one shape to another, the plainest first."""
    if math.prod(origin) != math.prod(target):
        return
    if origin == target:
        yield Layout(origin, origin, tuple(range(len(origin))), target)
    elif _without_ones(origin) == _without_ones(target):
        kept = _without_ones(origin)
        yield Layout(origin, kept, tuple(range(len(kept))), target)
    seen: set[tuple[Shape, tuple[int, ...]]] = set()
    for split in dict.fromkeys([_without_ones(origin), *_splits(_without_ones(origin), _without_ones(target))]):
        if len(split) > MOST_AXES:
            continue
        for order in permutations(range(len(split))):
            layout = Layout(origin, split, order, target)
            if (split, order) not in seen and _merges([split[axis] for axis in order], _without_ones(target)):
                seen.add((split, order))
                yield layout
    if origin != target:
        yield Layout(origin, (math.prod(origin),), (0,), target)


def find_layouts(a: np.ndarray, b: np.ndarray, equal: Callable[[np.ndarray, np.ndarray], bool]) -> Iterator[Layout]:
    """The layouts that take `a` to `b`; where none does, those that order the entries of an axis anew as well.

    A kernel turned round, features that were flattened in another order, gates or rotary pairs sorted otherwise.
    """
    found = False
    for layout in plain_layouts(a, b, equal):
        found = True
        yield layout
    if not found:
        yield from _reordered(a, b, equal)


def plain_layouts(a: np.ndarray, b: np.ndarray, equal: Callable[[np.ndarray, np.ndarray], bool]) -> Iterator[Layout]:
    """The layouts that take `a` to `b` and order no axis anew."""
    flat = b.reshape(-1)
    head = min(flat.size, 64)
    for layout in layouts(a.shape, b.shape):
        first = a.reshape(layout.split).transpose(layout.order).flat[:head]
        if equal(np.asarray(first), flat[:head]) and equal(layout.there(a).reshape(-1), flat):
            yield layout


def _reordered(a: np.ndarray, b: np.ndarray, equal: Callable[[np.ndarray, np.ndarray], bool]) -> Iterator[Layout]:
    """Layouts after which every axis has the right entries in some other order."""
    for layout in layouts(a.shape, b.shape):
        there = layout.there(a)
        moved = [_indices(there, b, axis) for axis in range(b.ndim)]
        if moved and all(indices is not None for indices in moved):
            reordered = replace(layout, moved=tuple(indices for indices in moved if indices is not None))
            if equal(reordered.there(a), b):
                yield reordered


def _indices(a: np.ndarray, b: np.ndarray, axis: int) -> tuple[int, ...] | None:
    """For each entry of `b` along an axis the one of `a` with the same numbers, in whatever order; None without one."""
    if a.ndim == 1:  # by rank, which rounding does not change
        return tuple(np.argsort(a, kind="stable")[np.argsort(np.argsort(b, kind="stable"))].tolist())
    keys = [
        [entry.tobytes() for entry in np.sort(np.moveaxis(each, axis, 0).reshape(each.shape[axis], -1))]
        for each in (a, b)
    ]
    places: dict[bytes, list[int]] = {}
    for index, key in reversed(list(enumerate(keys[0]))):
        places.setdefault(key, []).append(index)
    if any(keys[1].count(key) > len(places.get(key, ())) for key in set(keys[1])):
        return None
    return tuple(places[key].pop() for key in keys[1])


def _without_ones(shape: Sequence[int]) -> Shape:
    return tuple(size for size in shape if size != 1)


def _splits(shape: Shape, parts: Shape) -> Iterator[Shape]:
    """`shape` with its axes cut into factors that are axes of `parts`, each of these used at most once."""
    if not shape:
        yield ()
        return
    for factors, left in _factors(shape[0], parts):
        for rest in _splits(shape[1:], left):
            yield (*factors, *rest)


def _factors(size: int, parts: Shape) -> Iterator[tuple[Shape, Shape]]:
    yield (size,), _removed(parts, size)
    for count in range(2, min(len(parts), 3) + 1):
        for chosen in set(permutations(parts, count)):
            if math.prod(chosen) == size:
                left = parts
                for each in chosen:
                    left = _removed(left, each)
                yield chosen, left


def _removed(parts: Shape, size: int) -> Shape:
    if size not in parts:
        return parts
    index = parts.index(size)
    return parts[:index] + parts[index + 1 :]


def _merges(sizes: Sequence[int], target: Shape) -> bool:
    """Whether neighbouring axes of these sizes, taken together, give the axes of `target`."""
    rest = list(sizes)
    for size in target:
        product = 1
        while product < size and rest:
            product *= rest.pop(0)
        if product != size:
            return False
    return not rest


def _grouped(names: Sequence[str], sizes: Sequence[int], shape: Shape) -> str:
    groups, index = [], 0
    for size in _without_ones(shape):
        start, product = index, 1
        while product < size and index < len(names):
            product *= sizes[index]
            index += 1
        part = " ".join(names[start:index])
        groups.append(f"({part})" if index - start > 1 else part)
    return " ".join(groups)
