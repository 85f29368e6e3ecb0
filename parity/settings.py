"""What a project settles for all of its checks: `[tool.parity]` of its pyproject.toml. Loads no framework, no NumPy."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .errors import ParityUsageError, first_line
from .formats import FORMATS
from .options import Options

FILE = "pyproject.toml"
TABLE = "tool.parity"
ACCEPTED = "accepted"


@dataclass(frozen=True)
class Acceptance:
    """Rows that may fail, for a reason and up to a day, that day included.

    `pair` and `name` are the names of pairs and rows, or patterns (fnmatch) of them; `stage` is a format, None is any.

    Raises:
        ParityUsageError: an empty word, one of several lines, or a stage that no row has.
    """

    pair: str
    name: str
    reason: str
    expires: date
    stage: str | None = None

    def __post_init__(self) -> None:
        for name in ("pair", "name", "reason"):
            value = getattr(self, name)
            if not value.strip() or not value.isprintable():
                raise ParityUsageError(f"{name}: words in one line, got {value!r}; say which rows fail, and why")
        if self.stage is not None and self.stage not in FORMATS:
            raise ParityUsageError(
                f"stage: one of {', '.join(FORMATS)}, got {self.stage!r}; leave it out for all of them"
            )

    def is_about(self, pair: str) -> bool:
        """Whether a pair of this name is meant."""
        return _matches(pair, self.pair)

    def covers(self, name: str, stage: str) -> bool:
        """Whether a row of a pair that is meant is meant too."""
        return _matches(name, self.name) and self.stage in (None, stage)


@dataclass(frozen=True)
class Settings:
    """The fields of Options that the file at `path` gives, and what it accepts; `path` None: there is no file."""

    options: Mapping[str, Any] = field(default_factory=dict)
    accepted: tuple[Acceptance, ...] = ()
    path: Path | None = None


def find_settings(folder: Path) -> Settings:
    """The settings of the pyproject.toml nearest to a folder, in it or above it.

    Raises:
        ParityUsageError: the file cannot be read, or its table holds what no check can have.
    """
    place = folder.absolute()
    paths = (each / FILE for each in (place, *place.parents))
    path = next((path for path in paths if path.is_file()), None)
    return Settings() if path is None else read_settings(path)


def read_settings(path: Path) -> Settings:
    """The settings of one file; the same errors as `find_settings`."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # RecursionError: a nesting that Python refuses to read
        raise ParityUsageError(f"{path}: a TOML file that can be read, got {first_line(error)}; correct it") from error
    try:
        table = dict(_table(TABLE, _table("tool", document.get("tool", {})).get("parity", {})))
        accepted = _accepted(table.pop(ACCEPTED, []))
        return Settings(_options(table), accepted, path)
    except ParityUsageError as error:
        raise ParityUsageError(f"{path}: {error}") from error


def _options(table: Mapping[str, Any]) -> dict[str, Any]:
    given = _fields(TABLE, table, Options, ACCEPTED)
    try:
        Options(**given)
    except ParityUsageError as error:
        raise ParityUsageError(f"{TABLE}.{error}") from error
    return given


def _accepted(entries: Any) -> tuple[Acceptance, ...]:
    what = f"{TABLE}.{ACCEPTED}"
    if not isinstance(entries, list):
        raise ParityUsageError(f"{what}: a list of tables, got {entries!r}; write [[{what}]]")
    found = []
    for index, entry in enumerate(entries):
        given = _fields(f"{what}[{index}]", _table(f"{what}[{index}]", entry), Acceptance)
        try:
            found.append(Acceptance(**given))
        except ParityUsageError as error:
            raise ParityUsageError(f"{what}[{index}].{error}") from error
    return tuple(found)


#: How TOML has to write a field, by its annotation: the rule, whether a value follows it, and an example.
RULES: Mapping[str, tuple[str, Callable[[Any], bool], str]] = {
    "int": ("a whole number", lambda value: type(value) is int, "3"),
    "int | None": ("a whole number", lambda value: type(value) is int, "120"),
    "bool": ("true or false", lambda value: type(value) is bool, "false"),
    "str": ("a string", lambda value: type(value) is str, '"words"'),
    "str | None": ("a string", lambda value: type(value) is str, '"float32"'),
    "date": ("a date", lambda value: type(value) is date, "2030-12-31"),
    "tuple[str, ...]": (
        "a list of strings",
        lambda value: type(value) is list and all(type(each) is str for each in value),
        '["float32"]',
    ),
}


def _fields(what: str, table: Mapping[str, Any], form: type, *others: str) -> dict[str, Any]:
    """The fields of a dataclass as a table gives them; `others` are keys that are read elsewhere."""
    annotations = {each.name: str(each.type) for each in fields(form)}
    known = (*annotations, *others)
    for key in table:
        if key not in annotations:
            near = difflib.get_close_matches(key, known, n=2)
            advice = f"did you mean {' or '.join(near)}?" if near else "use one of them"
            raise ParityUsageError(f"{what}: keys are {', '.join(known)}, got {key!r}; {advice}")
    for each in fields(form):
        rule, holds, example = RULES[annotations[each.name]]
        advice = f"for example {each.name} = {example}"
        if each.name in table and not holds(table[each.name]):
            raise ParityUsageError(f"{what}.{each.name}: {rule}, got {table[each.name]!r}; {advice}")
        required = each.default is MISSING and each.default_factory is MISSING
        if required and each.name not in table:
            raise ParityUsageError(f"{what}.{each.name}: {rule}, got none; {advice}")
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def _table(what: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ParityUsageError(f"{what}: a table, got {value!r}; write [{what}]")
    return value


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)  # a name with brackets in it is its own pattern
