"""Which module loads which package: fresh interpreters that list sys.modules, each with a test that it can fail."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import time
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORKS = ("jax", "jaxlib", "flax", "optax", "torch", "transformers")
HEAVY = (*FRAMEWORKS, "numpy", "rich", "einops", "ml_dtypes", "safetensors", "scipy")
HELP = "import sys; sys.argv = ['parity', '--help']; from parity.cli import main; main(prog_name='parity')"
#: pytest on a file without tests, with no other plugin and none of this project's settings
SESSION = (
    "import os; os.environ['PYTEST_DISABLE_PLUGIN_AUTOLOAD'] = '1'; import pytest; assert "
    "pytest.main(['-c', os.devnull, '-p', 'parity.plugin', '-p', 'no:cacheprovider', 'benchmarks/__init__.py']) == 5"
)
PARITY = Path(sysconfig.get_path("scripts")) / "parity"


def loaded(code: str, *, planted: str = "") -> set[str]:
    """The top-level packages in sys.modules after `code` in a fresh interpreter; `planted` runs first."""
    report = (
        "import atexit, json, sys; atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))"
    )
    call = [sys.executable, "-c", f"{report}\n{planted}\n{code}"]
    process = subprocess.run(call, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
    assert process.returncode == 0, process.stderr
    return {name.partition(".")[0] for name in json.loads(process.stderr.splitlines()[-1])}


LIGHT = {
    "import parity": ("import parity", HEAVY),
    "parity --help": (HELP, HEAVY),
    "parity check --help": (HELP.replace("'--help'", "'check', '--help'"), HEAVY),
    "a wrong option": (
        "import sys; from parity.cli import main\ntry: main(['check', '--bogus'])\nexcept SystemExit: pass",
        HEAVY,
    ),
    "parity.Pair": ("import parity; parity.Pair, parity.Jax, parity.Torch, parity.Options, parity.Result", FRAMEWORKS),
    "parity.account": (
        "import parity.account.formula, parity.account.convolution, parity.account.plan, parity.account.mfu",
        (*FRAMEWORKS, "numpy"),
    ),
    "parity account": (HELP.replace("'--help'", "'account', 'llama3-405b'"), FRAMEWORKS),
    "parity.taps": ("import parity.taps; parity.taps.tap('x', 1)", HEAVY),
    "parity.pairing": ("import parity.pairing, parity.einops_calls", FRAMEWORKS),
    "parity.report": ("import parity.report", FRAMEWORKS),
    "parity.settings": ("import parity.settings, parity.acceptance", HEAVY),
    "parity.plugin": ("import parity.plugin", HEAVY),
    "a pytest session without pairs": (SESSION, HEAVY),
    "parity.seeds": ("import parity.seeds", (*FRAMEWORKS, "scipy")),
    "parity.weights": ("import parity.weights", FRAMEWORKS),
    "parity.commands": ("import parity.commands", FRAMEWORKS),
    "presets": ("import jaxcore.presets, torchref.presets", FRAMEWORKS),
    "jaxcore": ("import jaxcore; jaxcore.Transformer, jaxcore.AdamW", ("torch", "torchref", "parity")),
    "torchref": (
        "import torchref; torchref.Transformer, torchref.AdamW",
        ("jax", "flax", "optax", "jaxcore", "parity"),
    ),
    "the JAX backend": ("import parity.backends.jax.run", ("torch",)),
    "the PyTorch backend": ("import parity.backends.torch.run", ("jax", "flax", "optax")),
}


@pytest.mark.parametrize("name", LIGHT)
def test_loads_only_what_it_needs(name):
    code, forbidden = LIGHT[name]
    assert not loaded(code) & set(forbidden)


@pytest.mark.parametrize("package", ["numpy", "rich", "scipy"])
@pytest.mark.parametrize("code", [HELP, SESSION], ids=["help", "session"])
def test_a_planted_import_is_seen(package, code):
    assert package in loaded(code, planted=f"import {package}")


def test_every_name_of_the_package_can_be_looked_up():
    code = "import parity\nfor name in parity.__all__: getattr(parity, name)\nassert dir(parity) == parity.__all__"
    assert not loaded(code) & set(FRAMEWORKS)


def test_no_module_takes_the_place_of_a_public_name():
    # importing a submodule sets an attribute of the package: a module parity/check.py would hide the function
    import parity

    modules = {path.stem for path in (ROOT / "parity").iterdir()}
    assert not modules & set(parity.__all__)
    loaded("import parity.commands, parity; assert type(parity.check).__name__ == 'function'")


def test_an_unknown_name_is_an_attribute_error():
    import parity

    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        _ = parity.chekc


def test_help_takes_at_most_300_ms():
    # the least of many: other processes of this machine can only add to it
    assert _seconds([str(PARITY), "--help"]) <= 0.3


def test_the_clock_sees_a_slow_import():
    slow = [sys.executable, "-c", f"import time; time.sleep(0.3)\n{HELP}"]
    assert _seconds(slow) > 0.3


def _seconds(call: list[str]) -> float:
    durations = []
    for _ in range(15):
        start = time.perf_counter()
        subprocess.run(call, stdout=subprocess.DEVNULL, check=True, cwd=ROOT)
        durations.append(time.perf_counter() - start)
        if durations[-1] <= 0.3:
            break
    return min(durations)


@pytest.mark.parametrize("call", [[str(PARITY)], [sys.executable, "-m", "parity"]])
def test_both_ways_to_call_say_the_same(call):
    process = subprocess.run([*call, "--help"], capture_output=True, text=True, check=True, cwd=ROOT)
    assert process.stdout.startswith("Usage: parity [OPTIONS] [COMMAND]")
    assert process.stderr == ""


CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]


def test_import_contracts_hold(tmp_path):
    assert _lint(ROOT, tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("jaxcore/norm.py", "import torch", "jaxcore is JAX alone"),
        ("torchref/norm.py", "import jax", "torchref is PyTorch alone"),
        ("torchref/norm.py", "def late():\n    import parity", "torchref is PyTorch alone"),
        ("parity/judge.py", "def late():\n    import torch", "inside parity only backends.torch loads PyTorch"),
        ("parity/compare.py", "import optax", "inside parity only backends.jax loads JAX"),
        ("parity/backends/torch/run.py", "import jax", "inside parity only backends.jax loads JAX"),
        ("parity/bounds.py", "from . import judge", "the data flows one way"),
        ("parity/judge.py", "import jaxcore", "only the pair that ships"),
        ("parity/account/formula.py", "import numpy", "accounting loads no framework"),
    ],
)
def test_a_planted_import_breaks_its_contract(tmp_path, file, line, contract):
    for package in CONTRACTS["root_packages"]:
        for source in (ROOT / package).rglob("*.py"):
            copy = tmp_path / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    with (tmp_path / file).open("a") as module:
        module.write(f"\n\n{line}\n")
    process = _lint(tmp_path, tmp_path)
    assert process.returncode == 1
    broken = [each for each in process.stdout.splitlines() if "BROKEN" in each]
    assert len(broken) == 1
    assert broken[0].startswith(contract)


def _lint(root: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """import-linter on the tree under `root`, which comes first on the path."""
    pytest.importorskip("importlinter", reason="import-linter is in the dev extra")
    code = (
        "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports_command; lint_imports_command()"
    )
    call = [sys.executable, "-P", "-c", code, "--cache-dir", str(cache / "cache")]
    return subprocess.run(call, capture_output=True, text=True, check=False, cwd=root)
