"""How a program is compiled: a small one that runs a few times spends more time in the compiler than anywhere else."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

#: Without LLVM's optimiser, which is half of the time of a small program and more.
QUICK: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}

#: Numbers in parameters and inputs below which a float64 program is compiled so, if it runs often, and if it runs once.
SMALL, SMALL_ONCE = 2**17, 2**27


def compiler_options(arguments: Any, once: bool = False) -> dict[str, str | bool] | None:
    """For `jax.jit` or `compile`; a working precision is compiled as its user would compile it."""
    leaves = jax.tree.leaves(arguments)
    in_float64 = any(leaf.dtype == np.float64 for leaf in leaves)
    return QUICK if in_float64 and sum(leaf.size for leaf in leaves) < (SMALL_ONCE if once else SMALL) else None
