"""What a caller may have written into a Pair by mistake, told before anything is run. Loads no framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from .draws import OFF, SHARED
from .errors import ParityUsageError
from .pair import Operation, Pair

DIRECTIONS = ("forward", "forward_backward")


def refuse_misfits(pair: Pair) -> None:
    """Every field of a pair has the type that it needs; sides, weights and inputs have their own messages.

    Raises:
        ParityUsageError: the first that has not.
    """
    if not isinstance(pair, Pair):
        raise ParityUsageError(
            f"check: a parity.Pair, got {_shown(pair)}; write parity.Pair(name, reference, candidate)"
        )
    for name, expected, fits, advice in _PAIR:
        value = getattr(pair, name)
        if not fits(value):
            raise ParityUsageError(f"{name}: {expected}, got {_shown(value)}; {advice}")
    for operation in pair.operations:
        for name, expected, fits in _OPERATION:
            if not fits(getattr(operation, name)):
                found = _shown(getattr(operation, name))
                raise ParityUsageError(f"operation {operation.name}: {expected} as its {name}, got {found}; give one")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_texts(value: Any) -> bool:
    return _is_list(value) and all(isinstance(each, str) for each in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_loss(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return len(value) == 2 and all(map(callable, value))
    return value is None or isinstance(value, str) or callable(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0


def _is_formula(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, Mapping) and set(value) == set(DIRECTIONS) and all(map(_is_count, value.values()))


def _is_names(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(each, str) for each in _items(value))


def _items(value: Mapping[Any, Any]) -> Iterator[Any]:
    yield from value.keys()
    yield from value.values()


def _is_operations(value: Any) -> bool:
    return _is_list(value) and all(isinstance(each, Operation) for each in value)


def _is_functions(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(k, str) and callable(v) for k, v in value.items())


def _is_dropout(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value in (SHARED, OFF))


def _is_limit(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 1 <= float(value) < float("inf")


_PAIR: tuple[tuple[str, str, Callable[[Any], bool], str], ...] = (
    ("name", "a text", _is_text, "name the pair"),
    ("loss", "the name of an output, a function or two of them, or None", _is_loss, "give one of these"),
    ("roundings", "a positive whole number", _is_count, "count the products on the longest path"),
    ("formula", f"None or whole numbers for {' and '.join(DIRECTIONS)}", _is_formula, "give both or leave it out"),
    ("points", "names of the reference's points to names of the candidate's", _is_names, "write {'a': 'b'}"),
    ("notes", "a list of texts", _is_texts, "write ['...']"),
    ("operations", "a list of parity.Operation", _is_operations, "write [parity.Operation(...)]"),
    ("mutants", "functions by name that return a Pair", _is_functions, "write {'name': function}"),
    ("dropout", f"None, {SHARED!r} or {OFF!r}", _is_dropout, "choose one of them"),
)
_OPERATION: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("name", "a text", _is_text),
    ("derivation", "a text", _is_text),
    ("reference", "a function", callable),
    ("candidate", "a function", callable),
    ("draw", "a function of a NumPy Generator", callable),
    ("limit", "a number of roundings, 1 or more", _is_limit),
)


def _shown(value: Any) -> str:
    """The value if it is short and its own text, else its type."""
    text = repr(value)
    return text if len(text) <= 60 and " at 0x" not in text else type(value).__name__
