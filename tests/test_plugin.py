"""The pytest plugin, in sessions of its own: what is collected, what fails, and what is left behind for whom."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import jsonschema
import pytest
from lines import FUTURE, MAKING, PAST, SHORT, accepted

import parity
import parity.plugin
from parity.summary import Checked, cut, error_command, finding, markdown, table, totals, workflow_commands

PLUGINS = ("-p", "parity.plugin", "-p", "no:cacheprovider")
ROOT = Path(parity.__file__).parents[1]
SCHEMA = json.loads((ROOT / "parity" / "schema" / "result.schema.json").read_text())

TESTS = """
from making import make

parity_line = make()
parity_several = [make("same"), make("steep", 1.5)]


def test_by_fixture(parity_check):
    result = parity_check(make("by fixture"), seed=3)
    assert (result.verdict, result.seed) == ("PASS", 3)


def test_wrong(parity_check):
    parity_check(make("wrong", 2.0))
"""


def test_the_entry_point_is_the_plugin():
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    ((name, value),) = points.items()
    assert EntryPoint(name, value, "pytest11").load() is parity.plugin


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """No other plugin, no colour, 80 columns, no workflow of GitHub's; only a session's own modules are forgotten."""

    def forget(_) -> None:  # pytester forgets all: frameworks load parts of themselves late, and can load them once
        for name in ("making", "test_lines"):
            sys.modules.pop(name, None)

    monkeypatch.setattr("_pytest.pytester.SysModulesSnapshot.restore", forget)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE", "PYTEST_ADDOPTS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def session(pytester):
    """A session over one test module, with the given settings, in this process."""

    def session(tests: str, *arguments: str, settings: str = "") -> pytest.RunResult:
        pytester.makepyfile(making=MAKING, test_lines=tests)
        pytester.makepyprojecttoml(SHORT + settings)
        return pytester.runpytest_inprocess(*PLUGINS, *arguments)

    return session


@pytest.fixture
def judged(monkeypatch):
    """Makes the plugin see a result of the given fields, whatever the pair."""

    def judged(**fields) -> None:
        def check(pair, **_):
            return parity.Result(**({"target": pair.name, "rung": None, "seed": 0, "rows": ()} | fields))

        monkeypatch.setattr("parity.verdict.check", check)

    return judged


def section(outcome: pytest.RunResult) -> list[str]:
    """The lines of the section "parity"."""
    start = next(index for index, line in enumerate(outcome.outlines) if re.fullmatch(r"=+ parity =+", line))
    return list(itertools.takewhile(lambda line: not line.startswith("==="), outcome.outlines[start + 1 :]))


def test_pairs_of_a_module_are_tests_beside_those_with_the_fixture(session):
    outcome = session(TESTS, "-v")
    outcome.assert_outcomes(passed=3, failed=2)
    nodes = re.findall(r"^test_lines\.py::(\S+(?: \S+\])?) (?:PASSED|FAILED)", outcome.stdout.str(), re.MULTILINE)
    several = ["parity_several[0-same]", "parity_several[1-steep]"]
    assert nodes == ["parity_line", *several, "test_by_fixture", "test_wrong"]


def test_a_failing_pair_shows_its_report_and_no_traceback(session):
    outcome = session(TESTS, "-k", "parity_several")
    outcome.assert_outcomes(passed=1, failed=1, deselected=3)
    text = outcome.stdout.str()
    assert "\nsteep: jax against torch: FAIL, different\n" in text
    assert re.search(r"^first difference: y \[5, 2\] in float64, torch against jax: measured", text, re.MULTILINE)
    assert "Traceback" not in text
    assert "plugin.py" not in text


def test_the_fixture_shows_the_line_that_called_it_and_the_report(session):
    text = session(TESTS, "-k", "test_wrong").stdout.str()
    assert '>       parity_check(make("wrong", 2.0))' in text
    assert re.search(r"^E .*ParityError: wrong: jax against torch: FAIL, different$", text, re.MULTILINE)
    assert "plugin.py" not in text


def test_one_pair_can_be_asked_for_by_its_node(session):
    session(TESTS, "test_lines.py::parity_several[0-same]").assert_outcomes(passed=1)


def test_the_summary_has_a_line_for_each_check(session):
    lines = section(session(TESTS))
    assert max(map(len, lines)) <= 80
    words = [re.split(r" {2,}", line) for line in lines]
    assert [each[:3] for each in words[:5]] == [
        ["PASS", "same-function", "line"],
        ["PASS", "same-function", "same"],
        ["FAIL", "different", "steep"],
        ["PASS", "same-function", "by fixture"],
        ["FAIL", "different", "wrong"],
    ]
    assert re.fullmatch(r"y float64: 5\.0e-01 > \d\.\de-\d\d", words[2][3])
    assert all(re.fullmatch(r"\d+\.\d s", each[-1]) for each in words[:5])
    assert lines[5] == "5 checks: 2 FAIL, 3 PASS"


def test_a_session_without_checks_has_no_section(session):
    outcome = session("def test_nothing():\n    pass\n")
    outcome.assert_outcomes(passed=1)
    assert "parity ==" not in outcome.stdout.str()


NO_TESTS = """
from making import make

