"""A result as a person reads it: one line per tensor group and stage, what was proved, and what could not be."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .result import Result, Row

if TYPE_CHECKING:
    from rich.console import RenderableType

STYLES = {"PASS": "green", "FAIL": "bold red", "VACUOUS": "bold red", "ABSTAIN": "yellow", "ISLAND": "yellow"}

#: What a stage proves and what it cannot see (calibrated: a faulty LayerNorm or a tanh GELU leaves a bfloat16 model as it was).
STAGES = {
    "float64": "same mathematics? the two float64 runs against each other",
    "float32": "same accuracy? each side against its own float64 run",
    "bfloat16": "as float32, but a whole model in 16 bits hides nearly every fault: read the operations",
    "float16": "as float32, but a whole model in 16 bits hides nearly every fault: read the operations",
}

WIDTH_FOR_SHAPES = 110


def to_text(result: Result, width: int = 100) -> str:
    """The report as plain text."""
    console = Console(file=io.StringIO(), width=width, no_color=True, force_terminal=False, legacy_windows=False)
    print_report(console, result)
    return console.file.getvalue()  # type: ignore[attr-defined]


def print_report(console: Console, result: Result) -> None:
    """Rows by stage, islands, zero gradients, FLOPs, verdict."""
    for note in result.notes:
        console.print(Text(note, style="dim"))
    for stage in dict.fromkeys(row.stage for row in result.rows):
        rows = [row for row in result.rows if row.stage == stage]
        console.print()
        console.print(Text(f"{stage}: {STAGES[stage]}", style="bold"))
        console.print(_table(rows, wide=console.width >= WIDTH_FOR_SHAPES))
    console.print()
    for line in _findings(result):
        console.print(line)
    if result.flops:
        console.print(_flops(result))
    console.print(_verdict(result))


def worst_by_group(rows: Iterable[Row]) -> list[tuple[Row, int]]:
    """The row with the least headroom of each group, failures first, and how many rows the group has."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    order = {"FAIL": 0, "VACUOUS": 1, "ISLAND": 2}
    return [
        (min(group, key=lambda row: (order.get(row.verdict, 3), row.headroom)), len(group)) for group in groups.values()
    ]


def _table(rows: list[Row], wide: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("tensors", no_wrap=True, overflow="ellipsis")
    table.add_column("of", justify="right")
    table.add_column("measured", justify="right")
    table.add_column("bound", justify="right")
    table.add_column("headroom", justify="right")
    table.add_column("", no_wrap=True)
    if wide:
        table.add_column("worst tensor; where its bound comes from", ratio=1, overflow="fold", style="dim")
    for row, count in worst_by_group(rows):
        cells: list[RenderableType] = [
            row.group,
            str(count),
            f"{row.measured:.1e}",
            f"{row.bound:.1e}",
            f"{row.headroom:.1f}x" if row.headroom < 1e4 else ">1e4x",
            Text(row.verdict, style=STYLES[row.verdict]),
        ]
        if wide:
            own = "" if row.name == row.group else row.name.split(" ")[-1] + ": "
            cells.append(own + row.derivation)
        table.add_row(*cells)
    return table


def _findings(result: Result) -> Iterable[Text]:
    if result.zero_gradients:
        names = sorted({row_group(name) for name in result.zero_gradients})
        yield Text(
            f"zero in theory on both sides, left out of the comparison: {len(result.zero_gradients)} gradients "
            f"({', '.join(names)})"
        )
    for island in result.islands:
        yield Text(
            f"float32 island in {island.side}: {island.place}, {island.operation} to {island.dtype} at {island.source}",
            style="yellow",
        )
    first = result.first_difference
    if first is not None:
        yield Text(
            f"first difference: {first.name} {list(first.shape)} in {first.stage}, {first.side_names[0]} against "
            f"{first.side_names[1]}: measured {first.measured:.2g}, bound {first.bound:.2g} ({first.derivation})",
            style="red",
        )


def row_group(name: str) -> str:
    """A parameter's name with the layer number left open."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _flops(result: Result) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("matmul FLOPs of a batch")
    methods = list(next(iter(result.flops.values())))
    for method in methods:
        table.add_column(method, justify="right")
    for name, counts in result.flops.items():
        table.add_row(name, *(f"{counts[m]:,}" if counts[m] is not None else "none" for m in methods))
    verdict = "equal integers" if result.flops_equal else "NOT equal"
    table.caption = f"formula, jaxpr, torch: {verdict}; xla_lowered counts elementwise work too and works in float32"
    table.caption_justify = "left"
    return table


def _verdict(result: Result) -> Text:
    rung = f", {result.rung}" if result.rung else ""
    reason = f": {result.reason}" if result.reason else ""
    line = f"{result.verdict}{rung}  {result.target}  ({result.seconds:.0f} s, seed {result.seed}){reason}"
    return Text(line, style=STYLES[result.verdict])
