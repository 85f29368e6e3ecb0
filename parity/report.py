"""A result as a person reads it: what was asked, one line per tensor group, what was proved and what could not be."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from .acceptance import describe_accepted
from .findings import BORN, INHERITED, Finding
from .formats import TENSORFLOAT32
from .result import Result, Row
from .tables import (
    STYLES,
    flops_table,
    flops_verdict,
    mutation_lines,
    mutation_table,
    paragraph,
    print_parts,
    rows_table,
    tensor,
    tightest,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

WHOLE_MODEL_16 = (
    "Whole model in 16 bits: each side against its own float64 run. Catches next to nothing (a wrong eps, a tanh GELU "
    "or a 16-bit softmax drowns in rounding), only what overflows or is coarsely wrong: judge single operations."
)

#: What a stage proves and what it cannot see.
STAGES = {
    "float64": (
        "Same mathematics? The two float64 runs against each other. Cannot see a mistake that both sides share, nor "
        "what this input does not reach."
    ),
    "float32": (
        "As accurate? Each side against its own float64 run, the worse side held against the better. Cannot see a "
        "fault below float32 rounding: that is what float64 is for."
    ),
    "bfloat16": WHOLE_MODEL_16,
    "float16": WHOLE_MODEL_16,
    TENSORFLOAT32: (
        "Whole model, float32 with products in TensorFloat-32: each side against its own float64 run. Cannot see what "
        "is finer than 11 bits of significand."
    ),
}
OPERATIONS = (
    "Each operation alone, on operands that are exact in this format: error in units of rounding the exact result "
    "once, 1.00 being the least. Sees 16-bit statistics or sums; cannot see how operations are wired together."
)
CURVES = (
    "The same training? Each side on its own, the gap between them against that of each side and its twins, which "
    "start one unit in the last place away. Cannot see what an optimizer hides (a gradient that is a multiple)."
)
MUTATION = (
    "Would it have been noticed? Faults of the kinds that ports have, planted one at a time into the candidate of this "
    "very check. Cannot say anything about faults of other kinds."
)
SEEDS = (
    "As good in the end? Final losses after training on the batches of each seed: the 90% interval of their mean "
    "difference (two one-sided t-tests) against 2 standard deviations of the reference between seeds, both relative to "
    "the mean loss. Cannot see a smaller difference, nor other weights to start from: they are the pair's own."
)
WITHOUT_FLOAT64 = "As near as this precision tells? {}. Cannot see a fault below its rounding, and proves no function."
ISLAND = (
    "The rows that float32 inside a float64 run moves beyond their bound. The next table has it widened to float64."
)
UNITS = (
    "each line shows the tensor with the least headroom: its error over its size (root mean squares), the bound on "
    "that, and bound / measured"
)

RUNGS = {
    "bitwise": "equal bits at the working precision as well",
    "same-function": "the float64 runs agree to float64 rounding",
    "float32-island": "float32 was seen inside a float64 run; with it widened they agree to float64 rounding",
    "different": "they are not the same function",
}

#: Tables of their own, by the first word of their rows.
PARTS = {"operation": "operations", "training": "curves", "final": "seeds"}
#: Lines on what was not seen inside a model.
MOST_UNSEEN = 4
#: Reasons why points of one side have no partner.
MOST_REASONS = 2


def to_text(result: Result, width: int = 100) -> str:
    """The report as plain text."""
    file = io.StringIO()
    print_report(Console(file=file, width=width, color_system=None, legacy_windows=False), result)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def print_report(console: Console, result: Result) -> None:
    """The question, a table per stage, findings, FLOPs, the verdict; no line is longer than the console is wide."""
    print_parts(console, _parts(result, console.width))


def _parts(result: Result, width: int) -> Iterator[RenderableType]:
    yield paragraph(_headline(result), width, style_of(result))
    for note in result.notes:
        yield paragraph(note, width, "dim")
    if result.rows:
        yield paragraph(UNITS, width, "dim")
    for title, question, rows in _sections(result):
        yield Text()
        yield paragraph(f"{title}  {question}", width, "bold")
        yield rows_table(rows, width)
        yield paragraph(tightest(rows), width, "dim")
    for text, style in _findings(result):
        yield Text()
        yield paragraph(text, width, style)
    if result.work.flops:
        yield Text()
        yield flops_table(result.work.flops)
        yield paragraph(flops_verdict(result.work), width)
        for note in result.work.notes:
            yield paragraph(note, width, "dim")
    if result.planted:
        yield Text()
        yield paragraph(f"mutation  {MUTATION}", width, "bold")
        yield mutation_table(result.planted)
        for line, style in mutation_lines(result.planted):
            yield paragraph(line, width, style)
    yield Text()
    yield paragraph(_verdict(result), width, style_of(result))


def is_accepted(result: Result) -> bool:
    """Whether a result passed for its acceptances alone."""
    return result.passed and result.verdict != "PASS"


def style_of(result: Result) -> str:
    """The colour of a result's verdict."""
    return "yellow" if is_accepted(result) else STYLES[result.verdict]


def _headline(result: Result) -> str:
    sides = " against ".join(reversed(result.rows[0].side_names)) if result.rows else "nothing compared"
    return f"{result.target}: {sides}: {_outcome(result)}"


def _outcome(result: Result) -> str:
    """The verdict, the rung if there is one, and whether what failed is accepted."""
    words = (result.verdict, result.rung, "accepted" if is_accepted(result) else None)
    return ", ".join(word for word in words if word)


