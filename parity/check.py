"""One pair, from the first run to the verdict: float64, then float32, then the 16-bit formats, then the count of the work."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .bounds import FLOAT64_TO_FLOAT32, Bound
from .compare import same_bits
from .environment import environment
from .errors import ParityUsageError
from .formats import FORMATS
from .islands import Island
from .judge import Batches, Judge, moved
from .pair import Jax, Pair, Side
from .result import Result, Row
from .runs import Arrays, Run, Runner, Trained, is_float
from .streams import STREAM_STEPS, gradient_streams, stream_start

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How much of a check to do.

    `precisions` are judged after float64, in this order; `batches` are pooled; `steps` are taken with the optimizer.
    """

    precisions: tuple[str, ...] = ("float32", "bfloat16")
    batches: int = 8
    steps: int = 3
    seed: int = 0
    device: str = "cpu"
    flops: bool = True

    def __post_init__(self) -> None:
        for name in self.precisions:
            if name not in FORMATS or name == "float64":
                known = ", ".join(each for each in FORMATS if each != "float64")
                raise ParityUsageError(f"precisions: of {known}, got {name!r}; float64 is always judged")
        if self.batches < 1 or self.steps < 0:
            raise ParityUsageError(
                f"batches and steps: at least 1 and 0, got {self.batches} and {self.steps}; choose larger ones"
            )


