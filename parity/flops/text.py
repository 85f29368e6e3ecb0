"""The counts of `parity flops` as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..tables import STYLES, figures_table, flops_table, flops_verdict, paragraph, plain_table, print_parts
from ..work import FORWARD, FORWARD_BACKWARD, SHOWN_ONLY, Reconciliation
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
        for said in _by_method(flops.layers[FORWARD], layers):
            yield paragraph(said, width, "dim")
    for method, passes in flops.work.reconciled.items():
        yield Text()
        yield _reconciled(method, passes)
        yield paragraph("; ".join(_explained(passes)), width, "dim" if _is_explained(passes) else STYLES["ABSTAIN"])
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
    table = figures_table("class of matmul", "forward", "forward + backward", "share")
    totals = {name: next(iter(counts.values())) for name, counts in flops.classes[FORWARD_BACKWARD].items()}
    whole = sum(totals.values()) or 1
    for name, total in totals.items():
        forward = next(iter(flops.classes[FORWARD].get(name, {}).values()), 0)
        table.add_row(name, f"{forward:,}", f"{total:,}", f"{total / whole:.1%}")
    return table


def _by_method(forward: Mapping[str, Sequence[int]], both: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """One line where all methods say the same, else one for each."""
    lines = {method: _layers(forward.get(method, ()), counts) for method, counts in both.items()}
    if len(set(lines.values())) == 1:
        yield f"{next(iter(lines.values()))}{', by every method' if len(lines) > 1 else ''}"
    else:
        yield from (f"{method}: {line}" for method, line in lines.items())


def _layers(forward: Sequence[int], both: Sequence[int]) -> str:
    if len(set(both)) == 1 == len(set(forward)):
        return f"each of {len(both)} layers: {forward[0]:,} forward, {both[0]:,} forward + backward"
    return "layers, forward + backward: " + ", ".join(f"{index} {count:,}" for index, count in enumerate(both))


def _reconciled(method: str, passes: Mapping[str, Reconciliation]) -> Table:
    """A line per kind of instruction that XLA counts."""
    label = method.removeprefix(SHOWN_ONLY).strip()
    names = [name.replace("_", " + ") for name in passes]
    table = figures_table(f"XLA's count{label and f' of {label}'}, taken apart", *names, "share")
    last = list(passes.values())[-1]
    for kind in dict.fromkeys(kind for each in passes.values() for kind in each.parts):
        counts = [each.parts.get(kind, 0) for each in passes.values()]
        table.add_row(kind, *(f"{count:,}" for count in counts), f"{counts[-1] / (last.total or 1):.2%}")
    table.add_row("sum", *(f"{each.total:,}" for each in passes.values()), "")
    table.add_row("transcendentals, apart", *(f"{each.transcendentals:,}" for each in passes.values()), "", style="dim")
    return table


def _is_explained(passes: Mapping[str, Reconciliation]) -> bool:
    return all(each.explained for each in passes.values())


def _explained(passes: Mapping[str, Reconciliation]) -> Iterator[str]:
    """Whether each sum is XLA's figure, and why not."""
    for name, each in passes.items():
        gap, said = each.figure - each.total, f"{name.replace('_', ' + ')}: "
        if each.unread:
            yield f"{said}XLA's figure has {gap:,} more, for there is no rule here for {', '.join(each.unread)}"
        elif gap == 0:
            yield f"{said}exactly XLA's figure"
        elif each.explained:
            yield f"{said}{abs(gap):,} from XLA's figure, whose float32 sum may be {each.rounding:,.0f} off"
        else:
            yield f"{said}{abs(gap):,} from XLA's figure, more than its float32 sum explains ({each.rounding:,.0f})"


def _laws(flops: Flops) -> Table:
    table = plain_table()
    table.add_column("rules of thumb", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for law in flops.laws:
        value = f"{law.value:,.0f}" if law.value >= 100 else f"{law.value:.3f}"
        table.add_row(law.name, value, Text(law.says, style="dim"))
    return table
