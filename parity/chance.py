"""Whether a side is a function of its weights and inputs, or a matter of chance."""

from __future__ import annotations

from .compare import errors_by_name
from .errors import ParityUsageError
from .formats import FORMATS
from .runs import Run

ADVICE = "turn dropout off (module.eval()), or say so in the Pair (dropout='shared' or 'off'), or fix what it draws"


def by_chance(first: Run, second: Run, precision: str) -> dict[str, float]:
    """Outputs of two runs on the same numbers that are apart, and how far.

    The limit is half the digits of the precision: between its rounding, which another order of a sum may change, and a
    value.
    """
    limit = FORMATS[precision].half_of_digits
    gaps = errors_by_name([second.outputs], [first.outputs])
    return {name: gap for name, gap in gaps.items() if gap > limit}


def refuse_chance(label: str, first: Run, second: Run, precision: str, dropout: str | None) -> None:
    """Raises ParityUsageError if two runs on the same numbers are apart; `dropout` is the pair's."""
    for name, gap in by_chance(first, second, precision).items():
        advice = f"dropout={dropout!r} reaches F.dropout and Dropout layers, and not what draws here"
        raise ParityUsageError(
            f"{label}: a function of its weights and inputs alone, got {name!r} that differs by {gap:.1g} between two "
            f"runs; {advice if dropout else ADVICE}"
        )
