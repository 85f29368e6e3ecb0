"""Everything that differs between releases of JAX, in one place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax

_last_x64: list[bool] = []


@contextmanager
def x64(enabled: bool) -> Iterator[None]:
    """float64 on or off for this thread.

    A function traced under both can raise "Cannot lower jaxpr" or be promoted silently (jax 0.10 to 0.12), so the trace
    caches are dropped whenever the mode changes; compiled programs are kept by their owners.
    """
    if _last_x64 and _last_x64[-1] != enabled:
        jax.clear_caches()
    _last_x64[:] = [enabled]
    with jax.enable_x64(enabled):
        yield
