"""Planting a known fault in one side: the source of one module is edited as it is imported; faults.toml lists them."""

from __future__ import annotations

import difflib
import importlib.abc
import importlib.machinery
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import ModuleType
from typing import Any

from .errors import ParityUsageError

SIDES = ("jaxcore", "torchref")
#: Modules whose classes other parts of the program hold on to; no fault is planted in them.
KEPT = ("config", "parameters", "presets")


@dataclass(frozen=True)
class Fault:
    """One mistake: the edits that make it on each side, and the check under which it must show."""

    name: str
    what: str
    check: tuple[str, ...]
    expect: str
    place: str
    file: str
    edits: dict[str, tuple[tuple[str, str], ...]]

    def describe(self, spec: str) -> str:
        """A line for the report: what was planted, and under which check it must show."""
        return f"planted {spec}: {self.what}; it shows under `parity check {' '.join(self.check)}`"


@cache
def catalogue() -> dict[str, Fault]:
    """Every fault of faults.toml by name."""
    text = resources.files("parity").joinpath("faults.toml").read_text()
    faults = {}
    for name, entry in tomllib.loads(text).items():
        edits = {side: tuple((a, b) for a, b in entry.get(side, entry.get("edits", ()))) for side in SIDES}
        faults[name] = Fault(
            name, entry["what"], tuple(entry["check"]), entry["expect"], entry.get("place", ""), entry["file"], edits
        )
    return faults


def describe_faults() -> str:
    """A line per fault: name, what it is, and the check that shows it."""
    return "\n".join(f"{f.name:28} {f.what}  [{' '.join(f.check)}]" for f in catalogue().values())


def plant_fault(spec: str) -> Fault:
    """Plants `NAME@SIDE` for the rest of the process.

    Raises:
        ParityUsageError: there is no such fault or side.
    """
    name, _, side = spec.partition("@")
    if name not in catalogue():
        near = difflib.get_close_matches(name, catalogue(), n=3) or list(catalogue())[:3]
        raise ParityUsageError(f"--plant: a fault of the catalogue, got {name!r}; did you mean {' or '.join(near)}?")
    if side not in SIDES:
        raise ParityUsageError(
            f"--plant: NAME@SIDE with the side {' or '.join(SIDES)}, got {spec!r}; for example {name}@jaxcore"
        )
    fault = catalogue()[name]
    sys.meta_path.insert(0, _Editor(side, fault))
    _forget(side)
    return fault


@contextmanager
def planted(spec: str) -> Iterator[Fault]:
    """Plants a fault, takes it out again, and puts back the very modules that were there: their classes are in use."""
    before = dict(sys.modules)
    fault = plant_fault(spec)
    side = spec.partition("@")[2]
    try:
        yield fault
    finally:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Editor)]
        _forget(side)
        for name, module in before.items():
            if name.startswith(f"{side}."):
                sys.modules[name] = module
                setattr(sys.modules[side], name.removeprefix(f"{side}."), module)


def edit(source: str, fault: Fault, side: str) -> str:
    """The source of `fault.file` with the edits of one side made.

    Raises:
        ParityUsageError: the text to be replaced does not stand there exactly once.
    """
    for find, replace in fault.edits[side]:
        if source.count(find) != 1:
            raise ParityUsageError(
                f"fault {fault.name}: its text must stand once in {side}/{fault.file}, got {source.count(find)} "
                f"times {find!r}; bring parity/faults.toml up to date"
            )
        source = source.replace(find, replace)
    return source


class _Editor(importlib.abc.MetaPathFinder):
    """Finds one module of one side and hands over its edited source."""

    def __init__(self, side: str, fault: Fault):
        self.side, self.fault = side, fault
        self.module = f"{side}.{fault.file.removesuffix('.py')}"

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """The spec of the edited module, None for every other."""
        if name != self.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin, self)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the edited source; the file and its cache on disk stay as they are."""

    def __init__(self, name: str, path: str, editor: _Editor):
        super().__init__(name, path)
        self.editor = editor

    def get_code(self, fullname: str) -> Any:
        """The code of the edited source."""
        source = self.get_data(self.path).decode()
        return compile(edit(source, self.editor.fault, self.editor.side), self.path, "exec", dont_inherit=True)


def _forget(side: str) -> None:
    """Drops the side's modules, so that the next import sees the edit, or no longer sees it."""
    for name in list(sys.modules):
        if name.startswith(f"{side}.") and name.removeprefix(f"{side}.") not in KEPT:
            del sys.modules[name]
