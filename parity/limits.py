"""What a machine can take: memory before it is used up, devices before they are asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ParityUsageError
from .memory import LARGE


@dataclass(frozen=True)
class PerParameter:
    """Bytes per parameter that a check takes at its peak.

    Args:
        held: weights, and what a side computes in.
        batch: for each pooled batch, gradients of two sides in float64 and in the precision judged.
        trained: movement and moments of both sides, an optimizer's own state.
        step: for each step, the path, its units, a twin's path.
    """

    held: int
    batch: int
    trained: int
    step: int


#: Peak memory of a check, fitted to real runs (docs/numerics.md has them) and held against others in tests/test_cli.py.
BYTES_BASE = 840_000_000  # both frameworks, their compilers, the text
IN_MEMORY = PerParameter(held=20, batch=28, trained=60, step=20)
ON_DISK = PerParameter(held=18, batch=22, trained=50, step=13)  # between two looks at it (`memory.shelved`)
BYTES_PER_ACTIVATION = 11  # float64, and what is being made from it
BYTES_PER_LOGIT = 6
POOLED_BYTES = 1e9
POOLED_BATCHES = 8


def default_batches(parameters: int) -> int:
    """8 batches where their gradients have 1 GB; fewer for large models, whose tensors are pools in themselves."""
    return max(1, min(POOLED_BATCHES, int(POOLED_BYTES / (parameters * IN_MEMORY.batch))))


def activation_bytes(config: Any, batch: int, seq: int) -> int:
    """Peak bytes of the activations of one batch, which every layer of one side keeps for the backward pass."""
    tokens = batch * seq
    per_layer = 12 * config.d_model + 4 * config.d_ff + 4 * config.num_heads * seq
    logits = config.vocab_size if config.head != "none" else 0
    return tokens * (BYTES_PER_ACTIVATION * config.num_layers * per_layer + BYTES_PER_LOGIT * logits)


def estimated_bytes(config: Any, parameters: int, *, batch: int, seq: int, batches: int, steps: int) -> int:
    """Peak memory of a check."""
    each = ON_DISK if 8 * parameters >= LARGE else IN_MEMORY
    per_parameter = each.held + each.batch * batches
    if steps:
        per_parameter += each.trained + each.step * steps
    return BYTES_BASE + parameters * per_parameter + activation_bytes(config, batch, seq)


def free_bytes() -> int:
    """Memory that a process may still take: what the system can free, at most what its container allows."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo, limit = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
    if meminfo.exists():
        kilobytes = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())["MemAvailable"].split()[0]
        free = int(kilobytes) * 1024
    if limit.exists() and (allowed := limit.read_text().strip()).isdigit():
        free = min(free, int(allowed))
    return free


def refuse_what_does_not_fit(name: str, config: Any, parameters: int, **sizes: int) -> None:
    """Raises ParityUsageError when a check (`sizes` as for estimated_bytes) needs more memory than is free."""
    needed = estimated_bytes(config, parameters, **sizes)
    free = free_bytes()
    if needed > free:
        raise ParityUsageError(
            f"{name}: at most the {free / 1e9:.1f} GB of memory that are free, got a check that needs about "
            f"{needed / 1e9:,.1f} GB; use --shrink (the same architecture, small), --set num_layers=1, --steps 0 or a "
            "smaller --batch"
        )


def require_device(device: str) -> None:
    """Raises ParityUsageError when a framework does not see the device."""
    if device == "cpu":
        return
    from .backends.jax.devices import devices as jax_devices
    from .backends.torch.devices import devices as torch_devices

    blind = [name for name, devices in (("jax", jax_devices), ("torch", torch_devices)) if not devices(device)]
    if blind:
        raise ParityUsageError(
            f"--device: one that both frameworks see, got {device}, unknown to {' and '.join(blind)}; "
            "use --device cpu or install the cuda extra"
        )
