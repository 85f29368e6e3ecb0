"""What `parity account` finds out, as one value: for the terminal, and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from ..account.hardware import Device
from ..account.measure import Measured
from ..account.memory import Memory
from ..account.plan import Plan, fits
from ..account.policies import Policy
from ..account.roofline import Operation


@dataclass(frozen=True)
class Bound:
    """An operation on a device: seconds at least, and by what."""

    operation: Operation
    seconds: float
    by: str


@dataclass(frozen=True)
class Swept:
    """One point of a sweep."""

    name: str
    value: int
    memory: Memory
    flops: int


@dataclass(frozen=True)
class Account:
    """A model, a step, a device.

    `shares` is each kind's part of FLOPs and of time, `largest` the model whose states alone fill all devices, in
    parameters; `utilisation` is each convention's MFU where a rate was given.
    """

    target: str
    parameters: int
    batch: int
    seq: int
    device: Device
    measured: Measured | None
    policy: Policy
    settings: dict[str, Any]
    flops: dict[str, int]
    memory: Memory
    fits: bool
    ways: tuple[tuple[str, Memory], ...]
    kv_cache: int
    roofline: tuple[Bound, ...]
    shares: dict[str, tuple[float, float]]
    largest: int
    plan: Plan | None = None
    price: float | None = None
    utilisation: dict[str, float] | None = None
    sweeps: tuple[Swept, ...] = ()

    def to_json(self) -> str:
        """Everything; counts are integers, which may be beyond 2^53."""
        found: dict[str, Any] = {
            "schema": 1,
            "target": self.target,
            "parameters": self.parameters,
            "batch": self.batch,
            "seq": self.seq,
            "settings": self.settings,
            "device": {
                "key": self.device.key,
                "name": self.device.name,
                "memory": self.device.memory,
                "bandwidth": self.device.bandwidth,
                "peak": self.device.peak(self.policy.format),
                "format": self.policy.format,
                "source": self.device.source,
            },
            "measured": None if self.measured is None else asdict(self.measured),
            "policy": asdict(self.policy),
            "flops": self.flops,
            "memory": _memory(self.memory),
            "fits": self.fits,
            "ways_to_fit": [{"change": words, "peak": memory.peak} for words, memory in self.ways],
            "kv_cache": self.kv_cache,
            "largest_model": self.largest,
            "roofline": [
                {
                    **asdict(each.operation),
                    "intensity": each.operation.intensity,
                    "seconds": each.seconds,
                    "by": each.by,
                }
                for each in self.roofline
            ],
            "shares": {kind: {"flops": flops, "seconds": seconds} for kind, (flops, seconds) in self.shares.items()},
            "plan": None,
            "utilisation": self.utilisation,
            "sweep": [
                {
                    each.name: each.value,
                    "peak": each.memory.peak,
                    "flops": each.flops,
                    "fits": fits(each.memory, self.device),
                    "memory": _memory(each.memory),
                }
                for each in self.sweeps
            ],
        }
        if self.plan is not None:
            found["plan"] = {
                "tokens": self.plan.tokens,
                "flops": self.plan.flops,
                "rule_of_thumb": self.plan.rule_of_thumb,
                "days": self.plan.days,
                "gpu_hours": self.plan.gpu_hours,
                "tokens_per_second": self.plan.tokens_per_second,
                "cost": None if self.price is None else self.plan.cost(self.price),
            }
        return json.dumps(found, indent=1)


def _memory(memory: Memory) -> dict[str, Any]:
    return {
        "static": {each.name: each.bytes for each in memory.static},
        "dynamic": {each.name: each.bytes for each in memory.dynamic},
        "backward": memory.backward,
        "update": memory.update,
        "update_undonated": memory.undonated,
        "peak": memory.peak,
    }
