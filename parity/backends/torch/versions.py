"""Everything that differs between releases of PyTorch, in one place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import ml_dtypes
import numpy as np
import torch

from ...formats import FORMATS

#: NumPy's name of a format to PyTorch's; `torch.float32` is spelt the same in every release that is supported.
DTYPES = {name: getattr(torch, each.dtype) for name, each in FORMATS.items()}


@contextmanager
def float32_products(tensorfloat32: bool) -> Iterator[None]:
    """Products of float32 matrices in TensorFloat-32, or in full; what was set before is restored."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tensorfloat32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def is_writable(tensor: torch.Tensor) -> bool:
    """Whether every element has memory of its own (an expanded tensor's have not), and is none of an inference mode."""
    return not tensor.is_inference() and torch._debug_has_internal_overlap(tensor) != 1


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The same numbers in NumPy, on a CPU the same memory; bfloat16, which torch does not hand over, by its bits."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def from_numpy(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A copy in PyTorch, in the array's own type."""
    array = np.array(array)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)


def cast_float(array: np.ndarray, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """A copy in PyTorch in another float type; made at once, by all threads, where PyTorch can look at the array."""
    if array.dtype in (np.float32, np.float64) and array.flags.writeable and all(step > 0 for step in array.strides):
        return torch.from_numpy(array).to(device, dtype, copy=True)
    return from_numpy(array, device).to(dtype)
