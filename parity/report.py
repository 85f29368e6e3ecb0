"""A result as a person reads it: what was asked, one line per tensor group, what was proved and what could not be."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .acceptance import describe_accepted
from .findings import BORN, INHERITED
from .result import Result, Row
from .work import Counts, Work

if TYPE_CHECKING:
    from rich.console import RenderableType

STYLES = {"PASS": "green", "FAIL": "bold red", "VACUOUS": "bold red", "ABSTAIN": "yellow", "ISLAND": "yellow"}

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
}
OPERATIONS = (
    "Each operation alone, on operands that are exact in this format: error in units of rounding the exact result "
    "once, 1.00 being the least. Sees 16-bit statistics or sums; cannot see how operations are wired together."
)
CURVES = (
    "The same training? Each side on its own, the gap between them against that of each side and its twins, which "
    "start one unit in the last place away. Cannot see what an optimizer hides (a gradient that is a multiple)."
)
ISLAND = (
    "The rows that float32 inside a float64 run moves beyond their bound. The next table has it widened to float64."
)
UNITS = (
    "measured and bound: root mean square error relative to the exact tensor, for the tensor with the least headroom"
)

RUNGS = {
    "bitwise": "equal bits at the working precision as well",
    "same-function": "the float64 runs agree to float64 rounding",
    "float32-island": "float32 was seen inside a float64 run; with it widened they agree to float64 rounding",
    "different": "they are not the same function",
}

METHODS = {
    "formula": "formula (sizes alone)",
    "jaxpr": "jaxpr (traced program)",
    "torch": "torch (on meta device)",
    "xla_lowered": "XLA cost_analysis",
}

#: Tables of their own, by the first word of their rows.
PARTS = {"operation": "operations", "training": "curves"}
#: Lines on what was not seen inside a model.
MOST_UNSEEN = 4
WIDTH_FOR_NAMES = 110
WIDTH_FOR_NUMBERS = 72
#: Three figures and the verdict of a row, with the space between them.
WIDTH_OF_FIGURES = 3 * (len("headroom") + 2) + len("ABSTAIN") + 4


def to_text(result: Result, width: int = 100) -> str:
    """The report as plain text."""
    file = io.StringIO()
    print_report(Console(file=file, width=width, color_system=None, legacy_windows=False), result)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def print_report(console: Console, result: Result) -> None:
    """The question, a table per stage, findings, FLOPs, the verdict; no line is longer than the console is wide."""
    for part in _parts(result, console.width):
        console.print(part, highlight=False, markup=False)


def _parts(result: Result, width: int) -> Iterator[RenderableType]:
    def paragraph(text: str, style: str = "") -> Text:
        return Text(textwrap.fill(text, width, subsequent_indent="  ", break_on_hyphens=False), style=style)

    yield paragraph(_headline(result), style_of(result))
    for note in result.notes:
        yield paragraph(note, "dim")
    if result.rows:
        yield paragraph(UNITS, "dim")
    for title, question, rows in _sections(result.rows):
        yield Text()
        yield paragraph(f"{title}  {question}", "bold")
        yield _table(rows, width)
        yield paragraph(_tightest(rows), "dim")
    for text, style in _findings(result):
        yield Text()
        yield paragraph(text, style)
    if result.work.flops:
        yield Text()
        yield _flops(result.work.flops)
        yield paragraph(_flops_verdict(result.work))
        for note in result.work.notes:
            yield paragraph(note, "dim")
    yield Text()
    yield paragraph(_verdict(result), style_of(result))


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


def _sections(rows: Iterable[Row]) -> Iterator[tuple[str, str, list[Row]]]:
    """Title, question and rows of each stage; what is measured in another unit or with float32 inside stands apart."""
    sections: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        word = row.name.partition(" ")[0]
        part = "island" if row.verdict == "ISLAND" else PARTS.get(word, "model")
        sections.setdefault((row.stage, part), []).append(row)
    for (stage, part), found in sections.items():
        if part == "operations":
            yield f"{stage}, operation by operation", OPERATIONS, found
        elif part == "curves":
            yield f"{stage}, training curves", CURVES, found
        elif part == "island":
            yield f"{stage}, as it stands", ISLAND, found
        else:
            widened = (stage, "island") in sections
            yield f"{stage}, float32 widened" if widened else stage, STAGES[stage], found


def worst_by_group(rows: Iterable[Row]) -> list[tuple[Row, int]]:
    """The row with the least headroom of each group, failures first, and how many rows the group has."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return [(min(group, key=_urgency), len(group)) for group in groups.values()]


def _urgency(row: Row) -> tuple[int, float]:
    order = {"FAIL": 0, "VACUOUS": 1, "ISLAND": 2}
    return order.get(row.verdict, 3), row.headroom if row.measured == row.measured else 0.0


