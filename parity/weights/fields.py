"""config.json of a stranger, read field by field: a value of the wrong kind is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from parity.errors import ParityUsageError

from .refusal import brief, refuse

T = TypeVar("T")


@dataclass(frozen=True)
class Fields:
    """The object in a config.json, or in one of its fields; `get` and its kin raise ParityUsageError."""

    path: str
    values: Mapping[str, Any]

    def wrong(self, name: str, rule: str, remedy: str = "correct it") -> ParityUsageError:
        """The refusal of what this field holds."""
        found = brief(self.values[name]) if name in self.values else "no such field"
        return refuse(f"{self.path}: {name}", rule, found, remedy)

    def spelling(self, *names: str) -> str:
        """The one of several names of a field that is there; the first if none is."""
        present = [name for name in names if name in self.values]
        for name in present[1:]:
            if not same(self.values[name], self.values[present[0]]):
                raise self.wrong(name, f"the same as {present[0]} {brief(self.values[present[0]])}", "remove one")
        return present[0] if present else names[0]

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number, at least 1."""
        value = self.values.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.wrong(name, "a whole number, at least 1")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number."""
        value = self.values.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 2.0**1023:
            raise self.wrong(name, "a finite number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def choice(self, name: str, choices: Mapping[str, T], default: str | None = None) -> T:
        """What `choices` has for the text in this field."""
        value = self.values.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.wrong(
                name, f"one of {', '.join(choices)}", "use another checkpoint; no other is implemented here"
            )
        return choices[value]

    def only(self, name: str, *allowed: Any, why: str) -> None:
        """Refuse a field that would make another function of the model; one that is missing does not."""
        if name in self.values and not any(same(self.values[name], value) for value in allowed):
            raise self.wrong(name, " or ".join(json.dumps(value) for value in allowed) or "absent", why)


def same(a: Any, b: Any) -> bool:
    """Equality in which true is not 1 and NaN is nothing."""
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)
