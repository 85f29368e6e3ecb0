"""The stages of a check: what is run at which precision, and which rule judges it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from .bounds import Bound, optimizer_floor, path_floor
from .compare import errors_by_name, keep_largest, moved, same_bits
from .errors import ParityUsageError
from .formats import FORMATS
from .judge import TWINS, Batches, Errors, Judge
from .options import Options
from .pair import Pair
from .result import Row
from .runs import Arrays, Run, Trained
from .sides import Sides, perturbed, rounded
from .streams import STREAM_STEPS, gradient_streams, stream_start

Progress = Callable[[str], None]


@dataclass
class Stages:
    """One pair under judgement: its sides, its batches, and what the float64 stage leaves for the later ones."""

    pair: Pair
    sides: Sides
    options: Options
    progress: Progress
    zero: frozenset[str] = frozenset()
    bitwise: bool = True
    exact: tuple[list[Run], list[Run]] = field(default=([], []), init=False)
    trained: tuple[Trained, Trained] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.judge = Judge(self.sides.labels, self.pair.roundings)
        generator = np.random.Generator(np.random.PCG64(self.options.seed))
        given = self.pair.inputs
        draw = given if callable(given) else lambda generator: given
        drawn = [draw(generator) for _ in range(max(self.options.batches, self.options.steps))]
        self.pooled, self.stepped = drawn[: self.options.batches], drawn[: self.options.steps]
        optimizers = self.pair.reference.optimizer, self.pair.candidate.optimizer
        if self.options.steps and optimizers.count(None) == 1:
            raise ParityUsageError("optimizer: on both sides or on neither, got one; give the other or use steps 0")
        self.optimizes = None not in optimizers and self.options.steps > 0

    def same_function(self) -> list[Row]:
        """float64 against float64, stage by stage, up to the first stage in which a row fails."""
        rows: list[Row] = []
        for stage in (self.outputs_and_gradients, self.model_steps, self.optimizer_streams):
            rows += stage()
            if any(row.verdict == "FAIL" for row in rows):
                break
        return rows

    def outputs_and_gradients(self) -> list[Row]:
        """Outputs, loss and gradients of the pooled batches in float64."""
        self.progress("float64: outputs and gradients")
        weights = self.pair.weights
        self.exact = self.sides.run(weights, self.pooled, "float64")
        low = [self.sides.reference.run(weights, batch, "float32") for batch in self.pooled]
        outputs, gradients = _kinds(self.exact)
        rows = self.judge.same_function(outputs, [run.outputs for run in low])
        self.zero, one_sided = self.judge.zero_gradients(gradients, [run.gradients for run in low])
        if not self.options.grads:
            return rows
        return rows + one_sided + self.judge.same_function(gradients, [run.gradients for run in low], self.zero)

    def model_steps(self) -> list[Row]:
        """Optimizer steps on the model's own gradients in float64."""
        if not self.optimizes:
            return []
        self.progress(f"float64: {self.options.steps} optimizer steps")
        weights = self.pair.weights
        low = self.sides.reference.train(weights, self.stepped, "float32")
        self.trained = self.sides.train(weights, self.stepped, "float64")
        rows = []
        for exact, of in _step_kinds("step", self.trained, weights):
            rows += self.judge.same_function(exact, [of(low, weights)], self.zero)
        return rows

    def optimizer_streams(self) -> list[Row]:
        """The optimizers alone, on gradients that show what a model's gradients hide."""
        if not self.optimizes:
            return []
        self.progress("float64: optimizers on synthetic gradients")
        start = stream_start(self.options.seed)
        rows = []
        for name, stream in gradient_streams(self.options.seed).items():
            low = self.sides.reference.follow(start, stream, "float32")
            for exact, of in _step_kinds(f"{name} stream", self.sides.follow(start, stream, "float64"), start):
                rows += self.judge.same_function(exact, [of(low, start)])
        return rows

    def working_precision(self, precision: str) -> list[Row]:
        """Outputs, gradients, optimizer steps and streams, each side against its own float64 run."""
        self.progress(f"{precision}: outputs and gradients")
        narrow = is_narrow(precision)
        weights = rounded(self.pair.weights, precision) if narrow else self.pair.weights
        later = self.options.precisions[self.options.precisions.index(precision) :]
        if all(map(is_narrow, later)):
            self.exact, self.trained = ([], []), None  # nothing that follows starts from these weights
        # the truth is the float64 run on the numbers that this precision starts from
        exact = self.sides.run(weights, self.pooled, "float64") if narrow else self.exact
        low = self.sides.run(weights, self.pooled, precision)
        self.bitwise &= _all_same_bits(low)
        spreads = self._spreads(exact, weights, precision) if narrow else [({}, {}), ({}, {})]
        rows = []
        for truth, values, spread in zip(_kinds(exact), _kinds(low), spreads, strict=True):
            if truth.kind == "gradient" and not self.options.grads:
                continue
            rows += self.judge.same_accuracy(truth, values, precision, self.zero, spread=spread)
        del exact, low
        if self.optimizes:
            self.progress(f"{precision}: optimizer steps")
            rows += self._step_accuracy(weights, precision)
            rows += self._stream_accuracy(precision)
        if narrow:
            rows += self.single_operations(precision)
        return rows

    def single_operations(self, precision: str) -> list[Row]:
        """Each operation of the pair alone, on operands that are exact in `precision`, against its own float64."""
        if self.pair.operations:
            self.progress(f"{precision}: operation by operation")
        rows = []
        for operation in self.pair.operations:
            name = zlib.crc32(operation.name.encode())
            draws = []
            for index in range(self.options.batches):
                generator = np.random.Generator(np.random.PCG64([self.options.seed, index, name]))
                draws.append(rounded(operation.draw(generator), precision))
            functions = (
                (self.sides.reference, operation.reference),
                (self.sides.candidate, operation.candidate),
            )
            exact, low = (
                [runner.evaluate(function, draws, each) for runner, function in functions]
                for each in ("float64", precision)
            )
            bound = Bound(operation.limit, operation.derivation)
            rows += self.judge.operation(f"operation {operation.name}", exact, low, precision, bound)
        return rows

    def _spreads(
        self, exact: tuple[list[Run], list[Run]], weights: Arrays, precision: str
    ) -> list[tuple[Errors, Errors]]:
        """The largest errors of each side's twins, of outputs and of gradients.

        In 16 bits an element of a ReLU may fall on the other side of its kink. One such event is most of the error of
        many tensors, and a single run has it or has it not.
        """
        self.progress(f"{precision}: twins, one unit in the last place away")
        largest: list[tuple[dict[str, float], dict[str, float]]] = [({}, {}), ({}, {})]
        for index in range(TWINS):
            twins = self.sides.run(self._twin(weights, precision, index), self.pooled, precision)
            for kept, truth, values in zip(largest, _kinds(exact), _kinds(twins), strict=True):
                keep_largest(kept[0], errors_by_name(values.reference, truth.reference))
                keep_largest(kept[1], errors_by_name(values.candidate, truth.candidate))
        return [*largest]

    def _twin(self, weights: Arrays, precision: str, index: int) -> Arrays:
        return perturbed(weights, precision, [self.options.seed, index])

    def _step_accuracy(self, weights: Arrays, precision: str) -> list[Row]:
        """The candidate's steps against the reference's and those of its twins, which start one ulp away."""
        exact = self.trained or self.sides.train(weights, self.stepped, "float64")
        spreads: dict[str, dict[str, float]] = {}
        for index in range(TWINS):
            start = self._twin(weights, precision, index)
            twin = self.sides.reference.train(start, self.stepped, precision)
            for truth, of in _step_kinds("step", exact, weights):
                keep_largest(spreads.setdefault(truth.kind, {}), errors_by_name([of(twin, start)], truth.reference))
            del twin
        low = self.sides.train(weights, self.stepped, precision)
        rows = []
        for truth, of in _step_kinds("step", exact, weights):
            values = Batches(truth.kind, *([of(side, weights)] for side in low))
            rows += self.judge.within_twins(truth, values, spreads[truth.kind], precision, self.zero)
        return rows

    def _stream_accuracy(self, precision: str) -> list[Row]:
        """The optimizers alone: nothing amplifies here, so that either side may be the yardstick."""
        start = rounded(stream_start(self.options.seed), precision)
        rows = []
        for name, drawn in gradient_streams(self.options.seed).items():
            stream = [rounded(gradient, precision) for gradient in drawn]
            exact, low = (self.sides.follow(start, stream, each) for each in ("float64", precision))
            for truth, of in _step_kinds(f"{name} stream", exact, start):
                values = Batches(truth.kind, *([of(side, start)] for side in low))
                # the moments never meet the bias correction that the floor allows for
                floor = optimizer_floor() if truth.kind.endswith("parameters") else path_floor(precision, STREAM_STEPS)
                rows += self.judge.same_accuracy(truth, values, precision, floor=floor)
        return rows