Parity_other_name = line = make()
parity_number, parity_empty = 3, []
parity_function = make


class TestGroup:
    parity_inner = make()
"""


def test_nothing_else_of_that_name_is_a_test(session):
    session(NO_TESTS).assert_outcomes()


def test_a_list_with_something_else_in_it_is_no_silent_pass(session):
    outcome = session("from making import make\nparity_several = [make(), None]\n")
    outcome.assert_outcomes(errors=1)
    assert "parity_several: Pairs alone, got NoneType as well; take them out" in outcome.stdout.str()


def test_a_dict_of_pairs_is_no_silent_pass(session):
    outcome = session("from making import make\nparity_all = {'line': make()}\n")
    outcome.assert_outcomes(errors=1)
    assert "parity_all: a Pair or a list of them, got a dict" in outcome.stdout.str()


def test_markers_of_the_module_count(session):
    marked = f"import pytest\npytestmark = pytest.mark.slow\n{TESTS}"
    session(marked, "-m", "not slow", "-W", "ignore").assert_outcomes(deselected=5)
    skipped = f"import pytest\npytestmark = pytest.mark.skip(reason='later')\n{TESTS}"
    session(skipped).assert_outcomes(skipped=5)


def test_abstain_skips_with_its_reason_and_is_counted(session, judged):
    judged(verdict="ABSTAIN", reason="no bound was smaller than the tensors themselves")
    outcome = session(TESTS, "-rs")
    outcome.assert_outcomes(skipped=5)
    assert re.search(
        r"^SKIPPED \[1\] test_lines\.py:3: ABSTAIN: no bound was smaller", outcome.stdout.str(), re.MULTILINE
    )
    assert "plugin.py" not in outcome.stdout.str()
    assert section(outcome)[-1] == "5 checks: 5 ABSTAIN"


def test_vacuous_fails(session, judged):
    judged(verdict="VACUOUS", reason="there is no float output to compare")
    outcome = session("from making import make\nparity_line = make()\n")
    outcome.assert_outcomes(failed=1)
    assert re.match(r"VACUOUS +line  there is no float output to compare", section(outcome)[0])


def test_a_mistake_in_the_call_is_the_tests_error_and_said_in_the_summary(session):
    wrong = "from making import make\ndef test_wrong(parity_check):\n    parity_check(make(), stepz=3)\n"
    outcome = session(wrong)
    outcome.assert_outcomes(failed=1)
    assert "ParityUsageError: check: options are precisions, " in outcome.stdout.str()
    (line,) = section(outcome)
    assert line.startswith("error: line: not checked: check: options are precisions, ")


def test_a_mistake_in_a_pair_is_one_line(session):
    broken = "parity_line = dataclasses.replace(make(), weights={'w': None})\n"
    outcome = session(f"import dataclasses\nfrom making import make\n{broken}")
    outcome.assert_outcomes(failed=1)
    lines = outcome.outlines
    start = next(index for index, line in enumerate(lines) if "_ parity_line _" in line)
    assert re.match(r"weights: .*, got ", lines[start + 1])
    assert "Traceback" not in outcome.stdout.str()
    assert section(outcome) == [f"error: line: not checked: {lines[start + 1]}"]


def test_a_pair_that_a_test_expects_to_be_refused_is_no_problem(session):
    expects = (
        "import dataclasses, parity, pytest\nfrom making import make\n"
        "def test_refused(parity_check):\n"
        "    with pytest.raises(parity.ParityUsageError):\n"
        "        parity_check(dataclasses.replace(make(), roundings=0))\n"
    )
    outcome = session(expects)
    outcome.assert_outcomes(passed=1)
    assert outcome.ret == 0
    assert "parity ==" not in outcome.stdout.str()


def test_a_pair_that_is_refused_stands_below_the_table_of_the_others(session):
    outcome = session(
        "import dataclasses\nfrom making import make\n"
        "parity_two = [make(), dataclasses.replace(make('two'), notes='no list')]\n"
    )
    outcome.assert_outcomes(passed=1, failed=1)
    lines = section(outcome)
    assert lines[0].startswith("PASS")
    assert lines[1] == "1 check: 1 PASS"
    assert lines[2].startswith("error: two: not checked: notes: a list of texts, got 'no list'")


def test_results_are_properties_of_the_junit_report(session):
    session(TESTS, "--junitxml", "junit.xml")
    cases = {case.get("name"): case for case in ElementTree.parse("junit.xml").iter("testcase")}
    found = {
        name: {each.get("name"): each.get("value") for each in case.iter("property")} for name, case in cases.items()
    }
    steep = found["parity_several[1-steep]"]
    assert steep.keys() == {f"parity.{name}" for name in ("verdict", "rung", "target", "seed", "seconds", "reason")}
    assert (steep["parity.verdict"], steep["parity.rung"], steep["parity.target"]) == ("FAIL", "different", "steep")
    assert steep["parity.reason"].startswith("y differs in float64: 0.5, bound ")
    assert (found["test_by_fixture"]["parity.seed"], found["test_by_fixture"]["parity.reason"]) == ("3", "")


def test_every_result_is_written_as_json(session):
    tests = TESTS + "\n\ndef test_nan(parity_check):\n    parity_check(make('nan', float('nan')))\n"
    session(tests, "--parity-json", "all.json")
    text = Path("all.json").read_text()
    documents = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert [each["target"] for each in documents] == ["line", "same", "steep", "by fixture", "nan", "wrong"]
    assert documents[4]["rows"][0]["measured"] in ("nan", "inf")
    for document in documents:
        jsonschema.validate(document, SCHEMA)
    assert [path.name for path in Path().glob("*.json*")] == ["all.json"]


def test_a_session_without_checks_writes_an_empty_array_and_one_that_only_collects_nothing(session):
    session(TESTS, "--collect-only", "--parity-json", "all.json")
    assert not Path("all.json").exists()
    session("def test_nothing():\n    pass\n", "--parity-json", "all.json")
    assert json.loads(Path("all.json").read_text()) == []


@pytest.mark.parametrize("place", ["no/such.json", ".", "-", ""])
def test_a_place_that_cannot_be_written_is_a_usage_error(session, place):
    outcome = session(TESTS, f"--parity-json={place}")
    assert outcome.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in outcome.errlines if line]
    assert len(lines) == 1
    assert re.fullmatch(rf"ERROR: --parity-json: a file.*, got '{re.escape(place)}'.*; .+", lines[0])


def test_a_disk_that_is_full_fails_the_session_and_keeps_the_summary(session, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("parity.output.write_whole", full)
    outcome = session(TESTS, "-k", "parity_line", "--parity-json", "all.json")
    outcome.assert_outcomes(passed=1, deselected=4)
    assert outcome.ret == pytest.ExitCode.TESTS_FAILED
    assert re.match(
        r"error: --parity-json: a file that can be written, got .*all\.json \(No space left", section(outcome)[-1]
    )


def test_an_accepted_difference_passes_and_is_said(session):
    files = ("--parity-json", "all.json", "--junitxml", "junit.xml")
    outcome = session(TESTS, "-k", "steep", *files, settings=accepted("steep", reason="known"))
    outcome.assert_outcomes(passed=1, deselected=4)
    lines = section(outcome)
    assert re.match(r"FAIL  different  steep  y float64: ", lines[0])
    assert lines[1] == f"  accepted: y and 2 more until {FUTURE}: known"
    assert lines[2] == "1 check: 1 FAIL (accepted)"
    (document,) = json.loads(Path("all.json").read_text())
    assert (document["verdict"], document["rung"]) == ("FAIL", "different")
    assert {each["name"] for each in document["accepted"]} == {"y", "gradient w", "gradient input x"}
    assert '<property name="parity.accepted" value="y, gradient w, gradient input x"' in Path("junit.xml").read_text()


def test_only_one_of_two_rows_accepted_fails(session):
    outcome = session(TESTS, "-k", "steep", settings=accepted("steep", "y"))
    outcome.assert_outcomes(failed=1, deselected=4)
    assert "  no acceptance covers gradient w and 1 more" in section(outcome)


def test_an_expired_acceptance_fails_and_is_said(session):
    outcome = session(TESTS, "-k", "steep", settings=accepted("steep", expires=PAST))
    outcome.assert_outcomes(failed=1, deselected=4)
    assert f"  the acceptance of * expired on {PAST}" in section(outcome)


def test_an_unneeded_acceptance_fails_the_session(session):
    outcome = session(TESTS, "-k", "parity_line", settings=accepted("line", "y"))
    outcome.assert_outcomes(passed=1, deselected=4)
    assert outcome.ret == pytest.ExitCode.TESTS_FAILED
    assert section(outcome)[-1].endswith("got 'y', but no such row fails in line; remove the entry")
    outcome = session(TESTS, "-k", "parity_line", settings=accepted("steep"))
    assert outcome.ret == pytest.ExitCode.OK, "its pair was not checked"


def test_wrong_settings_are_a_usage_error(session):
    outcome = session(TESTS, settings="stepz = 3\n")
    assert outcome.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in outcome.errlines if line]
    assert re.match(r"ERROR: \S+pyproject\.toml: tool\.parity: keys are .*, got 'stepz'; did you mean steps\?", line)


def test_github_gets_annotations_and_a_table(session, pytester, monkeypatch):
    place = pytester.path / "step.md"
    place.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(place))
    assert "::error" not in session(TESTS).stdout.str()
    assert place.read_text().startswith("before\n### parity\n\n| verdict | rung | pair |")
    assert len(re.findall(r"^\| (?:PASS|FAIL) ", place.read_text(), re.MULTILINE)) == 5
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(pytester.path.parent))
    expected = TESTS + "\n\ndef test_expected(parity_check):\n" + EXPECTED
    lines = [line for line in session(expected).outlines if line.startswith("::")]
    folder = pytester.path.name
    assert len(lines) == 2, "a test that expects a difference has not failed"
    assert re.match(rf"::error file={folder}/test_lines\.py,line=4,title=parity::steep: FAIL, different: y ", lines[0])
    assert re.match(rf"::error file={folder}/test_lines\.py,line=12,title=parity::wrong: FAIL, different: y ", lines[1])


def test_a_table_that_github_cannot_take_fails_the_session(session, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "no/such.md")
    outcome = session(TESTS, "-k", "parity_line")
    outcome.assert_outcomes(passed=1, deselected=4)
    assert outcome.ret == pytest.ExitCode.TESTS_FAILED
    assert section(outcome)[-1].startswith("error: GITHUB_STEP_SUMMARY: a file that can be written, got no/such.md (No")


EXPECTED = """\
    import parity, pytest
    with pytest.raises(parity.ParityError):
        parity_check(make("expected", 2.0))
