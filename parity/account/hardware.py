"""What accelerators can do at most: FLOP/s by format, memory and its bandwidth. Loads no framework, no NumPy.

hardware.toml has every figure with the maker's document that prints it, and says which unit a figure is of.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import resources
from types import MappingProxyType

from ..errors import ParityUsageError


@dataclass(frozen=True)
class Device:
    """One accelerator: `memory` in bytes, `bandwidth` in bytes/s, `dense` and 2:4 `sparse` in FLOP/s by format."""

    key: str
    name: str
    aliases: tuple[str, ...]
    descriptions: tuple[str, ...]
    memory: float
    bandwidth: float
    dense: Mapping[str, float]
    sparse: Mapping[str, float]
    source: str
    notes: str

    def peak(self, format: str, sparse: bool = False) -> float:
        """FLOP/s in one format, dense unless `sparse` asks for 2 zeros in every 4 elements.

        Raises:
            ParityUsageError: the maker gives no figure; those that there are are named.
        """
        figures = self.sparse if sparse else self.dense
        kind = "sparse" if sparse else "dense"
        if not figures:
            raise ParityUsageError(f"format: {self.key} has no {kind} peak, got {format!r}; ask for the dense one")
        if format not in figures:
            raise ParityUsageError(
                f"format: one of {', '.join(figures)}, for which {self.key} has a {kind} peak, "
                f"got {format!r}; choose one of them"
            )
        return figures[format]

    def ridge(self, format: str) -> float:
        """FLOPs per byte from which on work in this format is bound by arithmetic, not by memory."""
        return self.peak(format) / self.bandwidth


@cache
def devices() -> Mapping[str, Device]:
    """Every device of hardware.toml by its key."""
    text = resources.files("parity.account").joinpath("hardware.toml").read_text("utf-8")
    found = {}
    for key, entry in tomllib.loads(text).items():
        found[key] = Device(
            key=key,
            name=entry["name"],
            aliases=tuple(entry["aliases"]),
            descriptions=tuple(entry["descriptions"]),
            memory=float(entry["memory"]),
            bandwidth=entry["bandwidth"],
            dense=MappingProxyType(entry["dense"]),
            sparse=MappingProxyType(entry["sparse"]),
            source=entry["source"],
            notes=entry["notes"],
        )
    return MappingProxyType(found)


def find_device(name: str) -> Device:
    """The device that a key or an alias names, in capitals or not.

    Raises:
        ParityUsageError: none has this name; those nearest to it are named, or else all.
    """
    named = {each.lower(): device for device in devices().values() for each in (device.key, *device.aliases)}
    wanted = name.strip().lower()
    if wanted not in named:
        near = get_close_matches(wanted, named, n=3)
        raise ParityUsageError(
            f"device: a key or an alias in parity/account/hardware.toml, got {name!r}; "
            f"{'nearest are' if near else 'choose one of'} {', '.join(near or devices())}"
        )
    return named[wanted]


def device_named(description: str) -> Device | None:
    """The device that a driver calls so (`torch.cuda.get_device_name()`, `jax.devices()[0].device_kind`).

    A description has to be one of hardware.toml's word for word, the maker's name aside. One word more is another
    part (H200 NVL, RTX 4090 Laptop GPU, a MIG slice), one less may be several (A100 of 40 or 80 GB): None for both.
    """
    words = _words(description)
    for device in devices().values():
        if words in [_words(each) for each in device.descriptions]:
            return device
    return None


def _words(description: str) -> list[str]:
    words = [word for word in re.split(r"[^a-z0-9.]+", description.lower()) if word]
    return words[1:] if words[:1] in (["nvidia"], ["amd"]) else words
