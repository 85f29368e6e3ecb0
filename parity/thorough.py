"""`thorough`: the float64 question again on inputs and parameters that show what ordinary ones hide.

And on zeros whether a working precision leaves its range where float64 does not: an eps of 1e-8 is zero in float16, and
a norm of zeros then 0 / 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from . import alike
from .bounds import Bound
from .compare import misplaced, not_a_number, relative
from .derivative import DERIVATIVE
from .errors import ParityUsageError
from .kinds import kinds_of, same_runs
from .result import Row
from .rows import NO_NUMBER, NOTHING_FINITE
from .runs import Run, is_float
from .sides import rounded
from .stages import Stages
from .ties import without_ties
from .variants import Variant, variants

#: A relative error of float32 from which on not even its first digit is right.
NO_DIGIT = 0.5


def thorough_rows(stages: Stages) -> list[Row]:
    """The rows of every variant of the first batch; each says on which input it is."""
    rows = []
    for variant in variants(stages.weights, stages.pooled[0], stages.options.seed):
        stages.progress(f"float64: {variant.name}")
        try:
            found = _judged(stages, variant)
            if variant.zeros and not any(row.verdict == "FAIL" for row in found):
                found += _out_of_range(stages, variant)
        except ParityUsageError as error:
            found = [_refused(stages, variant, error)]
        rows += [replace(row, name=f"{row.name}, {variant.name}", group=variant.name) for row in found]
    return rows


def wrong_alike(rows: Sequence[Row]) -> Iterator[str]:
    """What both sides may be wrong in alike, in words: gradients that are no derivative, and what is no number."""
    quotients = [row for row in rows if row.group == DERIVATIVE and row.verdict == "ABSTAIN"]
    if quotients:
        whose = "neither side" if len(quotients) > 1 else "one side only"
        yield f"on {whose} the gradient is the derivative: {quotients[0].derivation}"
    said = NO_NUMBER, NOTHING_FINITE, alike.BOTH
    numbers = [row for row in rows if row.verdict == "ABSTAIN" and any(each in row.derivation for each in said)]
    if numbers:
        more = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        where = "" if numbers[0].stage == "float64" else f" in {numbers[0].stage}"
        yield f"{numbers[0].name}{where}{more}: {numbers[0].derivation}"


def _judged(stages: Stages, variant: Variant) -> list[Row]:
    """Outputs and gradients in float64; where nothing is finite, or every gradient is zero, nothing is said."""
    exact = stages.sides.run(variant.weights, [variant.batch], "float64")
    low = stages.sides.reference_run(variant.weights, [variant.batch], "float32")
    rows, _ = same_runs(stages.judge, exact, low, stages.options.grads)
    rows = without_ties(rows, exact, stages.sides, variant.weights, [variant.batch], stages.options.seed)
    rows = [_without_digits(_without_numbers(row, exact[0]), exact[0], low) for row in rows]
    return [replace(row, verdict="ABSTAIN") if row.verdict == "VACUOUS" else row for row in rows]


def _without_digits(row: Row, exact: Sequence[Run], low: Sequence[Run]) -> Row:
    """A failure where float32 has no digit right, and so gives float64 no scale.

    What a softmax of numbers in the thousands leaves of a gradient is rounding in every precision.
    """
    if row.verdict != "FAIL" or not row.compared:
        return row
    truth, coarse = exact[0].named, low[0].named
    if row.name not in truth or not is_float(truth[row.name]) or misplaced(truth[row.name], coarse[row.name]):
        return row
    if (error := relative([coarse[row.name]], [truth[row.name]])) < NO_DIGIT:
        return row
    said = f"float32 has no digit right (its error is {error:.2g}), and gives float64 no scale: {row.derivation}"
    return replace(row, verdict="ABSTAIN", derivation=said)


def _without_numbers(row: Row, exact: Sequence[Run]) -> Row:
    """An output that holds NaN on both sides has not been compared there; gradients are told by the judge."""
    if row.verdict == "FAIL" or row.name not in exact[0].outputs:
        return row
    values = exact[0].outputs[row.name]
    nan = not_a_number(values) if values.dtype.kind == "f" else 0
    said = f"{nan} of {values.size} elements {NO_NUMBER}, where nothing compares"
    return replace(row, verdict="ABSTAIN", derivation=said) if nan else row


def _out_of_range(stages: Stages, variant: Variant) -> Iterator[Row]:
    """Outputs and gradients that are no numbers at a working precision, in float64 being finite and in range."""
    for precision in stages.options.precisions:
        weights, batch = rounded(variant.weights, precision), rounded(variant.batch, precision)
        exact, low = (stages.sides.run(weights, [batch], each) for each in ("float64", precision))
        for truth, value in zip(kinds_of(exact), kinds_of(low), strict=True):
            for name in value.names():
                if name not in truth.reference[0] or name not in truth.candidate[0]:
                    continue
                truths = [[side[0][name]] for side in (truth.reference, truth.candidate)]
                values = [[side[0][name]] for side in (value.reference, value.candidate)]
                row = stages.judge.row(value, name, precision, 0.0, Bound(0.0, ""), values[1], truths[0])
                row = alike.in_range(replace(row, verdict="PASS"), values, truths, precision)
                if row.verdict == "FAIL" and (stages.options.grads or value.kind != "gradient"):
                    alone = not all(map(alike.left_range, values, truths, [precision, precision]))
                    yield row if alone else replace(row, verdict="ABSTAIN")


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
