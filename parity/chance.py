"""Whether a side is a function of its weights and inputs, or a matter of chance."""

from __future__ import annotations

from collections.abc import Mapping

from .compare import different, errors_by_name, same_bits
from .errors import ParityUsageError
from .formats import FORMATS
from .runs import Run, is_float

ADVICE = "turn dropout off (module.eval()), or say so in the Pair (dropout='shared' or 'off'), or fix what it draws"


def by_chance(first: Run, second: Run, precision: str) -> dict[str, float]:
    """Outputs of two runs on the same numbers that are apart, and how far.

    The limit is half the digits of the precision: between its rounding, which another order of a sum may change, and a
    value.
    """
    limit = FORMATS[precision].half_of_digits
    gaps = errors_by_name([second.outputs], [first.outputs])
    return {name: gap for name, gap in gaps.items() if gap > limit}


def choices_by_chance(first: Run, second: Run) -> dict[str, float]:
    """Whole numbers and truth values of two runs whose floats are the same bits that are others: their share."""
    floats = [name for name, array in first.outputs.items() if is_float(array)]
    if not all(same_bits(first.outputs[name], second.outputs[name]) for name in floats):
        return {}
    others = first.outputs.keys() - floats
    shares = {name: different(second.outputs[name], first.outputs[name]) for name in sorted(others)}
    return {name: share for name, share in shares.items() if share}


def largest_gap(first: Run, second: Run) -> str:
    """The output or gradient that is furthest apart in two runs, and by how much."""
    gaps = errors_by_name([second.named], [first.named])
    name = max(gaps, key=lambda each: gaps[each])
    return f"{name!r} by {gaps[name]:.1g}"


def refuse_chance(label: str, gaps: Mapping[str, float], dropout: str | None) -> None:
    """Raises ParityUsageError if two runs on the same numbers are apart; `dropout` is the pair's."""
    for name, gap in gaps.items():
        advice = f"dropout={dropout!r} reaches F.dropout and Dropout layers, and not what draws here"
        raise ParityUsageError(
            f"{label}: a function of its weights and inputs alone, got {name!r} that differs by {gap:.1g} between two "
            f"runs; {advice if dropout else ADVICE}"
        )
