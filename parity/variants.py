"""Other inputs for the same pair: faults hide on random numbers of unit variance and on fresh parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from .runs import Arrays, is_additive_mask, is_float, is_mask


class Variant(NamedTuple):
    """What was changed, in words, and the weights and inputs that came of it."""

    name: str
    weights: Arrays
    batch: Arrays
    zeros: bool = False  # whether whole tensors of the inputs are zero


def variants(weights: Arrays, batch: Arrays, seed: int) -> Iterator[Variant]:
    """Every change that these weights and inputs allow; float32 numbers all of them."""
    for name, change in FLOATS.items():
        if any(map(_is_value, batch.values())):
            generator = np.random.Generator(np.random.PCG64([seed, len(name)]))
            changed = {key: _changed(array, change, generator) for key, array in batch.items()}
            yield Variant(f"inputs {name}", weights, changed, zeros=name == ZERO)
    for key, array in batch.items():
        if array.ndim > 1 and (is_mask(array) or is_additive_mask(array)):
            closed = "all zero" if is_mask(array) else f"all {array.min():.3g}"
            row = "last row of " if array.shape[0] > 1 else ""
            yield Variant(f"{row}{key} {closed}", weights, {**batch, key: _without_last_row(array)})
    if (length := _length(batch)) is not None:
        yield Variant("shorter sequences", weights, _resized(batch, length, max(1, length // 2)))
        yield Variant("longer sequences", weights, _resized(batch, length, length + length // 2))
    constant = {name: array for name, array in weights.items() if _is_constant(array)}
    if constant:
        yield Variant("parameters of zeros or ones randomised", {**weights, **_randomised(constant, seed)}, batch)


#: The change after which nothing but zeros is given.
ZERO = "all zero"

#: Changes of float inputs: size, offset, zeros, ties, the corners of activations and clips.
FLOATS: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "x 1e-3": lambda array, generator: array * 1e-3,
    "x 1e3": lambda array, generator: array * 1e3,
    "+ 1e3": lambda array, generator: array + 1e3,
    "with a third of zeros": lambda array, generator: array * (generator.random(array.shape) > 1 / 3),
    ZERO: lambda array, generator: np.zeros_like(array),
    "rounded to halves, so that many are equal": lambda array, generator: np.round(2 * array) / 2,
    "of 0, 1, -1, 3, -3, 6": lambda array, generator: generator.choice([0.0, 1.0, -1.0, 3.0, -3.0, 6.0], array.shape),
}


def _changed(
    array: np.ndarray, change: Callable[[np.ndarray, np.random.Generator], np.ndarray], generator: np.random.Generator
) -> np.ndarray:
    return np.asarray(change(array, generator), np.float32) if _is_value(array) else array


def _is_value(array: np.ndarray) -> bool:
    """Numbers that a model computes with, and no mask that is added to others."""
    return is_float(array) and not is_additive_mask(array)


def _without_last_row(array: np.ndarray) -> np.ndarray:
    """A mask that lets nothing of the last row through: zero where ones do, what is least where it is added."""
    changed = array.copy()
    changed[-1] = array.min() if is_float(array) else 0
    return changed


def _length(batch: Arrays) -> int | None:
    """The size of the second axis, if all inputs with two axes and more have the same."""
    sizes = {array.shape[1] for array in batch.values() if array.ndim > 1}
    return sizes.pop() if len(sizes) == 1 and max(sizes) > 1 else None


def _resized(batch: Arrays, length: int, new: int) -> dict[str, np.ndarray]:
    """Along the second axis, repeated where it grows."""
    return {
        name: np.take(array, np.arange(new) % length, axis=1) if array.ndim > 1 else array
        for name, array in batch.items()
    }


def _is_constant(array: np.ndarray) -> bool:
    return is_float(array) and array.size > 0 and bool((array == array.flat[0]).all()) and array.flat[0] in (0, 1)


def _randomised(constant: Arrays, seed: int) -> dict[str, np.ndarray]:
    """What a new model has as zeros or ones, as training leaves it: a fault may be multiplied by zero."""
    generator = np.random.Generator(np.random.PCG64([seed, 0]))
    return {
        name: (array + 0.1 * generator.standard_normal(array.shape)).astype(np.float32)
        for name, array in constant.items()
    }
