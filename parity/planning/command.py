"""What `parity account` does: from the words of a call to figures, and from these to the terminal or a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from ..account.hardware import Device, find_device
from ..account.laws import model_flops
from ..account.measure import Measured
from ..account.memory import kv_cache, step_memory
from ..account.mfu import mfu as utilisation
from ..account.plan import fits, largest_model, training_plan, ways_to_fit
from ..account.policies import POLICIES, Policy
from ..account.roofline import Operation, judged, operations, parameter_count, shares
from ..errors import ParityUsageError
from ..models import change, find_preset
from ..output import destination_of, write_document
from .account import Account, Bound, Swept
from .numbers import swept, whole
from .text import print_account

#: What `--device` calls the machine at hand, and what it is without one.
HERE = "here"
DEFAULT_DEVICE = "h100"


def run_account(*, target: str, json_path: str | None, plot_path: str | None, plain: bool, **words: Any) -> int:
    """`parity account`; returns the exit status, which is 0."""
    destination = destination_of(json_path)
    account = accounted(target, **words)
    if plot_path is not None:
        from .plot import write_plot

        write_plot(account, plot_path)
    console = Console(color_system=None if plain else "auto", highlight=False)
    write_document(account.to_json(), destination, lambda: print_account(console, account))
    return 0


def accounted(
    target: str,
    *,
    batch: str | None = None,
    global_batch: str | None = None,
    seq: str | None = None,
    device: str | None = None,
    measure: bool = False,
    precision: str = "bf16-mixed",
    optimizer: str = "adamw",
    recompute: str = "none",
    zero: int = 0,
    gpus: str = "1",
    tokens: str | None = None,
    mfu: float = 0.4,
    price: float | None = None,
    rate: float | None = None,
    kernel: str = "fused",
    settings: Sequence[str] = (),
    sweeps: Sequence[str] = (),
) -> Account:
    """The figures for a preset.

    Raises:
        ParityUsageError: a preset, device, precision or size that there is none of; a batch that does not divide.
    """
    config = replace(change(find_preset(target), settings), kernel=kernel)
    count = whole("--gpus", gpus)
    length = whole("--seq", seq, binary=True) if seq else min(1024, config.max_seq_len)
    if config.position == "learned" and length > config.max_seq_len:
        raise ParityUsageError(
            f"--seq: at most the {config.max_seq_len} positions that {target} has learned, got {length}; choose a "
            f"shorter one, or --set max_seq_len={length}"
        )
    if rate is not None and not rate > 0:
        raise ParityUsageError(f"--rate: tokens per second, above 0, got {rate:g}; give another")
    each = _per_device(batch, global_batch, count)
    policy = _policy(precision)
    machine, measured = _machine(device, measure, policy.format)
    peak = machine.peak(policy.format)
    if not 0 < mfu <= 1:
        raise ParityUsageError(f"--mfu: above 0 and at most 1, got {mfu}; 0.4 is usual")
    parameters = parameter_count(config)
    how: dict[str, Any] = {"optimizer": optimizer, "recompute": recompute, "zero": zero, "gpus": count}
    memory = step_memory(config, parameters, each, length, policy, **how)
    again = replace(config, recompute=recompute == "full")
    found = operations(again, each, length, policy, optimizer, kernel == "fused")
    if zero:  # each device updates its part
        found = [_part(one, count) if one.kind == "optimizer" else one for one in found]
    bounds = tuple(Bound(one, *judged(one, machine, policy.format)) for one in found)
    plan = None
    if tokens is not None:
        plan = training_plan(
            config, parameters, whole("--tokens", tokens), machine, policy, mfu=mfu, batch=each, seq=length, **how
        )
    is_in = fits(memory, machine)
    return Account(
        target=" ".join((target, *(f"--set {setting}" for setting in settings))),
        parameters=parameters,
        batch=each,
        seq=length,
        device=machine,
        measured=measured,
        policy=policy,
        settings={**how, "mfu": mfu, "kernel": kernel},
        flops=model_flops(config, each, length),
        memory=memory,
        fits=is_in,
        ways=() if is_in else tuple(ways_to_fit(config, parameters, machine, policy, batch=each, seq=length, **how)),
        kv_cache=kv_cache(config, each, length, policy.compute),
        roofline=bounds,
        shares={kind: (part.flops, part.seconds) for kind, part in shares(found, machine, policy.format).items()},
        largest=largest_model(machine, policy, optimizer, count),
        plan=plan,
        price=price,
        utilisation=None if rate is None else utilisation(config, length, rate, count * peak, parameters),
        sweeps=tuple(
            Swept(
                name,
                value,
                step_memory(config, parameters, *(size := _with(name, value, each, length)), policy, **how),
                model_flops(config, *size)["forward_backward"],
            )
            for name, values in map(swept, sweeps)
            for value in values
        ),
    )


def _machine(device: str | None, measuring: bool, format: str) -> tuple[Device, Measured | None]:
    """The device that is meant: of the table by name, this machine by its driver's name, or as it is measured."""
    if measuring and device not in (None, HERE):
        raise ParityUsageError(f"--measure: of the machine at hand, got --device {device}; leave one of them out")
    if measuring:
        from .here import measured_here

        measured = measured_here(format)
        return measured.device, measured
    if device == HERE:
        from .here import device_here

        return device_here(), None
    return find_device(device or DEFAULT_DEVICE), None


def _with(name: str, value: int, batch: int, seq: int) -> tuple[int, int]:
    """Batch and sequence length of one point of a sweep."""
    return (value, seq) if name == "batch" else (batch, value)


def _per_device(batch: str | None, global_batch: str | None, gpus: int) -> int:
    """Sequences of one device."""
    if global_batch is None:
        return 1 if batch is None else whole("--batch", batch)
    if batch is not None:
        raise ParityUsageError("--batch: of each device, or --global-batch of all of them, got both; leave one out")
    sequences = whole("--global-batch", global_batch)
    if sequences % gpus:
        nearest = gpus * max(1, round(sequences / gpus))
        raise ParityUsageError(f"--global-batch: a multiple of --gpus {gpus}, got {sequences}; give {nearest}")
    return sequences // gpus


def _part(operation: Operation, count: int) -> Operation:
    return replace(operation, flops=-(-operation.flops // count), bytes=-(-operation.bytes // count))


def _policy(name: str) -> Policy:
    if name not in POLICIES:
        raise ParityUsageError(f"--precision: one of {', '.join(POLICIES)}, got {name!r}; choose one of them")
    return POLICIES[name]
