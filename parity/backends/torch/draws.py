"""Dropout of PyTorch with draws that are given, or without any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from ...draws import Draws


@contextmanager
def replacing_dropout(draws: Draws, shared: bool = True) -> Iterator[None]:
    """While it lasts F.dropout keeps what `draws` say, and everything unless they are `shared`; nn.Dropout calls it.

    As torch's own on the CPU, the kept are multiplied by 1 / (1 - p) in the type of the input. What draws by itself
    (attention kernels with a dropout of their own, torch.bernoulli) is not reached.
    """

    def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if not training or not p or not shared:
            return input
        if p == 1:
            return input.zero_() if inplace else torch.zeros_like(input)
        kept = torch.from_numpy(draws.uniform(input.shape) < 1 - p).to(input.device)
        noise = kept.to(input.dtype).div_(1 - p)
        return input.mul_(noise) if inplace else input * noise

    target: Any = torch.nn.functional
    with patch.object(target, "dropout", dropout):
        yield
