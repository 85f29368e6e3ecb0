"""Layouts: the axis orders, splits and merges under which two arrays hold the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

Shape = tuple[int, ...]

#: Axes that are told apart: more of them would be tried for too long.
MOST_AXES = 6


@dataclass(frozen=True)
class Layout:
    """`there(a)` is `a.reshape(split).transpose(order).reshape(merged)`; `back` undoes it."""

    origin: Shape
    split: Shape
    order: tuple[int, ...]
    merged: Shape

    def there(self, array: np.ndarray) -> np.ndarray:
        """The array in the other layout; a view where it can be one."""
        return array.reshape(self.split).transpose(self.order).reshape(self.merged)

    def back(self, array: np.ndarray) -> np.ndarray:
        """The inverse of `there`."""
        cut = tuple(self.split[axis] for axis in self.order)
        return array.reshape(cut).transpose(np.argsort(self.order)).reshape(self.origin)

    @property
    def kind(self) -> tuple[int, ...]:
        """What layouts of arrays of other sizes have in common."""
        return (len(self.split), *self.order)

    def __str__(self) -> str:
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
    """The layouts that take `a` to `b`."""
    flat = b.reshape(-1)
    head = min(flat.size, 64)
    for layout in layouts(a.shape, b.shape):
        first = a.reshape(layout.split).transpose(layout.order).flat[:head]
        if equal(np.asarray(first), flat[:head]) and equal(layout.there(a).reshape(-1), flat):
            yield layout


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
