"""Pairs of one's own on the command line: a file, a module, a function, several at once."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import jsonschema
import pytest

from parity.cli import main
from parity.errors import ParityUsageError
from parity.targets import is_own, load_pairs

FILE = """
import numpy as np
import torch

import jax
import parity
from beside import SLOPE


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(7, 5))

    def forward(self, x):
        return {"y": x @ self.w * SLOPE}


def make(slope=SLOPE, name="line"):
    return parity.Pair(
        name,
        Line(),
        parity.Jax(lambda p, x: {"y": x @ p["w"] * slope}),
        {"w": np.random.default_rng(0).normal(size=(7, 5))},
        lambda generator: {"x": generator.normal(size=(3, 7))},
    )


line = make()
steeper = make(3 * SLOPE, "steeper")
both = [line, steeper]
number = 3


class holder:
    inner = line


def breaks():
    raise KeyError("left out")
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file with pairs, a module beside it, and the folder as working directory."""
    (tmp_path / "my_pairs.py").write_text(FILE)
    (tmp_path / "beside.py").write_text("SLOPE = 2.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("my_pairs", "beside"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "my_pairs.py"


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["check", *arguments])
    seen = capsys.readouterr()
    return stopped.value.code, seen.out, seen.err


@pytest.mark.parametrize(
    ("attribute", "names"),
    [
        ("", ["line", "steeper"]),
        (":line", ["line"]),
        (":make", ["line"]),
        (":both", ["line", "steeper"]),
        (":holder.inner", ["line"]),
    ],
)
@pytest.mark.parametrize("by", ["file", "module"])
def test_pairs_are_found(file: str, attribute: str, names: list[str], by: str) -> None:
    place = file if by == "file" else "my_pairs"
    if by == "module" and not attribute:
        attribute = ":both"
    assert is_own(place + attribute)
    assert [pair.name for pair in load_pairs(place + attribute)] == names


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("nowhere.py", "nowhere.py: a Python file, got none there"),
        ("nowhere:pair", "nowhere: a file or module that can be imported, got ModuleNotFoundError: No module named"),
        ("my_pairs.py:lime", "my_pairs.py:lime: an attribute of my_pairs.py, got no 'lime'; it has line, steeper"),
        ("my_pairs.py:number", "my_pairs.py:number: a parity.Pair, a list of them or a function, got int"),
        (
            "my_pairs.py:breaks",
            "my_pairs.py:breaks: a function that returns a Pair, got KeyError at my_pairs.py:40: 'left out'",
        ),
        ("beside.py", "beside.py: a file with a parity.Pair in it, got none"),
        ("broken.py", "broken.py: a file or module that can be imported, got SyntaxError: "),
    ],
)
def test_what_is_no_pair_is_told_in_one_line(
    file: str, target: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("broken.py").write_text("def (:\n")
    with pytest.raises(ParityUsageError, match=re.escape(line)):
        load_pairs(target)
    status, out, errors = call(capsys, target)
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"error: {line}")
    assert "broken" not in sys.modules, "a module that failed is none"


def test_a_preset_is_no_code_of_ones_own() -> None:
    assert not is_own("tiny")
    assert not is_own("llama3-8b")


def test_a_pair_of_ones_own_is_checked(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ("--dtype", "float64", "--batches", "2")
    status, out, _ = call(capsys, f"{file}:line", *quick)
    assert (status, out.splitlines()[0]) == (0, "line: jax against torch: PASS, same-function")
    status, out, _ = call(capsys, f"{file}:steeper", *quick, "--json", "-")
    assert (status, json.loads(out)["verdict"]) == (1, "FAIL")


def test_several_targets_are_one_call(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ("--dtype", "float64", "--batches", "2")
    status, out, _ = call(capsys, f"{file}:line", file, *quick, "--json", "all.json")
    assert status == 1, "the worst of them"
    assert [line.split() for line in out.splitlines()[-3:]] == [
        ["PASS", "same-function", "line"],
        ["PASS", "same-function", "line"],
        ["FAIL", "different", "steeper"],
    ]
    documents = json.loads(Path("all.json").read_text())
    assert [document["target"] for document in documents] == ["line", "line", "steeper"]
    schema = json.loads((Path(sys.modules["parity"].__file__).parent / "schema" / "result.schema.json").read_text())
    for document in documents:
        jsonschema.validate(document, schema)
    status, out, _ = call(capsys, file, *quick, "--json", "-")
    assert (status, [each["verdict"] for each in json.loads(out)]) == (1, ["PASS", "FAIL"])


def test_a_pair_that_cannot_be_run_does_not_cost_the_others(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = "\n\nbroken = parity.Pair('broken', Line(), Line(), inputs=lambda generator: 1 / 0)\n"
    Path(file).write_text(Path(file).read_text() + more)
    quick = ("--dtype", "float64", "--batches", "2")
    status, out, errors = call(capsys, f"{file}:broken", f"{file}:line", *quick, "--json", "all.json")
    assert (status, out.splitlines()[-1].split()) == (2, ["PASS", "same-function", "line"])
    assert errors.splitlines()[-1].startswith("error: broken: inputs: a function of a NumPy Generator")
    assert [each["target"] for each in json.loads(Path("all.json").read_text())] == ["line"]


def test_nothing_is_checked_where_one_target_is_wrong(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, errors = call(capsys, f"{file}:line", "gtp2", "--json", "all.json")
    assert (status, out) == (2, "")
    assert errors.startswith("error: PRESET: one of tiny, ")
    assert not Path("all.json").exists()


@pytest.mark.parametrize("option", [("--seq", "8"), ("--set", "d_ff=3"), ("--batch", "2"), ("--shrink",)])
def test_options_of_a_preset_are_refused(
    file: str, option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, errors = call(capsys, file, *option)
    assert (status, out) == (2, "")
    assert errors.startswith(f"error: {option[0]}: only with a preset, got my_pairs.py; ")


@pytest.mark.parametrize(
    "text",
    [
        "import sys\nsys.exit(0)\n",
        "import sys, parity\ndef pair():\n    sys.exit(0)\n",
        "import sys, torch, parity\n"
        "sides = parity.Torch(lambda x: sys.exit(0)), parity.Torch(torch.sin)\n"
        "pair = parity.Pair('leaves', *sides, inputs=(torch.ones(3),))\n",
        "import sys, torch, parity\n"
        "sides = parity.Torch(torch.cos), parity.Torch(torch.sin)\n"
        "pair = parity.Pair('leaves', *sides, inputs=lambda generator: sys.exit(0))\n",
    ],
    ids=["the module", "the function", "a side", "the inputs"],
)
def test_code_that_exits_ends_in_no_pass(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "leaving.py"
    place.write_text(text)
    with pytest.raises(SystemExit) as stopped:
        main.main(["check", f"{place}:pair", "--no-color"])
    shown = capsys.readouterr()
    assert (stopped.value.code, shown.out) == (2, "")
    assert re.search(r"got SystemExit at leaving\.py:\d: 0", shown.err)


def test_what_the_callers_code_prints_does_not_stand_beside_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "talking.py"
    place.write_text(
        "import torch, parity\n"
        "print('imported')\n"
        "def loud(x):\n    print('run')\n    return torch.sin(x)\n"
        "pair = parity.Pair('loud', parity.Torch(loud), parity.Torch(torch.sin), inputs=(torch.ones(3),))\n"
    )
    with pytest.raises(SystemExit) as stopped:
        main.main(["check", f"{place}:pair", "--json", "-"])
    shown = capsys.readouterr()
    assert stopped.value.code == 0
    assert json.loads(shown.out)["verdict"] == "PASS"
    assert "imported" in shown.err
    assert "run" in shown.err
