"""What a machine really does: products and copies timed. The frameworks bring the work; this module loads none.

A roofline says what no run can beat, so that the fastest call counts, of the size that is fastest: small products leave
units idle. Numbers are drawn from a normal distribution, for a chip that multiplies zeros draws less power and is
clocked higher. A copy moves its bytes twice, in and out (McCalpin, STREAM, 1995).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from .hardware import Device, device_named

Work = Callable[[], object]
Clock = Callable[[], float]

#: What arrays of a format of hardware.toml are called in both frameworks.
DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}

#: Sides of the square products, each twice the one before, until a product takes LONG seconds.
SIDES = tuple(2**power for power in range(8, 15))
LONG = 0.02
#: Bytes of the array that is copied: more than any cache holds.
COPIED = 2**28
#: A work is called so often at least, and for so many seconds.
CALLS, SECONDS = 5, 0.3


@dataclass(frozen=True)
class Machine:
    """The machine as one framework has it: a name, memory in bytes, and work that is finished when its call returns.

    `product(format, side)` multiplies two square matrices, `copy(bytes)` writes an array of that size anew.
    """

    framework: str
    name: str
    memory: float
    accelerated: bool
    product: Callable[[str, int], Work]
    copy: Callable[[int], Work]


@dataclass(frozen=True)
class Rate:
    """FLOP/s of products or bytes/s of copies, by one framework: of the fastest call and of the usual one."""

    framework: str
    work: str
    fastest: float
    median: float


@dataclass(frozen=True)
class Measured:
    """What was measured: every framework's products and copies, and the device that its driver names, if one is known.

    Of each framework products have the size that was fastest.
    """

    name: str
    memory: float
    format: str
    products: tuple[Rate, ...]
    copies: tuple[Rate, ...]

    @property
    def listed(self) -> Device | None:
        """The device of the table that the driver names."""
        return device_named(self.name)

    @property
    def device(self) -> Device:
        """The machine as a device of the table, with one format."""
        best, fastest = (max(rates, key=lambda rate: rate.fastest) for rates in (self.products, self.copies))
        return Device(
            key="here",
            name=self.name,
            aliases=(),
            descriptions=(),
            memory=self.memory,
            bandwidth=fastest.fastest,
            dense=MappingProxyType({self.format: best.fastest}),
            sparse=MappingProxyType({}),
            source=f"measured here: {best.work} by {best.framework}, {fastest.work} by {fastest.framework}",
            notes="",
        )


def measure(machines: Sequence[Machine], format: str, clock: Clock = time.perf_counter) -> Measured:
    """Times products in `format` and copies by every framework, on accelerators alone where there is one."""
    machines = [each for each in machines if each.accelerated] or machines
    products = [max(_products(each, format, clock), key=lambda rate: rate.fastest) for each in machines]
    copies = [
        _rate(each.framework, f"copies of {COPIED // 2**20} MiB", 2 * COPIED, seconds(each.copy(COPIED), clock))
        for each in machines
    ]
    return Measured(machines[0].name, machines[0].memory, format, tuple(products), tuple(copies))


def _products(machine: Machine, format: str, clock: Clock) -> Iterator[Rate]:
    for side in SIDES:
        taken = seconds(machine.product(format, side), clock)
        yield _rate(machine.framework, f"products of {side:,} x {side:,} matrices", 2 * side**3, taken)
        if min(taken) >= LONG:
            return


def _rate(framework: str, work: str, amount: int, taken: Sequence[float]) -> Rate:
    return Rate(framework, work, amount / min(taken), amount / statistics.median(taken))


def seconds(work: Work, clock: Clock = time.perf_counter) -> list[float]:
    """Seconds of each call; the first, in which a framework may compile or choose a kernel, is not among them."""
    work()
    taken: list[float] = []
    while len(taken) < CALLS or sum(taken) < SECONDS:
        start = clock()
        work()
        taken.append(clock() - start)
    return taken
