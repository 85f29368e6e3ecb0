"""What `parity flops` does: from the words of a call to counts, and from these to the terminal or a file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ..environment import versions
from ..errors import ParityUsageError
from ..models import change, count_parameters, find_model
from ..output import STDOUT, destination_of, showing, write_whole
from ..targets import is_own
from .counts import Flops
from .text import print_flops

DEFAULT_BATCH = 1
DEFAULT_SEQ = 1024


def run_flops(
    *,
    target: str,
    batch: int | None,
    seq: int | None,
    kernel: str | None,
    settings: tuple[str, ...],
    shrink: bool,
    inputs: tuple[str, ...],
    json_path: str | None,
    plain: bool,
) -> int:
    """`parity flops`; returns the exit status."""
    destination = destination_of(json_path)
    words = {"batch": batch, "seq": seq, "kernel": kernel, "set": settings, "shrink": shrink}
    aside = redirect_stdout(sys.stderr) if destination == STDOUT else nullcontext()
    with aside, showing(plain) as progress:
        if is_own(target):
            from .own import own_flops

            if given := [name for name, value in words.items() if value]:
                raise ParityUsageError(f"--{given[0]}: only with a preset, got {target}; it has sizes of its own")
            flops = own_flops(target, inputs)
        else:
            if inputs:
                raise ParityUsageError(f"--input: only with code of your own, got the preset {target}; leave it out")
            flops = counted_preset(target, batch, seq, kernel, settings, shrink, progress)
    flops = replace(flops, environment={"versions": versions()})
    if destination == STDOUT:
        print(flops.to_json())
        return flops.exit_status
    try:
        if destination is not None:
            write_whole(Path(destination), flops.to_json() + "\n")
    finally:
        print_flops(Console(color_system=None if plain else "auto", highlight=False), flops)
    return flops.exit_status


def counted_preset(
    target: str,
    batch: int | None,
    seq: int | None,
    kernel: str | None,
    settings: tuple[str, ...],
    shrink: bool,
    progress: Callable[[str], None],
) -> Flops:
    """The counts of a preset."""
    from .preset import preset_flops

    name, config, _, _ = find_model(target, None, shrink)
    config = change(config, settings)
    config = replace(config, kernel=kernel) if kernel else config
    batch = DEFAULT_BATCH if batch is None else batch
    seq = min(DEFAULT_SEQ, config.max_seq_len) if seq is None else seq
    name = " ".join((name, *(["--shrink"] if shrink else []), *(f"--set {setting}" for setting in settings)))
    return preset_flops(name, config, count_parameters(config), batch, seq, progress)