def _sections(result: Result) -> Iterator[tuple[str, str, list[Row]]]:
    """Title, question and rows of each stage; what is measured in another unit or with float32 inside stands apart."""
    instead = result.without_float64
    sections: dict[tuple[str, str], list[Row]] = {}
    for row in result.rows:
        word, space, _ = row.name.partition(" ")
        named = PARTS.get(word, "model") if space else "model"  # an output may be called `final`
        part = "island" if row.verdict == "ISLAND" else named
        sections.setdefault((row.stage, part), []).append(row)
    for (stage, part), found in sections.items():
        if part == "operations":
            yield f"{stage}, operation by operation", OPERATIONS, found
        elif part == "curves":
            yield f"{stage}, training curves", CURVES, found
        elif part == "seeds":
            yield f"{stage}, training, {found[0].shape[0]} seeds", SEEDS, found
        elif part == "island":
            yield f"{stage}, as it stands", ISLAND, found
        else:
            widened = stage == "float64" and result.rung == "float32-island"
            question = WITHOUT_FLOAT64.format(instead) if instead and stage != "float64" else STAGES[stage]
            yield f"{stage}, float32 widened" if widened else stage, question, found


def _findings(result: Result) -> Iterator[tuple[str, str]]:
    if result.zero_gradients:
        count, names = len(result.zero_gradients), sorted({any_layer(name) for name in result.zero_gradients})
        yield f"zero in theory on both sides and not compared: {count} gradients ({', '.join(names)})", ""
    for island in result.islands:
        where = f"{island.place}, {island.operation} to {island.dtype}"
        place = f" at {island.source}" if island.source else ""
        said = "; it does not explain the difference" if result.rung == "different" else ""
        yield f"lower precision seen in {island.side}: {where}{place}{said}", "yellow"
    yield from _beginnings(result)
    first = result.first_difference
    if first is not None and not first.compared:
        yield f"first difference: {first.name}, {' against '.join(first.side_names)}: {first.derivation}", "red"
    elif first is not None:
        yield (
            f"first difference: {tensor(first)} in {first.stage}, {' against '.join(first.side_names)}: measured "
            f"{first.measured:.2g}, bound {first.bound:.2g}: {first.derivation}",
            "red",
        )
    for line in describe_accepted(map(asdict, result.accepted)):
        yield line, "yellow"
    if result.rung == "different":
        yield "the working precisions are judged only where the two are the same function", "dim"


def _beginnings(result: Result) -> Iterator[tuple[str, str]]:
    """Where differences are born inside the model, and what follows from them."""
    sides = result.rows[0].side_names if result.rows else ("", "")
    births = [finding for finding in result.findings if finding.birth == BORN]
    for number, finding in enumerate(births):
        lines = ", ".join(f"{side} {line}" for side, line in zip(sides, finding.where, strict=True) if line)
        what = f"{'gradient at ' if finding.what == 'gradient' else ''}{finding.name}{f' ({lines})' if lines else ''}"
        yield (
            f"{'and' if number else 'it begins'} at {what}: born here, {finding.measured:.2g} apart, bound "
            f"{finding.bound:.2g}; {_before(result, finding)}",
            "bold red",
        )
    if len(births) > 1:
        yield (
            "these may be one fault: it can reach each of them through values that are no points, such as a sum of "
            "residuals; start with the first",
            "",
        )
    if births:
        inherited = [finding.name for finding in result.findings if finding.birth == INHERITED]
        if inherited:
            yield f"{len(inherited)} points after that inherit it: {_some(inherited)}", ""
    elif result.findings:
        yield f"{len(result.findings)} points differ, first {result.findings[0].name}", "red"
    elif result.rung == "different" and (points := [row for row in result.rows if row.name.startswith("point ")]):
        yield f"all {len(points)} points of both sides agree, the last one {points[-1].name.removeprefix('point ')}", ""
    for role, side in zip(("reference", "candidate"), sides, strict=True):
        reasons: dict[str, list[str]] = {}
        for each in result.unmatched:
            if each.side == role:
                reasons.setdefault(each.reason, []).append(each.name)
        for reason, lonely in [*reasons.items()][:MOST_REASONS]:
            many = f"{len(lonely)} points" if len(lonely) > 1 else "1 point"
            yield f"without a partner: {many} of {side}, {_some(lonely)}: {reason}", "dim"
        if (more := sum(map(len, [*reasons.values()][MOST_REASONS:]))) > 0:
            yield f"without a partner: {more} more of {side} (--json has them)", "dim"
    for line in result.unseen[:MOST_UNSEEN]:
        yield f"not seen: {line}", "dim"
    if (more := len(result.unseen) - MOST_UNSEEN) > 0:
        yield f"not seen: {more} more (--json has them)", "dim"


def _before(result: Result, finding: Finding) -> str:
    """The last point before one that differs which gave the same on the same values, in the order of the run."""
    kind = "gradient at point " if finding.what == "gradient" else "point "
    names = [row.name for row in result.rows if row.name.startswith(kind)]
    born = {kind + each.name for each in result.findings if each.what == finding.what and each.birth != INHERITED}
    before = [name for name in names[: names.index(kind + finding.name)] if name not in born]
    return (
        f"the last point before it that agrees is {before[-1].removeprefix(kind)}" if before else "no point before it"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:3], *(["..."] if len(names) > 3 else [])])


def any_layer(name: str) -> str:
    """A parameter's name with the layer number left open."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _verdict(result: Result) -> str:
    why = result.reason or (RUNGS[result.rung] if result.rung else "")
    return f"{_outcome(result)}  {result.target}  ({result.seconds:.0f} s, seed {result.seed})" + (
        f": {why}" if why else ""
    )
