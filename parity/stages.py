"""The stages of a check in float64 and in training: what is run, which rule judges it, what later stages start from."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from .chance import by_chance, choices_by_chance, largest_gap, refuse_chance
from .constants import excused
from .curves import curve_rows
from .derivative import derivative_rows
from .draws import SHARED, refuse_any_draws, refuse_other_draws
from .errors import NoFloat64Error, ParityUsageError
from .formats import FORMATS
from .islands import Island
from .judge import Judge
from .kinds import all_same_bits, only_one_keeps, same_runs, step_kinds
from .localise import Localised, Seen, captured, localise
from .options import Options
from .preparation import Prepared
from .result import Row
from .runners import Linked, Runner
from .runs import Arrays, Path, Run, Trained, is_float, is_state, running
from .seeds import seed_rows
from .sides import Sides, rounded
from .streams import SHAPES, gradient_streams, small, stream_path
from .sums import longest_sum, summation_factor
from .ties import without_ties
from .trees import ALONE
from .yardsticks import ByFloat32, Yardstick

Progress = Callable[[str], None]

#: What a side raises for a slip in a line that only a float64 run comes to: no refusal of a precision.
SLIPS = (NameError, AttributeError)


@dataclass
class Stages:
    """One pair under judgement: its sides, its batches, and what the float64 stage leaves for the later ones.

    `left_out` are stages for which there was no time, `unable` precisions in which a side does not run and why.
    `adaptive` is set where the candidate's optimizer keeps a second moment, `tables` are the sides with float32 tables
    that explain what a widened run leaves, `instead` says where a side has no float64 what is the truth in its place,
    and `by_twins` is set where neither has one.
    """

    prepared: Prepared
    options: Options
    progress: Progress
    zero: frozenset[str] = frozenset()
    bitwise: bool = True
    in_model: bool = True
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()  # what a PASS has to say beside it
    unable: tuple[str, ...] = ()
    adaptive: bool = False
    tables: tuple[str, ...] = ()
    instead: str = ""
    by_twins: bool = False
    is_steady: bool = field(default=False, init=False)
    repeats: bool = field(default=True, init=False)  # whether two runs of a side give the same bits
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: dict(SHAPES))
    exact: tuple[list[Run], list[Run]] = field(default=([], []), init=False)
    low: list[Run] = field(default_factory=list, init=False)
    seen: list[Seen] = field(default_factory=list, init=False)
    path: Path | None = field(default=None, init=False)
    trained: tuple[Trained, Trained] | None = field(default=None, init=False)
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        prepared = self.prepared
        longest = longest_sum(prepared.weights, prepared.batches[0])
        sums = summation_factor(self.sides, longest)
        rounds = any(map(is_float, (*prepared.weights.values(), *prepared.batches[0].values())))
        self.judge = Judge(self.sides.labels, max(prepared.pair.roundings, longest), sums, rounds)
        self.pooled = prepared.batches[: prepared.pooled]
        self.stepped = prepared.batches[: self.options.steps]
        optimizers = [runner.optimizes for runner in (self.sides.reference, self.sides.candidate)]
        if self.options.steps and optimizers.count(False) == 1:
            raise ParityUsageError("optimizer: on both sides or on neither, got one; give the other or use steps 0")
        if self.options.curve and not all(optimizers):
            raise ParityUsageError("curve: an optimizer on both sides, got none on one; give it or leave the curve out")
        if self.options.seeds and not callable(prepared.pair.inputs):
            raise ParityUsageError(
                "seeds: inputs that are a function of a Generator, got one fixed batch; nothing would differ between "
                "seeds, leave them out"
            )
        if self.options.steps and not any(optimizers) and prepared.weights:
            self.notes += ("optimizer steps: none, for the sides have no optimizers",)
        self.optimizes = all(optimizers) and self.options.steps > 0 and bool(prepared.weights)

    @property
    def sides(self) -> Sides:
        """Both sides, ready to run."""
        return self.prepared.sides

    @property
    def weights(self) -> Arrays:
        """The reference's parameters, which the candidate gets too."""
        return self.prepared.weights

    def same_function(self) -> list[Row]:
        """float64 against float64, stage by stage, up to the first stage in which a row fails."""
        rows: list[Row] = []
        stages = {
            "outputs and gradients in float64": self.outputs_and_gradients,
            "optimizer steps in float64": self.model_steps,
            "optimizer streams in float64": self.optimizer_streams,
        }
        for name, stage in stages.items():
            if rows and not self.in_time(name):  # the first one is the check
                continue
            self.in_model = stage == self.outputs_and_gradients
            rows += stage()
            if any(row.verdict == "FAIL" for row in rows):
                break
        return rows

    def in_time(self, stage: str) -> bool:
        """Whether a stage may still be begun; if not, the result says that it was left out."""
        budget = self.options.budget
        if budget is None or time.perf_counter() - self.started < budget:
            return True
        self.left_out += (stage,)
        self.notes += (f"left out, {budget} s being over: {stage}",)
        return False

    def runs(self, runner: Runner, precision: str) -> bool:
        """Whether a side runs on the first batch at a precision."""
        try:
            with running(runner.label, precision):
                runner.run(self.weights, self.pooled[0], precision)
        except ParityUsageError:
            return False
        return True

    def refusing_float64(self, error: NoFloat64Error) -> Sequence[str]:
        """The roles of the sides whose models do not run in float64; none where its error is about something else.

        What fails everywhere, in the optimizer, or for a name that is not there, is no matter of the model's precision.
        """
        return () if self.exact[0] or isinstance(error.__cause__, SLIPS) else self._refusing

    @cached_property
    def _refusing(self) -> Sequence[str]:
        """Those that do run at a precision that was asked for, or in float32; none if one runs at none."""
        runners = {"reference": self.sides.reference, "candidate": self.sides.candidate}
        unable = [role for role, runner in runners.items() if not self.runs(runner, "float64")]
        others = self.options.precisions or ("float32",)
        able = [role for role in unable if any(self.runs(runners[role], each) for each in others)]
        return unable if unable == able else ()

    def islands(self) -> list[Island]:
        """Where the stage that same_function ended with is less than float64: the model, or the optimizer."""
        if self.in_model:
            return self.sides.islands(self.weights, self.pooled[0])
        generator = np.random.Generator(np.random.PCG64(self.options.seed))
        # no float32 numbers here: they would look like values that were computed in float32
        return self.sides.optimizer_islands({name: generator.normal(size=shape) for name, shape in self.shapes.items()})

    def excused(self, rows: list[Row]) -> list[Row]:
        """The rows with what float32 tables explain, which cannot be widened; as they are without `tables`."""
        if not self.tables:
            return rows
        return excused(rows, self.exact, self.sides, self.tables, self.weights, self.pooled, self.options.seed)

    def localise(self, backward: bool = True) -> Localised:
        """Where the model comes apart, on the first batch; nothing but a note where no side can be looked into.

        `backward` is whether the outputs agree.
        """
        points = self.prepared.pair.points
        try:
            exact = self.exact if self.exact[0] else self.sides.run(self.weights, self.pooled[:1], "float64")
            bare = [first.outputs for first, *_ in exact]
            # widened, the same sides are seen once more
            seen = [] if self.sides.lifted else self.seen
            self.seen = []
            return localise(self.sides, self.weights, self.pooled[0], points, self._by_float32, bare, seen, backward)
        except ParityUsageError as error:
            if points or self.options.points:
                raise
            return Localised(unseen=(f"could not look inside: {error}",))

    def _by_float32(self) -> Yardstick:
        _, coarse = self.sides.capture(self.sides.reference, self.weights, self.pooled[0], "float32")
        return ByFloat32(coarse, self.judge.sums)

    def derivatives(self) -> list[Row]:
        """Each side's gradient against a finite difference of its own loss."""
        self.progress("float64: a finite difference")
        pair = self.prepared.pair
        return derivative_rows(self.sides, self.weights, self.pooled[0], pair.loss, self.options.seed)

    def trainings(self) -> Iterator[list[Row]]:
        """Each side on its own: its curve against that of its twins, then the final losses on other batches."""
        if self.sides.unpaired:
            self.notes += ("training curves: left out, for one side has weights that the other has not",)
            return
        if self.in_time("training curves"):
            batches = self.prepared.batches[: self.options.curve]
            yield curve_rows(self.sides, self.weights, batches, self.options.seed, self.progress)
        if self.options.seeds and self.in_time("training over seeds"):
            yield seed_rows(self.prepared, self.options, self.progress)

    def outputs_and_gradients(self) -> list[Row]:
        """Outputs, loss and gradients of the pooled batches in float64."""
        self.progress("float64: outputs and gradients")
        weights = self.weights
        self.exact = self._agreeing_in_names(weights)
        if self.options.points:  # the runs that are seen inside need the most memory: before there is more to keep
            self.steady(self.exact)
        low = self.sides.reference_run(weights, self.pooled, "float32")
        self.steady(self.exact, low=low)
        self.low = [] if self.optimizes else low  # steps come first, and need the memory
        rows, self.zero = same_runs(self.judge, self.exact, low, self.options.grads)
        given = rows, self.exact, self.sides, weights, self.pooled, self.options.seed
        return without_ties(*given, choices_alone=not self.repeats)

    def _agreeing_in_names(self, weights: Arrays) -> tuple[list[Run], list[Run]]:
        """The float64 runs; outputs that one side gives by position alone get the other side's names."""
        exact = self.sides.run(weights, self.pooled, "float64")
        mine, theirs = ([name for name in runs[0].outputs if not is_state(name)] for runs in exact)
        unnamed = any(name == ALONE or name.isdecimal() for name in (*mine, *theirs))
        if unnamed and mine != theirs and len(mine) == len(theirs):
            self.sides.rename(dict(zip(theirs, mine, strict=True)))
            exact = self.sides.run(weights, self.pooled, "float64")
        for name, array in exact[0][0].outputs.items():
            other = exact[1][0].outputs.get(name)
            if array.dtype.kind == "c" and other is not None and other.dtype.kind == "c":
                raise ParityUsageError(f"outputs: real arrays, got {array.dtype} for {name!r}; return its parts as two")
        return exact

    def steady(self, runs: tuple[list[Run], list[Run]], precision: str = "float64", low: Sequence[Run] = ()) -> None:
        """Neither side is a matter of chance, and both draw alike: looked at once, on the first runs there are.

        With `points` the second run is the one seen inside, whose bits say nothing: XLA fuses it in another way.

        Args:
            runs: both sides', of which the first batch is run again.
            precision: what they were run in.
            low: the reference's in float32, by which the float64 rule says how far rounding may put two runs apart.
        """
        if self.is_steady:
            return
        self.is_steady = True
        if self.options.points and precision == "float64":
            with suppress(ParityUsageError):  # `localise` raises it, if it comes to that
                self.seen = captured(self.sides, self.weights, self.pooled[0])
        dropout = self.prepared.pair.dropout
        for side, (label, (first, *_)) in enumerate(zip(self.sides.labels, runs, strict=True)):
            second = self._second(side, first, precision)
            apart = by_chance(first, second, precision)
            if apart and not by_chance(first, second, "float32") and self.islands():
                apart = {}  # float32 inside a float64 run
            refuse_chance(label, apart or choices_by_chance(first, second), dropout)
            if self.seen or all_same_bits(([first], [second])):
                continue
            self.bitwise = self.repeats = False
            beyond = self._beyond_rounding(first, second, low[0]) if low else {}
            if beyond and not self.islands():  # float32 inside may add up in another order, which float64 has to bear
                refuse_chance(label, beyond, dropout)
            self.notes += (f"{label}: two runs on the same numbers give other bits, {largest_gap(first, second)}",)
        drawn = self.sides.reference.draws, self.sides.candidate.draws
        if dropout != SHARED:
            if dropout:
                self.notes += ("dropout: left out on both sides, so that its rates are not compared",)
            return refuse_any_draws(self.sides.labels, drawn)
        refuse_other_draws(self.sides.labels, drawn)
        self.notes += (f"dropout: {len(drawn[0])} draws in each run, the same ones on both sides",)

    def _beyond_rounding(self, first: Run, second: Run, low: Run) -> dict[str, float]:
        """Outputs and gradients of two float64 runs that are further apart than two right sides may be."""
        rows, _ = same_runs(self.judge, ([first], [second]), [low])
        return {row.name: row.measured for row in rows if row.verdict == "FAIL"}

    def _second(self, side: int, first: Run, precision: str) -> Run:
        """Another run like `first`, of the reference (0) or the candidate (1): the one that was seen inside, if any."""
        if self.seen:
            seen = replace(first, outputs=self.seen[side][0])
            if not by_chance(first, seen, precision):
                return seen
        # not by chance, perhaps: a compiled side is seen as it runs uncompiled
        run = (self.sides.reference_run, self.sides.candidate_run)[side]
        return run(rounded(self.weights, precision), [rounded(self.pooled[0], precision)], precision)[0]

    def model_steps(self) -> list[Row]:
        """Optimizer steps on the model's own gradients in float64."""
        if not self.optimizes:
            return []
        self.progress(f"float64: {self.options.steps} optimizer steps")
        self.path = self.sides.lead(self.weights, self.stepped, "float32")
        self.trained = self.sides.train(self.path, self.stepped, "float64")
        self.adaptive = bool(self.trained[1].nu)
        low = self.sides.reference_train(self.path, self.stepped, "float32")
        self.notes = tuple(dict.fromkeys(self.notes + only_one_keeps(self.trained, self.sides.labels)))
        coarse = {each.kind: each.reference for each in step_kinds("step", (low, low))}
        rows = []
        for exact in step_kinds("step", self.trained):
            rows += self.judge.same_function(exact, coarse[exact.kind], self.zero)
        return rows

    def optimizer_streams(self) -> list[Row]:
        """The optimizers alone, on gradients that show what a model's gradients hide."""
        if not self.optimizes:
            return []
        self.progress("float64: optimizers on synthetic gradients")
        try:
            return self._stream_rows()
        except ParityUsageError:
            # an optimizer with groups, or masks, by name or number knows the model's own parameters alone
            cut = tuple if isinstance(self.sides.candidate, Linked) else small  # a link moves whole tensors
            self.shapes = {name: cut(array.shape) for name, array in self.weights.items()}
            return self._stream_rows()

    def _stream_rows(self) -> list[Row]:
        path = stream_path(self.options.seed, self.shapes)
        rows = []
        for name, stream in gradient_streams(self.options.seed, self.shapes).items():
            low = self.sides.reference_follow(path, stream, "float32")
            coarse = {each.kind: each.reference for each in step_kinds(f"{name} stream", (low, low))}
            for exact in step_kinds(f"{name} stream", self.sides.follow(path, stream, "float64")):
                rows += self.judge.same_function(exact, coarse[exact.kind])
        return rows


def is_narrow(precision: str) -> bool:
    """A format of fewer significand bits than float32."""
    return FORMATS[precision].precision < FORMATS["float32"].precision
