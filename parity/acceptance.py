"""Which failing rows a project accepts for a while, and which of its acceptances nothing needs. Loads no framework."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from .result import Accepted, Result
from .settings import ACCEPTED, TABLE, Acceptance, Settings


def today() -> date:
    """The day by this machine's clock, which is read nowhere else."""
    return date.today()


def accept(result: Result, entries: Sequence[Acceptance], day: date) -> Result:
    """The result with the failing rows in `accepted` that an entry covers on that day; the verdict stays as measured.

    The entry that lasts longest counts. A row of which it has expired stays unaccepted, and `reason` says so.
    """
    about = [entry for entry in entries if entry.is_about(result.target)]
    accepted, expired = [], []
    for row in result.rows:
        covering = [entry for entry in about if row.verdict == "FAIL" and entry.covers(row.name, row.stage)]
        entry = max(covering, key=lambda each: each.expires, default=None)
        if entry is None:
            continue
        if entry.expires < day:
            expired.append(f"the acceptance of {entry.name} expired on {entry.expires}")
        else:
            accepted.append(Accepted(row.name, row.stage, entry.reason, entry.expires))
    result = replace(result, accepted=tuple(accepted))
    left = [row.name for row in result.rows if row.verdict == "FAIL" and (row.name, row.stage) not in result.covered]
    if accepted and left:
        names = list(dict.fromkeys(left))
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        expired.append(f"no acceptance covers {names[0]}{more}")
    return replace(result, reason="; ".join((result.reason, *dict.fromkeys(expired))))


def unneeded(settings: Settings, results: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each entry that is about pairs which were checked, but covers no row of theirs that failed.

    `results` are those of a whole session, each as Result.to_dict gives it.
    """
    lines = []
    for entry in settings.accepted:
        checked = [result for result in results if entry.is_about(result["target"])]
        rows = (row for result in checked for row in result["rows"] if row["verdict"] == "FAIL")
        if checked and not any(entry.covers(row["name"], row["stage"]) for row in rows):
            pairs = ", ".join(dict.fromkeys(result["target"] for result in checked))
            lines.append(
                f"{settings.path}: {TABLE}.{ACCEPTED}: rows that fail, got {entry.name!r}, "
                f"but no such row fails in {pairs}; remove the entry"
            )
    return lines


def describe_accepted(accepted: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """`accepted: NAME until DATE: reason`, a line for all rows that have one reason and day in common."""
    names: dict[tuple[str, str], list[str]] = {}
    for each in accepted:
        names.setdefault((str(each["expires"]), each["reason"]), []).append(each["name"])
    for (expires, reason), rows in names.items():
        others = len(dict.fromkeys(rows)) - 1
        yield f"accepted: {rows[0]}{f' and {others} more' if others else ''} until {expires}: {reason}"
