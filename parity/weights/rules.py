"""One line of a weight map: which part of which file tensor is which parameter, in einops notation."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from einops import rearrange

from .refusal import brief, refuse

FORM = "target <- source : pattern ; axis=size ; take axis=index"


class Take(NamedTuple):
    """The part of a file tensor's axis that a rule reads: one index (`stop` None, the axis goes away) or a range."""

    axis: str
    start: int
    stop: int | None


@dataclass(frozen=True)
class Rule:
    """`target <- source : pattern ; axis=size ; take axis=index`.

    `target` is a parameter, `source` a file tensor, `{i}` in both the number of a layer. The pattern reads from the
    axes of the file tensor to those of the parameter. Axes that the model has (d n k h f v t ...) get their sizes from
    its parameter table, others from `axis=size`. `take axis=2` and `take axis=0:2` cut one tensor that holds several
    parameters.

    Raises:
        ParityUsageError: a rule that cannot be inverted.
    """

    target: str
    source: str
    pattern: str
    sizes: tuple[tuple[str, int], ...] = ()
    take: tuple[Take, ...] = ()

    @classmethod
    def parse(cls, line: str) -> Rule:
        """The rule that one line of a map file writes."""
        head, _, tail = line.partition(" : ")
        target, arrow, source = (part.strip() for part in head.partition("<-"))
        pattern, *options = (part.strip() for part in tail.split(";"))
        if not (arrow and target and source and pattern.count("->") == 1):
            raise refuse(f"weight map: {line.strip()}", FORM, "another form", "correct the line")
        sizes, take = [], []
        for option in options:
            if found := re.fullmatch(r"(\w+)=(\d+)", option):
                sizes.append((found[1], int(found[2])))
            elif found := re.fullmatch(r"take (\w+)=(\d+)(?::(\d+))?", option):
                take.append(Take(found[1], int(found[2]), int(found[3]) if found[3] else None))
            else:
                raise refuse(f"weight map: {line.strip()}", FORM, brief(option), "correct the option")
        return cls(target, source, " ".join(pattern.split()), tuple(sizes), tuple(take))

    def __post_init__(self) -> None:
        file_axes, kept, parameter_axes = self._file_axes, self._kept, _axes(self._sides[1])
        unique = len(set(file_axes)) == len(file_axes) and len(set(parameter_axes)) == len(parameter_axes)
        taken = {take.axis for take in self.take}
        if not unique or set(kept) != set(parameter_axes) or not taken <= set(file_axes):
            raise refuse(
                f"weight map: {self}",
                "every axis once on each side, an axis that goes away taken at one index",
                f"{' '.join(file_axes)} on the left, {' '.join(parameter_axes)} on the right",
                "correct the pattern",
            )
        if ("{i}" in self.target) != ("{i}" in self.source):
            raise refuse(f"weight map: {self}", "{i} on both sides or on none", "it on one", "correct the names")

    def __str__(self) -> str:
        options = [f"{axis}={size}" for axis, size in self.sizes]
        for axis, start, stop in self.take:
            options.append(f"take {axis}={start}" if stop is None else f"take {axis}={start}:{stop}")
        return " ; ".join([f"{self.target} <- {self.source} : {self.pattern}", *options])

    @cached_property
    def _sides(self) -> tuple[str, str]:
        left, right = self.pattern.split(" -> ")
        return left, right

    @cached_property
    def _file_axes(self) -> list[str]:
        return _axes(self._sides[0])

    @cached_property
    def _kept(self) -> list[str]:
        gone = {take.axis for take in self.take if take.stop is None}
        return [axis for axis in self._file_axes if axis not in gone]

    def at(self, target: str) -> Rule | None:
        """This rule for one parameter, its layer filled in, or None if it is about another."""
        if found := match(self.target, target):
            return replace(self, target=target, source=self.source.replace("{i}", found.groupdict().get("i", "")))
        return None

    def file_shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Shape of the whole file tensor for the axis sizes of a model."""
        return _shape(self._sides[0], self._bind(sizes))

    def parameter_shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Shape of the parameter."""
        return _shape(self._sides[1], self._cut(sizes))

    def solve(self, file_shape: Sequence[int], parameter_shape: Sequence[int]) -> dict[str, int]:
        """Size of every axis, from the shapes of both tensors and the sizes that the rule gives.

        Raises:
            ParityUsageError: the shapes do not fit the pattern, or leave a size open.
        """
        sizes = dict(self.sizes)
        cut = {axis: stop - start for axis, start, stop in self.take if stop is not None}
        for _ in range(2):  # what one side tells may be what the other lacks
            for side, shape, known in ((0, file_shape, {}), (1, parameter_shape, cut)):
                groups = [_axes(group) for group in re.findall(r"\([^)]*\)|\w+", self._sides[side])]
                if len(groups) != len(shape):
                    raise refuse(f"weight map: {self}", f"{len(groups)} axes", f"shape {tuple(shape)}", "correct it")
                for axes, size in zip(groups, shape, strict=True):
                    unknown = [axis for axis in axes if axis not in known and axis not in sizes]
                    rest = math.prod(known.get(axis, sizes.get(axis, 1)) for axis in axes)
                    if len(unknown) == 1 and size % rest == 0:
                        sizes[unknown[0]] = size // rest
        expected = self.file_shape(sizes), self.parameter_shape(sizes)
        if expected != (tuple(file_shape), tuple(parameter_shape)):
            what = f"shapes {tuple(file_shape)} and {tuple(parameter_shape)}"
            raise refuse(f"weight map: {self}", f"the shapes {expected[0]} and {expected[1]}", what, "correct the rule")
        return sizes

    def part(self, tensor: np.ndarray, sizes: Mapping[str, int]) -> np.ndarray:
        """What this rule reads of the file tensor, one axis per letter; a view if the tensor is contiguous."""
        axes = self._file_axes
        bound = self._bind(sizes)
        parts = rearrange(tensor, f"{self._sides[0]} -> {' '.join(axes)}", **{axis: bound[axis] for axis in axes})
        index: list[int | slice] = [slice(None)] * len(axes)
        for axis, start, stop in self.take:
            index[axes.index(axis)] = start if stop is None else slice(start, stop)
        view: np.ndarray = parts[tuple(index)]
        return view

    def forward(self, tensor: np.ndarray, sizes: Mapping[str, int]) -> np.ndarray:
        """The parameter out of the file tensor, contiguous."""
        part = self.part(tensor, sizes)
        return np.ascontiguousarray(rearrange(part, f"{' '.join(self._kept)} -> {self._sides[1]}"))

    def backward(self, parameter: np.ndarray, tensor: np.ndarray, sizes: Mapping[str, int]) -> None:
        """Write the parameter into its place in `tensor`, the inverse of `forward`."""
        part = self.part(tensor, sizes)
        assert np.may_share_memory(part, tensor), f"{self}: the file tensor must be contiguous to be written to"
        cut = self._cut(sizes)
        pattern = f"{self._sides[1]} -> {' '.join(self._kept)}"
        part[...] = rearrange(parameter, pattern, **{axis: cut[axis] for axis in self._kept})

    def _bind(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Size of every axis of the file tensor; a range beyond it would be cut short silently, so it is refused."""
        known = {**sizes, **dict(self.sizes)}
        if unknown := [axis for axis in self._file_axes if axis not in known]:
            raise refuse(
                f"weight map: {self}",
                f"axes {' '.join(sorted(known))}",
                " ".join(unknown),
                "give its size with `axis=size`",
            )
        for axis, start, stop in self.take:
            if not start < (start + 1 if stop is None else stop) <= known[axis]:
                raise refuse(f"weight map: {self}", f"take within 0:{known[axis]}", f"{start}:{stop}", "correct it")
        return {axis: known[axis] for axis in self._file_axes}

    def _cut(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Size of every axis that is left after `take`."""
        bound = self._bind(sizes)
        ranges = {axis: stop - start for axis, start, stop in self.take if stop is not None}
        return {axis: ranges.get(axis, bound[axis]) for axis in self._kept}


def match(form: str, name: str) -> re.Match[str] | None:
    """Match a name against one with `{i}` (a number without leading zeros) and `*` (anything)."""
    pattern = re.escape(form).replace(r"\{i\}", r"(?P<i>0|[1-9][0-9]*)", 1).replace(r"\{i\}", "(?P=i)")
    return re.fullmatch(pattern.replace(r"\*", ".*"), name, re.DOTALL)


def _axes(side: str) -> list[str]:
    return re.findall(r"\w+", side)


def _shape(side: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    groups = re.findall(r"\([^)]*\)|\w+", side)
    return tuple(math.prod(sizes[axis] for axis in _axes(group)) for group in groups)