@dataclass
class Check:
    """The state of one check: both runners, the batches, and the rows found so far."""

    pair: Pair
    options: Options
    progress: Progress
    rows: list[Row] = field(default_factory=list)
    islands: list[Island] = field(default_factory=list)
    zero: frozenset[str] = frozenset()
    lifted: bool = False
    bitwise: bool = True

    def __post_init__(self) -> None:
        pair, options = self.pair, self.options
        self.reference = make_runner(pair.reference, pair.loss, options.device)
        self.candidate = make_runner(pair.candidate, pair.loss, options.device)
        self.judge = Judge((pair.reference.label, pair.candidate.label), pair.roundings)
        generator = np.random.Generator(np.random.PCG64(options.seed))
        self.batches = [pair.inputs(generator) for _ in range(max(options.batches, options.steps))]
        self.optimizes = pair.reference.optimizer is not None and pair.candidate.optimizer is not None

    def run(self) -> tuple[str, str | None, str]:
        """Every stage in turn; returns verdict, rung and reason."""
        if not self.same_function():
            return self.fail_or_island()
        return self.working_precisions("same-function")

    def same_function(self) -> bool:
        """float64 against float64, the reference in float32 beside them; False when a row failed."""
        before = len(self.rows)
        for rows in (self.outputs_and_gradients, self.model_steps, self.optimizer_streams):
            self.rows += rows()
            if any(row.verdict == "FAIL" for row in self.rows[before:]):
                return False
        return True

    def outputs_and_gradients(self) -> list[Row]:
        """Outputs, loss and gradients of the pooled batches in float64."""
        self.progress("float64: outputs and gradients")
        batches = self.batches[: self.options.batches]
        exact = self.both(batches, "float64", self.pair.weights)
        low = [self.reference.run(self.pair.weights, batch, "float32") for batch in batches]
        outputs, gradients = _kinds(exact)
        self.exact = exact
        rows = self.judge.same_function(outputs, [run.outputs for run in low])
        self.zero, odd = self.judge.zero_gradients(gradients, [run.gradients for run in low])
        return rows + odd + self.judge.same_function(gradients, [run.gradients for run in low], self.zero)

    def model_steps(self) -> list[Row]:
        """Optimizer steps on the model's own gradients in float64."""
        if not (self.optimizes and self.options.steps):
            return []
        self.progress(f"float64: {self.options.steps} optimizer steps")
        low = self.reference.train(self.pair.weights, self.batches[: self.options.steps], "float32")
        self.trained = self.train("float64", self.pair.weights)
        rows = []
        for kind, exact, values in self.step_kinds(self.trained, low, self.pair.weights):
            rows += self.judge.same_function(exact, [values], self.zero)
        return rows

    def optimizer_streams(self) -> list[Row]:
        """The optimizers alone, on gradients that show what a model's gradients hide."""
        if not (self.optimizes and self.options.steps):
            return []
        self.progress("float64: optimizers on synthetic gradients")
        rows = []
        start = stream_start(self.options.seed)
        for name, stream in gradient_streams(self.options.seed).items():
            exact = self.follow(start, stream, "float64")
            low = self.reference.follow(start, stream, "float32")
            for kind, batches, values in self.step_kinds(exact, low, start, prefix=f"{name} stream"):
                rows += self.judge.same_function(batches, [values])
        return rows

    def fail_or_island(self) -> tuple[str, str | None, str]:
        """After a difference: is it a float32 island? Seen in the dtype trace, and closed when it is lifted."""
        self.progress("float64: looking for float32 inside the float64 runs")
        first = next(row for row in self.rows if row.verdict == "FAIL")
        reason = f"{first.name} differs in float64: {first.measured:.2g}, bound {first.bound:.2g}"
        self.islands = [
            island
            for runner in (self.reference, self.candidate)
            for island in runner.islands(self.pair.weights, self.batches[0])
        ]
        if not self.islands:
            return "FAIL", "different", reason + "; no float32 was seen in either float64 run"
        if any(row.verdict == "FAIL" and row.measured > row.bound / FLOAT64_TO_FLOAT32 for row in self.rows):
            return "FAIL", "different", reason + "; more than float32 rounding can do, though a lower precision was seen"
        kept = self.rows
        self.rows, self.lifted = [], True
        self.progress("float64: lifting the islands")
        if not self.same_function():
            return "FAIL", "different", reason + "; lifting the float32 seen does not close it"
        lifted_rows, self.rows = self.rows, [_inside_island(row) for row in kept if row.verdict == "FAIL"]
        self.rows += lifted_rows
        return self.working_precisions("float32-island")

    def working_precisions(self, rung: str) -> tuple[str, str | None, str]:
        """float32 and the 16-bit formats against each side's own float64."""
        for precision in self.options.precisions:
            self.rows += self.working_precision(precision)
            if FORMATS[precision].precision < FORMATS["float32"].precision:
                self.rows += self.single_operations(precision)
        for verdict in ("FAIL", "VACUOUS"):
            found = next((row for row in self.rows if row.verdict == verdict), None)
            if found is not None:
                what = f"{found.name} in {found.stage}: {found.derivation}"
                return verdict, rung, f"the functions agree in float64, but {what}"
        if all(row.verdict == "ABSTAIN" for row in self.rows):
            return "ABSTAIN", None, "no bound was smaller than the tensors themselves"
        if rung == "same-function" and self.options.precisions and self.bitwise:
            rung = "bitwise"
        return "PASS", rung, ""

    def working_precision(self, precision: str) -> list[Row]:
        """Outputs, gradients and optimizer steps at one working precision."""
        self.progress(f"{precision}: outputs and gradients")
        batches = self.batches[: self.options.batches]
        weights, exact = self.pair.weights, self.exact
        narrow = FORMATS[precision].precision < FORMATS["float32"].precision
        if narrow:
            # the truth is the float64 run on the numbers that the 16-bit run starts from
            weights = rounded(weights, precision)
            exact = self.both(batches, "float64", weights)
        low = self.both(batches, precision, weights)
        self.bitwise &= all(
            same_bits(a[name], b[name])
            for r, c in zip(*low, strict=True)
            for a, b in ((r.outputs, c.outputs), (r.gradients, c.gradients))
            for name in a
        )
        rows = []
        for truth, values in zip(_kinds(exact), _kinds(low), strict=True):
            rows += self.judge.same_accuracy(truth, values, precision, self.zero)
        if self.optimizes and self.options.steps:
            self.progress(f"{precision}: optimizer steps")
            trained = self.train("float64", weights) if narrow else self.trained
            steps = self.train(precision, weights)
            rows += self.step_accuracy(trained, steps, weights, precision, self.zero, self.pair.roundings)
            start = rounded(stream_start(self.options.seed), precision)
            for name, stream in gradient_streams(self.options.seed).items():
                stream = [rounded(gradient, precision) for gradient in stream]
                truth64, values = self.follow(start, stream, "float64"), self.follow(start, stream, precision)
                rows += self.step_accuracy(
                    truth64, values, start, precision, frozenset(), STREAM_STEPS, f"{name} stream"
                )
        return rows

    def single_operations(self, precision: str) -> list[Row]:
        """Each operation of the pair alone, on operands that are exact in `precision`, against its own float64."""
        if self.pair.operations:
            self.progress(f"{precision}: operation by operation")
        rows = []
        for operation in self.pair.operations:
            streams = ([self.options.seed, index, zlib.crc32(operation.name.encode())] for index in range(self.options.batches))
            generators = [np.random.Generator(np.random.PCG64(stream)) for stream in streams]
            draws = [rounded(operation.draw(generator), precision) for generator in generators]
            sides = ((self.reference, operation.reference), (self.candidate, operation.candidate))
            exact, low = (
                [runner.evaluate(function, draws, each) for runner, function in sides] for each in ("float64", precision)
            )
            bound = Bound(operation.limit, operation.derivation)
            rows += self.judge.operation(f"operation {operation.name}", exact, low, precision, bound)
        return rows

    def both(self, batches: Sequence[Arrays], precision: str, weights: Arrays) -> tuple[list[Run], list[Run]]:
        """Both sides on every batch."""
        lifted = self.lifted and precision == "float64"
        return (
            [self.reference.run(weights, batch, precision, lifted=lifted) for batch in batches],
            [self.candidate.run(weights, batch, precision, lifted=lifted) for batch in batches],
        )

    def train(self, precision: str, weights: Arrays) -> tuple[Trained, Trained]:
        """Both sides take the optimizer steps."""
        lifted = self.lifted and precision == "float64"
        batches = self.batches[: self.options.steps]
        return (
            self.reference.train(weights, batches, precision, lifted=lifted),
            self.candidate.train(weights, batches, precision, lifted=lifted),
        )

    def follow(self, start: Arrays, stream: Sequence[Arrays], precision: str) -> tuple[Trained, Trained]:
        """Both optimizers on the same given gradients."""
        return self.reference.follow(start, stream, precision), self.candidate.follow(start, stream, precision)

    def count(self) -> dict[str, dict[str, int | None]]:
        """Matmul FLOPs of one batch by every method: the formula, both frameworks' programs, XLA's own analysis."""
        sides = [runner.count(self.pair.weights, self.batches[0]) for runner in (self.candidate, self.reference)]
        counts: dict[str, dict[str, int | None]] = {}
        for name in ("forward", "forward_backward"):
            found = {key: value for side in sides for key, value in side[name].items()}
            given = {} if self.pair.formula is None else {"formula": self.pair.formula[name]}
            order = ("jaxpr", "torch", "xla_lowered")
            counts[name] = {**given, **{key: found[key] for key in order if key in found}}
        return counts

    def step_kinds(
        self, exact: tuple[Trained, Trained], low: Trained, start: Arrays, prefix: str = "step"
    ) -> list[tuple[str, Batches, Arrays]]:
        """Movement and both moments of the two exact runs, with the same of one low-precision run."""
        nu = exact[0].nu
        kinds = [(f"{prefix} parameters", *(moved(start, each.parameters, nu) for each in (*exact, low)))]
        kinds += [(f"{prefix} {moment}", *(getattr(each, moment) for each in (*exact, low))) for moment in ("mu", "nu")]
        return [(kind, Batches(kind, [a], [b]), c) for kind, a, b, c in kinds if a]

    def step_accuracy(
        self,
        exact: tuple[Trained, Trained],
        low: tuple[Trained, Trained],
        start: Arrays,
        precision: str,
        zero: frozenset[str],
        roundings: int,
        prefix: str = "step",
    ) -> list[Row]:
        """Movement and both moments at a working precision, each side against its own exact run."""
        rows = []
        pairs = zip(self.step_kinds(exact, low[0], start, prefix), self.step_kinds(exact, low[1], start, prefix), strict=True)
        for (kind, truth, reference), (_, _, candidate) in pairs:
            values = Batches(kind, [reference], [candidate])
            rows += self.judge.same_accuracy(truth, values, precision, zero, roundings)
        return rows


