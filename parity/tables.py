"""The tables of a report: figures by group of tensors, FLOPs by method, planted faults by kind."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from .findings import FAILED, KILLED, SURVIVED, UNTOUCHED, Planted, mutation_score
from .result import Row
from .work import Counts, Work

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

STYLES = {"PASS": "green", "FAIL": "bold red", "VACUOUS": "bold red", "ABSTAIN": "yellow", "ISLAND": "yellow"}

METHODS = {
    "formula": "formula (sizes alone)",
    "einops": "einops (patterns)",
    "jaxpr": "jaxpr (traced program)",
    "torch": "torch (on meta device)",
    "xla_lowered": "XLA cost_analysis",
}

WIDTH_FOR_NAMES = 110
WIDTH_FOR_NUMBERS = 72
#: What the name of the tightest tensor gets, on a terminal that is wide enough for one.
WIDTH_OF_TENSORS = 30
#: Three figures and the verdict of a row, with the space between them.
WIDTH_OF_FIGURES = 3 * (len("headroom") + 2) + len("ABSTAIN") + 4


def paragraph(text: str, width: int, style: str = "") -> Text:
    """Text whose lines are no longer than the console is wide."""
    return Text(textwrap.fill(text, width, subsequent_indent="  ", break_on_hyphens=False), style=style)


def print_parts(console: Console, parts: Iterable[RenderableType]) -> None:
    """One after the other; brackets in names are no markup."""
    for part in parts:
        console.print(part, highlight=False, markup=False)


def plain_table() -> Table:
    """A table without a frame, two spaces between its columns."""
    return Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))


def figures_table(*columns: str) -> Table:
    """A plain table of names in the first column and figures in the others; a column without a name is words."""
    table = plain_table()
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index and name else "left", no_wrap=bool(name))
    return table


def worst_by_group(rows: Iterable[Row]) -> list[tuple[Row, int]]:
    """The row with the least headroom of each group, failures first, and how many rows the group has."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return [(min(group, key=_urgency), len(group)) for group in groups.values()]


def was_run(row: Row) -> bool:
    """Whether there is a figure: a side may not run on another input than its own."""
    return not row.name.startswith("not run")


def _urgency(row: Row) -> tuple[int, float]:
    if not was_run(row):
        return 4, 0.0
    order = {"FAIL": 0, "VACUOUS": 1, "ISLAND": 2}
    return order.get(row.verdict, 3), row.headroom if row.measured == row.measured else 0.0


def rows_table(rows: list[Row], width: int) -> Table:
    """A line per group; narrow terminals lose how many tensors it has, wide ones gain the name of the tightest."""
    table = plain_table()
    narrow = width < WIDTH_FOR_NUMBERS  # then the names give way, which rich would not see by itself
    numbers = 0 if narrow else len("number") + 2
    names_width = width - WIDTH_OF_FIGURES - numbers - (WIDTH_OF_TENSORS if width >= WIDTH_FOR_NAMES else 0)
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
    if not was_run(row):
        return ""
    return f"{value:.2f}" if _is_operation(row) else f"{value:.1e}"


def _is_operation(row: Row) -> bool:
    return row.name.startswith("operation ")


def _headroom(row: Row) -> str:
    if not was_run(row):
        return "not run"
    if row.measured == 0:
        return "exact"
    if not math.isfinite(row.measured):
        return "none"
    return f"{row.headroom:.1f}x" if 1 <= row.headroom < 1e4 else f"{row.headroom:.0e}x"


def tensor(row: Row) -> str:
    """Name and shape of what a row compares."""
    return f"{row.name} {list(row.shape)}" if row.compared else row.name


def tightest(rows: list[Row]) -> str:
    """Where a bound comes from, on the row that comes nearest to it."""
    row = min(rows, key=_urgency)
    if not was_run(row):
        return f"not run on {row.group}: {row.derivation}"
    if not row.compared:
        return f"not comparable: {row.name}: {row.derivation}"
    return f"least headroom: {tensor(row)}, bound {_figure(row, row.bound)}: {row.derivation}"


def flops_table(flops: Counts) -> Table:
    """A line per method: numbers of ten and more digits stand below one another also on 80 columns."""
    table = plain_table()
    table.add_column("matmul FLOPs per batch", overflow="fold")
    for name in flops:
        table.add_column(name.replace("_", " + "), justify="right", no_wrap=True)
    for method in next(iter(flops.values())):
        kind, _, label = method.partition(" ")
        found = [counts[method] for counts in flops.values()]
        name = f"{METHODS[kind]}{label and f', {label}'}"
        table.add_row(name, *("none" if count is None else f"{count:,}" for count in found))
    return table


def flops_verdict(work: Work) -> str:
    """Whether the counts are equal integers, and of which methods."""
    names = ", ".join(method.replace(" ", " of ", 1) for method in work.methods)
    if work.equal is not None:
        return f"{names} {'are equal integers' if work.equal else 'are NOT equal'}"
    return (
        f"{names}: not every count could be made, so that they are not compared"
        if len(work.methods) > 1
        else (f"{names}: one count only, nothing to compare it with")
    )


OUTCOMES = (KILLED, SURVIVED, UNTOUCHED, FAILED)


def mutation_table(planted: Sequence[Planted]) -> Table:
    """A line per kind of fault."""
    table = plain_table()
    table.add_column("fault", overflow="fold")
    for outcome in (KILLED, SURVIVED, UNTOUCHED):
        table.add_column(outcome, justify="right", no_wrap=True)
    for kind in dict.fromkeys(each.kind for each in planted):
        outcomes = [each.outcome for each in planted if each.kind == kind]
        counts = [outcomes.count(outcome) for outcome in (KILLED, SURVIVED, UNTOUCHED)]
        style = STYLES["ABSTAIN"] if counts[1] else ""
        table.add_row(kind, *(str(count or "") for count in counts), style=style)
    return table


def mutation_lines(planted: Sequence[Planted]) -> Iterator[tuple[str, str]]:
    """The score, and by name what was not noticed."""
    score = mutation_score(planted)
    found = {outcome: [each for each in planted if each.outcome == outcome] for outcome in OUTCOMES}
    for each in found[SURVIVED]:
        yield f"survived: {each.kind}, {each.name}", STYLES["ABSTAIN"]
    for each in found[FAILED]:
        yield f"not planted: {each.name}: {each.by}", STYLES["ABSTAIN"]
    if untouched := [each.name.partition(":")[0] for each in found[UNTOUCHED]]:
        count = f"{len(untouched)} change no figure here by more than rounding, so that they do not count"
        yield f"{count}: {', '.join(untouched)}", "dim"
    if score is not None:
        killed = len(found[KILLED])
        effective = killed + len(found[SURVIVED])
        yield f"mutation score: {killed} of {effective} faults with an effect ({score:.1%})", ""
