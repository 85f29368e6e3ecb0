"""This machine as JAX has it, for `parity.account.measure`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from parity.account.measure import DTYPES, Machine


def machine(processor: str, memory: float) -> Machine:
    """Its first device: a GPU or TPU where it has one, else the processor, whose name and memory are given."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        held = float((device.memory_stats() or {}).get("bytes_limit", 0))
        return Machine("XLA", device.device_kind, held, True, product, copy)
    return Machine("XLA", processor, memory, False, product, copy)


def product(format: str, side: int) -> Callable[[], object]:
    """One product of two matrices of normal numbers, in float32 without TensorFloat-32 unless that is the format."""
    keys = jax.random.split(jax.random.key(0))
    a, b = (jax.random.normal(key, (side, side)).astype(DTYPES[format]) for key in keys)
    precision = {"fp32": "highest", "tf32": "tensorfloat32"}.get(format, "default")
    multiply = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision))
    return lambda: multiply(a, b).block_until_ready()


def copy(count: int) -> Callable[[], object]:
    """One pass over so many bytes, read and written in place."""
    negate = jax.jit(jnp.negative, donate_argnums=0)
    held: list[Any] = [jnp.ones(count // 4, jnp.float32)]

    def work() -> None:
        held[0] = negate(held[0]).block_until_ready()

    return work
