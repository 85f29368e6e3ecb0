"""What `parity flops` does: from the words of a call to counts, and from these to the terminal or a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.console import Console

from ..environment import versions
from ..errors import ParityUsageError
from ..models import change, count_parameters, find_model
from ..output import aside, destination_of, showing, write_document
from ..targets import is_own
from .counts import Flops
from .text import print_flops

DEFAULT_BATCH = 1
DEFAULT_SEQ = 1024


def run_flops(*, target: str, inputs: tuple[str, ...], json_path: str | None, plain: bool, **words: Any) -> int:
    """`parity flops`; returns the exit status. `words` are the options that a preset alone has."""
    destination = destination_of(json_path)
    with aside(destination), showing(plain) as progress:
        if is_own(target):
            from .own import own_flops

            if given := [name for name, word in words.items() if word]:
                flag = {"settings": "set"}.get(given[0], given[0])
                raise ParityUsageError(f"--{flag}: only with a preset, got {target}; it has sizes of its own")
            flops = own_flops(target, inputs)
        else:
            if inputs:
                raise ParityUsageError(f"--input: only with code of your own, got the preset {target}; leave it out")
            flops = counted_preset(target, progress, **words)
    flops = replace(flops, environment={"versions": versions()})
    console = Console(color_system=None if plain else "auto", highlight=False)
    write_document(flops.to_json(), destination, lambda: print_flops(console, flops))
    return flops.exit_status


def counted_preset(
    target: str,
    progress: Callable[[str], None],
    batch: int | None,
    seq: int | None,
    kernel: str | None,
    settings: tuple[str, ...],
    shrink: bool,
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
