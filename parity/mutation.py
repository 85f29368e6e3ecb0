"""`mutate`: planting faults into the very check that has passed, to measure which of them it would have noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from .accuracy import single_operations, working_precision
from .errors import ParityUsageError
from .findings import KILLED, SURVIVED, UNTOUCHED, Planted
from .mutants import NONE, Mutant, mutants
from .pair import Pair
from .planting import Mutated, Remembered
from .preparation import Prepared, prepare
from .result import Row
from .stages import Stages
from .thorough import thorough_rows
from .unreached import acts_alike

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
        found.append(_outcome(GIVEN, name, bench.stages_of(make), usual))
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

    def stages_of(self, make: Callable[[], Pair]) -> Rows:
        """The rows of another pair, which has a fault of its own, stage by stage; none if nothing comes of it."""
        prepared = prepare(make(), self.first.options)
        if acts_alike(self.first, self.candidate, prepared):
            return
        sides = replace(prepared.sides, reference=self.reference, lifted=self.first.sides.lifted)
        yield from _rows(self._again(replace(prepared, sides=sides)))

    def _again(self, prepared: Prepared) -> Stages:
        first = self.first
        # nothing is planted into what is seen inside
        options = replace(first.options, budget=None, points=False)
        stages = Stages(prepared, options, lambda message: None, shapes=first.shapes)
        stages.excuses = first.excuses
        return stages


def _rows(stages: Stages) -> Rows:
    yield stages.excused(stages.same_function())
    for precision in stages.options.precisions:
        yield working_precision(stages, precision)
    if stages.options.thorough:
        yield thorough_rows(stages)
    if stages.options.curve:
        yield from stages.trainings()


def _outcome(kind: str, name: str, rows: Rows, usual: Sequence[Row]) -> Planted:
    """Killed by the first row that fails; untouched if no figure is another one than without the fault."""
    before = {(row.stage, row.name): row.measured for row in usual}
    touched = False
    try:
        for row in (row for stage in rows for row in stage):
            if row.verdict in ("FAIL", "VACUOUS"):
                return Planted(kind, name, KILLED, f"{row.name} in {row.stage}")
            touched |= repr(before.get((row.stage, row.name))) != repr(row.measured)
    except ParityUsageError as error:
        return Planted(kind, name, KILLED, str(error))
    return Planted(kind, name, SURVIVED if touched else UNTOUCHED, "")
