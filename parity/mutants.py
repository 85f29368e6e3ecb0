"""The faults that a mutation run plants into a side from outside, whatever the side is: one mistake of a port each.

They change what goes into a runner (weights, inputs) and what comes out of it (outputs, gradients, steps), so that they
need no source. How sensitive a test is, is measured by such faults since DeMillo, Lipton and Sayward (1978); these are
mistakes that ports were seen to make (docs/verdicts.md).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from .formats import FORMATS
from .pair import Operation
from .rounding import to_bits
from .runs import Arrays, Step, is_float, is_mask, is_state

Change = Callable[[Arrays], Arrays]

#: Tensors that each kind of fault is planted into, drawn at random where there are more.
EACH = 3
#: Off by so much: a constant with a wrong digit, a learning rate or a scale that was rounded.
SLIGHTLY = 1e-3
#: An output off by so much: far beyond float64's rounding, near float32's.
BARELY = 1e-6
#: A weight decay that one side has and the other has not, times a learning rate.
DECAY = 1e-4
#: By how much eps is larger, or gradients are smaller, which is the same to Adam; a power of two adds no rounding.
EPS = 8.0
#: Significand bits that a narrow format loses.
LOST = 3


def _same(arrays: Arrays) -> Arrays:
    return arrays


def _same_step(before: Arrays, step: Step) -> Step:
    return step


def _same_result(result: np.ndarray) -> np.ndarray:
    return result


@dataclass(frozen=True)
class Mutant:
    """One fault: what it is, where, and how it changes the arrays that pass.

    Args:
        kind: in words, the same for every place.
        name: of the place.
        weights, inputs: what the side computes with.
        gradients, input_gradients, outputs: what it gives back; a change of weights or inputs has its adjoint here.
        fed: the gradients that the optimizer sees.
        step: what an optimizer step leaves, from the parameters before it and the step as it should be.
        precision: in which alone it happens; None: in every one.
        operation: the function whose results alone are changed, by `result`.
    """

    kind: str
    name: str
    weights: Change = _same
    inputs: Change = _same
    outputs: Change = _same
    gradients: Change = _same
    input_gradients: Change = _same
    fed: Change = _same
    step: Callable[[Arrays, Step], Step] = _same_step
    precision: str | None = None
    operation: Callable[..., Any] | None = None
    result: Callable[[np.ndarray], np.ndarray] = _same_result

    def happens(self, precision: str) -> bool:
        """Whether a run in this precision has it."""
        return self.precision in (None, precision)


#: What changes nothing: the check that every other one is held against.
NONE = Mutant("no fault", "")


def mutants(
    weights: Arrays,
    batch: Arrays,
    outputs: Arrays,
    *,
    seed: int,
    precisions: Sequence[str] = (),
    operations: Sequence[Operation] = (),
    grads: bool = True,
    optimizes: bool = False,
    moments: bool = False,
) -> Iterator[Mutant]:
    """Every kind of fault that this check could meet, each in at most EACH places.

    Args:
        weights: the parameters that faults may be planted into: those whose gradient is not zero in theory.
        outputs: of one run, to know their names and types.
        grads, optimizes: whether the check has gradients and optimizer steps.
        moments: whether the optimizer divides by a second moment, so that it has an eps.
    """
    yield from _of_parameters(weights, seed)
    yield from _of_inputs(batch, seed)
    yield from _of_outputs(outputs, seed)
    if grads:
        yield from _of_gradients(weights, batch, seed)
    if optimizes:
        yield from _of_optimizers(weights, moments, seed)
    for precision in precisions:
        if any(map(is_float, weights.values())):
            yield _coarser(precision)
        if FORMATS[precision].precision < FORMATS["float32"].precision:
            yield from (_coarser_operation(operation, precision) for operation in operations)


def _of_parameters(weights: Arrays, seed: int) -> Iterator[Mutant]:
    floats = {name: array for name, array in weights.items() if is_float(array) and array.size > 1}
    square = {name: array for name, array in floats.items() if array.ndim == 2 and len({*array.shape}) == 1}
    halved = {name: array for name, array in floats.items() if array.shape[0] % 2 == 0}
    for name in _some(floats, "ignored", seed):
        neutral = np.ones_like if _is_gain(floats[name]) else np.zeros_like
        yield Mutant("parameter ignored", name, _at(name, neutral), gradients=_at(name, np.zeros_like))
    for name in _some(square, "transposed", seed):
        yield Mutant("square matrix transposed", name, _at(name, np.transpose), gradients=_at(name, np.transpose))
    for name in _some(halved, "halves", seed):
        yield Mutant("halves of the first axis exchanged", name, _at(name, _halves), gradients=_at(name, _halves))
    for one, other in _alike(floats, seed):
        change = _exchanged(one, other)
        yield Mutant("two parameters of one shape exchanged", f"{one} and {other}", change, gradients=change)
    for name in _some(floats, "scaled", seed):
        change = _at(name, _scaled(1 + SLIGHTLY))
        yield Mutant(f"parameter off by {SLIGHTLY:g}", name, change, gradients=change)
    for name in _some(floats, "rounded", seed):
        yield Mutant(
            "parameter rounded to bfloat16", name, _at(name, partial(to_bits, bits=FORMATS["bfloat16"].precision))
        )


def _of_inputs(batch: Arrays, seed: int) -> Iterator[Mutant]:
    for name in _some(batch, "inputs", seed):
        array = batch[name]
        ignored = np.ones_like if is_mask(array) else np.zeros_like
        if not np.array_equal(ignored(array), array):
            yield Mutant("input ignored", name, inputs=_at(name, ignored), input_gradients=_at(name, np.zeros_like))
        for kind, change, back in (
            ("input one position late", _rolled(1), _rolled(-1)),
            ("rows of one input in another order", _reversed, _reversed),
        ):
            if not np.array_equal(change(array), array):
                yield Mutant(kind, name, inputs=_at(name, change), input_gradients=_at(name, back))


def _of_outputs(outputs: Arrays, seed: int) -> Iterator[Mutant]:
    floats = {name: array for name, array in outputs.items() if is_float(array) and not is_state(name)}
    others = {name: array for name, array in outputs.items() if not is_float(array) and array.size}
    for name in _some(floats, "outputs", seed):
        yield Mutant(f"output off by {BARELY:g}", name, outputs=_at(name, _scaled(1 + BARELY)))
        if not np.array_equal(_rolled(1)(floats[name]), floats[name]):
            yield Mutant("output one position late", name, outputs=_at(name, _rolled(1)))
    for name in _some(others, "whole", seed):
        yield Mutant("one element of whole numbers or truth values changed", name, outputs=_at(name, _one_changed))
    for name in _some({name: None for name in outputs if is_state(name)}, "state", seed):
        yield Mutant("state not updated", name, outputs=_without(name))


def _of_gradients(weights: Arrays, batch: Arrays, seed: int) -> Iterator[Mutant]:
    floats = {name: array for name, array in weights.items() if is_float(array)}
    for name in _some(floats, "stopped", seed):
        yield Mutant("gradient stopped", name, gradients=_at(name, np.zeros_like))
    for name in _some(floats, "gradients", seed):
        yield Mutant(f"gradient off by {SLIGHTLY:g}", name, gradients=_at(name, _scaled(1 + SLIGHTLY)))
    for name in _some({name: array for name, array in batch.items() if is_float(array)}, "input gradients", seed):
        yield Mutant("gradient in an input stopped", name, input_gradients=_at(name, np.zeros_like))


def _of_optimizers(weights: Arrays, moments: bool, seed: int) -> Iterator[Mutant]:
    longer, decayed = _moved(lambda a, b: b + SLIGHTLY * (b - a)), _moved(lambda a, b: b - DECAY * a)
    yield Mutant(f"learning rate off by {SLIGHTLY:g}", "every parameter", step=longer)
    yield Mutant(f"weight decay {DECAY:g} a step more", "every parameter", step=decayed)
    for name in _some(weights, "left out", seed):
        yield Mutant("parameter left out of the optimizer", name, step=_left(name))
    if moments:
        smaller = _all(_scaled(1 / EPS))
        yield Mutant(f"eps {EPS:g} times larger", "every parameter", fed=smaller, step=_moments_restored)


def _coarser(precision: str) -> Mutant:
    """Numbers of fewer bits than the format has: float32 gets those of bfloat16."""
    bits = FORMATS[precision].precision
    fewer = FORMATS["bfloat16"].precision if precision == "float32" else bits - LOST
    kind = f"{precision} run with weights of {fewer} significand bits for {bits}"
    return Mutant(kind, "every parameter", _all(partial(to_bits, bits=fewer)), precision=precision)


def _coarser_operation(operation: Operation, precision: str) -> Mutant:
    bits = FORMATS[precision].precision - 1
    kind = f"{precision} operation one significand bit coarser"
    return Mutant(
        kind, operation.name, precision=precision, operation=operation.candidate, result=partial(to_bits, bits=bits)
    )


def _some(among: Iterable[str], kind: str, seed: int) -> list[str]:
    """At most EACH of the names, in their order; each kind of fault draws others."""
    names = list(among)
    if len(names) <= EACH:
        return names
    generator = np.random.Generator(np.random.PCG64([seed, zlib.crc32(kind.encode())]))
    return [names[index] for index in sorted(generator.choice(len(names), EACH, replace=False))]


def _alike(floats: Arrays, seed: int) -> list[tuple[str, str]]:
    """Pairs of neighbours among the parameters of one shape, and of other numbers."""
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for name, array in floats.items():
        by_shape.setdefault(array.shape, []).append(name)
    pairs = {f"{one} {other}": (one, other) for names in by_shape.values() for one, other in pairwise(names)}
    return [pairs[key] for key in _some(pairs, "alike", seed)]


def _at(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """A change of one array, where it is among them."""
    return lambda arrays: {**arrays, name: change(arrays[name])} if name in arrays else arrays


def _all(change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """A change of every array of floats."""
    return lambda arrays: {name: change(array) if is_float(array) else array for name, array in arrays.items()}


def _without(name: str) -> Change:
    return lambda arrays: {key: array for key, array in arrays.items() if key != name}


def _exchanged(one: str, other: str) -> Change:
    def change(arrays: Arrays) -> Arrays:
        return {**arrays, one: arrays[other], other: arrays[one]} if {one, other} <= arrays.keys() else arrays

    return change


def _moved(change: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[Arrays, Step], Step]:
    """A change of every parameter after a step, from those before and after it, in the type of the step."""

    def step(before: Arrays, after: Step) -> Step:
        moved = {}
        for name, array in after.parameters.items():
            with np.errstate(invalid="ignore", over="ignore"):  # infinities are the judge's
                new = change(np.asarray(before[name], np.float64), np.asarray(array, np.float64))
                moved[name] = np.asarray(new, array.dtype)
        return Step(moved, after.mu, after.nu)

    return step


def _left(name: str) -> Callable[[Arrays, Step], Step]:
    def step(before: Arrays, after: Step) -> Step:
        if name not in after.parameters:
            return after
        stayed = np.asarray(before[name], after.parameters[name].dtype)
        return Step({**after.parameters, name: stayed}, after.mu, after.nu)

    return step


def _moments_restored(before: Arrays, after: Step) -> Step:
    """The moments of gradients that were EPS times smaller, as they would have been."""
    return Step(after.parameters, _all(_scaled(EPS))(after.mu), _all(_scaled(EPS**2))(after.nu))


def _scaled(factor: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: np.asarray(np.asarray(array, np.float64) * factor, array.dtype)


def _rolled(positions: int) -> Callable[[np.ndarray], np.ndarray]:
    """Along the second axis, that of sequences, where there is one."""
    return lambda array: np.roll(array, positions, axis=1) if array.ndim > 1 else array


def _reversed(array: np.ndarray) -> np.ndarray:
    return array[::-1] if array.ndim else array


def _halves(array: np.ndarray) -> np.ndarray:
    return np.roll(array, array.shape[0] // 2, axis=0)


def _one_changed(array: np.ndarray) -> np.ndarray:
    changed = array.copy()
    changed.flat[0] = not changed.flat[0] if array.dtype == bool else changed.flat[0] + 1
    return changed


def _is_gain(array: np.ndarray) -> bool:
    """Whether leaving a parameter out means one and not zero: vectors around one."""
    return array.ndim == 1 and bool(abs(np.mean(array) - 1) < 0.5)
