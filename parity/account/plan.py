"""How long a training takes, what it costs, whether it fits, and what would make it fit: no framework, no NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .hardware import Device
from .laws import model_flops
from .memory import RECOMPUTE, STAGES, Memory, Recompute, static, step_memory
from .policies import Policy

SECONDS_PER_DAY = 24 * 60 * 60

#: Bytes of a device that are no model's: a CUDA context and what an allocator cannot use. A convention.
RESERVED = 2e9


@dataclass(frozen=True)
class Plan:
    """A training: FLOPs of all its tokens, seconds, and the memory of one device."""

    tokens: int
    flops: int
    rule_of_thumb: int  # 6 N P
    days: float
    gpu_hours: float
    tokens_per_second: float
    memory: Memory
    fits: bool

    def cost(self, per_hour: float) -> float:
        """In the currency that a device costs `per_hour`."""
        return self.gpu_hours * per_hour


def training_plan(
    config: Any,
    parameters: int,
    tokens: int,
    device: Device,
    policy: Policy,
    *,
    gpus: int = 1,
    mfu: float = 0.4,
    batch: int = 1,
    seq: int = 1024,
    optimizer: str = "adamw",
    recompute: Recompute = "none",
    zero: int = 0,
) -> Plan:
    """One pass over so many tokens, `mfu` of the dense peak going into the model's own FLOPs.

    `batch` is one device's. FLOPs are those of the formula for sequences of `seq` tokens, attention included.
    """
    per_sequence = model_flops(config, 1, seq)["forward_backward"]
    flops = -(-tokens * per_sequence // seq)
    seconds = flops / (gpus * mfu * device.peak(policy.format))
    memory = step_memory(config, parameters, batch, seq, policy, optimizer, recompute, zero, gpus)
    return Plan(
        tokens=tokens,
        flops=flops,
        rule_of_thumb=6 * parameters * tokens,
        days=seconds / SECONDS_PER_DAY,
        gpu_hours=gpus * seconds / 3600,
        tokens_per_second=tokens / seconds,
        memory=memory,
        fits=fits(memory, device),
    )


def fits(memory: Memory, device: Device) -> bool:
    """Whether the peak is within a device, less what is no model's."""
    return memory.peak <= room(device)


def room(device: Device) -> float:
    """Bytes of a device that a model may have."""
    return device.memory - RESERVED


def largest_model(device: Device, policy: Policy, optimizer: str = "adamw", gpus: int = 1) -> int:
    """Parameters whose states alone fill so many devices, sharded over all of them: no room for activations."""
    each = sum(held.bytes for held in static(1, policy, optimizer))
    return int(gpus * device.memory // each)


def ways_to_fit(
    config: Any,
    parameters: int,
    device: Device,
    policy: Policy,
    *,
    gpus: int,
    batch: int,
    seq: int,
    optimizer: str,
    recompute: Recompute,
    zero: int,
) -> Iterator[tuple[str, Memory]]:
    """Changes that make it fit, one way at a time and then together, with the memory that each leaves."""
    stages = [stage for stage in range(zero + 1, STAGES + 1) if gpus > 1]
    harder = list(RECOMPUTE[RECOMPUTE.index(recompute) + 1 :])
    if config.kernel == "fused":  # it has no attention matrices to form again
        harder = [each for each in harder if each != "selective"]
    halves: list[int] = []
    while batch >> (len(halves) + 1):
        halves.append(batch >> (len(halves) + 1))
    tries: list[tuple[str, dict[str, Any]]] = [
        *((f"--zero {stage}", {"zero": stage}) for stage in stages),
        *((f"--recompute {kind}", {"recompute": kind}) for kind in harder),
        *((f"--batch {size}", {"batch": size}) for size in halves),
        *(
            (f"--zero {stage} --recompute {kind}", {"zero": stage, "recompute": kind})
            for stage in stages
            for kind in harder
        ),
    ]
    if stages and harder:
        tries += [
            (f"--zero {STAGES} --recompute full --batch {size}", {"zero": STAGES, "recompute": "full", "batch": size})
            for size in halves
        ]
    found: set[frozenset[str]] = set()
    for words, changes in tries:
        if any(known <= changes.keys() for known in found):  # a part of it is enough
            continue
        given = {"batch": batch, "optimizer": optimizer, "recompute": recompute, "zero": zero, "gpus": gpus, **changes}
        memory = step_memory(config, parameters, given.pop("batch"), seq, policy, **given)
        if fits(memory, device):
            found.add(frozenset(changes))
            yield words, memory
