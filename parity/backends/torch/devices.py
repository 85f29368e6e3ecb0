"""What PyTorch can compute on."""

from __future__ import annotations

import torch


def devices(kind: str) -> list[str]:
    """The devices of a kind, "cpu" or "cuda", by the names that PyTorch gives them; empty where there are none."""
    if kind == "cpu":
        return ["cpu"]
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
