"""The documentation is run: its blocks, its outputs, its tables, its links."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from parity import bounds
from parity.account.laws import laws, model_flops
from parity.account.memory import static
from parity.account.policies import POLICIES
from parity.cli import main
from parity.limits import estimated_bytes
from parity.models import change, count_parameters, find_preset
from parity.report import RUNGS
from parity.result import EXIT_STATUS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()
CI = (ROOT / ".ci" / "run").read_text()


class Block(NamedTuple):
    """A fenced block, the comment over it and the text block that follows it, if any."""

    kind: str
    language: str
    text: str
    output: str | None


def blocks(page: str) -> list[Block]:
    """Every fenced block of a page that is no output."""
    fence = re.compile(r"(?:<!-- block: ([^\n]*) -->\n)?```(\w+)\n(.*?)```\n", re.DOTALL)
    found, matches = [], list(fence.finditer(page))
    for match, following in zip(matches, [*matches[1:], None], strict=True):
        if match[2] == "text":
            continue
        between = page[match.end() : following.start()].strip() if following else "end"
        follows = following is not None and following[2] == "text" and between in ("", "prints")
        found.append(Block(match[1] or "", match[2], match[3], following[3] if follows else None))
    return found


BLOCKS = blocks(README)
SHELL = [block for block in BLOCKS if block.language == "bash"]


def shell(text: str) -> subprocess.CompletedProcess[str]:
    """A block in bash, with the Python of these tests first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    call = ["bash", "-e", "-o", "pipefail", "-c", text]
    environment = {**os.environ, "PATH": path, "COLUMNS": "80"}
    return subprocess.run(call, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)


def masked(text: str) -> list[str]:
    """The words of a text with every measured figure left open: they differ between machines in their last digits."""
    figures = re.compile(r"\b\d+(\.\d+)?(e[+-]?\d+)?x?\b")
    return [figures.sub("#", word) for word in text.split()]


def test_the_readme_opens_with_what_it_is_and_the_two_commands():
    opening = README.partition("\n## ")[0]
    commands = BLOCKS[0].text.splitlines()
    assert BLOCKS[0].text in opening
    assert commands == [
        'python -m pip install -c constraints.txt -e ".[all]" && parity check',
        'python -m pip install -c constraints.txt -e ".[test]" && pytest',
    ]


def test_ci_runs_the_commands_of_the_readme():
    assert BLOCKS[0].kind == "run by .ci/run"
    install, tests = BLOCKS[0].text.splitlines()[1].split(" && ")
    assert install in CI.replace("--quiet ", "")
    assert re.search(rf"^step tests {tests}\b", CI, re.MULTILINE)
    assert re.search(r"^step default-run parity check$", CI, re.MULTILINE)
    for tool in ("ruff check", "ruff format --check", "mypy", "lint-imports"):
        assert re.search(rf"^step \w+ {tool}", CI, re.MULTILINE)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_every_install_is_pinned():
    for page in (*(path.read_text() for path in PAGES), CI):
        for line in re.findall(r"pip install .*", page):
            assert "-c constraints.txt" in line


@pytest.mark.parametrize("page", ["README.md", "docs/ports.md"])
def test_the_python_blocks_print_what_they_say(page):
    # a module of its own: dataclasses look up the one that they are defined in
    namespace = vars(sys.modules.setdefault("page", ModuleType("page")))
    python = [block for block in blocks((ROOT / page).read_text()) if block.language == "python"]
    assert len(python) >= 2
    for block in python:
        printed: list[str] = []
        namespace["print"] = lambda value, *more, printed=printed: printed.append(" ".join(map(str, (value, *more))))
        exec(compile(block.text, page, "exec"), namespace)
        assert block.output is not None or not printed
        assert masked("\n".join(printed)) == masked(block.output or "")


@pytest.mark.parametrize("block", [block for block in SHELL if not block.kind], ids=lambda block: block.text[:40])
def test_a_shell_block_does_what_it_says(block):
    process = shell(block.text)
    if block.output is None:
        assert process.returncode == 0, process.stderr
    else:
        assert process.stdout == block.output


@pytest.mark.slow
@pytest.mark.parametrize("block", [block for block in SHELL if block.kind == "slow"], ids=lambda block: block.text[:40])
def test_a_slow_shell_block_passes(block, request):
    request.addfinalizer(lambda: (ROOT / "result.json").unlink(missing_ok=True))
    process = shell(block.text)
    assert process.returncode == 0, process.stderr
    verdicts = re.findall(r"^(PASS|FAIL|VACUOUS|ABSTAIN)\b", process.stdout, re.MULTILINE)
    assert set(verdicts) == {"PASS"}
    assert len(verdicts) == block.text.count("parity check")


def test_every_block_is_run_somewhere():
    assert {block.kind for block in BLOCKS} == {"", "slow", "run by .ci/run"}
    assert {block.language for block in BLOCKS} == {"bash", "python"}