"""


def test_workers_of_xdist_send_their_results(pytester, monkeypatch):
    pytester.makepyfile(making=MAKING, test_lines=TESTS)
    pytester.makepyprojecttoml(SHORT + accepted("steep") + accepted("line"))
    place = pytester.path / "step.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(place))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    arguments = ("-p", "xdist.plugin", "-n", "2", "--parity-json", "all.json", "--junitxml", "junit.xml")
    outcome = pytester.runpytest_subprocess(*PLUGINS, *arguments, timeout=120)
    outcome.assert_outcomes(passed=4, failed=1)
    lines = section(outcome)
    assert [line.split()[0] for line in lines[:6]] == ["PASS", "PASS", "FAIL", "accepted:", "PASS", "FAIL"]
    assert lines[6] == "5 checks: 1 FAIL, 1 FAIL (accepted), 3 PASS"
    assert "but no such row fails in line" in lines[7]
    assert len([line for line in lines if line.startswith("::error")]) == 2, "by the controller alone"
    documents = json.loads((pytester.path / "all.json").read_text())
    assert [each["target"] for each in documents] == ["line", "same", "steep", "by fixture", "wrong"]
    assert place.read_text().count("### parity") == 1
    assert (pytester.path / "junit.xml").read_text().count('name="parity.verdict"') == 5


def checked(**changes) -> Checked:
    row = parity.Row("y", "y", ("a", "b"), (3,), "float64", "float64", 1e-3, 1e-15, "because", "FAIL")
    result = parity.Result("pair", "FAIL", "different", "y differs", 0, (row,), seconds=1.25)
    result = replace(result, **changes)
    return Checked("test.py::parity_pair", "/work/test.py", 3, not result.passed, result.passed, result.to_dict())


LONG = "gradient layers.3.attention.q_proj.weight"


def test_no_line_of_a_check_is_longer_than_the_terminal():
    row = parity.Row(LONG, "g", ("a", "b"), (3,), "float64", "bfloat16", 1e-3, 1e-15, "because", "FAIL")
    long = checked(target="a pair of a very long name", rows=(row,))
    abstains = checked(verdict="ABSTAIN", rung=None, rows=(), reason="no bound was smaller than the tensors themselves")
    lines = [line for line, _ in table([long, abstains, checked()], 80)]
    assert max(map(len, lines)) <= 80
    assert all(line.endswith("  1.2 s") for line in lines[:3])
    assert " bfloat16: 1.0e-03 > 1.0e-15" in finding(long.result, 40)
    assert len(finding(long.result, 40)) == 40
    assert lines[-1] == totals([long, abstains, checked()]) == "3 checks: 1 ABSTAIN, 2 FAIL"


def test_what_cannot_be_compared_is_said_in_words():
    row = parity.Row("y", "y", ("a", "b"), (), "", "float64", 0.0, 0.0, "only a has it", "FAIL")
    assert finding(checked(rows=(row,)).result) == "y: only a has it"


def test_commands_of_github_are_escaped():
    assert error_command("50%\r\nof, a: b", file="a,b:c%.py", line="3") == (
        "::error file=a%2Cb%3Ac%25.py,line=3,title=parity::50%25%0D%0Aof, a: b"
    )
    (line,) = workflow_commands([checked(target="a\nb")], [], "/work")
    assert line == "::error file=test.py,line=3,title=parity::a%0Ab: FAIL, different: y differs"
    assert list(workflow_commands([checked(verdict="PASS", rows=())], ["an entry"], "/work")) == [
        "::error title=parity::an entry"
    ]


def test_markdown_cells_hold_whatever_stands_in_a_name():
    text = markdown([checked(target="a|b\n<b>*`\\")], ["x|y"])
    (line,) = [line for line in text.splitlines() if line.startswith("| FAIL")]
    assert line == (r"| FAIL | different | a\|b &lt;b>\*\`\\ | y float64: 1.0e-03 > 1.0e-15 | 1.2 |")
    assert text.endswith("1 check: 1 FAIL\n- x\\|y\n")


def test_long_text_is_cut_in_one_line():
    assert cut("a\n b", 3) == "a b"
    assert cut("abcdef", 4) == "abc…"


def test_the_example_of_the_docs_does_what_it_says(pytester):
    page = (ROOT / "docs" / "pytest.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    settings, *_ = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    printed = re.search(r"```text\n(.*?)```", page, re.DOTALL)[1]
    pytester.makepyfile(test_lines=example)
    pytester.makepyprojecttoml(settings)
    outcome = pytester.runpytest_inprocess(*PLUGINS)
    outcome.assert_outcomes(passed=1, failed=1)

    def masked(lines: list[str]) -> list[list[str]]:
        figures = re.compile(r"\d+(\.\d+)?(e-\d+)?")
        return [figures.sub("#", line).split() for line in lines]

    assert masked(section(outcome)) == masked(printed.splitlines()[1:])
