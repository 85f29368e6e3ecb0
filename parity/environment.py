"""Versions, machine and switches, for every report: a figure without them proves nothing."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Any

PACKAGES = ("jax-torch-parity", "jax", "jaxlib", "flax", "optax", "torch", "numpy", "ml_dtypes", "einops")


def versions() -> dict[str, str]:
    """Installed versions by distribution name; what is missing is left out."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def environment(device: str) -> dict[str, Any]:
    """Versions, processor, devices and the precision switches that the check sets."""
    return {
        "versions": versions(),
        "machine": {"system": platform.system(), "processor": processor(), "cores": os.cpu_count()},
        "device": device,
        "devices": devices(device),
        "precision_switches": {
            "jax_default_matmul_precision": "highest",
            "jax_enable_x64": "on for float64, off for every other precision",
            "torch_float32_matmul_precision": "highest",
            "torch_reduced_precision_reduction": False,
        },
    }


def devices(kind: str) -> dict[str, list[str]]:
    """Device names by framework, of those that this process has loaded: asking loads none."""
    found = {}
    if "jax" in sys.modules:
        from .backends.jax.devices import devices as jax_devices

        found["jax"] = jax_devices(kind)
    if "torch" in sys.modules:
        from .backends.torch.devices import devices as torch_devices

        found["torch"] = torch_devices(kind)
    return found


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        return platform.processor() or platform.machine()
    return platform.processor() or platform.machine()
