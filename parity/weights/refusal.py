"""One form for every refusal: a single printable line that names place, rule, value found and remedy."""

from __future__ import annotations

from parity.errors import ParityUsageError

_LONGEST = 160


def refuse(what: object, rule: str, got: object, remedy: str) -> ParityUsageError:
    """`<what>: <rule>, got <got>; <remedy>`, to be raised; names from a file cannot break the line or the terminal."""
    return ParityUsageError(printable(f"{what}: {rule}, got {got}; {remedy}"))


def printable(text: str) -> str:
    """`text` with line breaks, escape sequences and lone surrogates written out."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def brief(value: object) -> str:
    """The repr of a value from a file, cut to a length that fits in a line."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def some(names: list[str]) -> str:
    """The first three of many names and how many more there are."""
    shown = ", ".join(name[:_LONGEST] for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")
