"""As accurate at a working precision? Each side against its own float64 run, the worse one held against the better."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import permutations
from typing import Any

import numpy as np

from .bounds import NO_FLOOR, Bound, optimizer_floor, path_floor, stored_floor
from .compare import errors_by_name, keep_largest, pooled, relative, rms
from .judge import Errors
from .kinds import all_same_bits, kinds_of, step_kinds
from .result import Row
from .rows import Batches, some
from .runners import Runner
from .runs import Arrays, Path, running
from .sides import neighbours, perturbed, rounded
from .stages import Stages, is_narrow
from .streams import STREAM_STEPS, gradient_streams, stream_path

Twin = Callable[[Arrays], Arrays]

#: Draws of an operation's operands at least: over one draw of a few hundred elements its limit is exceeded by chance.
DRAWS = 8

#: Runs from weights one ulp away: two already bound clean training runs, four are recommended (docs/numerics.md).
TWINS = 4

#: What `compare.structure` says of a type of 16 bits beside float32.
MIXED = {f"type {a} against {b}" for narrow in ("bfloat16", "float16") for a, b in permutations((narrow, "float32"))}


def working_precision(stages: Stages, precision: str) -> list[Row]:
    """Outputs, gradients, optimizer steps and streams, each side against its own float64 run."""
    weights = rounded(stages.weights, precision)
    later = stages.options.precisions[stages.options.precisions.index(precision) + 1 :]
    rows = stages.judge.in_range(stages.weights, weights, precision) + _run_accuracy(stages, weights, precision)
    if all(map(is_narrow, later)):
        stages.exact = ([], [])  # nothing that follows starts from these weights
    if stages.optimizes:
        stages.progress(f"{precision}: optimizer steps")
        rows += _step_accuracy(stages, weights, precision)
        rows += stream_accuracy(stages, precision)
    if all(map(is_narrow, later)):
        stages.path, stages.trained = None, None
    if is_narrow(precision):
        rows += single_operations(stages, precision)
    return _without_own_types(stages, rows, precision)


def _without_own_types(stages: Stages, rows: list[Row], precision: str) -> list[Row]:
    """Where one side keeps a type whatever it is given (a NumPy number, autocast), what fails decides nothing.

    Unless the weights are of 16 bits: such a model has to give the same type on both sides.
    """
    prepared = stages.prepared
    weights = prepared.pair.weights if isinstance(prepared.pair.weights, Mapping) else {}
    held = [array.dtype.itemsize for arrays in (*stages.sides.own, weights) for array in arrays.values()]
    kept = next((row for row in rows if not row.compared and row.derivation in MIXED), None)
    if kept is None or 2 in held:
        return rows
    stages.notes += (
        f"{precision}: {kept.name} is not compared ({kept.derivation}): something in one side keeps its type "
        "(autocast, a NumPy number, jnp.linspace without a dtype), which shows where a whole model is of another",
    )
    return [replace(row, verdict="ABSTAIN") if row.verdict == "FAIL" else row for row in rows]


def _run_accuracy(stages: Stages, weights: Arrays, precision: str) -> list[Row]:
    """Outputs and gradients; the truth is the float64 run on the numbers that this precision starts from."""
    stages.progress(f"{precision}: outputs and gradients")
    pooled = [rounded(batch, precision) for batch in stages.pooled]
    exact = stages.sides.run(weights, pooled, "float64") if is_narrow(precision) else stages.exact
    # the reference's float32 run was the scale of the float64 rule
    reference = stages.low if precision == "float32" else []
    reference, stages.low = reference or stages.sides.reference_run(weights, pooled, precision), []
    low = reference, stages.sides.candidate_run(weights, pooled, precision)
    stages.bitwise &= all_same_bits(low)
    truths, values = kinds_of(exact), kinds_of(low)
    spreads = _spreads(
        stages, truths, precision, lambda twin: kinds_of(stages.sides.run(twin(weights), pooled, precision))
    )

    @cache
    def moved() -> list[tuple[Batches, Batches]]:
        """What the exact results of the reference become from numbers that are one unit in the last place away."""
        near = neighbours(weights, pooled, precision, stages.options.seed, TWINS)
        twins = (stages.sides.reference_run(*each, "float64") for each in near)
        return [kinds_of((twin, twin)) for twin in twins]

    def response(kind: int, name: str) -> float:
        exact = [batch[name] for batch in truths[kind].reference]
        return max(relative([batch[name] for batch in twin[kind].reference], exact) for twin in moved())

    return [
        row
        for kind, (truth, value, spread) in enumerate(zip(truths, values, spreads, strict=True))
        for row in stages.judge.same_accuracy(
            truth, value, precision, stages.zero, spread=spread, response=partial(response, kind)
        )
        if stages.options.grads or truth.kind != "gradient"
    ]


def _step_accuracy(stages: Stages, weights: Arrays, precision: str) -> list[Row]:
    """Movement and moments after some steps along one path."""
    stepped = [rounded(batch, precision) for batch in stages.stepped]
    if is_narrow(precision) or stages.path is None or stages.trained is None:
        stages.path, stages.trained = None, None  # from weights that this precision does not have
        stages.path = stages.sides.lead(weights, stepped, precision)
        stages.trained = stages.sides.train(stages.path, stepped, "float64")
    path, truths = stages.path, step_kinds("step", stages.trained)

    def twins(twin: Twin) -> Sequence[Batches]:
        points = [twin(point) for point in path.points]
        return step_kinds("step", stages.sides.train(Path(points, path.units), stepped, precision))

    spreads = _spreads(stages, truths, precision, twins)
    values = step_kinds("step", stages.sides.train(path, stepped, precision))
    movement = (path_floor(precision, stages.judge.roundings), optimizer_floor())
    if stuck := _never_moving(truths[0], values[0], stages.zero):
        stages.beside += (
            f"in {precision} a step moves no element of {some(stuck)} on either side, in float64 it does: it is less "
            "than half a unit in the last place, and a master copy in float32 would keep it",
        )
    rows = []
    for truth, value, spread in zip(truths, values, spreads, strict=True):
        floor = partial(_of_movement, path, truth, precision, movement) if truth.kind.endswith("parameters") else None
        rows += stages.judge.same_accuracy(truth, value, precision, stages.zero, floor, spread)
    return rows


def _never_moving(truth: Batches, value: Batches, zero: frozenset[str]) -> list[str]:
    """Parameters of which no element moves on either side, although both float64 runs move them."""
    return [
        name
        for name in value.names()
        if name not in zero
        and all(rms(side[0][name]) for side in (truth.reference, truth.candidate))
        and not any(np.any(side[0][name]) for side in (value.reference, value.candidate))
    ]


def _of_movement(path: Path, truth: Batches, precision: str, floors: Sequence[Bound], name: str) -> Bound:
    """The largest of some floors and of what storing the parameters takes."""
    moved = rms(truth.reference[0][name])
    units = path.units or [{}] * len(path.points)
    sizes = [rms(point[name] * unit.get(name, 1.0)) for point, unit in zip(path.points, units, strict=True)]
    stored = stored_floor(pooled(sizes) / moved, len(sizes), precision) if moved else NO_FLOOR
    return max((*floors, stored), key=lambda floor: floor.value)


def _always(floor: Bound, _: str) -> Bound:
    """The same floor for every tensor."""
    return floor


def stream_accuracy(stages: Stages, precision: str) -> list[Row]:
    """The optimizers alone."""
    start, *_ = stream_path(stages.options.seed, stages.shapes).points
    path = Path([rounded(start, precision)] * STREAM_STEPS)
    rows = []
    for name, drawn in gradient_streams(stages.options.seed, stages.shapes).items():
        stream = [rounded(gradient, precision) for gradient in drawn]
        exact, low = (
            step_kinds(f"{name} stream", stages.sides.follow(path, stream, each)) for each in ("float64", precision)
        )
        for truth, values in zip(exact, low, strict=True):
            if truth.kind.endswith("parameters"):
                floor = partial(_of_movement, path, truth, precision, [optimizer_floor()])
            else:  # the moments never meet the bias correction that a movement's floor allows for
                floor = partial(_always, path_floor(precision, STREAM_STEPS))
            rows += stages.judge.same_accuracy(truth, values, precision, floor=floor)
    return rows


def _spreads(
    stages: Stages, truths: Sequence[Batches], precision: str, run: Callable[[Twin], Sequence[Batches]]
) -> list[tuple[Errors, Errors]]:
    """The largest errors of each side's twins, for each kind of tensors; none where they are not needed.

    In 16 bits an element of a ReLU may fall on the other side of its kink. One such event is most of the error of
    many tensors, and a single run has it or has it not.
    """
    largest: list[tuple[dict[str, float], dict[str, float]]] = [({}, {}) for _ in truths]
    for index in range(TWINS if is_narrow(precision) else 0):
        stages.progress(f"{precision}: twin {index + 1} of {TWINS}, one unit in the last place away")
        values = run(partial(perturbed, precision=precision, seed=[stages.options.seed, index]))
        for kept, truth, value in zip(largest, truths, values, strict=True):
            keep_largest(kept[0], errors_by_name(value.reference, truth.reference))
            keep_largest(kept[1], errors_by_name(value.candidate, truth.candidate))
    return [*largest]


def single_operations(stages: Stages, precision: str) -> list[Row]:
    """Each operation of the pair alone, on operands that are exact in `precision`, against its own float64."""
    if stages.prepared.pair.operations:
        stages.progress(f"{precision}: operation by operation")
    rows = []
    for operation in stages.prepared.pair.operations:
        name = zlib.crc32(operation.name.encode())
        draws = []
        for index in range(max(DRAWS, stages.options.batches)):
            generator = np.random.Generator(np.random.PCG64([stages.options.seed, index, name]))
            draws.append(rounded(operation.draw(generator), precision))
        functions = (
            (stages.sides.reference, operation.reference),
            (stages.sides.candidate, operation.candidate),
        )
        exact, low = (
            [evaluated(runner, operation.name, function, draws, each) for runner, function in functions]
            for each in ("float64", precision)
        )
        bound = Bound(operation.limit, operation.derivation)
        rows += stages.judge.operation(f"operation {operation.name}", exact, low, precision, bound)
    return rows


def evaluated(
    runner: Runner, name: str, function: Callable[..., Any], draws: Sequence[Arrays], precision: str
) -> list[np.ndarray]:
    """One operation of one side on each set of operands."""
    with running(f"{runner.label}'s {name}", precision):
        return runner.evaluate(function, draws, precision)
