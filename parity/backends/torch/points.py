"""What is kept of a point while a PyTorch run goes on, and how a value is fed in there."""

from __future__ import annotations

from collections.abc import Sequence
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

    def hear_gradient(self, running: Sequence[Any], gradient: torch.Tensor | None) -> None:
        """Called by autograd, once per backward pass; with None where nothing comes back past a fed value.

        A gradient that the model takes on its way, while modules are `running`, is not the run's own. The graph must
        hold no more of the recording than that list: the recording holds the graph, which would outlive the run.
        """
        if gradient is None or running:
            return
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
    def forward(ctx: Any, given: torch.Tensor, tensor: torch.Tensor, running: Sequence[Any]) -> torch.Tensor:
        """`given`, in the place of `tensor`; a backward pass is the run's own if no module is `running`."""
        ctx.running = running
        return given.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """That of `given`, and on the way that of `tensor` too."""
        return gradient, gradient if ctx.running else None, None
