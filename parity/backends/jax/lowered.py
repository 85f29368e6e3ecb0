"""What XLA's own analysis says of a program as JAX lowers it, before XLA optimises it, in one form and taken apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from parity.errors import first_line
from parity.work import Reconciliation

from .hlo import Program
from .hlo_cost import KINDS, TRANSCENDENTALS, Parts, cost


@dataclass(frozen=True)
class LoweredCost:
    """What XLA's analysis of the lowered, not yet optimised program says.

    Attributes:
        flops: products, sums, casts, comparisons ... of every operation, the body of a loop as often as it runs where
            the program writes that out; None where XLA gives no usable figure.
        once: the same as XLA gives it, the body of a loop once.
        transcendentals: exp, tanh, rsqrt ..., which XLA keeps apart from flops; bodies once.
        bytes_accessed: operands and results of every operation before fusion, in bytes; None where not listed.
        loops: loops of the program that was analysed.
        note: what the reader of these figures must know, in one line.
        reconciliation: `flops` taken apart, None where there is none.
    """

    flops: int | None
    once: int | None
    transcendentals: int | None
    bytes_accessed: int | None
    loops: int
    note: str
    reconciliation: Reconciliation | None = None


def lowered_flops(function: Callable[..., Any], *args: Any) -> LoweredCost:
    """`jax.jit(function).lower(*args).cost_analysis()` in one form, lowered for the CPU where the device has no answer.

    GPU and TPU plugins answer None (jax 0.10: `MeshComputation.cost_analysis`). Nothing that XLA may answer raises.
    """
    shapes = jax.tree.map(abstract, args)
    notes: list[str] = []
    lowered = jax.jit(function).lower(*shapes)
    answer = lowered.cost_analysis()
    if answer is None:
        notes.append(f"lowered for the CPU, since {jax.default_backend()} gives no analysis")
        try:
            with jax.default_device(jax.devices("cpu")[0]):
                lowered = jax.jit(partial(function)).lower(*shapes)  # partial: no cached lowering
                answer = lowered.cost_analysis()
        except (RuntimeError, NotImplementedError, ValueError) as error:
            notes.append(f"which failed: {first_line(error)}")
    return normalise(answer, lowered.as_text("hlo") if answer is not None else "", notes)


def abstract(value: Any) -> jax.ShapeDtypeStruct:
    """Shape and type of an argument, free of the device that it lies on."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return value
    kind = jax.typeof(value)
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=kind.weak_type)


def normalise(answer: Any, text: str, notes: list[str]) -> LoweredCost:
    """None, a dict, a list of dicts (older JAX), missing keys (XLA lists no zeros) and negative values, in one form.

    `text` is the program in HLO, a form that XLA may change: what cannot be read is not taken apart.
    """
    if isinstance(answer, list | tuple):
        answer = answer[0] if answer else None
    if not isinstance(answer, Mapping):
        return LoweredCost(None, None, None, None, 0, "; ".join([*notes, "no cost analysis here"]))
    figures: dict[str, int | None] = {}
    for key, missing in (("flops", 0), ("transcendentals", 0), ("bytes accessed", None)):
        value = answer.get(key)
        if value is None:
            figures[key] = missing
            notes.append(f"{key} not listed" + ("" if missing is None else ": zero"))
        elif math.isfinite(value) and value >= 0:
            figures[key] = int(value)
        else:
            figures[key] = None
            notes.append(f"{key} {value:g} is no count: a custom call adds -1")
    notes.append("XLA counts elementwise operations and casts as well")
    once, transcendentals, accessed = figures["flops"], figures["transcendentals"], figures["bytes accessed"]
    if once is None:
        return LoweredCost(once, once, transcendentals, accessed, 0, "; ".join(notes))
    try:
        program = Program(text)
        whole = cost(program, once=False)
        apart = reconciled(once, cost(program, once=True) if whole.loops else whole, whole)
    except (KeyError, IndexError, ValueError) as error:
        notes.append(
            f"its program could not be read, and is not taken apart: {type(error).__name__} {first_line(error)}"
        )
        return LoweredCost(once, once, transcendentals, accessed, 0, "; ".join(notes))
    if whole.loops:
        notes.append(
            f"{whole.unstated} of {whole.loops} loops counted once, for the program does not say how often they run"
            if whole.unstated
            else f"{whole.loops} {'loops' if whole.loops > 1 else 'loop'} as often as the program says, not once as XLA"
        )
    if once >= 2**24:
        notes.append("XLA sums in float32, exact only below 2^24")
    return LoweredCost(apart.figure, once, transcendentals, accessed, whole.loops, "; ".join(notes), apart)


def reconciled(figure: int, once: Parts, whole: Parts) -> Reconciliation:
    """XLA's figure beside the parts that it should be the sum of; what loops add is added to both."""
    return Reconciliation(
        {kind: count for kind in KINDS if (count := whole.flops[kind])},
        whole.flops[TRANSCENDENTALS],
        figure + whole.total - once.total,
        once.rounding,
        tuple(sorted(whole.unread)),
    )
