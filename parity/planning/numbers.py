"""Sizes as people type them: 15T, 8k, 1e9; and as they read them."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from ..errors import ParityUsageError

#: Of counts; k of a number of tokens that is a power of two in disguise (8k, 128k) is 1024 where `binary` is set.
SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def whole(name: str, words: str, least: int = 1, binary: bool = False) -> int:
    """The whole number that "15T", "8k", "1_000" or "1e9" is.

    Raises:
        ParityUsageError: it is none, or less than `least`.
    """
    found = re.fullmatch(r"([0-9][0-9_.,]*(?:e[+-]?[0-9]+)?)\s*([kmbgt]?)", words.strip().lower())
    try:
        factor = 1024 if found and found[2] == "k" and binary else SUFFIXES[found[2]] if found else 0
        value = Decimal(found[1].replace("_", "").replace(",", "")) * factor if found else Decimal(-1)
    except InvalidOperation:
        value = Decimal(-1)
    if value != value.to_integral_value() or value < least:
        raise ParityUsageError(
            f"{name}: a whole number, at least {least}, such as 8192, 8k or 1e9, got {words!r}; give another"
        )
    return int(value)


def swept(words: str) -> tuple[str, list[int]]:
    """ "batch=1..64" as a name and the powers of two (or the ends) between: 1, 2, 4 ... 64.

    Raises:
        ParityUsageError: no such words, or an end below the beginning.
    """
    found = re.fullmatch(r"(batch|seq)=([^.]+)\.\.(.+)", words.strip())
    if not found:
        raise ParityUsageError(f"--sweep: batch=FIRST..LAST or seq=FIRST..LAST, got {words!r}; such as seq=1k..128k")
    name = found[1]
    first, last = (whole(f"--sweep {name}", each, binary=name == "seq") for each in (found[2], found[3]))
    if last < first:
        raise ParityUsageError(f"--sweep {name}: the last no less than the first, got {words!r}; exchange them")
    values = [first]
    while values[-1] * 2 <= last:
        values.append(values[-1] * 2)
    return name, values if values[-1] == last else [*values, last]


def in_bytes(count: float) -> str:
    """Decimal units, as on datasheets."""
    for size, unit in UNITS:
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 999.5 * size else f"{count / size:,.0f} {unit}"
    return f"{count:.0f} B"
