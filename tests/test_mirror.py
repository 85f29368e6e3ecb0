"""jaxcore and torchref are one text in two frameworks: outlines, patterns, names, imports, and who loads what."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import jaxcore
import torchref

ROOT = Path(jaxcore.__file__).parent.parent
PACKAGES = ("jaxcore", "torchref")
FILES = sorted(path.name for path in (ROOT / "jaxcore").glob("*.py"))
IDENTICAL = ["config.py", "parameters.py", "presets.py"]
MIRRORED = [name for name in FILES if name not in IDENTICAL]

# Allowed differences, each with its reason; a name that no longer differs fails a test of its own.
RENAMED = {
    "forward": "__call__",  # nn.Module runs hooks in __call__ and asks for forward
    "__new__": "__init__",  # optax's transformations are tuples, which are made in __new__
    "cls": "self",  # the same
}
ONLY_TORCH_STATEMENTS = ["super().__init__()"]  # nn.Module needs it, nnx.Module has no need
ARGUMENTS = {
    ("attention.visible", "device"): "PyTorch allocates where it is told, JAX where its operands are",
    ("optimizer.bias_correction", "dtype"): "the count is an array in JAX, a Python int in PyTorch",
    ("optimizer.SGD.__init__", "params"): "torch.optim holds the parameters, optax is given them at every step",
    ("optimizer.AdamW.__init__", "params"): "the same",
    ("optimizer.Adam.__init__", "params"): "the same",
}
ONE_SIDED = {
    "optimizer.AdamState": "optax keeps its state in a tree, torch.optim in a dict per parameter",
    "optimizer.SGD.step": "optax's update is a function inside the constructor",
    "optimizer.AdamW.step": "the same",
}
BODIES = {
    "attention.fused_kernel": "each calls the kernel of its framework, which takes its axes in another order",
    "attention.fused_implementation": "each names the kernels of its framework",
    "transformer.Transformer.run_layers": "lax.scan over stacked parameters, a loop over slices in PyTorch",
    "optimizer.SGD.__init__": "optax's pure functions stand inside it, torch.optim's step is a method",
    "optimizer.AdamW.__init__": "the same",
    "optimizer.Adam.__init__": "the same",
}
PATTERN_CALLS = ("rearrange", "reduce", "repeat", "einsum", "pack", "unpack", "proj", "head", "pooler")


def outline(source: str) -> dict[str, dict[str, list[str]]]:
    """Every public class and function by qualified name: its argument names, statements in order, patterns in order."""
    found: dict[str, dict[str, list[str]]] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            name = prefix + RENAMED.get(node.name, node.name)
            if node.name.startswith("_") and not node.name.startswith("__"):
                continue
            if isinstance(node, ast.ClassDef):
                found[name] = {"arguments": [], "statements": fields(node), "patterns": []}
                visit(node.body, f"{name}.")
                continue
            every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            arguments = [RENAMED.get(each.arg, each.arg) for each in every]
            found[name] = {"arguments": arguments, "statements": statements(node.body), "patterns": patterns(node)}

    visit(ast.parse(source).body, "")
    return found


def fields(node: ast.ClassDef) -> list[str]:
    """Annotated names of a class, in order."""
    return [ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)]


def statements(body: list[ast.stmt]) -> list[str]:
    """The kind of every statement with the names it binds, blocks and functions inside included."""
    out: list[str] = []
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        if ast.unparse(node) in ONLY_TORCH_STATEMENTS:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else []
        out.append(" ".join([type(node).__name__, *(ast.unparse(target) for target in targets)]))
        for part in ("body", "orelse"):
            if inner := getattr(node, part, None):
                out += [part, *statements(inner), "end"]
    return out


def patterns(node: ast.AST) -> list[str]:
    """The einops patterns of a function's calls, in the order of the text."""
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    calls = [each for each in calls if ast.unparse(each.func).endswith(PATTERN_CALLS)]
    texts = [each for call in calls for each in call.args if isinstance(each, ast.Constant)]
    return [each.value for each in sorted(texts, key=lambda each: (each.lineno, each.col_offset))]


def differences(module: str, first: str, second: str) -> list[str]:
    """What two sources do not share, apart from what is allowed by name."""
    one, other = outline(first), outline(second)
    out = []
    for name in [*one, *(name for name in other if name not in one)]:
        home = f"{module}.{name}"
        if name not in one or name not in other:
            out += [] if home in ONE_SIDED else [f"{home}: on one side only"]
            continue
        here, there = ([a for a in side[name]["arguments"] if (home, a) not in ARGUMENTS] for side in (one, other))
        out += [] if here == there else [f"{home}: arguments {here} and {there}"]
        for kind in ("statements", "patterns"):
            if one[name][kind] != other[name][kind] and home not in BODIES:
                out.append(f"{home}: {kind} {one[name][kind]} and {other[name][kind]}")
    return out


def source(package: str, name: str) -> str:
    """The text of a module."""
    return (ROOT / package / name).read_text("utf-8")


def test_both_packages_have_the_same_files():
    assert sorted(path.name for path in (ROOT / "torchref").glob("*.py")) == FILES
    assert len(FILES) == 14


@pytest.mark.parametrize("name", IDENTICAL)
def test_what_needs_no_framework_is_the_same_byte_for_byte(name):
    assert (ROOT / "jaxcore" / name).read_bytes() == (ROOT / "torchref" / name).read_bytes()


@pytest.mark.parametrize("name", MIRRORED)
def test_the_two_texts_have_one_outline(name):
    assert differences(name.removesuffix(".py"), source("jaxcore", name), source("torchref", name)) == []


