"""What JAX can compute on."""

from __future__ import annotations

import jax

PLATFORMS = {"cpu": "cpu", "cuda": "gpu"}


def devices(kind: str) -> list[str]:
    """The devices of a kind, "cpu" or "cuda", by the names that JAX gives them; empty where there are none."""
    try:
        return [device.device_kind for device in jax.devices(PLATFORMS[kind])]
    except RuntimeError:  # JAX's answer for a platform that it does not have
        return []
