"""Where the memory of a training step goes, in bytes, from the sizes alone: no framework, no NumPy.

Held all the time are weights, gradients, the optimizer's moments and, where a model computes in 16 bits, a master copy
in float32. What the forward pass keeps comes on top (activations.py), and what the loss needs besides. The peak of a
step is the larger of two: the beginning of the backward pass, when all of that is there, and the optimizer's update,
which in JAX holds old and new state at once unless the old one is donated.

ZeRO (Rajbhandari et al. 2020) shards over the devices what each would hold alike: moments and master (1), gradients as
well (2), weights as well (3, FSDP), of which one block at a time is gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from ..errors import ParityUsageError
from .activations import WIDE, Kept, block_activations, outer_activations
from .policies import Policy, find_optimizer
from .roofline import parameter_count

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)
#: The highest stage of ZeRO.
STAGES = 3


@dataclass(frozen=True)
class Held:
    """Bytes on one device, and what they are."""

    name: str
    bytes: int
    says: str


@dataclass(frozen=True)
class Memory:
    """Bytes on one device: what is held all the time, what a step keeps besides, and the step's peak."""

    static: tuple[Held, ...]
    dynamic: tuple[Held, ...]
    update: int  # the peak of the optimizer's update, with donation
    undonated: int  # and without

    @property
    def peak(self) -> int:
        """Of a step whose state is donated."""
        return max(self.backward, self.update)

    @property
    def backward(self) -> int:
        """When the backward pass begins."""
        return sum(each.bytes for each in (*self.static, *self.dynamic))


def static(parameters: int, policy: Policy, optimizer: str = "adamw", zero: int = 0, gpus: int = 1) -> tuple[Held, ...]:
    """Weights, gradients and the optimizer's state of so many parameters on one device.

    Raises:
        ParityUsageError: an unknown optimizer, a stage of ZeRO that there is none of.
    """
    moments = find_optimizer(optimizer).moments
    if zero not in range(STAGES + 1):
        raise ParityUsageError(f"zero: 0 to {STAGES}, got {zero!r}; choose one of them")

    def part(stage: int) -> int:
        return -(-parameters // gpus) if zero >= stage else parameters

    shared = f", sharded over {gpus:,} devices" if zero and gpus > 1 else ""
    held = [
        Held("weights", policy.weights * part(3), f"{policy.weights} bytes each" + (shared if zero >= 3 else "")),
        Held("gradients", policy.gradients * part(2), f"{policy.gradients} bytes each" + (shared if zero >= 2 else "")),
    ]
    if policy.master:
        held.append(Held("master copy", policy.master * part(1), f"{policy.master} bytes each{shared}"))
    if moments:
        says = f"{moments} of {policy.moment} bytes each{shared}"
        held.append(Held("optimizer state", moments * policy.moment * part(1), says))
    return tuple(held)


def activations(config: Any, batch: int, seq: int, width: int, recompute: Recompute = "none") -> tuple[Held, ...]:
    """What the forward pass keeps, by part of the model; with recomputation what is left, and one block at a time.

    `selective` forms the attention matrices again (Korthikanti et al. 2022, section 5), `full` all of a block but its
    input.

    Raises:
        ParityUsageError: an unknown kind of recomputation.
    """
    if recompute not in RECOMPUTE:
        raise ParityUsageError(f"recompute: one of {', '.join(RECOMPUTE)}, got {recompute!r}; choose one of them")
    block, outer = block_activations(config, batch, seq, width), outer_activations(config, batch, seq, width)
    layers = config.num_layers
    found = []
    if recompute == "full":
        whole = sum(each.bytes for each in block)
        found.append(Held("inputs of blocks", layers * width * batch * seq * config.d_model, f"{layers} blocks"))
        found.append(Held("one block", whole, "formed again, the last one as the backward pass begins"))
    else:
        again = [each for each in block if recompute == "selective" and "softmax" in each.what]
        for name, parts in _parts([each for each in block if each not in again]).items():
            found.append(Held(name, layers * sum(each.bytes for each in parts), f"{layers} blocks"))
        if again:
            found.append(Held("attention matrices", sum(each.bytes for each in again), "of one block, formed again"))
    loss = [each for each in outer if each.module == "loss"]
    rest = sum(each.bytes for each in outer if each not in loss)
    found.append(Held("outside the blocks", rest, "indices, last norm, input of the head"))
    if loss:
        logits = batch * seq * config.vocab_size
        found.append(Held("logits and loss", sum(each.bytes for each in loss), "the logarithm of softmax in float32"))
        says = f"in float32{', and rounded' if width < WIDE else ''}"
        found.append(Held("gradient of the logits", logits * (WIDE + (width if width < WIDE else 0)), says))
    return tuple(found)


def step_memory(
    config: Any,
    parameters: int,
    batch: int,
    seq: int,
    policy: Policy,
    optimizer: str = "adamw",
    recompute: Recompute = "none",
    zero: int = 0,
    gpus: int = 1,
) -> Memory:
    """One training step on one device; `batch` is that device's."""
    held = static(parameters, policy, optimizer, zero, gpus)
    kept = list(activations(config, batch, seq, policy.compute, recompute))
    if zero == STAGES and gpus > 1:
        block = parameter_count(replace(config, num_layers=2)) - parameter_count(replace(config, num_layers=1))
        kept.append(Held("one block gathered", policy.weights * block, f"{block:,} weights of all devices"))
    if policy.name == "autocast":
        kept.append(Held("weights in bfloat16", 2 * parameters, "cast where they are used, and kept for backward"))
    total = sum(each.bytes for each in held)
    renewed = total - next(each.bytes for each in held if each.name == "gradients")
    return Memory(held, tuple(kept), total, total + renewed)


def kv_cache(config: Any, batch: int, seq: int, width: int) -> int:
    """Bytes of keys and values of all layers, for generating."""
    return int(2 * config.num_layers * config.kv_heads * config.head_width * batch * seq * width)


def _parts(block: Sequence[Kept]) -> dict[str, list[Kept]]:
    """By the part of a block that a person thinks in."""
    found: dict[str, list[Kept]] = {}
    for each in block:
        name = "norms" if each.module.endswith("norm") else each.module.partition(".")[0]
        found.setdefault({"mlp": "MLP"}.get(name, name), []).append(each)
    return found
