"""What is kept of a point while a PyTorch run goes on, and how a value is fed in there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...capture import Point
from .versions import to_numpy


@dataclass(eq=False)
class Record:
    """A point while the run goes on; tensors are copies, since a model may write in place."""

    name: str
    source: str
    where: str
    value: torch.Tensor
    watched: bool = False
    gradient: torch.Tensor | None = None

    def add_gradient(self, gradient: torch.Tensor) -> None:
        """That of one backward pass."""
        gradient = gradient.detach().clone()
        self.gradient = gradient if self.gradient is None else self.gradient + gradient

    def point(self, differentiated: bool) -> Point:
        """As a capture has it; `differentiated` says whether there was a backward pass."""
        value = to_numpy(self.value)
        gradient = None
        if self.watched and differentiated:
            gradient = np.zeros_like(value) if self.gradient is None else to_numpy(self.gradient)
        dtype = str(self.value.dtype).removeprefix("torch.")
        return Point(self.name, self.source, self.where, tuple(value.shape), dtype, value, gradient)


class Fed(torch.autograd.Function):
    """A fed value, through which a model may differentiate while it runs; the run's own backward pass ends there."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, tensor: torch.Tensor, is_over: Callable[[], bool]) -> torch.Tensor:
        """`given`, in the place of `tensor`."""
        ctx.is_over = is_over
        return given.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """That of `given`, and on the way that of `tensor` too."""
        return gradient, None if ctx.is_over() else gradient, None
