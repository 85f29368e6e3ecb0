"""One cache of compiled programs for all processes of a session of tests or of a sweep."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile


def share() -> None:
    """For processes that this one starts, and for this one if it has not imported JAX; gone when this one ends."""
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="parity-compiled-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
