"""The machine at hand: as its driver names it, or as it was measured. Loads the frameworks that are installed."""

from __future__ import annotations

import os
from importlib.util import find_spec

from ..account.hardware import Device, device_named, devices
from ..account.measure import Machine, Measured, measure
from ..environment import processor
from ..errors import ParityUsageError


def machines() -> list[Machine]:
    """This machine as each installed framework has it.

    Raises:
        ParityUsageError: none is installed.
    """
    found = []
    processor_and_memory = processor(), float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if find_spec("torch"):
        from ..backends.torch.rates import machine as as_torch_has_it

        found.append(as_torch_has_it(*processor_and_memory))
    if find_spec("jax"):
        from ..backends.jax.rates import machine as as_jax_has_it

        found.append(as_jax_has_it(*processor_and_memory))
    if not found:
        raise ParityUsageError(
            "--device here: PyTorch or JAX to ask, got neither installed; install one, or name a device"
        )
    return found


def device_here() -> Device:
    """The device of the table that the driver of this machine names.

    Raises:
        ParityUsageError: it names none of them.
    """
    found = machines()
    for each in found:
        if device := device_named(each.name):
            return device
    names = " and ".join(dict.fromkeys(each.name for each in found))
    raise ParityUsageError(
        f"--device here: one of parity/account/hardware.toml ({', '.join(devices())}), got {names}; --measure it, or "
        "name another"
    )


def measured_here(format: str) -> Measured:
    """Rates of this machine in that format."""
    return measure(machines(), format)
