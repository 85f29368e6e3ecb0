"""The checks of a pytest session as a table, as Markdown and as annotations of GitHub. Loads no framework, no NumPy."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .acceptance import describe_accepted

WIDEST_NAME = 16
COLOURS = {"PASS": "green", "ABSTAIN": "yellow"}


@dataclass(frozen=True)
class Checked:
    """One check of a session, as it comes from the process that ran it.

    Args:
        node: the test's id.
        file, line: where the test stands, the file absolute.
        test_failed: whether the test ended as failed; one may expect a pair to be different.
        passed: `Result.passed`.
        result: `Result.to_dict()`.
    """

    node: str
    file: str
    line: int
    test_failed: bool
    passed: bool
    result: Mapping[str, Any]


def finding(result: Mapping[str, Any], width: int = 1000) -> str:
    """The first difference, else why the verdict is not PASS; figures are the last to give way to the width."""
    row = next((row for row in result["rows"] if row["verdict"] == "FAIL"), None)
    if row is None:
        return cut(result["reason"], width)
    if not row["dtype"]:
        return cut(f"{row['name']}: {row['derivation']}", width)
    figures = f" {row['stage']}: {float(row['measured']):.1e} > {float(row['bound']):.1e}"
    return cut(f"{cut(row['name'], max(width - len(figures), 8))}{figures}", width)


def table(checks: Sequence[Checked], width: int) -> Iterator[tuple[str, str]]:
    """A line and its colour for each check, below it what is accepted; no line of a check is longer than `width`."""
    cells = [(each.result["verdict"], each.result["rung"] or "", each.result["target"]) for each in checks]
    verdicts, rungs, names = (max(map(len, column)) for column in zip(*cells, strict=True))
    names = min(names, WIDEST_NAME)
    for each, (verdict, rung, name) in zip(checks, cells, strict=True):
        start = f"{verdict:{verdicts}}  {rung:{rungs}}  {cut(name, names):{names}}  "
        seconds = f"  {each.result['seconds']:.1f} s"
        room = max(width - len(start) - len(seconds), 1)
        yield f"{start}{finding(each.result, room):{room}}{seconds}", colour(each)
        for line in describe_accepted(each.result["accepted"]):
            yield f"  {line}", "yellow"
        for line in unaccepted(each.result):
            yield f"  {line}", "red"
    yield totals(checks), ""


def unaccepted(result: Mapping[str, Any]) -> list[str]:
    """What the reason says of acceptances: expired, or of other rows than those that fail."""
    parts = result["reason"].split("; ")
    return [part for part in parts if part.startswith(("the acceptance of ", "no acceptance covers "))]


def totals(checks: Sequence[Checked]) -> str:
    """How many checks ended in which verdict."""
    counts = Counter(f"{each.result['verdict']}{' (accepted)' if is_accepted(each) else ''}" for each in checks)
    number = "1 check" if len(checks) == 1 else f"{len(checks)} checks"
    return f"{number}: {', '.join(f'{count} {verdict}' for verdict, count in sorted(counts.items()))}"


def colour(checked: Checked) -> str:
    """The colour of a check's line."""
    return "yellow" if is_accepted(checked) else COLOURS.get(checked.result["verdict"], "red")


def is_accepted(checked: Checked) -> bool:
    """Whether a check passed for its acceptances alone."""
    return checked.passed and checked.result["verdict"] != "PASS"


def cut(text: str, width: int) -> str:
    """The text in one line of at most `width` letters."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def markdown(checks: Sequence[Checked], problems: Sequence[str]) -> str:
    """A table for GITHUB_STEP_SUMMARY, and what else made the session fail."""
    lines = ["### parity", ""]
    if checks:
        lines += ["| verdict | rung | pair | first difference | seconds |", "| --- | --- | --- | --- | ---: |"]
    for each in checks:
        accepted = describe_accepted(each.result["accepted"])
        found = "; ".join(part for part in (finding(each.result), *accepted) if part)
        cells = (each.result["verdict"], each.result["rung"] or "", each.result["target"], found)
        lines.append(f"| {' | '.join(map(_cell, cells))} | {each.result['seconds']:.1f} |")
    lines += ["", *([totals(checks)] if checks else []), *(f"- {_cell(problem)}" for problem in problems)]
    return "\n".join(lines) + "\n"


def workflow_commands(checks: Sequence[Checked], problems: Sequence[str], workspace: str) -> Iterator[str]:
    """A workflow command of GitHub for each check that failed its test, files relative to the workspace."""
    for each in checks:
        if each.test_failed and not each.passed:
            result = each.result
            outcome = ", ".join(word for word in (result["verdict"], result["rung"]) if word)
            reason = result["reason"]
            place = {"file": Path(os.path.relpath(each.file, workspace)).as_posix(), "line": str(each.line)}
            yield error_command(f"{result['target']}: {outcome}: {reason}", **place)
    for problem in problems:
        yield error_command(problem)


def error_command(message: str, **properties: str) -> str:
    """`::error file=...,line=...,title=parity::message`, escaped as actions/toolkit's command.ts does."""
    given = {**properties, "title": "parity"}
    words = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in given.items())
    return f"::error {words}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    for letter in f"%\r\n{more}":  # the percent sign first
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text


def _cell(text: str) -> str:
    """Text that can neither end a cell of a Markdown table nor be HTML."""
    line = " ".join(text.split())
    for letter, written in (("\\", "\\\\"), ("|", "\\|"), ("&", "&amp;"), ("<", "&lt;"), ("*", "\\*"), ("`", "\\`")):
        line = line.replace(letter, written)
    return line
