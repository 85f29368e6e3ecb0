"""What the commands do: from the words of a call to a Pair, and from its Result to the terminal or a file."""

from __future__ import annotations

import difflib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

from .acceptance import accept, today, unneeded
from .errors import USAGE_ERROR, ParityUsageError
from .limits import default_batches, refuse_what_does_not_fit, require_device
from .memory import return_freed_memory
from .options import Options
from .output import STDOUT, destination_of, showing, write_result, write_results
from .pair import Pair
from .settings import find_settings
from .targets import is_own, load_pairs
from .verdict import check

DEFAULT_PRESET = "tiny"
DEFAULT_BATCH = 2
DEFAULT_SEQ = 128
#: Options that a Pair of the caller's own has no use for, and those that every check has.
PRESET_OPTIONS = ("weights", "text", "batch", "seq", "kernel", "settings", "shrink")
LATER_OPTIONS = ("thorough", "curve", "seeds", "mutate", "budget")
COMMON_OPTIONS = ("batches", "steps", "seed", "device", *LATER_OPTIONS)
#: More text than any check reads, so that a long file is not tokenized to its end.
TOKENIZED_BYTES = 200_000


def run_check(*, targets: tuple[str, ...], json_path: str | None, plain: bool, plant: str | None, **words: Any) -> int:
    """`parity check`; returns the exit status."""
    from .faults import describe_faults, plant_fault

    if plant == "list":
        print(describe_faults())
        return 0
    if targets == ("list",):
        print(describe_presets())
        return 0
    planted = [plant_fault(plant).describe(plant)] if plant is not None else []
    return_freed_memory()
    destination = destination_of(json_path)
    project = find_settings(Path.cwd())
    given = {**project.options, **_said(words)}
    # every target is understood before the first one is checked
    work = [
        each for target in targets or (DEFAULT_PRESET,) for each in build_target(target, words, given, bool(targets))
    ]
    results, refused = [], []
    for pair, options in work:
        try:
            with showing(plain) as progress:
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


def find_model(preset: str | None, weights: str | None, shrink: bool) -> tuple[str, Any, Any, str]:
    """Name, config, parameters (None: to be drawn) and where they come from, of a preset or a checkpoint folder.

    Raises:
        ParityUsageError: there is no such preset or checkpoint, or the two given together are different models.
    """
    from jaxcore.presets import shrink as shrink_config

    if weights is None:
        name = DEFAULT_PRESET if preset is None else preset
        config = find_preset(name)
        return name, shrink_config(config) if shrink else config, None, ""
    if shrink:
        raise ParityUsageError("--shrink: only without --weights, got both; trained weights have one size")
    from .weights import load_checkpoint

    checkpoint = load_checkpoint(Path(weights))
    if preset is not None:
        asked, found = asdict(find_preset(preset)), asdict(checkpoint.config)
        if differing := [name for name in asked if asked[name] != found[name]]:
            first = differing[0]
            raise ParityUsageError(
                f"--weights: the model of the preset {preset} ({first} {asked[first]}), got {weights} "
                f"({first} {found[first]}); leave the preset out to check what the folder holds"
            )
    name = preset or Path(weights).resolve().name
    return name, checkpoint.config, checkpoint.parameters, describe_checkpoint(checkpoint)


def describe_checkpoint(checkpoint: Any) -> str:
    """Family and folder, what of the file was left out and why, and what in it is no number."""
    words = [f"{checkpoint.family} checkpoint {checkpoint.folder}"]
    reasons: dict[str, int] = {}
    for _, reason in checkpoint.ignored:
        reasons[reason] = reasons.get(reason, 0) + 1
    words += [f"{count} of its tensors left out: {reason}" for reason, count in reasons.items()]
    if checkpoint.non_finite:
        words.append(f"NaN or infinity in {', '.join(checkpoint.non_finite[:3])}")
    return "; ".join(words)


