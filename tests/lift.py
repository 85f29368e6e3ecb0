"""A PyTorch program that asks for float32 by name, run in float64: transformers does so in norms and softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map


class Float64Everywhere(TorchDispatchMode):
    """Every float32 that an operation is asked for becomes float64; tensors that exist already are left alone."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def lift(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        return function(*tree_map(lift, args), **tree_map(lift, kwargs or {}))