def check(pair: Pair, options: Options | None = None, progress: Progress = lambda message: None) -> Result:
    """Judges whether the two sides of a pair are the same function.

    Raises:
        ParityUsageError: the pair or the options cannot be run.
    """
    options = options or Options()
    started = time.perf_counter()
    state = Check(pair, options, progress)
    verdict, rung, reason = state.run()
    flops: dict[str, dict[str, int | None]] = {}
    equal = None
    if options.flops and verdict == "PASS":
        progress("counting the work")
        flops = state.count()
        equal = all(len({value for key, value in counts.items() if key != "xla_lowered"}) == 1 for counts in flops.values())
        if not equal:
            verdict, reason = "FAIL", "the two sides do not do the same matmul work: the FLOP counts differ"
    return Result(
        target=pair.name,
        verdict=verdict,
        rung=rung,
        reason=reason,
        seed=options.seed,
        rows=tuple(state.rows),
        islands=tuple(state.islands),
        zero_gradients=tuple(sorted(state.zero)),
        flops=flops,
        flops_equal=equal,
        notes=tuple(pair.notes),
        environment=environment(options.device),
        seconds=time.perf_counter() - started,
    )


def make_runner(side: Side, loss: str | None, device: str) -> Runner:
    """The backend of a side; imports that framework and no other."""
    if isinstance(side, Jax):
        from .backends.jax.run import JaxRunner

        return JaxRunner(side, loss, device)
    from .backends.torch.run import TorchRunner

    return TorchRunner(side, loss, device)


def rounded(arrays: Arrays, precision: str) -> dict[str, np.ndarray]:
    """Floats rounded to a format and kept as float32 (which holds every 16-bit value), the rest as it is."""
    import ml_dtypes

    dtype = np.dtype(ml_dtypes.bfloat16 if precision == "bfloat16" else precision)
    if precision == "float64":
        return dict(arrays)
    return {
        name: array.astype(dtype).astype(np.float32) if is_float(array) else array for name, array in arrays.items()
    }


def _kinds(runs: tuple[list[Run], list[Run]]) -> tuple[Batches, Batches]:
    return (
        Batches("output", *([run.outputs for run in side] for side in runs)),
        Batches("gradient", *([run.gradients for run in side] for side in runs)),
    )


def _inside_island(row: Row) -> Row:
    """A row that failed before the islands were lifted: kept for the record, no longer a failure."""
    from dataclasses import replace

    return replace(row, verdict="ISLAND", derivation="differs by float32 rounding inside; see the lifted row")