def find_preset(name: str) -> Any:
    """A preset by name; a wrong name is answered with the nearest ones."""
    from jaxcore.presets import PRESETS

    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=3)
        advice = f"did you mean {' or '.join(near)}?" if near else "choose one of them"
        raise ParityUsageError(f"PRESET: one of {', '.join(PRESETS)}, got {name!r}; {advice}")
    return PRESETS[name]


def change(config: Any, settings: Sequence[str]) -> Any:
    """The config with some fields changed, each as FIELD=VALUE with the value in JSON or a bare word.

    Raises:
        ParityUsageError: a setting is none, or no model can have it.
    """
    from jaxcore.config import ModelConfig, config_from_dict

    if not settings:
        return config
    known = [field.name for field in fields(ModelConfig)]
    values, changed = asdict(config), set()
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in known:
            near = [field for field in known if name and name in field] or difflib.get_close_matches(name, known, n=2)
            likely = " or ".join(f"{field}={text or values[field]}" for field in near)
            advice = f"did you mean {likely}?" if near else f"fields are {', '.join(known)}"
            raise ParityUsageError(f"--set: FIELD=VALUE of the ModelConfig, got {setting!r}; {advice}")
        values[name] = _value(name, text)
        changed.add(name)
    # what followed from other fields follows them still
    if "d_head" not in changed and config.d_model == config.num_heads * config.head_width:
        values["d_head"] = None
    if "num_kv_heads" not in changed and config.num_heads == config.kv_heads:
        values["num_kv_heads"] = None
    try:
        return config_from_dict(values)
    except ValueError as error:
        raise ParityUsageError(f"--set: {error}") from error


def _value(name: str, text: str) -> Any:
    """None, True and False as Python writes them, numbers and objects as JSON does, everything else a word."""
    from jaxcore.config import ModelConfig, RopeScaling

    python = {"None": None, "True": True, "False": False}
    try:
        value = python[text] if text in python else json.loads(text)
    except (ValueError, RecursionError):  # no JSON, or a number or a nesting that Python refuses to read
        value = text
    kind = get_type_hints(ModelConfig)[name]
    if kind is float and not _is_number(value):
        default = next(field.default for field in fields(ModelConfig) if field.name == name)
        raise ParityUsageError(f"--set: {name}: a finite number, got {text!r}; for example {name}={default:g}")
    if RopeScaling in get_args(kind) and value is not None:
        wanted = [field.name for field in fields(RopeScaling)]
        if not isinstance(value, dict) or set(value) != set(wanted) or not all(map(_is_number, value.values())):
            rule = f"None or a JSON object of numbers with {', '.join(wanted)}"
            raise ParityUsageError(f"--set: {name}: {rule}, got {text!r}; take them from the checkpoint's config.json")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_source(text: str | None, weights: str | None, config: Any) -> Any:
    """Tokens of the text asked for: by the checkpoint's own tokenizer where it has one, else bytes."""
    import numpy as np

    from .pairs.text import read_text, standard_library
    from .pairs.transformer import Source

    data = standard_library() if text is None else read_text(Path(text))
    where = "Python's standard library" if text is None else text
    if weights is not None and (Path(weights) / "tokenizer.json").exists():
        from .weights import tokenize

        tokens, padding = tokenize(Path(weights), [data[:TOKENIZED_BYTES].decode("utf-8", "replace")])
        return Source(tokens[0][padding[0]], f"text: {where}, by the checkpoint's tokenizer")
    return Source(np.frombuffer(data, np.uint8).astype(np.int64), f"text: {len(data):,} bytes of {where}, a token each")


def count_parameters(config: Any) -> int:
    """Parameters of a model of any depth, counted on two shallow ones: a table of a million layers would never end."""
    from jaxcore.parameters import count_parameters

    one, two = (count_parameters(replace(config, num_layers=layers)) for layers in (1, 2))
    return one + (config.num_layers - 1) * (two - one)


def describe_presets() -> str:
    """A line per preset: name and parameters."""
    from jaxcore.presets import PRESETS

    return "\n".join(f"{name:14}{count_parameters(config):>17,} parameters" for name, config in PRESETS.items())
