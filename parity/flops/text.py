"""The counts of `parity flops` as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..tables import STYLES, flops_table, flops_verdict, paragraph, print_parts
from ..work import FORWARD, FORWARD_BACKWARD
from .counts import Flops

if TYPE_CHECKING:
    from rich.console import RenderableType

UNIT = (
    "a product and its sum count two; attention is the full square, with a mask too; tables that are looked up, norms, "
    "softmax and optimizers have no matmul"
)


def print_flops(console: Console, flops: Flops) -> None:
    """The counts, the classes, the layers, the rules of thumb; no line is longer than the console is wide."""
    print_parts(console, _parts(flops, console.width))


def _parts(flops: Flops, width: int) -> Iterator[RenderableType]:
    size = f"{flops.parameters:,} parameters, " if flops.parameters is not None else ""
    yield paragraph(f"{flops.target}: {size}{flops.about}", width, "bold")
    yield paragraph(UNIT, width, "dim")
    yield Text()
    yield flops_table(flops.work.flops)
    verdict = STYLES["PASS" if flops.equal else "ABSTAIN" if flops.equal is None else "FAIL"]
    yield paragraph(_verdict(flops), width, verdict)
    if again := _again(flops):
        yield paragraph(again, width)
    for note in flops.work.notes:
        yield paragraph(note, width, "dim")
    if flops.classes:
        yield Text()
        yield _classes(flops)
    if layers := flops.layers.get(FORWARD_BACKWARD):
        yield paragraph(_layers(flops.layers[FORWARD], layers), width, "dim")
    if flops.laws:
        yield Text()
        yield _laws(flops)


def _again(flops: Flops) -> str:
    """What a recomputation adds, in words; nothing without one."""
    both = flops.work.flops[FORWARD_BACKWARD].get("formula") or 0
    if not flops.model or both == flops.model[FORWARD_BACKWARD]:
        return ""
    forward, needed = flops.model[FORWARD], flops.model[FORWARD_BACKWARD]
    return (
        f"of these the model needs {forward:,} and {needed:,}; {both - needed:,} are of what is run again: "
        f"{(both - needed) / forward:.3f} forward passes, so that a step is {both / forward:.3f} of them"
    )


def _verdict(flops: Flops) -> str:
    said = flops_verdict(flops.work)
    if flops.classes and flops.equal:
        return f"{said}, and so they are in each of {len(flops.classes[FORWARD])} classes"
    differing = [
        f"{name} ({each.replace('_', ' + ')}): {', '.join(f'{method} {count:,}' for method, count in counts.items())}"
        for each, found in flops.classes.items()
        for name, counts in found.items()
        if len(set(counts.values())) > 1
    ]
    return "; ".join([said, *differing])


def _classes(flops: Flops) -> Table:
    """A line per class: the count of the first method, which is that of all."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("class of matmul", "forward", "forward + backward", "share"):
        table.add_column(name, justify="left" if name == "class of matmul" else "right", no_wrap=True)
    totals = {name: next(iter(counts.values())) for name, counts in flops.classes[FORWARD_BACKWARD].items()}
    whole = sum(totals.values()) or 1
    for name, total in totals.items():
        forward = next(iter(flops.classes[FORWARD].get(name, {}).values()), 0)
        table.add_row(name, f"{forward:,}", f"{total:,}", f"{total / whole:.1%}")
    return table


def _layers(forward: Sequence[int], both: Sequence[int]) -> str:
    if len(set(both)) == 1 == len(set(forward)):
        return f"each of {len(both)} layers: {forward[0]:,} forward, {both[0]:,} forward + backward"
    return "layers, forward + backward: " + ", ".join(f"{index} {count:,}" for index, count in enumerate(both))


def _laws(flops: Flops) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("rules of thumb", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for law in flops.laws:
        value = f"{law.value:,.0f}" if law.value >= 100 else f"{law.value:.3f}"
        table.add_row(law.name, value, Text(law.says, style="dim"))
    return table
