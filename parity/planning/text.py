"""`parity account` as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..account.measure import Measured
from ..account.plan import RESERVED, fits, room
from ..tables import STYLES, figures_table, paragraph, print_parts
from .account import Account
from .numbers import in_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Operations that are listed, the slowest first.
MOST_OPERATIONS = 8

NO_WAY = "no --zero, --recompute or smaller --batch makes it fit: more --gpus, or another --precision or --optimizer"


def print_account(console: Console, account: Account) -> None:
    """Memory, time, what bounds it; no line is longer than the console is wide."""
    print_parts(console, _parts(account, console.width))


def _parts(account: Account, width: int) -> Iterator[RenderableType]:
    device, policy = account.device, account.policy
    gpus = account.settings["gpus"]
    yield paragraph(
        f"{account.target}: {account.parameters:,} parameters, {account.batch} x {account.seq:,} tokens on each of "
        f"{gpus:,} {device.name}, attention {account.settings['kernel']}",
        width,
        "bold",
    )
    yield paragraph(f"{policy.name}: {policy.says}", width, "dim")
    yield paragraph(
        f"{_flops(device.peak(policy.format))} in {policy.format}, dense, {device.memory / 1e9:,.0f} GB at "
        f"{_bandwidth(device.bandwidth)} ({device.source})",
        width,
        "dim",
    )
    if account.measured is not None:
        yield paragraph(_measured(account.measured), width, "dim")
    yield Text()
    yield _memory(account)
    yield from _fitting(account, width)
    yield Text()
    yield _roofline(account)
    yield paragraph(_least(account), width, "dim")
    yield Text()
    yield _shares(account)
    if account.plan is not None:
        yield Text()
        yield _plan(account)
    if account.utilisation is not None:
        yield Text()
        yield _utilisation(account)
    for name in dict.fromkeys(each.name for each in account.sweeps):
        yield Text()
        yield _sweep(account, name)


def _measured(measured: Measured) -> str:
    """Every framework's rates, and what they are of the table's where it has the device."""
    products = [f"{each.framework} {_flops(each.fastest)} ({_flops(each.median)})" for each in measured.products]
    copies = [f"{each.framework} {_bandwidth(each.fastest)} ({_bandwidth(each.median)})" for each in measured.copies]
    said = f"fastest call (median): products {', '.join(products)}; copies {', '.join(copies)}"
    listed, here = measured.listed, measured.device
    if listed is None or measured.format not in listed.dense:
        return said
    share = here.peak(measured.format) / listed.peak(measured.format)
    return (
        f"{said}; {share:.1%} of the peak and {here.bandwidth / listed.bandwidth:.1%} of the bandwidth of {listed.name}"
    )


def _flops(rate: float) -> str:
    for size, unit in ((1e12, "TFLOP/s"), (1e9, "GFLOP/s")):
        if rate >= size:
            return f"{rate / size:,.1f} {unit}"
    return f"{rate / 1e6:,.1f} MFLOP/s"


def _bandwidth(rate: float) -> str:
    return f"{rate / 1e12:.2f} TB/s" if rate >= 1e11 else f"{rate / 1e9:.1f} GB/s"


def _memory(account: Account) -> Table:
    table = figures_table("memory of one device", "bytes", "")
    for each in (*account.memory.static, *account.memory.dynamic):
        table.add_row(each.name, in_bytes(each.bytes), Text(each.says, style="dim"))
    table.add_row("backward pass begins", in_bytes(account.memory.backward), Text("all of these", style="dim"))
    says = f"without donation {in_bytes(account.memory.undonated)}"
    table.add_row("optimizer's update", in_bytes(account.memory.update), Text(says, style="dim"))
    table.add_row(
        "keys and values", in_bytes(account.kv_cache), Text("for generating, in place of all but weights", style="dim")
    )
    return table


def _fitting(account: Account, width: int) -> Iterator[Text]:
    memory, device = account.memory, account.device
    available = f"{in_bytes(room(device))} ({device.memory / 1e9:,.0f} GB less {in_bytes(RESERVED)})"
    many = f"{account.settings['gpus']:,} such devices" if account.settings["gpus"] > 1 else "such a device"
    yield paragraph(
        f"states alone fill {many} at {account.largest / 1e9:,.1f} billion parameters, all of them sharded",
        width,
        "dim",
    )
    if account.fits:
        yield paragraph(f"fits: {in_bytes(memory.peak)} of {available}", width, STYLES["PASS"])
        return
    yield paragraph(f"does not fit: {in_bytes(memory.peak)} of {available}", width, STYLES["FAIL"])
    ways = [f"{words} ({in_bytes(left.peak)})" for words, left in account.ways]
    advice = f"would fit with {', or '.join(ways)}" if ways else NO_WAY
    yield paragraph(advice, width)


def _roofline(account: Account) -> Table:
    table = figures_table("slowest operations", "FLOP/byte", "time", "bound by")
    slowest = sorted(account.roofline, key=lambda each: -each.seconds)[:MOST_OPERATIONS]
    for each in slowest:
        table.add_row(each.operation.name, f"{each.operation.intensity:,.1f}", _seconds(each.seconds), each.by)
    return table


def _least(account: Account) -> str:
    whole = sum(each.seconds for each in account.roofline)
    ridge = account.device.ridge(account.policy.format)
    return (
        f"a step at least {_seconds(whole)}, one operation after the other, each at its peak, without communication; "
        f"bound by arithmetic from {ridge:,.0f} FLOP/byte on"
    )


def _shares(account: Account) -> Table:
    """What each class of operations has of the FLOPs and of the time, the slowest first."""
    table = figures_table("class of operations", "of FLOPs", "of time")
    for kind, (flops, seconds) in sorted(account.shares.items(), key=lambda item: -item[1][1]):
        table.add_row(kind, f"{flops:.1%}", f"{seconds:.1%}")
    return table


def _plan(account: Account) -> Table:
    plan = account.plan
    assert plan is not None
    table = figures_table("training", "", "")
    table.add_row("tokens", f"{plan.tokens:,}", "")
    says = Text(f"6 N P says {plan.rule_of_thumb:.3g}, {plan.rule_of_thumb / plan.flops:.3f} of it", style="dim")
    table.add_row("FLOPs", f"{plan.flops:.4g}", says)
    gpus, mfu = account.settings["gpus"], account.settings["mfu"]
    table.add_row("days", f"{plan.days:,.1f}", Text(f"{gpus:,} devices at {mfu:.0%} of their peak", style="dim"))
    table.add_row("device hours", f"{plan.gpu_hours:,.0f}", "")
    if account.price is not None:
        table.add_row("cost", f"{plan.cost(account.price):,.0f}", Text(f"at {account.price:g} an hour", style="dim"))
    table.add_row("tokens per second", f"{plan.tokens_per_second:,.0f}", "")
    return table


def _utilisation(account: Account) -> Table:
    table = figures_table("utilisation by convention", "")
    for name, value in (account.utilisation or {}).items():
        table.add_row(name, f"{value:.1%}")
    return table


def _sweep(account: Account, name: str) -> Table:
    table = figures_table(name, "memory", "activations", "FLOPs", "fits")
    for each in account.sweeps:
        if each.name == name:
            kept = sum(part.bytes for part in each.memory.dynamic)
            fitting = fits(each.memory, account.device)
            verdict = Text("yes" if fitting else "no", style=STYLES["PASS" if fitting else "FAIL"])
            table.add_row(f"{each.value:,}", in_bytes(each.memory.peak), in_bytes(kept), f"{each.flops:.4g}", verdict)
    return table


def _seconds(seconds: float) -> str:
    for size, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
