"""What the commands do: from the words of a call to a Pair, and from its Result to the terminal or a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from .acceptance import accept, today, unneeded
from .errors import USAGE_ERROR, ParityUsageError
from .limits import default_batches, refuse_what_does_not_fit, require_device
from .memory import return_freed_memory
from .models import DEFAULT_PRESET, change, count_parameters, describe_presets, find_model, read_source
from .options import Options
from .output import STDOUT, aside, destination_of, showing, write_result, write_results
from .pair import Pair
from .settings import find_settings
from .targets import is_own, load_pairs
from .verdict import check

DEFAULT_BATCH = 2
DEFAULT_SEQ = 128
#: Options that a Pair of the caller's own has no use for, and those that every check has.
PRESET_OPTIONS = ("weights", "text", "batch", "seq", "kernel", "settings", "shrink")
LATER_OPTIONS = ("thorough", "curve", "seeds", "mutate", "budget")
COMMON_OPTIONS = ("batches", "steps", "seed", "device", *LATER_OPTIONS)


def run_check(*, targets: tuple[str, ...], json_path: str | None, plain: bool, plant: str | None, **words: Any) -> int:
    """`parity check`; returns the exit status."""
    from .faults import describe_faults, plant_fault

    if plant == "list":
        print(describe_faults())
        return 0
    if targets == ("list",):
        print(describe_presets())
        return 0
    if plant is not None and (own := next((target for target in targets if is_own(target)), None)):
        raise ParityUsageError(
            f"--plant: only with a preset, got {own}; --mutate plants faults into a Pair of your own"
        )
    planted = [plant_fault(plant).describe(plant)] if plant is not None else []
    return_freed_memory()
    destination = destination_of(json_path)
    project = find_settings(Path.cwd())
    given = {**project.options, **_said(words)}
    # every target is understood before the first one is checked
    with aside(destination):
        named = targets or (DEFAULT_PRESET,)
        work = [each for target in named for each in build_target(target, words, given, bool(targets))]
    results, refused = [], []
    for pair, options in work:
        try:
            with aside(destination), showing(plain) as progress:
                measured = check(replace(pair, notes=(*planted, *pair.notes)), options, progress)
        except ParityUsageError as error:
            if len(work) == 1:
                raise
            # the other targets are checked all the same, and nothing that was found is lost
            refused.append(" ".join(f"{pair.name}: {error}".split()))
            continue
        result = accept(measured, project.accepted, today())
        results.append(result)
        write_result(result, destination if len(work) == 1 else None, plain, quiet=destination == STDOUT)
    if len(work) > 1:
        write_results(results, destination, plain)
    surplus = unneeded(project, [result.to_dict() for result in results])
    for line in (*surplus, *refused):
        print(f"error: {line}", file=sys.stderr)
    if refused:
        return USAGE_ERROR
    return max((*(result.exit_status for result in results), *(1 for _ in surplus)), key=(0, 3, 1).index)


def _said(words: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of Options that the words of a call say."""
    said = {name: words[name] for name in COMMON_OPTIONS if words[name] is not None}
    if words["dtypes"]:
        said["precisions"] = _precisions(words["dtypes"])
    return said


def _precisions(dtypes: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(dtype for dtype in dtypes if dtype != "float64"))


def build_target(
    target: str, words: Mapping[str, Any], given: Mapping[str, Any], named: bool
) -> list[tuple[Pair, Options]]:
    """The checks of one target: a preset, or every pair of the caller's own code; `given` are fields of Options.

    Raises:
        ParityUsageError: it cannot be had, or an option is given that only a preset has.
    """
    options = Options(**given)
    if not is_own(target):
        sizes = {name: getattr(options, name) for name in ("steps", "seed", "device")}
        sizes["batches"] = given.get("batches")  # None: as many as a model of its size can have
        others = {name: word for name, word in words.items() if name not in LATER_OPTIONS}
        build = partial(build_pair, preset=target if named else None, **{**others, **sizes})
        pair, built = build()
        return [(replace(pair, mutants=source_mutants(build)), replace(options, batches=built.batches))]
    if surplus := [name for name in PRESET_OPTIONS if words[name]]:
        flag = {"settings": "set"}.get(surplus[0], surplus[0])
        raise ParityUsageError(
            f"--{flag}: only with a preset, got {target}; the Pair has weights and inputs of its own"
        )
    require_device(options.device)
    return [(pair, options) for pair in load_pairs(target)]


def source_mutants(build: Callable[[], tuple[Pair, Options]]) -> dict[str, Callable[[], Pair]]:
    """The pair that `build` makes with each fault of the catalogue in its candidate, for `--mutate`."""
    from .faults import SIDES, catalogue, planted

    def faulty(name: str) -> Pair:
        with planted(f"{name}@{SIDES[0]}"):
            pair, _ = build()
            return pair

    return {f"{fault.name}: {fault.what}": partial(faulty, fault.name) for fault in catalogue().values()}


def build_pair(
    *,
    preset: str | None,
    weights: str | None,
    text: str | None,
    batch: int | None,
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
    from .pairs.transformer import transformer_pair

    require_device(device)
    name, config, parameters, weights_from = find_model(preset, weights, shrink)
    config = change(config, settings)
    config = replace(config, kernel=kernel) if kernel else config
    batch = DEFAULT_BATCH if batch is None else batch
    seq = min(DEFAULT_SEQ, config.max_seq_len) if seq is None else seq
    count = count_parameters(config)
    batches = default_batches(count) if batches is None else batches
    sizes = {"batch": batch, "seq": min(seq, config.max_seq_len), "batches": batches, "steps": steps}
    refuse_what_does_not_fit(name, config, count, **sizes)
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
        changes=" ".join((*(["--shrink"] if shrink else []), *(f"--set {setting}" for setting in settings))),
    )
    options = Options(batches=batches, steps=steps, seed=seed, device=device)
    return pair, replace(options, precisions=_precisions(dtypes)) if dtypes else options
