"""The two ways in which a check can stop."""

from __future__ import annotations

#: What somebody else's code may raise: `sys.exit()` in it must not end a check as if that had passed.
ANYTHING = (Exception, SystemExit)

#: The exit status of a call in which something is the caller's mistake.
USAGE_ERROR = 2


class ParityUsageError(ValueError):
    """The caller's mistake, in one line: `<what>: <rule>, got <value>; <what to do>`."""


class NotRunError(ParityUsageError):
    """A side raises when it is run at a precision: `label` is its name, `said` its error in one line."""

    def __init__(self, message: str, label: str, said: str):
        super().__init__(message)
        self.label, self.said = label, said


class NoFloat64Error(NotRunError):
    """A side cannot be run in float64; perhaps in nothing, perhaps in nothing else than float32."""


class ParityError(AssertionError):
    """The two sides disagree; the message is the report."""


def first_line(error: BaseException) -> str:
    """What an error says, in one line; its type where it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
