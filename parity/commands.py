"""What the commands do: from the words of the call to a Pair, and from a Result to the terminal or a file."""

from __future__ import annotations

import difflib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from .check import Options, check
from .errors import ParityUsageError
from .pair import Pair
from .report import print_report
from .result import Result

#: A run of one batch holds the gradients of both sides in float64 and float32, and a model in each framework, in bytes
#: per parameter (measured: tests/test_cli.py compares it with the peak of a real run).
BYTES_PER_PARAMETER = 120


def run_check(*, json_path: str | None, plain: bool, plant: str | None, **options: Any) -> int:
    """`parity check`; returns the exit status."""
    from .faults import describe_faults, plant_fault

    if plant == "list":
        print(describe_faults())
        return 0
    if options["preset"] == "list":
        print(describe_presets())
        return 0
    if plant is not None:
        plant_fault(plant)
    destination = _writable(json_path)
    pair, settings = build_pair(**options)
    errors = Console(stderr=True, no_color=plain)
    with showing(errors) as progress:
        result = check(pair, settings, progress)
    write_result(result, destination, plain)
    return result.exit_status


def build_pair(
    *,
    preset: str,
    weights: str | None,
    text: str | None,
    batch: int,
    seq: int | None,
    batches: int | None,
    steps: int,
    seed: int,
    dtypes: tuple[str, ...],
    device: str,
    kernel: str | None,
    settings: tuple[str, ...],
    shrink: bool,
) -> tuple[Pair, Options]:
    """The Pair and the Options that the words of a call ask for.

    Raises:
        ParityUsageError: one of them cannot be had.
    """
    from jaxcore.parameters import count_parameters
    from jaxcore.presets import shrink as shrink_config

    from .pairs.transformer import transformer_pair

    require_device(device)
    parameters, weights_from = None, ""
    if weights is not None:
        from .weights import load_checkpoint

        checkpoint = load_checkpoint(Path(weights))
        config, parameters, name = checkpoint.config, checkpoint.parameters, Path(weights).resolve().name
        weights_from = f"{checkpoint.family} checkpoint {weights}"
        if shrink:
            raise ParityUsageError("--shrink: needs a preset, got --weights; trained weights have one size")
    else:
        config, name = find_preset(preset), preset
    config = shrink_config(config) if shrink else config
    config = change(config, settings)
    config = replace(config, kernel=kernel) if kernel else config
    seq = min(128, config.max_seq_len) if seq is None else seq
    pooled = default_batches(count_parameters(config)) if batches is None else batches
    _refuse_what_does_not_fit(name, count_parameters(config))
    pair = transformer_pair(
        name,
        config,
        read_source(text, weights, config),
        batch=batch,
        seq=seq,
        seed=seed,
        weights=parameters,
        weights_from=weights_from,
        device=device,
    )
    precisions = tuple(dict.fromkeys(dtype for dtype in dtypes if dtype != "float64"))
    if not dtypes:
        precisions = ("float32", "bfloat16")
    return pair, Options(precisions=precisions, batches=pooled, steps=steps, seed=seed, device=device)


def find_preset(name: str) -> Any:
    """A preset by name; a wrong name is answered with the nearest ones."""
    from jaxcore.presets import PRESETS

    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=3) or list(PRESETS)
        raise ParityUsageError(f"preset: one of {', '.join(PRESETS)}, got {name!r}; did you mean {' or '.join(near)}?")
    return PRESETS[name]


def change(config: Any, settings: tuple[str, ...]) -> Any:
    """The config with some fields changed, each as FIELD=VALUE with the value in JSON or a bare word."""
    from dataclasses import asdict

    from jaxcore.config import ModelConfig, config_from_dict

    if not settings:
        return config
    known = {field.name for field in fields(ModelConfig)}
    values = asdict(config)
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in known:
            near = difflib.get_close_matches(name, known, n=1) or sorted(known)
            raise ParityUsageError(f"--set: FIELD=VALUE of the ModelConfig, got {setting!r}; for example {near[0]}=...")
        values[name] = _value(text)
    if {"num_heads", "d_model"} & {setting.partition("=")[0] for setting in settings} and not any(
        setting.startswith("d_head=") for setting in settings
    ):
        values["d_head"] = None
    return config_from_dict(values)