PLANTED = {
    "another argument": ("norm.py", "def layer_norm(", "def layer_norms("),
    "another name of an argument": ("mlp.py", "x: Float[Tensor, ", "y: Float[Tensor, "),
    "another local name": ("norm.py", "    centred = ", "    centered = "),
    "another order": (
        "attention.py",
        "            q = self.q_norm(q)\n            k = self.k_norm(k)\n",
        "            k = self.k_norm(k)\n            q = self.q_norm(q)\n",
    ),
    "another pattern": ("attention.py", '"b t (k g) h -> b t k g h"', '"b t (g k) h -> b t k g h"'),
    "another pattern of a projection": ("mlp.py", '"b t d, d f -> b t f"', '"b t f, f d -> b t d"'),
    "another kind of statement": ("loss.py", "    return total / torch", "    total /= torch"),
    "another argument of an optimizer": (
        "optimizer.py",
        "        b1: float = 0.9,\n        b2",
        "        b2: float = 0.9,\n        b1",
    ),
    "a function of its own": ("rope.py", "def rotate(", "def helper(x):\n    return x\n\n\ndef rotate("),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_difference_is_found(fault):
    name, old, new = PLANTED[fault]
    text = source("torchref", name)
    assert old in text
    assert differences(name.removesuffix(".py"), source("jaxcore", name), text.replace(old, new)) != []


def test_every_allowed_difference_is_still_one():
    """An exception that is needed no more would hide the next difference."""
    one, other = (
        {
            f"{name.removesuffix('.py')}.{key}": value
            for name in MIRRORED
            for key, value in outline(source(package, name)).items()
        }
        for package in PACKAGES
    )
    assert set(ONE_SIDED) == one.keys() ^ other.keys()
    common = one.keys() & other.keys()
    assert set(BODIES) == {n for n in common if any(one[n][k] != other[n][k] for k in ("statements", "patterns"))}
    extra = {(n, a) for n in common for a in set(one[n]["arguments"]) ^ set(other[n]["arguments"])}
    assert set(ARGUMENTS) == extra


# names


def lazy_names(package: str) -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """What the lazy table and the imports for type checkers promise, by module."""
    tree = ast.parse(source(package, "__init__.py"))
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = {node.module: {alias.name for alias in node.names} for node in guarded.body}
    table = sys.modules[package]._HOME
    return {module: set(names) for module, names in table.items()}, imports


def test_both_packages_export_the_same_names():
    assert jaxcore.__all__ == torchref.__all__
    assert len(set(jaxcore.__all__)) == len(jaxcore.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_exported_names_the_lazy_table_and_the_typed_imports_agree(package):
    table, imports = lazy_names(package)
    assert table == imports
    exported = sys.modules[package].__all__
    assert sorted(exported) == sorted(name for names in table.values() for name in names)
    for name in exported:
        assert getattr(sys.modules[package], name) is not None
    assert dir(sys.modules[package]) == sorted(exported)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = sys.modules[package].nothing


# einops is the only way to move axes

MOVERS = {"reshape", "transpose", "permute", "view", "unsqueeze", "squeeze", "swapaxes", "moveaxis", "expand_dims"}
MOVERS |= {"flatten", "T", "mT", "movedim", "view_as", "reshape_as"}


def moves(text: str) -> list[str]:
    """Every attribute or function of that name; `jax.tree.transpose` moves no axes of an array."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]
    return [
        f"{n.lineno}: {ast.unparse(n)}" for n in nodes if n.attr in MOVERS and ast.unparse(n) != "jax.tree.transpose"
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_axes_are_moved_by_einops_patterns_alone(package):
    assert {name: found for name in FILES if (found := moves(source(package, name)))} == {}


@pytest.mark.parametrize("line", ["x.view(2, 3)", "torch.permute(x, (0, 2, 1))", "y = jnp.reshape(x, -1)", "x.T @ y"])
def test_a_moved_axis_is_found(line):
    assert len(moves(line)) == 1


# who loads what, each in an interpreter of its own

TORCH, JAX = {"torch"}, {"jax", "jaxlib", "flax", "optax"}
EVERYTHING = "import {0}; [getattr({0}, name) for name in {0}.__all__]"
PLAIN = "import {0}.config, {0}.presets, {0}.parameters"
FORBIDDEN = {
    EVERYTHING.format("jaxcore"): TORCH | {"parity", "torchref"},
    EVERYTHING.format("torchref"): JAX | {"parity", "jaxcore"},
    PLAIN.format("jaxcore"): TORCH | JAX | {"parity"},
    PLAIN.format("torchref"): TORCH | JAX | {"parity"},
}


def loaded_by(code: str) -> set[str]:
    """Top-level names in sys.modules after running `code` in a fresh interpreter."""
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(json.loads(run.stdout.splitlines()[-1]))


@pytest.mark.parametrize("code", FORBIDDEN)
def test_a_fresh_interpreter_does_not_load_the_other_framework(code):
    assert loaded_by(code) & FORBIDDEN[code] == set()


def test_a_forbidden_import_would_be_seen():
    """The same function finds what is really loaded, submodules counted under their package."""
    assert loaded_by("import jaxcore.config") >= {"jaxcore"}
    assert "torch" in loaded_by("import torchref; torchref.layer_norm")
    assert loaded_by("import jaxcore; jaxcore.ModelConfig") & JAX == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_names_the_other_side(package):
    """Imports inside functions would not show in a fresh interpreter."""
    forbidden = {"jaxcore": TORCH | {"torchref", "parity"}, "torchref": JAX | {"jaxcore", "parity"}}[package]
    for name in FILES:
        for node in ast.walk(ast.parse(source(package, name))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not {each.split(".")[0] for each in names} & forbidden, (
                f"{package}/{name}:{getattr(node, 'lineno', 0)}"
            )
