"""The model that the words of a call name: a preset or a checkpoint, with fields changed; its size and its text."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from .errors import ParityUsageError

DEFAULT_PRESET = "tiny"
#: More text than any check reads, so that a long file is not tokenized to its end.
TOKENIZED_BYTES = 200_000


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
        near = [f"{name}.py"] if Path(f"{name}.py").is_file() else near
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
