"""What every test runs under: checked annotations, JAX on the CPU, one thread per worker, a helper for float64.

Programs are compiled once in a session: all of its processes share a cache.
"""

from __future__ import annotations

import os

import compiled

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # counts only before JAX is imported, as the cache does
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # the first process: its workers, and theirs, are told
    compiled.share()

import jax
import pytest
import torch
from jaxtyping import install_import_hook

# before the first import of either package: shapes and types are checked at every call, except where a config is built,
# which refuses a wrong type in words of its own
MODULES = ["precision", "norm", "rope", "projection", "attention", "mlp", "block", "loss", "transformer", "optimizer"]
for package in ("jaxcore", "torchref"):
    install_import_hook([f"{package}.{module}" for module in MODULES], "beartype.beartype")

torch.set_num_threads(1)

pytest_plugins = "pytester"  # sessions inside the tests, for the plugin


@pytest.fixture
def x64():
    """float64 in JAX for one test, and back again: x64 is a mode, not a switch."""
    with jax.enable_x64(True):
        yield
