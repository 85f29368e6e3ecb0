"""`mutate`: planting faults into the very check that has passed, to measure which of them it would have noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from .accuracy import single_operations, working_precision
from .bounds import LESS_ACCURATE
from .errors import ANYTHING, ParityUsageError
from .findings import FAILED, KILLED, SURVIVED, UNTOUCHED, Planted
from .frames import told
from .kinds import all_same_bits
from .localise import MOVED
from .mutants import NONE, Mutant, mutants
from .pair import Pair
from .planting import Mutated, Remembered
from .preparation import Prepared, prepare
from .result import Row
from .runs import running
from .stages import Stages
from .thorough import thorough_rows
from .unreached import acts_alike, same_arrays

Rows = Iterator[list[Row]]
#: The kind of the faults that a pair brings along.
GIVEN = "fault of the pair's own"


def planted(stages: Stages) -> list[Planted]:
    """What became of each fault, `stages` having passed; those that a budget leaves no time for are noted there."""
    bench = Bench(stages)
    usual = bench.rows(NONE)
    if any(row.verdict in ("FAIL", "VACUOUS") for row in usual):
        stages.notes += ("mutation: left out, the check did not pass a second time",)
        return []
    bench.learned()
    found: list[Planted] = []
    for mutant in bench.mutants():
        if not stages.in_time(f"faults from {mutant.kind} on"):
            return found
        stages.progress(f"planting: {mutant.kind}, {mutant.name}")
        found.append(_outcome(mutant.kind, mutant.name, bench.stages(mutant), usual))
    for name, make in stages.prepared.pair.mutants.items():
        if not stages.in_time(f"faults of the pair's own from {name} on"):
            return found
        stages.progress(f"planting: {name}")
        try:
            prepared = bench.prepared(make)
            ours = bench.has_our_reference(prepared)
        except ANYTHING as error:  # whatever the caller's function raises: the other faults are planted all the same
            what = str(error) if isinstance(error, ParityUsageError) else told(error)
            found.append(Planted(GIVEN, name, FAILED, what))
            continue
        found.append(_outcome(GIVEN, name, bench.stages_of(prepared, ours), usual, ours))
    return found


class Bench:
    """A check that is run again and again; the reference, and the candidate without a fault, remember their runs."""

    def __init__(self, stages: Stages):
        self.first = stages
        sides = stages.sides
        self.reference, self.candidate = Remembered(sides.reference), Remembered(sides.candidate)

    def rows(self, mutant: Mutant) -> list[Row]:
        """Every row of the check with a fault in it."""
        return [row for rows in self.stages(mutant) for row in rows]

    def learned(self) -> None:
        """From now on nothing that a fault made is remembered."""
        self.reference.learning = self.candidate.learning = False

    def mutants(self) -> Iterator[Mutant]:
        """Every fault that concerns this check."""
        first = self.first
        hidden = first.zero | first.sides.unpaired
        weights, batch = {name: w for name, w in first.weights.items() if name not in hidden}, first.pooled[0]
        outputs = self.candidate.run(first.weights, batch, "float64", lifted=first.sides.lifted).outputs
        return mutants(
            weights,
            batch,
            outputs,
            seed=first.options.seed,
            precisions=first.options.precisions,
            operations=first.prepared.pair.operations,
            grads=first.options.grads,
            optimizes=first.optimizes,
            moments=first.optimizes and first.adaptive,
        )

    def stages(self, mutant: Mutant) -> Rows:
        """The rows of one stage after the other, from the first one in which the fault can show."""
        sides = replace(self.first.sides, reference=self.reference, candidate=Mutated(self.candidate, mutant))
        stages = self._again(replace(self.first.prepared, sides=sides))
        if mutant.operation is not None:
            yield single_operations(stages, str(mutant.precision))
        elif mutant.precision is not None:
            yield stages.outputs_and_gradients()
            yield working_precision(stages, mutant.precision)
        else:
            yield from _rows(stages)

    def prepared(self, make: Callable[[], Pair]) -> Prepared:
        """Another pair, which has a fault of its own, made ready.

        Raises:
            ParityUsageError: it is none, or cannot be run at all.
        """
        pair = make()
        if not isinstance(pair, Pair):
            raise ParityUsageError(f"mutants: functions that return a Pair, got {type(pair).__name__}; return the pair")
        return prepare(pair, self.first.options)

    def stages_of(self, prepared: Prepared, ours: bool) -> Rows:
        """The rows of another pair stage by stage; none if nothing comes of its fault.

        `ours` is whether its reference is this check's.
        """
        if ours and acts_alike(self.first, self.candidate, prepared):
            return
        reference = self.reference if ours else prepared.sides.reference
        sides = replace(prepared.sides, reference=reference, lifted=self.first.sides.lifted)
        yield from _rows(self._again(replace(prepared, sides=sides)))

    def has_our_reference(self, prepared: Prepared) -> bool:
        """Whether the fault is in the candidate alone: the reference gives the same bits for the same batches."""
        mine, theirs = self.first.pooled, prepared.batches[: prepared.pooled]
        if not all(map(same_arrays, (self.first.weights, *mine), (prepared.weights, *theirs))):
            return False
        with running(prepared.sides.reference.label, "float64"):
            lifted = self.first.sides.lifted
            run = prepared.sides.reference.run(prepared.weights, theirs[0], "float64", lifted=lifted)
        return all_same_bits(([self.reference.run(self.first.weights, mine[0], "float64", lifted=lifted)], [run]))

    def _again(self, prepared: Prepared) -> Stages:
        first = self.first
        # nothing is planted into what is seen inside
        options = replace(first.options, budget=None, points=False)
        stages = Stages(prepared, options, lambda message: None, shapes=first.shapes)
        stages.tables = first.tables
        return stages


def _rows(stages: Stages) -> Rows:
    yield stages.excused(stages.same_function())
    for precision in stages.options.precisions:
        yield working_precision(stages, precision)
    if stages.options.thorough:
        yield thorough_rows(stages)
    if stages.options.curve:
        yield from stages.trainings()


def _outcome(kind: str, name: str, rows: Rows, usual: Sequence[Row], ours: bool = True) -> Planted:
    """Killed by the first row that fails, survived if none does although figures are others than without the fault.

    `ours` is whether the reference is the usual one, by which a figure says how far the fault moves the candidate.
    """
    before = {(row.stage, row.name): row.measured for row in usual}
    effects = set()
    try:
        for row in (row for stage in rows for row in stage):
            if row.verdict in ("FAIL", "VACUOUS"):
                return Planted(kind, name, KILLED, f"{row.name} in {row.stage}")
            effects.add(_effect(row, before.get((row.stage, row.name))))
    except ParityUsageError as error:
        return Planted(kind, name, KILLED, str(error))
    # what differs in float64 by rounding alone is the same function, and shows in every format a little then
    same_function = ours and ROUNDING in effects and effects <= {NOTHING, ROUNDING, FORMAT}
    return Planted(kind, name, UNTOUCHED if same_function or effects <= {NOTHING} else SURVIVED, "")


#: What a fault does to one figure: nothing; in float64 another rounding, or more than that; in a format another error,
#: of like size or of another one.
NOTHING, ROUNDING, FUNCTION, FORMAT, ACCURACY = "nothing", "rounding", "function", "format", "accuracy"


def _effect(row: Row, before: float | None) -> str:
    if before is not None and repr(before) == repr(row.measured):
        return NOTHING
    if row.stage == "float64":
        return ROUNDING if before is not None and max(before, row.measured) <= MOVED else FUNCTION
    alike = before is not None and max(before, row.measured) <= LESS_ACCURATE * min(before, row.measured)
    return FORMAT if alike else ACCURACY
