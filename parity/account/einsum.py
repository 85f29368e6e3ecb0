"""What an einops pattern costs, forward and for the gradient of each operand: no framework, no NumPy.

A product and its sum count two, so that an einsum costs twice the product of the sizes of its distinct axes, and
nothing where no axis is summed over: then it multiplies element by element. The gradient of an operand is an einsum
itself, of the result's gradient with the other operand, and is counted from its own axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ParityUsageError


@dataclass(frozen=True)
class Einsum:
    """One call: the axes of its operands and of its result, and the size of every axis."""

    operands: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]
    sizes: Mapping[str, int]

    @property
    def forward(self) -> int:
        """FLOPs of the result."""
        return self._flops(self.operands, self.result)

    def backward(self, operand: int) -> int:
        """FLOPs of the gradient in one operand; of a single one it is a broadcast, which costs none."""
        others = tuple(axes for index, axes in enumerate(self.operands) if index != operand)
        return self._flops((self.result, *others), self.operands[operand]) if others else 0

    def _flops(self, operands: Sequence[Sequence[str]], result: Sequence[str]) -> int:
        distinct = {axis for axes in operands for axis in axes}
        summed = distinct - set(result)
        return 2 * math.prod(self.sizes[axis] for axis in distinct) if summed and len(operands) > 1 else 0


def parse_einsum(pattern: str, shapes: Sequence[Sequence[int]]) -> Einsum:
    """A pattern of `einops.einsum` bound to the shapes of its operands.

    Raises:
        ParityUsageError: more than two operands, whose cost depends on the order; an ellipsis; sizes that do not fit.
    """
    left, arrow, right = pattern.partition("->")
    operands = tuple(tuple(each.split()) for each in left.split(","))
    axes = {axis for each in (*operands, tuple(right.split())) for axis in each}
    if not arrow or not all(axis.isidentifier() for axis in axes):
        raise ParityUsageError(f"einsum: a pattern of named axes such as 'b d, d f -> b f', got {pattern!r}; name them")
    if len(operands) > 2:
        raise ParityUsageError(f"einsum: one or two operands, got {len(operands)} in {pattern!r}; write it in steps")
    sizes: dict[str, int] = {}
    for names, shape in zip(operands, shapes, strict=True):
        if len(names) != len(shape):
            raise ParityUsageError(f"einsum: {len(names)} axes for {' '.join(names)!r}, got shape {tuple(shape)}")
        for axis, size in zip(names, shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                raise ParityUsageError(f"einsum: one size of {axis!r} in {pattern!r}, got {sizes[axis]} and {size}")
    return Einsum(operands, tuple(right.split()), sizes)
