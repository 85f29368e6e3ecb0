"""Before anything is judged: batches are drawn, both sides are made ready, their weights are shown to be the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from .conversions import Converted, converted
from .errors import ANYTHING, NoFloat64Error, ParityUsageError
from .fields import refuse_misfits
from .frames import told
from .links import Blocks, Mapped
from .matching import CLOSE, CLOSE_IN_FLOAT32, Matched, known_numbers, match_names, match_values
from .options import Options
from .pair import Pair
from .result import Row
from .runners import Linked
from .runs import Arrays, named_arrays
from .sides import Sides, rounded
from .trees import Form, children, leaves
from .weights.weight_map import WeightMap

#: The line of the report for parameters that only one side has.
WEIGHTS = "weights"


@dataclass(frozen=True)
class Prepared:
    """What the stages start from: numbers that are exact in float32, so that every precision can start from them.

    `unpaired` names the parameters of each side that have no equal on the other, `batches` are as many as are pooled or
    stepped over, `pooled` how many of them are independent.
    """

    pair: Pair
    sides: Sides
    weights: Arrays
    batches: list[Arrays]
    pooled: int
    unpaired: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    notes: tuple[str, ...] = ()


def unpaired_rows(prepared: Prepared) -> list[Row]:
    """A row for each parameter that has no equal on the other side, by value: nothing is said about its gradient.

    Numbers that one side holds once and the other several times are tied weights on one side only, which fails.
    """
    sides = prepared.sides.reference, prepared.sides.candidate
    held = [
        {name: known_numbers(runner.own[name]) for name in names}
        for runner, names in zip(sides, prepared.unpaired, strict=True)
    ]
    counts = [Counter(each.values()) for each in held]
    rows = []
    for runner, keys in zip(sides, held, strict=True):
        for name, key in keys.items():
            array = runner.own[name]
            times = [count[key] for count in counts]
            if key is not None and all(times):
                verdict = "FAIL"
                held_by = " and ".join(f"{n} of {each.label}'s" for n, each in zip(times, sides, strict=True))
                why = f"these numbers are {held_by} parameters: tied on one side only"
            else:
                verdict = "ABSTAIN"
                why = f"only {runner.label} has a parameter of these numbers: its gradient is not compared"
            rows.append(
                Row(
                    name=f"weights {name}",
                    group=WEIGHTS,
                    side_names=prepared.sides.labels,
                    shape=array.shape,
                    dtype=array.dtype.name,
                    stage="float64",
                    measured=float("inf"),
                    bound=0.0,
                    derivation=why,
                    verdict=verdict,
                )
            )
    return rows


def prepare(pair: Pair, options: Options) -> Prepared:
    """A pair made ready.

    Raises:
        ParityUsageError: its inputs, weights or sides cannot be run.
    """
    refuse_misfits(pair)
    if isinstance(pair.weights, Mapping):
        pair = replace(pair, weights=named_arrays("weights", pair.weights))
    form, batches = drawn(pair, options)
    sides = Sides.of(pair, form, options.device, options.grads)
    _pair_state(sides)
    prepared = Prepared(pair, sides, {}, batches, options.batches if callable(pair.inputs) else 1)
    if isinstance(pair.weights, Mapping):
        return replace(prepared, weights=rounded(pair.weights, "float32"))
    if isinstance(pair.weights, WeightMap):
        return _mapped(prepared, pair.weights)
    if pair.weights == "loaded":
        return _loaded(prepared, options.grads)
    if pair.weights == "infer":
        raise ParityUsageError("weights: 'loaded', a WeightMap or a dict of arrays, got 'infer', which is yet to come")
    found = repr(pair.weights) if isinstance(pair.weights, str) else type(pair.weights).__name__
    raise ParityUsageError(f"weights: 'loaded', a WeightMap or a dict of arrays, got {found}; give one of these")


def _pair_state(sides: Sides) -> None:
    """Tells each side which of its state the other one has, by name, and which floats it has in other numbers."""
    mine, theirs = sides.reference.state, sides.candidate.state
    pairs = match_names(mine, theirs)
    sides.candidate.aliases = {f"state {b}": f"state {a}" for a, b in pairs}
    equal = [(a, b) for a, b in pairs if np.array_equal(mine[a], theirs[b])]
    for side, runner in enumerate((sides.reference, sides.candidate)):
        shared = {names[side] for names in equal}
        floats = [name for name, value in runner.state.items() if value.dtype.kind in "fc"]
        runner.share([names[side] for names in pairs], [name for name in floats if name not in shared])


def drawn(pair: Pair, options: Options) -> tuple[Form, list[Arrays]]:
    """Batches by name, and how a side is called with one; those that are a function's come from one generator.

    Raises:
        ParityUsageError: inputs that are no arrays in a tuple or dict, or that change their form.
    """
    # one fixed batch again and again: its errors would count as many, so that it is pooled once
    count = max(options.batches if callable(pair.inputs) else 1, options.steps, options.curve)
    return draw_batches(pair, np.random.Generator(np.random.PCG64(options.seed)), count)


def draw_batches(pair: Pair, generator: np.random.Generator, count: int) -> tuple[Form, list[Arrays]]:
    """So many batches of a pair by name, and how a side is called with one; the errors of `drawn`."""
    given = pair.inputs
    try:
        batches = [given(generator) if callable(given) else given for _ in range(count)]
    except ANYTHING as error:  # whatever the caller's function raises
        raise ParityUsageError(
            f"inputs: a function of a NumPy Generator that returns a batch, got {told(error)}; "
            "call it by itself, the traceback (--debug) shows where"
        ) from error
    for batch in batches:
        if not isinstance(batch, tuple | list | Mapping):
            found = type(batch).__name__
            raise ParityUsageError(f"inputs: a tuple or dict of arrays, got {found}; write (array,) or {{'x': array}}")
        for name, value in children(batch) or ():
            numbers = [leaf for _, leaf in leaves(value)] if isinstance(value, list) else []
            if numbers and all(isinstance(number, int | float) for number in numbers):
                raise ParityUsageError(f"inputs: arrays, got a list of numbers for {name!r}; write np.asarray(...)")
    forms = [Form(tuple(batch) if isinstance(batch, list) else batch) for batch in batches]
    arrays = [named_arrays("inputs", form.arrays()) for form in forms]
    for each in arrays:
        if each.keys() != arrays[0].keys():
            raise ParityUsageError(
                f"inputs: the same names in every batch, got {', '.join(each)} after {', '.join(arrays[0])}; "
                "give arrays of the same names"
            )
    return forms[0], [rounded(each, "float32") for each in arrays]


def _mapped(prepared: Prepared, weight_map: WeightMap) -> Prepared:
    reference, candidate = prepared.sides.own
    return _linked(prepared, Mapped.of(weight_map, reference, candidate), reference)


def _loaded(prepared: Prepared, grads: bool) -> Prepared:
    """Pairs the parameters by their values; what values leave open is told apart by the first batch's gradients.

    Without gradients by names alone.
    """
    reference, candidate = prepared.sides.own
    matched = match_values(reference, candidate)
    if matched.open and grads:
        matched = _settled(prepared, matched, reference)
    link = converted(matched.link, reference, candidate)
    notes = link.notes if isinstance(link, Converted) else ()
    if not matched.link.trivial:
        notes = (*notes, f"weights paired by value: {matched.link.told or 'none'}")
    sides = zip(prepared.sides.labels, link.apart, strict=True)
    if alone := [f"{len(names)} of {label}'s" for label, names in sides if names]:
        notes = (*notes, f"weights that only one side has, by value: {' and '.join(alone)}; load the same into both")
    return replace(_linked(prepared, link, reference), unpaired=link.apart, notes=notes)


def _settled(prepared: Prepared, matched: Matched, reference: Arrays) -> Matched:
    sides, batches = prepared.sides, prepared.batches[:1]
    weights = rounded(reference, "float32")

    def gradients(precision: str) -> tuple[Arrays, Arrays]:
        (mine,), (theirs,) = (
            Sides(runner, runner).reference_run(each, batches, precision)
            for runner, each in ((sides.reference, weights), (sides.candidate, matched.link.forward(weights)))
        )
        return mine.gradients, theirs.gradients

    try:
        return matched.settled(*gradients("float64"), CLOSE)
    except NoFloat64Error:
        return matched.settled(*gradients("float32"), CLOSE_IN_FLOAT32)


def _linked(prepared: Prepared, link: Blocks | Converted | Mapped, reference: Arrays) -> Prepared:
    sides = prepared.sides
    if not isinstance(link, Blocks) or not link.trivial:
        unpaired = frozenset() if isinstance(link, Mapped) else frozenset(link.apart[0])
        sides = Sides(sides.reference, Linked(sides.candidate, link), unpaired=unpaired)
    return replace(prepared, sides=sides, weights=rounded(reference, "float32"))
