"""Pairs of one's own by the name that the shell gives: `file.py`, `file.py:attribute` or `package.module:attribute`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import ANYTHING, ParityUsageError
from .frames import told
from .pair import Pair


def is_own(target: str) -> bool:
    """Whether a target is code of the caller's, and no preset."""
    return ":" in target or target.endswith(".py")


def load_pairs(target: str) -> list[Pair]:
    """The pairs of a target: the attribute is a Pair, a list of Pairs or a function that returns one or the other.

    Without an attribute every Pair that stands in the module by itself. The caller's code is run, as Python would.

    Raises:
        ParityUsageError: no such file, module or attribute; its code fails; there is no Pair in it.
    """
    found = load_object(target)
    if callable(found) and not isinstance(found, Pair):
        found = _attempted(f"{target}: a function that returns a Pair", found)
    pairs = list(found) if isinstance(found, list | tuple) else [found]
    if not pairs or not all(isinstance(pair, Pair) for pair in pairs):
        got = ", ".join(type(pair).__name__ for pair in pairs) or "an empty list"
        raise ParityUsageError(f"{target}: a parity.Pair, a list of them or a function, got {got}; return a Pair")
    return pairs


def load_object(target: str) -> Any:
    """The attribute of a target as it stands; without one the list of every Pair in the module.

    Raises:
        ParityUsageError: no such file, module or attribute; its code fails.
    """
    place, _, attribute = target.partition(":")
    module = _imported(place)
    if not attribute:
        pairs = [value for value in vars(module).values() if isinstance(value, Pair)]
        if not pairs:
            raise ParityUsageError(f"{place}: a file with a parity.Pair in it, got none; write {place}:FUNCTION")
        return pairs
    found: Any = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            known = [key for key, value in vars(module).items() if isinstance(value, Pair)]
            advice = f"it has {', '.join(known)}" if known else "correct the name"
            raise ParityUsageError(f"{target}: an attribute of {place}, got no {name!r}; {advice}")
        found = getattr(found, name)
    return found


def _imported(place: str) -> ModuleType:
    """A module by its file or by its name, which the working directory comes first for."""
    rule = f"{place}: a file or module that can be imported"
    if not place.endswith(".py"):
        if "" not in sys.path:
            sys.path.insert(0, "")
        return _attempted(rule, partial(importlib.import_module, place))
    path = Path(place).resolve()
    if not path.is_file():
        raise ParityUsageError(f"{place}: a Python file, got none there; correct the path")
    sys.path.insert(0, str(path.parent))  # what stands beside it may be imported, as when it is run
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module  # dataclasses and pickles look their module up
    try:
        _attempted(rule, partial(spec.loader.exec_module, module))
    except ParityUsageError:
        del sys.modules[path.stem]
        sys.modules |= {path.stem: before} if before is not None else {}
        raise
    return module


def _attempted(rule: str, run: Any) -> Any:
    try:
        return run()
    except ParityUsageError:
        raise
    except ANYTHING as error:
        what = told(error)
        raise ParityUsageError(f"{rule}, got {what}; --debug shows where") from error
