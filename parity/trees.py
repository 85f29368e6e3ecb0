"""Nested containers as arrays with names and back: dicts, lists, tuples, named tuples, dataclasses. NumPy alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np


def is_array(value: Any) -> bool:
    """An array or tensor of NumPy, JAX or PyTorch."""
    return hasattr(value, "dtype") and hasattr(value, "shape")


def to_array(value: Any) -> np.ndarray:
    """The numbers of an array or tensor of any framework."""
    if hasattr(value, "detach"):  # a tensor: without its graph, on the host, in a type that NumPy has
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    return np.asarray(value)


def children(tree: Any) -> list[tuple[str, Any]] | None:
    """The parts of a container by name, or None for a leaf."""
    if isinstance(tree, Mapping):
        return [(str(key), tree[key]) for key in tree]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(zip(tree._fields, tree, strict=True))
    if isinstance(tree, list | tuple):
        return [(str(index), value) for index, value in enumerate(tree)]
    if is_dataclass(tree) and not isinstance(tree, type) and not is_array(tree):
        return [(field.name, getattr(tree, field.name)) for field in fields(tree)]
    return None


#: The name of an array that stands in no container: an output, or a lone parameter.
ALONE = "output"


def leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with its path, the parts joined by dots, in the order of the containers."""
    parts = children(tree)
    if parts is None:
        yield name or ALONE, tree
    else:
        for key, part in parts:
            yield from leaves(part, f"{name}.{key}" if name else key)


def rebuilt(
    tree: Any,
    replace: Callable[[str, Any], Any],
    opaque: tuple[type, ...] = (),
    alone: str = ALONE,
    name: str = "",
) -> Any:
    """A container of the same form whose leaves are `replace(path, leaf)`; where nothing changes it is the same object.

    An instance of `opaque` is a leaf. The path of a leaf in no container is `alone`.
    """
    parts = None if isinstance(tree, opaque) else children(tree)
    if parts is None:
        return replace(name or alone, tree)
    values = [rebuilt(part, replace, opaque, alone, f"{name}.{key}" if name else key) for key, part in parts]
    if all(new is old for new, (_, old) in zip(values, parts, strict=True)):
        return tree
    if isinstance(tree, tuple) and hasattr(tree, "_make"):
        return tree._make(values)
    if isinstance(tree, list | tuple):
        return type(tree)(values)
    if isinstance(tree, Mapping) and not hasattr(tree, "__setitem__"):
        return type(tree)(dict(zip(tree, values, strict=True)))  # type: ignore[call-arg]
    changed = copy.copy(tree)
    for key, value in zip(tree if isinstance(tree, Mapping) else dict(parts), values, strict=True):
        if isinstance(tree, Mapping):
            changed[key] = value
        else:
            object.__setattr__(changed, key, value)  # a frozen dataclass too
    return changed


@dataclass(frozen=True)
class Form:
    """How a side is called: which argument each array of a batch is. Whatever is no array is given as it stands."""

    tree: Any

    def arrays(self) -> dict[str, Any]:
        """The arrays of the batch that this form was taken from, by name."""
        return {name: leaf for name, leaf in leaves(self.tree) if is_array(leaf)}

    def call(self, function: Callable[..., Any], batch: Mapping[str, Any], *first: Any) -> Any:
        """`function(*first, *inputs)` or, for a dict, `function(*first, **inputs)`, with the arrays of `batch`."""
        inputs = rebuilt(self.tree, batch.get)
        return function(*first, **inputs) if isinstance(inputs, dict) else function(*first, *inputs)
