"""What is wrong on both sides alike: each is held against its own float64 run, and not against the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from .bounds import NO_FLOOR, OWN_SLACK, Bound, chance, path_floor
from .compare import misplaced, rms, wide
from .formats import FORMATS
from .result import Row

Values = Sequence[np.ndarray]

#: How what both sides get wrong is told.
BOTH = "both sides are wrong alike"


def left_range(values: Values, truth: Values, precision: str) -> int:
    """Number of elements that are NaN or infinite where the truth is a number that the format holds."""
    largest = FORMATS[precision].largest
    return sum(
        int(np.count_nonzero(~np.isfinite(value) & (np.abs(wide(exact)) <= largest)))
        for value, exact in zip(values, truth, strict=True)
    )


def undecided(row: Row, errors: Sequence[float], truths: Sequence[Values]) -> Row:
    """A failure that says nothing, as ABSTAIN: what is left of a number that is zero in theory has no digits."""
    if row.verdict != "FAIL" or not row.measured or any(misplaced(a, b) for a, b in zip(*truths, strict=True)):
        return row
    if not any(rms(array) for side in truths for array in side):
        why = "exactly zero in float64 on both sides, so that nothing measures it"
    elif min(errors) >= 1:
        why = "no digit is right on either side: zero in theory, or all cancelled"
    else:
        return row
    return replace(row, verdict="ABSTAIN", derivation=why)


def in_range(row: Row, values: Sequence[Values], truths: Sequence[Values], precision: str) -> Row:
    """The row, a failure if a side has left the range of the format where its float64 run has not.

    No bound is needed: what is as good as an exact result of nearby numbers is a number. An eps of 1e-8 is zero in
    float16, and Adam's step from gradients of zero is 0 / 0 on both sides (optax #1754).

    Args:
        row: what the other rules say of the tensor.
        values: an array per batch, of the reference and of the candidate.
        truths: the same in float64.
        precision: the working precision.
    """
    counts = [left_range(value, truth, precision) for value, truth in zip(values, truths, strict=True)]
    if row.verdict == "FAIL" or not any(counts):
        return row
    whose = BOTH if all(counts) else f"{row.side_names[counts[1] > 0]} is wrong"
    many = " and ".join(map(str, dict.fromkeys(count for count in counts if count)))
    total = sum(array.size for array in values[0])
    what = f"{whose}: {many} of {total} elements are NaN or infinite, their float64 is finite and in range"
    return replace(row, measured=np.inf, bound=0.0, derivation=what, verdict="FAIL")


def held(kind: str, precision: str, error: float, count: int) -> bool:
    """Whether a tensor is held against what one unit in the last place does; an overflow always is.

    Remainders of what cancels, or of what underflows, are all there is of some gradients: those of clean models are off
    by 170 times what one unit does in float32 and 40 times in float16. An output of which float32 has no digit may be
    such a remainder too, or zero in theory, and of few numbers the response may be small by chance.

    Args:
        kind: "output" or "gradient".
        precision: the working precision.
        error: the better side's.
        count: how many independent errors there are.
    """
    if path_floor(precision, 1) is NO_FLOOR:
        return kind == "output" or precision == "bfloat16"
    return kind == "output" and error < 1 and chance(count) <= OWN_SLACK


def accurate(row: Row, error: float, bound_for: Callable[[float], Bound], response: Callable[[], float]) -> Row:
    """The row, a failure if even the better side is not what its float64 run says.

    Args:
        row: what the other rules say of the tensor.
        error: the better side's.
        bound_for: `bounds.own_bound` for a response.
        response: what one unit in the last place does to the exact tensor; asked for only where it matters.
    """
    if row.verdict == "FAIL" or error <= bound_for(0.0).value:
        return row
    bound = bound_for(response())
    if error <= bound.value:
        return row
    what = f"{BOTH}: {bound.derivation}"
    return replace(row, measured=error, bound=bound.value, derivation=what, verdict="FAIL")
