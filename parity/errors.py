"""The two ways in which a check can stop."""

from __future__ import annotations


class ParityUsageError(ValueError):
    """The caller's mistake, in one line: `<what>: <rule>, got <value>; <what to do>`."""


class ParityError(AssertionError):
    """The two sides disagree; the message is the report."""
