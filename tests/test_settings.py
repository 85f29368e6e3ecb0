"""`[tool.parity]`: what it may hold, what it changes in a check, which failing rows it accepts and for how long."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields, replace
from datetime import date, timedelta
from pathlib import Path

import pytest
from lines import FUTURE, MAKING, PAST, SHORT, accepted

from parity import Options, ParityError, ParityUsageError, Result, Row
from parity.acceptance import accept, describe_accepted, unneeded
from parity.cli import main
from parity.report import to_text
from parity.settings import RULES, Acceptance, Settings, find_settings, read_settings
from parity.work import Work

DAY = date(2026, 12, 1)
LATER = DAY + timedelta(days=30)


def settings(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "pyproject.toml"
    path.write_text(text)
    return read_settings(path)


def row(name: str = "y", verdict: str = "FAIL", stage: str = "float64") -> Row:
    return Row(name, name, ("torch", "jax"), (3, 2), "float64", stage, 1e-3, 1e-15, "because", verdict)


def result(*rows: Row, verdict: str = "FAIL", **fields) -> Result:
    return Result("line", verdict, "different", "y differs", 0, rows or (row(),), **fields)


def entry(**changes) -> Acceptance:
    return replace(Acceptance("line", "y", "the port rounds", LATER), **changes)


def test_every_option_can_be_set(tmp_path):
    given = {
        "precisions": ("bfloat16", "float16"),
        "batches": 3,
        "steps": 0,
        "grads": True,
        "points": True,
        "seed": 7,
        "device": "cuda",
        "flops": False,
        "thorough": True,
        "curve": 3,
        "seeds": 2,
        "mutate": True,
        "budget": 120,
    }
    assert given.keys() == {field.name for field in fields(Options)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in given.items()]
    found = settings(tmp_path, "[tool.parity]\n" + "\n".join(lines))
    assert found.options == given
    assert found.accepted == ()


def test_there_is_a_rule_for_every_annotation():
    assert {field.type for form in (Options, Acceptance) for field in fields(form)} == RULES.keys()


def test_acceptances_are_read(tmp_path):
    found = settings(tmp_path, accepted("li*", "y", "2026-12-01", more='stage = "float32"\n') + accepted("other"))
    assert found.accepted[0] == Acceptance("li*", "y", "the port rounds", DAY, "float32")
    assert found.accepted[1].stage is None


def test_the_nearest_file_counts(tmp_path):
    below = tmp_path / "package" / "tests"
    below.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[tool.parity]\nsteps = 1\n")
    assert find_settings(below).options == {"steps": 1}
    (tmp_path / "package" / "pyproject.toml").write_text("[project]\nname = 'package'\n")
    assert find_settings(below) == Settings(path=tmp_path / "package" / "pyproject.toml")


BAD = {
    "no TOML": ("[tool.parity", "a TOML file that can be read, got Expected ']'"),
    "tool is a number": ("tool = 3", "tool: a table, got 3; write [tool]"),
    "parity is a number": ("[tool]\nparity = 3", "tool.parity: a table, got 3; write [tool.parity]"),
    "an unknown key": ("[tool.parity]\nstep = 3", "got 'step'; did you mean steps?"),
    "a key like no other": (
        "[tool.parity]\natol = 1e-3",
        "precisions, batches, steps, grads, points, seed, device, flops,",
    ),
    "steps in words": ("[tool.parity]\nsteps = 'three'", "tool.parity.steps: a whole number, got 'three'; for example"),
    "steps true": ("[tool.parity]\nsteps = true", "tool.parity.steps: a whole number, got True"),
    "steps below zero": ("[tool.parity]\nsteps = -1", "tool.parity.steps: at least 0, got -1"),
    "grads as a number": ("[tool.parity]\ngrads = 1", "tool.parity.grads: true or false, got 1"),
    "precisions as a word": ("[tool.parity]\nprecisions = 'float32'", "precisions: a list of strings, got 'float32'"),
    "an unknown precision": ("[tool.parity]\nprecisions = ['bf16']", "tool.parity.precisions: of float32, "),
    "an unknown device": ("[tool.parity]\ndevice = 'tpu'", "tool.parity.device: one of cpu, cuda, got 'tpu'"),
    "accepted as a table": ("[tool.parity.accepted]\npair = 'a'", "write [[tool.parity.accepted]]"),
    "accepted words": ("[tool.parity]\naccepted = ['y']", "tool.parity.accepted[0]: a table, got 'y'"),
    "an unknown key of an entry": (accepted("a", more="until = 3\n"), "accepted[0]: keys are pair, name, reason, exp"),
    "no reason": (accepted("a").replace("reason =", "#"), "accepted[0].reason: a string, got none; for example"),
    "an empty reason": (accepted("a", reason=" "), "accepted[0].reason: words in one line, got ' '; say which"),
    "a reason of two lines": (accepted("a", reason=r"a\nb"), r"accepted[0].reason: words in one line, got 'a\nb'"),
    "no date": (accepted("a").replace("expires =", "#"), "accepted[0].expires: a date, got none; for example expires"),
    "a date as a string": (accepted("a", expires="'2026-12-01'"), "accepted[0].expires: a date, got '2026-12-01'"),
    "a date with a time": (accepted("a", expires="2026-12-01T00:00:00"), "accepted[0].expires: a date, got datetime"),
    "an unknown stage": (accepted("a", more="stage = 'int8'\n"), "accepted[0].stage: one of float64, float32, "),
    "the second entry": (accepted("a") + accepted(""), "tool.parity.accepted[1].pair: words in one line, got ''"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_no_check_can_have_is_one_line_that_names_the_file(name, tmp_path):
    text, expected = BAD[name]
    with pytest.raises(ParityUsageError, match=re.escape(expected)) as error:
        settings(tmp_path, text)
    form = rf"{re.escape(str(tmp_path / 'pyproject.toml'))}: [^\n]+, got [^\n]+; [^\n]+"
    assert re.fullmatch(form, str(error.value)), str(error.value)


def test_reading_them_loads_no_framework_and_no_numpy():
    code = "import sys; import parity.settings, parity.acceptance; print(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "jax", "torch", "rich"} & set(process.stdout.split())


def test_an_accepted_row_passes_and_stays_what_was_measured():
    found = accept(result(), [entry()], DAY)
    assert (found.verdict, found.rung, found.reason) == ("FAIL", "different", "y differs")
    assert (found.passed, found.exit_status) == (True, 0)
    found.raise_if_different()
    assert found.to_dict()["accepted"] == [
        {"name": "y", "stage": "float64", "reason": "the port rounds", "expires": LATER.isoformat()}
    ]
    text = to_text(found)
    assert text.splitlines()[0] == "line: jax against torch: FAIL, different, accepted"
    assert f"\naccepted: y until {LATER}: the port rounds\n" in text


NOT_ACCEPTED = {
    "another pair": [entry(pair="lime")],
    "another row": [entry(name="z")],
    "another stage": [entry(stage="float32")],
    "no entry": [],
}


@pytest.mark.parametrize("name", NOT_ACCEPTED)
def test_what_no_entry_covers_fails(name):
    found = accept(result(), NOT_ACCEPTED[name], DAY)
    assert found == result()
    assert (found.passed, found.exit_status) == (False, 1)
    with pytest.raises(ParityError):
        found.raise_if_different()


def test_every_failing_row_has_to_be_accepted():
    both = result(row("y"), row("loss"), row("z", "PASS"))
    found = accept(both, [entry()], DAY)
    assert [each.name for each in found.accepted] == ["y"]
    assert not found.passed
    assert accept(both, [entry(), entry(name="l*")], DAY).passed
    assert accept(both, [entry(pair="li?e", name="*")], DAY).passed


def test_a_name_with_brackets_is_its_own_pattern():
    assert accept(result(row("y[0]")), [entry(name="y[0]")], DAY).passed
    assert not accept(result(row("y[0]")), [entry(name="y[1]")], DAY).passed


def test_the_last_day_counts_and_the_next_does_not():
    last = entry(expires=DAY)
    assert accept(result(), [last], DAY).passed
    found = accept(result(), [last], DAY + timedelta(days=1))
    assert (found.verdict, found.passed, found.accepted) == ("FAIL", False, ())
    assert found.reason == "y differs; the acceptance of y expired on 2026-12-01"
    assert found.reason in " ".join(to_text(found).split())
    assert accept(result(), [last, entry()], DAY + timedelta(days=1)).passed, "the entry that lasts longest counts"


def test_what_is_no_failing_row_cannot_be_accepted():
    unequal = Work({"forward": {"jaxpr": 2, "torch": 4}})
    everything = [entry(name="*", pair="*")]
    only_work = result(row(verdict="PASS"), work=unequal)
    no_row = result(row(verdict="PASS"))
    for found in (only_work, no_row, result(work=unequal), result(row(), row("z", "VACUOUS"))):
        assert not accept(found, everything, DAY).passed
    for verdict in ("VACUOUS", "ABSTAIN"):
        assert not accept(result(row(verdict=verdict), verdict=verdict), everything, DAY).passed


def test_an_entry_that_nothing_needs_is_named():
    def lines(*entries: Acceptance, results: tuple[Result, ...] = (result(),)) -> list[str]:
        found = Settings(accepted=entries, path=Path("pyproject.toml"))
        return unneeded(found, [each.to_dict() for each in results])

    assert lines(entry()) == []
    assert lines(entry(expires=date(2001, 1, 1))) == [], "expired, but not for nothing"
    assert lines(entry(pair="not checked")) == []
    assert lines(entry(), results=(result(row(verdict="PASS"), verdict="PASS"), result())) == [], "one needs it"
    (line,) = lines(entry(name="z"), entry())
    assert line == (
        "pyproject.toml: tool.parity.accepted: rows that fail, got 'z', but no such row fails in line; remove the entry"
    )
    assert len(lines(entry(), results=(result(row(verdict="PASS"), verdict="PASS"),))) == 1


def test_many_rows_of_one_entry_are_one_line():
    found = accept(result(row("a"), row("b"), row("b", stage="float32")), [entry(name="*")], DAY)
    accepted = found.to_dict()["accepted"]
    assert len(accepted) == 3
    assert list(describe_accepted(accepted)) == [f"accepted: a and 1 more until {LATER}: the port rounds"]


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """`parity check` in a folder with pairs and the given settings: exit status and both streams."""
    (tmp_path / "making.py").write_text(MAKING)
    (tmp_path / "pairs.py").write_text("from making import make\nline = make()\nsteep = make('steep', 2.0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(text: str, *arguments: str) -> tuple[int, str, str]:
        for name in ("making", "pairs"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        Path("pyproject.toml").write_text(text)
        with pytest.raises(SystemExit) as stopped:
            main(["check", *arguments])
        streams = capsys.readouterr()
        return stopped.value.code, streams.out, streams.err

    return call


def test_the_command_line_takes_its_defaults_from_the_file_and_says_otherwise(call):
    status, out, _ = call(SHORT + "seed = 5\nflops = false\n", "pairs.py:line", "--json", "-")
    found = json.loads(out)
    assert (status, found["seed"], {row["stage"] for row in found["rows"]}) == (0, 5, {"float64"})
    assert "forward" not in found["flops"]
    status, out, _ = call(SHORT + "seed = 5\n", "pairs.py:line", "--seed", "0", "--dtype", "float32", "--json", "-")
    found = json.loads(out)
    assert (status, found["seed"], {row["stage"] for row in found["rows"]}) == (0, 0, {"float64", "float32"})
    assert "forward" in found["flops"]


def test_a_preset_takes_the_same_defaults(call, monkeypatch):
    seen = []

    def check(pair, options, progress):
        seen.append(options)
        return result(row(verdict="PASS"), verdict="PASS")

    monkeypatch.setattr("parity.commands.check", check)
    assert call(SHORT + "grads = false\n", "tiny-bert", "--seq", "8")[0] == 0
    assert call("[tool.parity]\nseed = 3\n", "tiny-bert", "--seq", "8", "--steps", "1", "--dtype", "float16")[0] == 0
    assert seen == [
        Options(precisions=(), batches=2, steps=0, grads=False),
        Options(precisions=("float16",), seed=3, steps=1),
    ]


def test_the_command_line_accepts_until_the_day(call):
    status, out, errors = call(SHORT + accepted("steep"), "pairs.py", "--json", "all.json")
    assert status == 0, errors
    assert f"accepted: y and 2 more until {FUTURE}: the port rounds" in out
    assert out.splitlines()[-1].split() == ["FAIL", "different", "steep", "accepted"]
    found = json.loads(Path("all.json").read_text())[1]
    assert (found["verdict"], [each["name"] for each in found["accepted"]]) == (
        "FAIL",
        ["y", "gradient w", "gradient input x"],
    )
    status, out, _ = call(SHORT + accepted("steep", expires=PAST), "pairs.py:steep")
    assert status == 1
    assert f"the acceptance of * expired on {PAST}" in " ".join(out.split())


def test_an_unneeded_acceptance_fails_the_command(call):
    status, _, errors = call(SHORT + accepted("line"), "pairs.py:line")
    assert (status, errors.splitlines()[-1].startswith("error: ")) == (1, True)
    assert errors.endswith("but no such row fails in line; remove the entry\n")
    assert call(SHORT + accepted("steep"), "pairs.py:line")[0] == 0, "it was not checked"


def test_a_wrong_file_is_one_line_and_nothing_is_checked(call):
    status, out, errors = call("[tool.parity]\nstep = 1\n", "pairs.py:line")
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert re.match(r"error: \S+pyproject\.toml: tool\.parity: keys are ", errors)
