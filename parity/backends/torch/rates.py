"""This machine as PyTorch has it, for `parity.account.measure`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from parity.account.measure import DTYPES, Machine

from .versions import float32_products


def machine(processor: str, memory: float) -> Machine:
    """Its first CUDA device, else the processor, of which the caller knows name and memory."""
    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(0)
        return Machine("PyTorch", found.name, float(found.total_memory), True, product, copy)
    return Machine("PyTorch", processor, memory, False, product, copy)


def product(format: str, side: int) -> Callable[[], object]:
    """One product of two matrices of normal numbers, in float32 without TensorFloat-32 unless that is the format."""
    drawn = torch.Generator().manual_seed(0)
    a, b = (torch.randn(side, side, generator=drawn).to(_place(), getattr(torch, DTYPES[format])) for _ in range(2))
    out = torch.empty_like(a)

    def work() -> None:
        with float32_products(format == "tf32"):
            torch.mm(a, b, out=out)
            _finish()

    return work


def copy(count: int) -> Callable[[], object]:
    """One copy of so many bytes."""
    source = torch.zeros(count // 4, device=_place())
    target = torch.ones_like(source)

    def work() -> None:
        target.copy_(source)
        _finish()

    return work


def _place() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
