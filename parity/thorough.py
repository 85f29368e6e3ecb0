"""`thorough`: the float64 question again on inputs and parameters that show what ordinary ones hide."""

from __future__ import annotations

from dataclasses import replace

from .errors import ParityUsageError
from .kinds import kinds_of
from .result import Row
from .stages import Stages
from .ties import without_ties
from .variants import Variant, variants


def thorough_rows(stages: Stages) -> list[Row]:
    """The rows of every variant of the first batch; each says on which input it is."""
    rows = []
    for variant in variants(stages.weights, stages.pooled[0], stages.options.seed):
        stages.progress(f"float64: {variant.name}")
        try:
            found = _judged(stages, variant)
        except ParityUsageError as error:
            found = [_refused(stages, variant, error)]
        rows += [replace(row, name=f"{row.name}, {variant.name}", group=variant.name) for row in found]
    return rows


def _judged(stages: Stages, variant: Variant) -> list[Row]:
    """Outputs and gradients in float64; where nothing is finite, or every gradient is zero, nothing is said."""
    exact = stages.sides.run(variant.weights, [variant.batch], "float64")
    low = stages.sides.reference_run(variant.weights, [variant.batch], "float32")
    outputs, gradients = kinds_of(exact)
    rows = stages.judge.same_function(outputs, [run.outputs for run in low])
    if stages.options.grads:
        coarse = [run.derivatives for run in low]
        zero, one_sided = stages.judge.zero_gradients(gradients, coarse)
        rows += one_sided + stages.judge.same_function(gradients, coarse, zero)
    rows = without_ties(rows, exact, stages.sides, variant.weights, [variant.batch], stages.options.seed)
    return [replace(row, verdict="ABSTAIN") if row.verdict == "VACUOUS" else row for row in rows]


def _refused(stages: Stages, variant: Variant, error: ParityUsageError) -> Row:
    """A side that cannot run on an input: nothing is compared, and it is said."""
    return Row(
        name="not run",
        group=variant.name,
        side_names=stages.sides.labels,
        shape=(),
        dtype="float64",
        stage="float64",
        measured=float("inf"),
        bound=0.0,
        derivation=str(error),
        verdict="ABSTAIN",
    )