def _value(text: str) -> Any:
    try:
        return json.loads(text.lower() if text in ("True", "False", "None") else text)
    except json.JSONDecodeError:
        return None if text in ("none", "None") and text == "None" else text


def read_source(text: str | None, weights: str | None, config: Any) -> Any:
    """Tokens of the text asked for: by the checkpoint's own tokenizer where it has one, else bytes."""
    import numpy as np

    from .pairs.text import read_text, standard_library
    from .pairs.transformer import Source

    data = standard_library() if text is None else read_text(Path(text))
    where = "Python's standard library" if text is None else text
    if weights is not None and (Path(weights) / "tokenizer.json").exists():
        from .weights import tokenize

        # 200 kB of text give more tokens than any check reads
        tokens, padding = tokenize(Path(weights), [data[:200_000].decode("utf-8", "replace")])
        return Source(tokens[0][padding[0]], f"text: {where}, by the checkpoint's tokenizer")
    return Source(np.frombuffer(data, np.uint8).astype(np.int64), f"text: {len(data):,} bytes of {where}, a token each")


def require_device(device: str) -> None:
    """Raises ParityUsageError when a framework does not see the device."""
    if device == "cpu":
        return
    import jax
    import torch

    seen = {"torch": torch.cuda.is_available(), "jax": any(d.platform == "gpu" for d in _jax_devices(jax))}
    missing = [name for name, there in seen.items() if not there]
    if missing:
        raise ParityUsageError(
            f"--device: a device that both frameworks see, got cuda, unknown to {' and '.join(missing)}; "
            "use --device cpu or install the cuda extra"
        )


def _jax_devices(jax: Any) -> list[Any]:
    try:
        return jax.devices("gpu")
    except RuntimeError:  # jax's answer for "no such platform"
        return []


def default_batches(parameters: int) -> int:
    """8 batches where their gradients fit into 1 GB; fewer for large models, whose tensors are pools in themselves."""
    return max(1, min(8, int(1e9 / (parameters * 8 * 5))))


def _refuse_what_does_not_fit(name: str, parameters: int) -> None:
    needed = parameters * BYTES_PER_PARAMETER
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    if needed > available:
        raise ParityUsageError(
            f"{name}: needs about {needed / 1e9:.0f} GB of memory in float64 on both sides, got {available / 1e9:.0f} GB; "
            "use --shrink (the same architecture, small) or --set num_layers=1"
        )


def describe_presets() -> str:
    """A line per preset: name and parameters."""
    from jaxcore.parameters import count_parameters
    from jaxcore.presets import PRESETS

    return "\n".join(f"{name:14}{count_parameters(config):>17,} parameters" for name, config in PRESETS.items())


@contextmanager
def showing(console: Console) -> Iterator[Callable[[str], None]]:
    """Progress on standard error: a live line on a terminal, one line per stage elsewhere."""
    started = time.perf_counter()
    if not console.is_terminal:
        yield lambda message: console.print(f"[{time.perf_counter() - started:5.1f} s] {message}", highlight=False, markup=False)
        return
    with console.status("starting") as status:
        yield lambda message: status.update(f"{message} ({time.perf_counter() - started:.0f} s)")


def write_result(result: Result, destination: Path | str | None, plain: bool) -> None:
    """JSON to where it was asked for, whole or not at all; the report to standard output unless JSON went there."""
    if destination == "-":
        print(result.to_json())
        return
    if destination is not None:
        _write_whole(Path(destination), result.to_json() + "\n")
    print_report(Console(no_color=plain, highlight=False), result)


def _writable(path: str | None) -> Path | str | None:
    if path is None or path == "-":
        return path
    folder = Path(path).resolve().parent
    if not folder.is_dir() or Path(path).is_dir() or not os.access(folder, os.W_OK):
        raise ParityUsageError(f"--json: a file in a folder that can be written, got {path}; choose another place")
    return Path(path)


def _write_whole(path: Path, text: str) -> None:
    """Written beside its place and moved there, so that no reader ever sees half a file."""
    with tempfile.NamedTemporaryFile("w", dir=path.resolve().parent, delete=False, prefix=f".{path.name}.") as file:
        file.write(text)
    os.replace(file.name, path)
