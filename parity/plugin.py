"""The pytest plugin: a fixture, pairs as tests, a summary. Loads no framework and no NumPy before the first check."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from .acceptance import accept, today, unneeded
from .errors import ParityError, ParityUsageError
from .pair import Pair
from .result import Result
from .settings import Settings, find_settings
from .summary import Checked, cut, markdown, table, workflow_commands

PREFIX = "parity_"
JSON_OPTION = "--parity-json"
REASON_WIDTH = 200  # of the JUnit property: the report has the rest

SETTINGS = pytest.StashKey[Settings]()
RESULTS = pytest.StashKey[list[Result]]()  # of a test, until its next report takes them along
REFUSED = pytest.StashKey[list[str]]()  # a line for each pair of a test that could not be checked, likewise


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--parity-json PATH`."""
    group = parser.getgroup("parity", "JAX and PyTorch implementations of one function")
    group.addoption(JSON_OPTION, metavar="PATH", help="Write the result of every parity check as one JSON array.")


def pytest_configure(config: pytest.Config) -> None:
    """Reads [tool.parity]; the process that reports, and no worker of xdist, gets the summary."""
    try:
        config.stash[SETTINGS] = find_settings(config.rootpath)
        if not hasattr(config, "workerinput"):
            place = _destination(config.getoption(JSON_OPTION))
            config.pluginmanager.register(Summary(config, place), "parity-summary")
    except ParityUsageError as error:
        raise pytest.UsageError(str(error)) from error


def _destination(path: str | None) -> Path | None:
    if path is None:
        return None
    from .output import STDOUT, destination_of

    place = destination_of(path, JSON_OPTION)
    if place is None or place == STDOUT:
        raise ParityUsageError(f"{JSON_OPTION}: a file, got {path!r}; standard output is for pytest's own report")
    return Path(place).absolute()  # tests may change the working directory


@pytest.fixture
def parity_check(request: pytest.FixtureRequest) -> Callable[..., Result]:
    """`parity_check(pair, **options)`: parity.check, which fails the test unless the pair passes.

    Options are fields of parity.Options; [tool.parity] has the defaults. ABSTAIN skips the rest of the test.
    """

    def check_in_test(pair: Pair, **options: Any) -> Result:
        __tracebackhide__ = True  # the line that is shown is the caller's
        result = _measured(request.node, pair, options)
        _conclude(result)
        return result

    return check_in_test


