"""The first question, in float64: the same function, the same but for float32 inside, or another one, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .bounds import FLOAT64_TO_FLOAT32
from .constants import elsewhere
from .derivative import suspects
from .errors import ANYTHING, NoFloat64Error
from .findings import BORN, Planted
from .islands import Island
from .localise import Localised
from .preparation import WEIGHTS
from .result import Row
from .stages import Stages
from .ties import is_tied


@dataclass
class Judged:
    """What is known of a pair so far; each stage of a check adds its rows, and may change the verdict."""

    rows: list[Row]
    verdict: str
    rung: str | None
    reason: str
    islands: Sequence[Island] = ()
    inside: Localised = field(default_factory=Localised)
    planted: Sequence[Planted] = ()

    @property
    def passes(self) -> bool:
        """Whether nothing has failed."""
        return self.verdict == "PASS"

    def judge(self, verdict: str, rung: str | None, reason: str) -> None:
        """Another verdict than before."""
        self.verdict, self.rung, self.reason = verdict, rung, reason


def same_function(stages: Stages, unpaired: Sequence[Row]) -> Judged:
    """Outputs, gradients and optimizers in float64; what fails is looked into for float32, then for its place.

    Raises:
        NoFloat64Error: a side cannot be run in float64, nor with the float32 in it widened.
    """
    try:
        rows = [*unpaired, *stages.same_function()]
    except NoFloat64Error as error:
        return _widened_alone(stages, unpaired, error)
    judged = Judged(rows, *_judge_float64(rows))
    if judged.rung == "different" and not any(map(is_misfit, rows)):
        stages.progress("float64: looking for float32 inside the float64 runs")
        judged.islands = stages.islands()
        judged.rung, judged.reason, judged.rows = _prove_island(rows, judged.islands, stages, judged.reason)
        judged.verdict = {"different": "FAIL", None: "ABSTAIN"}.get(judged.rung, "PASS")
    if judged.rung == "different" and unpaired and _is_small(rows):
        judged.reason += "; that is float32 rounding, in which weights that only one side has may have been worked out"
    _look_inside(stages, judged)
    return judged


def _is_small(rows: Sequence[Row]) -> bool:
    """Whether all that fails is within what the float64 rule allows if its rounding were that of float32."""
    failed = [row for row in rows if row.verdict == "FAIL" and row.group != WEIGHTS]
    return all(row.compared and row.measured * FLOAT64_TO_FLOAT32 <= row.bound for row in failed)


def _widened_alone(stages: Stages, unpaired: Sequence[Row], error: NoFloat64Error) -> Judged:
    """A side that cannot be run in float64 for the float32 that it makes on the way: with that widened, it may be."""
    if not stages.refusing_float64(error):
        raise error
    stages.progress("float64: looking for the float32 that stops the float64 runs")
    try:
        islands = stages.islands()
    except ANYTHING:  # JAX traces the whole function, or nothing of it
        raise error from error.__cause__
    if not islands:
        raise error
    stages.sides.lifted = True
    try:
        widened = stages.same_function()
    except NoFloat64Error:
        stages.sides.lifted = False
        raise error from error.__cause__
    stages.notes += (f"float64 with float32 widened alone, for as it stands {error.label} raises {error.said}",)
    if _judge_float64(widened)[1] == "different":
        widened = _with_tables(widened, islands, stages)
    judged = Judged([*unpaired, *widened], *_judge_float64(widened), islands=islands)
    if judged.rung == "same-function":
        judged.rung = "float32-island"
    _look_inside(stages, judged)
    return judged


def _look_inside(stages: Stages, judged: Judged) -> None:
    """Where it begins; what agrees is looked into as well where that is asked for, since two errors may cancel."""
    agreeing = judged.passes
    fails = judged.rung == "different" and stages.in_model and not any(map(is_misfit, judged.rows))
    if not fails and not (agreeing and stages.options.points):
        if agreeing and stages.prepared.pair.points:
            stages.notes += ("points: not read, for nothing differs; Options(points=True) looks inside all the same",)
        return
    stages.progress("float64: looking inside for where it begins")
    in_gradients = _failed_alone(judged.rows, "gradient")
    inside = judged.inside = stages.localise(backward=agreeing or in_gradients)
    judged.rows = [*inside.rows, *judged.rows]
    if agreeing and inside.findings:
        verdict, rung, difference = _judge_float64(inside.rows)
        judged.judge(verdict, rung, f"the outputs agree, but {difference}")
    judged.reason += inside.begins
    if inside.moved and not agreeing:
        judged.reason += f"; {inside.moved[0]}"
    elif not agreeing and _failed_alone(judged.rows, "state ", "output state "):
        judged.reason += "; all that differs is what the run leaves in its state"
    elif inside.rows and not inside.findings and not agreeing and not in_gradients:
        judged.reason += f"; it begins after {inside.rows[-1].name.removeprefix('point ')}, the last point that agrees"
    if not any(finding.what == "value" for finding in inside.findings) and in_gradients:
        found = stages.derivatives()
        judged.rows += found
        judged.reason += suspects(found)


def _judge_float64(rows: Sequence[Row]) -> tuple[str, str | None, str]:
    """Same function, different, or nothing compared."""
    failed = first_of(rows, "FAIL")
    if failed is not None:
        if failed.group == WEIGHTS:
            return "FAIL", "different", f"{failed.name}: {failed.derivation}"
        if not failed.compared:
            what = f"{failed.name}: {failed.derivation}; both sides need the same names, shapes and types"
            return "FAIL", "different", what
        difference = f"{failed.name} differs in float64: {failed.measured:.2g}, bound {failed.bound:.2g}"
        return "FAIL", "different", difference
    vacuous = first_of(rows, "VACUOUS")
    if vacuous is not None or not rows:
        what = f"{vacuous.name}: {vacuous.derivation}" if vacuous else "there is no float output to compare"
        return "VACUOUS", None, what
    tied = next(filter(is_tied, rows), None)
    if tied is not None:
        return "ABSTAIN", None, f"{tied.name}: {tied.derivation}; which of equals is taken is for the pair to settle"
    return "PASS", "same-function", ""


#: What is float32, by itself or in both parts, or holds such numbers.
SINGLE = ("float32", "float64", "complex64", "complex128")


def narrow_on_both(islands: Sequence[Island]) -> str:
    """The types of 16 bits or fewer that were seen in both sides, in words; "" where one side has none."""
    lower = _less_than_float32(islands)
    return f"{' and '.join(dict.fromkeys(lower.values()))} was seen in both sides" if len(lower) > 1 else ""


def _less_than_float32(islands: Sequence[Island]) -> dict[str, str]:
    """The first type of 16 bits or fewer that was seen in each side."""
    return {island.side: island.dtype for island in reversed(islands) if island.dtype not in SINGLE}


def _prove_island(
    rows: list[Row], islands: Sequence[Island], stages: Stages, difference: str
) -> tuple[str | None, str, list[Row]]:
    """`float32-island` only with its proof: float32 was seen in a float64 run, and widening it closes the gap."""
    if not islands:
        where = "outputs and gradients" if stages.in_model else "optimizer steps"
        return "different", f"{difference}; no lower precision was seen in the float64 {where}", rows
    lower = _less_than_float32(islands)
    if len(lower) == 1:
        ((side, dtype),) = lower.items()
        return "different", f"{difference}; {dtype} was seen in {side}, which is less than float32", rows
    stages.progress("float64: widening the float32 that was seen")
    stages.sides.lifted = True
    widened = stages.same_function()
    why, left = "", first_of(widened, "FAIL")
    if left is not None:
        widened = _with_tables(widened, islands, stages)
        why = (
            f"float32 was seen inside a float64 run; what is left with it widened ({left.name}: {left.measured:.2g}) "
            "is no more than its float32 tables' rounding, below which nothing is seen"
        )
    if _judge_float64(widened)[1] != "same-function":
        return "different", f"{difference}; widening the float32 that was seen does not close the gap", rows
    if lower:
        why = "and with it widened they agree: how they round is not judged"
        return None, f"{difference}; {narrow_on_both(islands)}, {why}", rows
    before = [replace(row, verdict="ISLAND") for row in rows if row.verdict == "FAIL"]
    return "float32-island", why, [*before, *widened]


def _with_tables(widened: list[Row], islands: Sequence[Island], stages: Stages) -> list[Row]:
    """Float32 tables cannot be widened: the rows with what they explain, if all that is left is born where they are."""
    if not stages.in_model or all(island.operation != "constant" for island in islands):
        return widened
    stages.progress("float64: float32 tables, which cannot be widened")
    inside = stages.localise()
    whole = not inside.rows  # no point within: what differs is born in the function as a whole, and so is the table
    born = any(finding.birth == BORN for finding in inside.findings)
    if not (born or whole) or elsewhere(inside.findings, islands, inside.unmatched):
        return widened
    stages.tables = tuple({island.side for island in islands if island.operation == "constant"})
    return stages.excused(widened)


def _failed_alone(rows: Sequence[Row], *kinds: str) -> bool:
    """Whether all that fails is of these kinds, by the first words of its name."""
    failed = [row.name for row in rows if row.verdict == "FAIL"]
    return bool(failed) and all(name.startswith(kinds) for name in failed)


def is_misfit(row: Row) -> bool:
    """Names, shapes or weights that differ, which no precision explains; a type may be an island."""
    return (row.group == WEIGHTS and row.verdict == "FAIL") or (
        not row.compared and not row.derivation.startswith("type ")
    )


def first_of(rows: Sequence[Row], verdict: str) -> Row | None:
    """The first row of a verdict."""
    return next((row for row in rows if row.verdict == verdict), None)
