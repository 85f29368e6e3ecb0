"""Sweeps of `parity account` as a picture: memory of one device by part, and FLOPs of a step, as a size grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..account.plan import room
from ..errors import ParityUsageError
from .account import Account, Swept
from .numbers import in_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Inches of one panel.
PANEL = 5.2, 3.8
#: Parts of the memory that are stacked, from the bottom, each with its colour (Okabe and Ito 2008).
PARTS = {"states": "#0072B2", "activations": "#E69F00", "loss": "#009E73"}
LOSS = ("logits and loss", "gradient of the logits")
#: Sizes that are written below a panel; of more every second one, every third ...
MOST_TICKS = 10
FORMATS = ("svg", "png", "pdf")


def write_plot(account: Account, path: str) -> None:
    """Writes the sweeps of an account as SVG, PNG or PDF, by the end of the path.

    Raises:
        ParityUsageError: there is no sweep, or the path ends otherwise.
        OSError: the path cannot be written.
    """
    kind = path.rpartition(".")[2].lower()
    if kind not in FORMATS:
        raise ParityUsageError(f"--plot: a file that ends in {', '.join(FORMATS)}, got {path!r}; name another")
    if not account.sweeps:
        raise ParityUsageError("--plot: of a --sweep, got none; add one, such as --sweep seq=1k..128k")
    drawn(account).savefig(path, format=kind, metadata={"Date": None} if kind == "svg" else None)


def drawn(account: Account) -> Figure:
    """Two panels for each sweep."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(each.name for each in account.sweeps))
    with rc_context({"svg.hashsalt": "parity", "font.size": 9}):
        figure = Figure(figsize=(2 * PANEL[0], len(names) * PANEL[1]), layout="constrained", dpi=150)
        rows = figure.subplots(len(names), 2, squeeze=False)
        for name, (memory, flops) in zip(names, rows, strict=True):
            points = [each for each in account.sweeps if each.name == name]
            _memory(memory, account, points)
            _flops(flops, points)
            for axes in (memory, flops):
                _along(axes, name, [each.value for each in points])
        figure.suptitle(
            f"{account.target}, {account.policy.name}, {account.settings['optimizer']}, attention "
            f"{account.settings['kernel']}, recomputation {account.settings['recompute']}, {account.device.name}"
        )
    return figure


def _memory(axes: Axes, account: Account, points: Sequence[Swept]) -> None:
    below = [0.0] * len(points)
    for part, colour in PARTS.items():
        heights = [_parts(each)[part] / 1e9 for each in points]
        axes.bar(range(len(points)), heights, bottom=below, color=colour, label=part, width=0.7)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    most = room(account.device)
    axes.axhline(most / 1e9, color="black", linestyle="--", linewidth=1, label=f"room of a device, {in_bytes(most)}")
    axes.set_ylabel("GB on one device")
    axes.legend(loc="upper left", frameon=False)


def _parts(point: Swept) -> dict[str, int]:
    loss = sum(held.bytes for held in point.memory.dynamic if held.name in LOSS)
    dynamic = sum(held.bytes for held in point.memory.dynamic)
    return {"states": point.memory.backward - dynamic, "activations": dynamic - loss, "loss": loss}


def _flops(axes: Axes, points: Sequence[Swept]) -> None:
    axes.plot(range(len(points)), [each.flops for each in points], marker="o", color=PARTS["states"])
    axes.set_yscale("log")
    axes.set_ylabel("FLOPs of a step on one device")
    axes.grid(visible=True, alpha=0.3)


def _along(axes: Axes, name: str, values: Sequence[int]) -> None:
    """Each size has a place of its own: they double from one to the next."""
    step = -(-len(values) // MOST_TICKS)
    words = [f"{each // 1024}k" if each >= 1024 and each % 1024 == 0 else f"{each:,}" for each in values]
    axes.set_xticks(range(0, len(values), step), words[::step])
    axes.set_xlabel({"batch": "sequences", "seq": "tokens per sequence"}[name])
