"""Dropout of JAX's libraries with draws that are given, or without any."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp

from ...draws import Draws

#: The dropout modules of the libraries, by module and class.
LAYERS = (("flax.nnx", "Dropout"), ("flax.linen", "Dropout"), ("equinox.nn", "Dropout"))


@contextmanager
def replacing_dropout(draws: Draws, shared: bool = True) -> Iterator[None]:
    """While it lasts jax.random.bernoulli is true where `draws` are below its p; not `shared`, layers keep everything.

    nnx, linen, equinox and functions draw what they keep with it. What is traced gets the numbers as constants.
    """
    with ExitStack() as stack:
        for name, layer in () if shared else LAYERS:
            if name in sys.modules:
                stack.enter_context(patch.object(getattr(sys.modules[name], layer), "__call__", _everything))

        def bernoulli(key: Any, p: Any = 0.5, shape: Any = None, **how: Any) -> jax.Array:
            size = jnp.shape(p) if shape is None else shape
            return jnp.asarray(draws.uniform(size)) < p

        stack.enter_context(patch.object(jax.random, "bernoulli", bernoulli))
        yield


def _everything(layer: Any, x: Any, *args: Any, **how: Any) -> Any:
    return x