def _table(rows: list[Row], width: int) -> Table:
    """A line per group; narrow terminals lose how many tensors it has, wide ones gain the name of the tightest."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    narrow = width < WIDTH_FOR_NUMBERS  # then the names give way, which rich would not see by itself
    names_width = width - WIDTH_OF_FIGURES if narrow else None
    table.add_column("tensors", no_wrap=True, overflow="ellipsis", max_width=names_width)
    for name in ("measured", "bound", "headroom") if narrow else ("number", "measured", "bound", "headroom"):
        table.add_column(name, justify="right", no_wrap=True, min_width=0 if name == "number" else len("headroom"))
    table.add_column("", no_wrap=True, min_width=len("ABSTAIN"))
    if width >= WIDTH_FOR_NAMES:
        table.add_column("least headroom", no_wrap=True, overflow="ellipsis", style="dim")
    for row, count in worst_by_group(rows):
        cells: list[RenderableType] = [row.group]
        if not narrow:
            cells.append(str(count))
        cells += [_figure(row, row.measured), _figure(row, row.bound), _headroom(row)]
        cells.append(Text(row.verdict, style=STYLES[row.verdict]))
        if width >= WIDTH_FOR_NAMES:
            cells.append("" if row.name == row.group else row.name.rsplit(" ", 1)[-1])
        table.add_row(*cells)
    return table


def _figure(row: Row, value: float) -> str:
    return f"{value:.2f}" if _is_operation(row) else f"{value:.1e}"


def _is_operation(row: Row) -> bool:
    return row.name.startswith("operation ")


def _headroom(row: Row) -> str:
    if row.measured == 0:
        return "exact"
    if not math.isfinite(row.measured):
        return "none"
    return f"{row.headroom:.1f}x" if 1 <= row.headroom < 1e4 else f"{row.headroom:.0e}x"


def _tensor(row: Row) -> str:
    return f"{row.name} {list(row.shape)}" if row.compared else row.name


def _tightest(rows: list[Row]) -> str:
    """Where a bound comes from, on the row that comes nearest to it."""
    row = min(rows, key=_urgency)
    if not row.compared:
        return f"not comparable: {row.name}: {row.derivation}"
    return f"least headroom: {_tensor(row)}, bound {_figure(row, row.bound)}: {row.derivation}"


def _findings(result: Result) -> Iterator[tuple[str, str]]:
    if result.zero_gradients:
        count, names = len(result.zero_gradients), sorted({any_layer(name) for name in result.zero_gradients})
        yield f"zero in theory on both sides and not compared: {count} gradients ({', '.join(names)})", ""
    for island in result.islands:
        where = f"{island.place}, {island.operation} to {island.dtype}"
        yield (
            f"lower precision seen in {island.side}: {where}{f' at {island.source}' if island.source else ''}",
            "yellow",
        )
    yield from _beginnings(result)
    first = result.first_difference
    if first is not None and not first.compared:
        yield f"first difference: {first.name}, {' against '.join(first.side_names)}: {first.derivation}", "red"
    elif first is not None:
        yield (
            f"first difference: {_tensor(first)} in {first.stage}, {' against '.join(first.side_names)}: measured "
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
            f"{'and, apart from that,' if number else 'it begins'} at {what}: born here, {finding.measured:.2g} apart, "
            f"bound {finding.bound:.2g}",
            "bold red",
        )
    if births:
        inherited = [finding.name for finding in result.findings if finding.birth == INHERITED]
        if inherited:
            yield f"{len(inherited)} points after that inherit it: {_some(inherited)}", ""
    elif result.findings:
        yield f"{len(result.findings)} points differ, first {result.findings[0].name}", "red"
    for role, side in zip(("reference", "candidate"), sides, strict=True):
        if left := [each.name for each in result.unmatched if each.side == role]:
            yield f"{len(left)} points of {side} have no partner on the other side: {_some(left)}", "dim"
    for line in result.unseen[:MOST_UNSEEN]:
        yield f"not seen: {line}", "dim"
    if (more := len(result.unseen) - MOST_UNSEEN) > 0:
        yield f"not seen: {more} more (--json has them)", "dim"


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:3], *(["..."] if len(names) > 3 else [])])


def any_layer(name: str) -> str:
    """A parameter's name with the layer number left open."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _flops(flops: Counts) -> Table:
    """A line per method: numbers of ten and more digits stand below one another also on 80 columns."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("matmul FLOPs per batch", overflow="fold")
    for name in flops:
        table.add_column(name.replace("_", " + "), justify="right", no_wrap=True)
    for method in next(iter(flops.values())):
        kind, _, label = method.partition(" ")
        found = [counts[method] for counts in flops.values()]
        name = f"{METHODS[kind]}{label and f', {label}'}"
        table.add_row(name, *("none" if count is None else f"{count:,}" for count in found))
    return table


def _flops_verdict(work: Work) -> str:
    names = ", ".join(work.methods)
    if work.equal is not None:
        return f"{names} {'are equal integers' if work.equal else 'are NOT equal'}"
    return (
        f"{names}: not every count could be made, so that they are not compared"
        if len(work.methods) > 1
        else (f"{names}: one count only, nothing to compare it with")
    )


def _verdict(result: Result) -> str:
    why = result.reason or (RUNGS[result.rung] if result.rung else "")
    return f"{_outcome(result)}  {result.target}  ({result.seconds:.0f} s, seed {result.seed})" + (
        f": {why}" if why else ""
    )
