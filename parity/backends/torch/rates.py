"""This machine as PyTorch has it, for `parity.account.measure`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from parity.account.measure import Machine

TYPES = {"fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
TYPES["fp16"] = torch.float16


def machine(processor: str, memory: float) -> Machine:
    """Its first CUDA device, else the processor, of which the caller knows name and memory."""
    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(0)
        return Machine("PyTorch", found.name, float(found.total_memory), True, product, copy)
    return Machine("PyTorch", processor, memory, False, product, copy)


def product(format: str, side: int) -> Callable[[], object]:
    """One product of two matrices of normal numbers, in float32 without TensorFloat-32 unless that is the format."""
    drawn = torch.Generator().manual_seed(0)
    a, b = (torch.randn(side, side, generator=drawn).to(_place(), TYPES[format]) for _ in range(2))
    out = torch.empty_like(a)

    def work() -> None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if format == "tf32" else "highest")
        try:
            torch.mm(a, b, out=out)
            _finish()
        finally:
            torch.set_float32_matmul_precision(before)

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