def is_narrow(precision: str) -> bool:
    """A format of fewer significand bits than float32."""
    return FORMATS[precision].precision < FORMATS["float32"].precision


def _kinds(runs: tuple[list[Run], list[Run]]) -> tuple[Batches, Batches]:
    """Outputs and gradients of both sides."""
    return (
        Batches("output", *([run.outputs for run in side] for side in runs)),
        Batches("gradient", *([run.gradients for run in side] for side in runs)),
    )


def _step_kinds(
    kind: str, exact: tuple[Trained, Trained], start: Arrays
) -> Iterator[tuple[Batches, Callable[[Trained, Arrays], Arrays]]]:
    """Movement and both moments of the two exact runs, and what takes the same from another run and its start.

    One after the other: each is as large as the model, and only one is looked at.
    """

    def parameters(trained: Trained, start: Arrays) -> Arrays:
        return moved(start, trained.parameters, exact[0].nu)

    def mu(trained: Trained, start: Arrays) -> Arrays:
        return trained.mu

    def nu(trained: Trained, start: Arrays) -> Arrays:
        return trained.nu

    for of in (parameters, mu, nu):
        batches = Batches(f"{kind} {of.__name__}", *([of(side, start)] for side in exact))
        if batches.reference[0]:
            yield batches, of


def _all_same_bits(runs: tuple[Sequence[Run], Sequence[Run]]) -> bool:
    return all(
        name in b and same_bits(a[name], b[name])
        for reference, candidate in zip(*runs, strict=True)
        for a, b in ((reference.outputs, candidate.outputs), (reference.gradients, candidate.gradients))
        for name in a
    )