class PairItem(pytest.Item):
    """A Pair of a test module as a test of its own."""

    def __init__(self, *, pair: Pair, line: int, **node: Any):
        super().__init__(**node)
        self.pair = pair
        self.line = line

    def runtest(self) -> None:
        """Checks the pair."""
        _conclude(_measured(self, self.pair, {}))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The report, or the caller's mistake in its one line; a traceback for anything else."""
        if isinstance(excinfo.value, ParityError | ParityUsageError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """File, line from 0 and name."""
        return self.path, self.line, self.name


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> list[PairItem] | None:
    """A test for each Pair, or list of Pairs, that a module calls `parity_*`."""
    if not name.startswith(PREFIX) or not isinstance(collector, pytest.Module):
        return None
    if isinstance(obj, Pair):
        named = {name: obj}
    elif isinstance(obj, list | tuple) and any(isinstance(each, Pair) for each in obj):
        if others := [type(each).__name__ for each in obj if not isinstance(each, Pair)]:
            raise collector.CollectError(f"{name}: Pairs alone, got {', '.join(others)} as well; take them out")
        named = {f"{name}[{index}-{_identifier(pair.name)}]": pair for index, pair in enumerate(obj)}
    elif isinstance(obj, dict) and any(isinstance(each, Pair) for each in obj.values()):
        raise collector.CollectError(f"{name}: a Pair or a list of them, got a dict, whose pairs would be no tests")
    else:
        return None
    line = _line_of(collector.path, name)
    return [PairItem.from_parent(collector, name=each, pair=pair, line=line) for each, pair in named.items()]


def _identifier(name: str) -> str:
    return name.encode("unicode_escape").decode("ascii")  # as pytest writes the names of parameters


def _line_of(path: Path, name: str) -> int:
    """The line, from 0, that first gives a name its value in a module; 0 where none does."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return node.lineno - 1
    return 0


def _measured(item: pytest.Item, pair: Pair, options: dict[str, Any]) -> Result:
    """The result of a check, with what the project accepts, noted for the report of its test."""
    from .verdict import check

    settings = item.config.stash[SETTINGS]
    try:
        result = accept(check(pair, **{**settings.options, **options}), settings.accepted, today())
    except ParityUsageError as error:
        item.stash.setdefault(REFUSED, []).append(f"{getattr(pair, 'name', item.name)}: not checked: {error}")
        raise
    item.stash.setdefault(RESULTS, []).append(result)
    figures = {"verdict": result.verdict, "rung": result.rung or "", "target": result.target, "seed": result.seed}
    figures |= {"seconds": f"{result.seconds:.3f}", "reason": cut(result.reason, REASON_WIDTH)}
    figures |= {"accepted": ", ".join(each.name for each in result.accepted)} if result.accepted else {}
    item.user_properties += [(f"parity.{name}", value) for name, value in figures.items()]
    return result


def _conclude(result: Result) -> None:
    __tracebackhide__ = True
    if result.verdict == "ABSTAIN":
        pytest.skip(f"ABSTAIN: {result.reason}")
    if not result.passed:
        raise ParityError(str(result))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Gives the results of a test to its report, as plain values that xdist can carry."""
    report = yield
    results = item.stash.get(RESULTS, [])
    report.refused = item.stash.get(REFUSED, [])
    item.stash[RESULTS], item.stash[REFUSED] = [], []
    report.parity = [{"passed": result.passed, "result": result.to_dict()} for result in results]
    if isinstance(item, PairItem) and report.skipped and isinstance(report.longrepr, tuple):
        report.longrepr = (str(item.path), item.line + 1, report.longrepr[2])
    return report


class Summary:
    """All checks of a session, in the process that reports them: table, JSON, what GitHub shows."""

    def __init__(self, config: pytest.Config, destination: Path | None):
        self.config = config
        self.destination = destination
        self.checks: list[Checked] = []
        self.problems: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Takes what a report brings along."""
        file, line, _ = report.location
        place = str(self.config.rootpath / file)
        for each in getattr(report, "parity", ()):
            self.checks.append(Checked(report.nodeid, place, (line or 0) + 1, report.failed, **each))
        if report.failed:  # a test may expect a pair to be refused
            self.problems += getattr(report, "refused", ())

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Writes the files; an acceptance that nothing needs, or a file that cannot be written, fails the session."""
        self.checks.sort(key=lambda each: each.node)  # workers report in any order
        results = [each.result for each in self.checks]
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):  # others did not reach their end
            self.problems += unneeded(self.config.stash[SETTINGS], results)
        if self.destination is not None and not self.config.getoption("collectonly"):
            self.write_json(self.destination, results)
        place = os.environ.get("GITHUB_STEP_SUMMARY")
        if place and (self.checks or self.problems):
            self.append_markdown(Path(place))
        if self.problems and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def write_json(self, place: Path, results: list[Any]) -> None:
        """One array, whole or not at all."""
        from .output import write_whole

        try:
            write_whole(place, json.dumps(results, indent=1, allow_nan=False) + "\n")
        except OSError as error:
            self.problems.append(_unwritten(JSON_OPTION, place, error))

    def append_markdown(self, place: Path) -> None:
        """The table below whatever the step has written already."""
        try:
            with place.open("a", encoding="utf-8") as file:
                file.write(markdown(self.checks, self.problems))
        except OSError as error:
            self.problems.append(_unwritten("GITHUB_STEP_SUMMARY", place, error))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The section "parity", and annotations inside a GitHub workflow."""
        if not self.checks and not self.problems:
            return
        terminalreporter.write_sep("=", "parity")
        width = self.config.get_terminal_writer().fullwidth
        for line, colour in table(self.checks, width) if self.checks else ():
            terminalreporter.write_line(line, **{colour: True} if colour else {})
        for problem in self.problems:
            terminalreporter.write_line(f"error: {problem}", red=True)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            workspace = os.environ.get("GITHUB_WORKSPACE") or str(self.config.rootpath)
            for line in workflow_commands(self.checks, self.problems, workspace):
                terminalreporter.write_line(line)


def _unwritten(what: str, place: Path, error: OSError) -> str:
    return f"{what}: a file that can be written, got {place} ({error.strerror}); choose another place"
