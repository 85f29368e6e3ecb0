"""Compiled functions and modules: what is seen of them is what they were compiled from."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def uncompiled() -> Iterator[None]:
    """While it lasts compiled functions run what they were compiled from: their kernels hide what is within."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        # hooks on all modules see the wrapper too: it is the module's own output once more
        warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks", UserWarning)
        yield


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether a module, or one within, is what torch.compile makes of another one."""
    return any(map(is_wrapper, module.modules()))


def compiled_in_place(module: torch.nn.Module) -> str:
    """The class of the first module within that was compiled by its own `compile()`; empty where none was."""
    for each in module.modules():
        if not isinstance(each, torch.jit.ScriptModule) and each._compiled_call_impl is not None:
            return type(each).__name__
    return ""


def without_wrappers(path: str) -> str:
    """The path of a module without the step into what was compiled."""
    return re.sub(r"(^|\.)_orig_mod(?=\.|$)", "", path).strip(".")


def is_wrapper(module: torch.nn.Module) -> bool:
    """Whether a module is what torch.compile makes of another one."""
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)
