"""What a check found: rows, a verdict, and the same as JSON. Loads no framework and no NumPy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any

from .errors import ParityError
from .findings import Finding, Planted, Unmatched, mutation_score
from .islands import Island
from .work import Work

#: Version of the JSON that `Result.to_json` writes; parity/schema/result.schema.json describes it.
SCHEMA = 1

EXIT_STATUS = {"PASS": 0, "FAIL": 1, "VACUOUS": 1, "ABSTAIN": 3}


@dataclass(frozen=True)
class Row:
    """One tensor at one stage.

    `measured`, `bound` and `required` (the smallest bound that would have passed) are relative to the exact tensor;
    `headroom` is bound / measured.
    """

    name: str
    group: str
    side_names: tuple[str, str]
    shape: tuple[int, ...]
    dtype: str
    stage: str
    measured: float
    bound: float
    derivation: str
    verdict: str

    @property
    def headroom(self) -> float:
        """How many times the measured value fits into the bound; infinite when nothing was measured."""
        if self.measured:
            return self.bound / self.measured
        return math.inf

    @property
    def compared(self) -> bool:
        """Whether both sides had the tensor in one shape and type; if not, `derivation` says what is wrong."""
        return bool(self.dtype)

    @property
    def required(self) -> float:
        """The smallest bound that would have passed."""
        return self.measured


@dataclass(frozen=True)
class Accepted:
    """A failing row that the project's settings accept, for a reason, until a day."""

    name: str
    stage: str
    reason: str
    expires: date


@dataclass(frozen=True)
class Result:
    """The outcome of `parity.check`.

    `verdict` is PASS, FAIL, ABSTAIN or VACUOUS; `rung` is bitwise, same-function, float32-island, different or None.
    Both are what was measured, whatever the project has `accepted`. `without_float64` is empty, or says what took the
    place of a side's float64 runs, and why there were none.
    """

    target: str
    verdict: str
    rung: str | None
    reason: str
    seed: int
    rows: tuple[Row, ...]
    islands: tuple[Island, ...] = ()
    findings: tuple[Finding, ...] = ()
    unmatched: tuple[Unmatched, ...] = ()
    unseen: tuple[str, ...] = ()
    zero_gradients: tuple[str, ...] = ()
    work: Work = field(default_factory=Work)
    notes: tuple[str, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    accepted: tuple[Accepted, ...] = ()
    planted: tuple[Planted, ...] = ()
    without_float64: str = ""

    @property
    def first_difference(self) -> Row | None:
        """The first row that failed, in the order of the computation."""
        return next((row for row in self.rows if row.verdict == "FAIL"), None)

    @property
    def covered(self) -> set[tuple[str, str]]:
        """Name and stage of the rows that are accepted."""
        return {(each.name, each.stage) for each in self.accepted}

    @property
    def passed(self) -> bool:
        """Whether it is PASS, or FAIL in accepted rows alone: neither FLOPs nor a vacuous row can be accepted."""
        if self.verdict != "FAIL" or self.work.equal is False:
            return self.verdict == "PASS"
        failed = {(row.name, row.stage) for row in self.rows if row.verdict in ("FAIL", "VACUOUS")}
        return bool(failed) and failed <= self.covered

    @property
    def exit_status(self) -> int:
        """0 PASS or accepted, 1 FAIL or VACUOUS, 3 ABSTAIN."""
        return 0 if self.passed else EXIT_STATUS[self.verdict]

    def raise_if_different(self) -> None:
        """Raises ParityError, its message the report, unless the verdict is PASS or what failed is accepted."""
        if not self.passed:
            raise ParityError(str(self))

    def to_dict(self) -> dict[str, Any]:
        """Plain values; NaN and infinity as strings, counts as integers."""
        rows = [{**asdict(row), "headroom": row.headroom, "required": row.required} for row in self.rows]
        first = self.first_difference
        accepted = [{**asdict(each), "expires": each.expires.isoformat()} for each in self.accepted]
        return _plain(
            {
                "schema": SCHEMA,
                "verdict": self.verdict,
                "rung": self.rung,
                "reason": self.reason,
                "without_float64": self.without_float64,
                "target": self.target,
                "seed": self.seed,
                "environment": self.environment,
                "rows": rows,
                "first_difference": first and {"name": first.name, "stage": first.stage},
                "islands": [asdict(island) for island in self.islands],
                "findings": [asdict(finding) for finding in self.findings],
                "unmatched": [asdict(each) for each in self.unmatched],
                "unseen": self.unseen,
                "zero_gradients": self.zero_gradients,
                "flops": {**self.work.flops, "equal": self.work.equal, "notes": self.work.notes},
                "notes": self.notes,
                "seconds": self.seconds,
                "accepted": accepted,
                "mutation": self._mutation() if self.planted else None,
            }
        )

    def _mutation(self) -> dict[str, Any]:
        return {"score": mutation_score(self.planted), "planted": [asdict(each) for each in self.planted]}

    def to_json(self) -> str:
        """`to_dict` as one JSON document."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    def __str__(self) -> str:
        from .report import to_text

        return to_text(self)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value