def test_a_wrong_output_is_seen():
    page = "```bash\necho one\n```\n\n```text\ntwo\n```\n"
    (block,) = blocks(page)
    assert block.output == "two\n"
    assert shell(block.text).stdout != block.output
    assert masked("y 1.0e-05 3x FAIL") == masked("y 2e-6 30.5x FAIL") != masked("y 2e-6 30.5x PASS")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files(page):
    for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert link.startswith("https://") or (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_files_that_are_named_exist(page):
    named = re.findall(r"(?<![\w/-])((?:parity|tests|benchmarks|docs|jaxcore|torchref)/[\w./]*\w)", page.read_text())
    for name in named:
        assert (ROOT / name).exists(), name


def test_the_map_of_the_tree_is_the_tree():
    tree = README.partition("## Map of the tree")[2].partition("```text\n")[2].partition("```")[0]
    top = re.findall(r"^(\w+)/", tree, re.MULTILINE)
    below = re.findall(r"^  (\S+)", tree, re.MULTILINE)
    assert all((ROOT / name).is_dir() for name in top)
    assert all((ROOT / "parity" / name).exists() for name in below)
    assert {path.parent.name for path in ROOT.glob("*/*.py")} <= set(top)


def test_options_in_the_docs_exist():
    known = {name for parameter in main.commands["check"].params for name in parameter.opts}
    for page in PAGES:
        for call in re.findall(r"\bparity check ([^\n`|#]*)", page.read_text()):
            assert {word for word in re.findall(r"--[a-z-]+", call) if word != "--help"} <= known, call


def test_every_verdict_rung_and_status_is_explained():
    page = (ROOT / "docs" / "verdicts.md").read_text()
    for name in (*EXIT_STATUS, *RUNGS):
        assert name in page
        assert name in README
    for verdict, status in EXIT_STATUS.items():
        assert re.search(rf"^\| {verdict}.* \| {status} \|", page, re.MULTILINE)


def test_numerics_in_the_changelog_are_those_of_the_code():
    page = (ROOT / "CHANGELOG.md").read_text()
    table = dict(re.findall(r"^\| `([A-Z0-9_]+)` \| (\S+) \|", page, re.MULTILINE))
    in_code = {name for name, value in vars(bounds).items() if name.isupper() and isinstance(value, int | float)}
    assert set(table) == in_code
    for name, value in table.items():
        base, power, exponent = value.partition("^")
        assert float(base) ** float(exponent if power else 1) == getattr(bounds, name), name


def test_estimates_in_the_docs_are_those_of_the_code():
    page = (ROOT / "docs" / "numerics.md").read_text()
    rows = re.findall(r"^\| `(\S+) (--batch .*?)`.*? \| ([\d,]+) \| ([\d.]+) GB \| ([\d.]+) GB \|", page, re.MULTILINE)
    assert len(rows) == page.count(" GB |\n")
    for preset, options, parameters, measured, estimated in rows:
        pairs = re.findall(r"--(\w+) (\S+)", options)
        config = change(find_preset(preset), [value for name, value in pairs if name == "set"])
        count = count_parameters(config)
        sizes = {name: int(value) for name, value in pairs if name in ("batch", "seq", "batches", "steps")}
        estimate = estimated_bytes(config, count, **sizes) / 1e9
        assert count == int(parameters.replace(",", ""))
        assert f"{estimate:.2f}" == estimated
        assert 0.95 * float(measured) <= estimate <= 1.1 * float(measured)


def test_rules_of_thumb_in_the_docs_are_those_of_the_code():
    page = (ROOT / "docs" / "accounting.md").read_text()
    rows = re.findall(r"^\| `(\S+)` \|" + r" ([\d.]+) \|" * 4 + r" ([\d,]+) \| [\d.]+%", page, re.MULTILINE)
    assert len(rows) == 5
    for preset, *figures in rows:
        config = find_preset(preset)
        seq = min(1024, config.max_seq_len)
        step = model_flops(config, 1, seq, ("pooler",))["forward_backward"]
        found = {law.name: law.value for law in laws(config, 1, seq, count_parameters(config), step)}
        names = ("backward / forward", "6 N P / step", "6 N P' / step", "attention / forward", "attention overtakes at")
        shown = [f"{found[name]:,.0f}" if found[name] >= 100 else f"{found[name]:.3f}" for name in names]
        assert shown == figures, preset


def test_bytes_per_parameter_in_the_docs_are_those_of_the_code():
    page = (ROOT / "docs" / "accounting.md").read_text()
    rows = re.findall(r"^\| (`\S+`(?:, `\S+`)?) \| (\d) \| (\d) \| (\d) \| (\d) \| (\d+)", page, re.MULTILINE)
    shown = {name: tuple(map(int, figures)) for words, *figures in rows for name in re.findall(r"`(\S+)`", words)}
    held = {
        name: (each.weights, each.gradients, each.master, 2 * each.moment, sum(one.bytes for one in static(1, each)))
        for name, each in POLICIES.items()
    }
    assert shown == held


def test_versions_are_pinned_as_they_were_run():
    page = (ROOT / "docs" / "versions.md").read_text()
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    first = re.search(r"^\| 3\.[^|]+\|(.*)", page, re.MULTILINE)
    cells = [cell.strip() for cell in first[1].split("|")[:4]]
    assert [cells[0], cells[1], cells[2], cells[3].partition("+")[0]] == [
        pinned[name] for name in ("jax", "flax", "optax", "torch")
    ]
    assert re.findall(r"^\| 3\.(\d+)", page, re.MULTILINE) == ["11", "12", "13"]


def test_every_dependency_has_its_reason():
    text = (ROOT / "pyproject.toml").read_text()
    lists = re.search(r"^dependencies = .*?^\[project\.scripts\]", text, re.MULTILINE | re.DOTALL)[0]
    requirements = [line for line in lists.splitlines() if line.startswith('    "')]
    assert len(requirements) > 20
    for line in requirements:
        assert "  #" in line or " # " in line or '"jax-torch-parity[' in line, line


def test_contributing_is_short():
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) < 60
