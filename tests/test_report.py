"""The report as a person reads it, for every verdict and on narrow and wide terminals."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from functions import CANDIDATES, gate_result
from rich.console import Console

import parity
from parity.findings import BORN, Finding
from parity.islands import Island
from parity.report import STAGES, any_layer, print_report, to_text
from parity.result import Row
from parity.tables import METHODS, worst_by_group
from parity.work import Work


def row(**changes) -> Row:
    """A passing row of a long name."""
    fields = {
        "name": "gradient layers.3.attention.q_proj.weight",
        "group": "gradient layers.attention",
        "side_names": ("torchref", "jaxcore"),
        "shape": (192, 4, 48),
        "dtype": "float64",
        "stage": "float64",
        "measured": 1e-16,
        "bound": 1e-14,
        "derivation": "32 x float32 error 3e-07 x 2^-29, at least 4 x 2^-53",
        "verdict": "PASS",
    }
    return Row(**(fields | changes))


def result(*rows: Row, **changes) -> parity.Result:
    """A result of the given rows, as long-winded as a real one."""
    note = "tiny: 1,878,144 parameters; weights: seed 0, PCG64 per tensor; text: /a/very/long/path" + "/folder" * 20
    defaults = {"target": "tiny", "verdict": "PASS", "rung": "same-function", "reason": "", "seed": 0, "notes": (note,)}
    return parity.Result(rows=rows, **(defaults | changes))


@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_line_is_longer_than_the_terminal(candidate, width):
    assert max(map(len, to_text(gate_result(candidate), width).splitlines())) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_long_names_and_notes_stay_inside_too(width):
    flops = {name: dict.fromkeys(METHODS, 10**18) for name in ("forward", "forward_backward")}
    text = to_text(result(row(derivation="word " * 60), work=Work(flops, ("word " * 60,))), width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("1,000,000,000,000,000,000") == 2 * len(METHODS)


@pytest.mark.parametrize(
    ("candidate", "verdict"),
    [
        ("same", "PASS, same-function"),
        ("tanh", "FAIL, different"),
        ("island", "PASS, float32-island"),
        ("nan", "VACUOUS"),
    ],
)
def test_the_verdict_stands_first_and_last(candidate, verdict):
    lines = to_text(gate_result(candidate), 1000).splitlines()
    assert lines[0] == f"gate: jax against torch: {verdict}"
    assert lines[-1].startswith(f"{verdict}  gate  (")


def test_print_and_the_error_say_the_same():
    failed = gate_result("tanh")
    with pytest.raises(parity.ParityError) as error:
        failed.raise_if_different()
    assert str(error.value) == str(failed) == to_text(failed)
    assert gate_result().raise_if_different() is None


def test_each_stage_says_what_it_cannot_see():
    text = to_text(gate_result(), 1000)
    for stage in ("float64", "float32", "bfloat16"):
        assert f"{stage}  {STAGES[stage]}" in text
    assert "Catches next to nothing" in STAGES["bfloat16"]
    assert all("annot see" in sentence or "next to nothing" in sentence for sentence in STAGES.values())


def test_a_failure_names_the_first_tensor_its_sides_and_its_bound():
    text = to_text(gate_result("tanh"), 1000)
    assert re.search(
        r"^first difference: y \[7, 23\] in float64, torch against jax: measured \S+, bound \S+: 32 .*float32 error",
        text,
        re.MULTILINE,
    )
    assert "no lower precision was seen in the float64 outputs and gradients" in text.splitlines()[-1]


def point(name: str, verdict: str = "PASS", kind: str = "point") -> Row:
    return row(name=f"{kind} {name}", group=f"{kind}s (module)", verdict=verdict)


def born(name: str, what: str = "value") -> Finding:
    return Finding(name, name, what, ("", ""), BORN, 1e-3, 1e-15, 1e-3)


def test_the_last_point_that_agreed_before_a_birth_is_named():
    rows = point("up"), point("norm", "FAIL"), point("down", "FAIL"), point("head")
    text = to_text(result(*rows, verdict="FAIL", rung="different", findings=(born("norm"),)), 1000)
    assert (
        "it begins at norm: born here, 0.001 apart, bound 1e-15; the last point before it that agrees is up\n" in text
    )
    assert "these may be one fault" not in text
    text = to_text(result(*rows[1:], verdict="FAIL", rung="different", findings=(born("norm"),)), 1000)
    assert "bound 1e-15; no point before it\n" in text


def test_a_gradient_is_looked_for_in_the_backward_pass():
    rows = [point("up"), point("down"), point("down", kind="gradient at point")]
    rows.append(point("up", "FAIL", "gradient at point"))
    text = to_text(result(*rows, verdict="FAIL", rung="different", findings=(born("up", "gradient"),)), 1000)
    assert "it begins at gradient at up: born here" in text
    assert "the last point before it that agrees is down\n" in text


def test_two_births_may_be_one_fault():
    rows = point("up"), point("norm", "FAIL"), point("down"), point("head", "FAIL")
    findings = born("norm"), born("head")
    text = to_text(result(*rows, verdict="FAIL", rung="different", findings=findings), 1000)
    assert re.search(r"^it begins at norm: .* agrees is up$", text, re.MULTILINE)
    assert re.search(r"^and at head: .* agrees is down$", text, re.MULTILINE)
    assert "these may be one fault: it can reach each of them through values that are no points" in text


def test_an_island_that_explains_nothing_is_no_lead():
    island = Island("jax", "norm", "convert_element_type", "float32", "model.py:3")
    shown = "lower precision seen in jax: norm, convert_element_type to float32 at model.py:3"
    text = to_text(result(row(verdict="FAIL"), verdict="FAIL", rung="different", islands=(island,)), 1000)
    assert f"{shown}; it does not explain the difference\n" in text
    assert f"{shown}\n" in to_text(result(row(), rung="float32-island", islands=(island,)), 1000)


def test_an_island_is_shown_before_and_after_it_is_widened():
    text = to_text(gate_result("island"), 1000)
    before, after = text.index("float64, as it stands"), text.index("float64, float32 widened")
    assert before < after
    assert "ISLAND" in text[before:after]
    assert "ISLAND" not in text[after:]
    assert re.search(r"^lower precision seen in jax: \S+, .* to float32 at functions\.py:\d+$", text, re.MULTILINE)


def test_the_worst_tensor_of_a_group_stands_for_it():
    good, better = row(name="a", measured=1e-15), row(name="b", measured=1e-16)
    failed, missing = (
        row(name="c", measured=1e-13, verdict="FAIL"),
        row(name="d", measured=float("nan"), verdict="FAIL"),
    )
    assert worst_by_group([better, good]) == [(good, 2)]
    assert worst_by_group([good, failed, better]) == [(failed, 3)]
    assert worst_by_group([failed, missing]) == [(missing, 2)]


def test_operations_stand_apart_in_their_own_unit():
    operation = row(name="operation matmul", group="operation matmul", stage="bfloat16", measured=1.0, bound=1.1)
    text = to_text(result(row(stage="bfloat16"), operation), 1000)
    assert re.search(
        r"^bfloat16, operation by operation  Each operation alone, .* 1.00 being the least", text, re.MULTILINE
    )
    assert re.search(r"^operation matmul +1 +1\.00 +1\.10 +1\.1x  PASS$", text, re.MULTILINE)


def test_columns_line_up():
    lines = to_text(gate_result(), 80).splitlines()
    header = next(index for index, line in enumerate(lines) if line.startswith("tensors"))
    ends = [lines[header].index(name) + len(name) for name in ("number", "measured", "bound", "headroom")]
    for line in lines[header + 1 : header + 3]:
        for end in ends:
            assert line[end - 1] != " "
            assert line[end : end + 2].strip() == ""


@pytest.mark.parametrize(
    ("measured", "shown"),
    [
        (0.0, "exact"),
        (float("inf"), "none"),
        (float("nan"), "none"),
        (1e-15, "10.0x"),
        (1e-12, "1e-02x"),
        (1e-19, "1e+05x"),
    ],
)
def test_headroom_is_readable_at_any_size(measured, shown):
    line = next(line for line in to_text(result(row(measured=measured))).splitlines() if line.startswith("gradient"))
    assert line.split()[-2] == shown


@pytest.mark.parametrize("width", [44, 60, 80, 100, 120])
@pytest.mark.parametrize(
    "group", ["gradient layers.attention", "inputs rounded to halves, so that many are equal, " * 2]
)
def test_the_verdict_of_a_row_is_never_cut(width, group):
    text = to_text(result(row(group=group, verdict="ABSTAIN")), width)
    (line,) = [line for line in text.splitlines() if "1.0e-16" in line]
    assert re.search(r"1\.0e-16 +1\.0e-14 +100\.0x +ABSTAIN", line)


def test_wide_terminals_name_the_tensor():
    assert "layers.3.attention.q_proj.weight" not in to_text(result(row()), 80).split("least headroom:")[0]
    assert re.search(r"PASS +layers\.3\.attention\.q_proj\.weight$", to_text(result(row()), 120), re.MULTILINE)


def test_zero_gradients_are_listed_with_layers_together():
    names = tuple(f"layers.{layer}.attention.k_proj.bias" for layer in range(3))
    text = to_text(result(row(), zero_gradients=names), 1000)
    assert "not compared: 3 gradients (layers.*.attention.k_proj.bias)" in text
    assert any_layer("layers.11.mlp.0") == "layers.*.mlp.*"


def test_unequal_flops_are_said():
    counts = {"forward": {"formula": 2, "jaxpr": 2, "torch": 4, "xla_lowered": None}}
    text = to_text(result(row(), work=Work(counts)), 1000)
    assert "formula, jaxpr, torch are NOT equal" in text
    assert re.search(r"^XLA cost_analysis +none$", text, re.MULTILINE)


def test_nothing_compared_is_a_report_too():
    text = to_text(result(verdict="VACUOUS", rung=None, reason="there is no float output to compare", notes=()))
    assert text.splitlines()[0] == "tiny: nothing compared: VACUOUS"
    assert text.splitlines()[-1] == "VACUOUS  tiny  (0 s, seed 0): there is no float output to compare"


def test_markup_in_names_is_no_markup():
    text = to_text(result(row(name="[bold]y[/bold]", group="[red]y"), notes=("[link=x]note",)), 120)
    assert "[red]y" in text
    assert "[link=x]note" in text


@pytest.mark.parametrize(("system", "escapes"), [(None, False), ("standard", True)])
def test_colour_only_where_the_console_has_it(system, escapes):
    file = io.StringIO()
    print_report(
        Console(file=file, width=80, color_system=system, force_terminal=bool(system)), replace(gate_result("tanh"))
    )
    assert ("\x1b" in file.getvalue()) == escapes
