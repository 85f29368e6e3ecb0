"""flax modules that were given a dtype of their own, rebuilt for another precision.

A module that computes in its `dtype` would drop to it in a float64 run. The dtype that most of a model's modules have
is the one that it works in, and is replaced; another one is a choice (a softmax in float32): it stays, and shows as an
island. The dtype of their parameters is that of the run throughout: it is what the parameters that they are given have,
and what a recurrent cell starts its carry in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import jax.numpy as jnp
import numpy as np


def linen_at(module: Any, precision: str) -> Any:
    """A linen module whose working dtype is `precision`, within the modules that it was given too."""
    found = Counter(jnp.dtype(each.dtype) for each in _linen_modules(module) if _has_dtype(each))
    working = None
    if found:
        working = jnp.dtype(module.dtype) if _has_dtype(module) else found.most_common(1)[0][0]
    return _retyped(module, working, precision)


@contextmanager
def parameters_in(precision: str) -> Iterator[None]:
    """Linen modules that are made on the way take their parameters to be of a precision."""
    import flax.linen

    def typed(function: Any, args: Any, kwargs: Any, context: Any) -> Any:
        for each in _linen_modules(context.module):
            if hasattr(each, "param_dtype"):
                object.__setattr__(each, "param_dtype", jnp.dtype(precision))
        return function(*args, **kwargs)

    with flax.linen.intercept_methods(typed):
        yield


def nnx_at(module: Any, precision: str) -> Any:
    """A copy of an nnx module whose working dtype is `precision`."""
    from flax import nnx

    copy = nnx.merge(*nnx.split(module))
    for _, each in nnx.iter_modules(copy):
        if hasattr(each, "param_dtype"):
            each.param_dtype = jnp.dtype(precision)
    modules: list[Any] = [each for _, each in nnx.iter_modules(copy) if _has_dtype(each)]
    found = Counter(jnp.dtype(each.dtype) for each in modules)
    for each in modules:
        if jnp.dtype(each.dtype) == found.most_common(1)[0][0]:
            each.dtype = jnp.dtype(precision)
    return copy


def _has_dtype(module: Any) -> bool:
    dtype = getattr(module, "dtype", None)
    return isinstance(dtype, type | np.dtype | str) and jnp.issubdtype(jnp.dtype(dtype), jnp.floating)


def _is_linen(value: Any) -> bool:
    import flax.linen

    return isinstance(value, flax.linen.Module)


def _linen_modules(value: Any) -> Iterator[Any]:
    if _is_linen(value):
        yield value
        for each in fields(value):
            if each.name not in ("parent", "name"):
                yield from _linen_modules(getattr(value, each.name, None))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _linen_modules(part)


def _retyped(value: Any, working: Any, precision: str) -> Any:
    if _is_linen(value):
        changes = {}
        for each in fields(value):
            if each.init and each.name not in ("parent", "name"):
                old = getattr(value, each.name, None)
                new = _retyped(old, working, precision)
                if new is not old:
                    changes[each.name] = new
        if _has_dtype(value) and jnp.dtype(value.dtype) == working:
            changes["dtype"] = jnp.dtype(precision)
        if "param_dtype" in {each.name for each in fields(value)}:
            changes["param_dtype"] = jnp.dtype(precision)
        return value.clone(**changes) if changes else value
    if isinstance(value, list | tuple) and any(_is_linen(part) for part in value):
        return type(value)(_retyped(part, working, precision) for part in value)
    return value
