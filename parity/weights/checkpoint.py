"""Checkpoint folders in Hugging Face's layout, read into our parameters and written from them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxcore.config import ModelConfig
from jaxcore.parameters import check_parameters, parameter_table, unstack_layers

from .families import FAMILIES, family_of
from .fields import Fields
from .files import CONFIG, INDEX, WEIGHTS, open_tensors, read_json
from .refusal import refuse


@dataclass(frozen=True)
class Checkpoint:
    """A model and its weights.

    Attributes:
        config: the model.
        parameters: every one of `parameter_table(config)`, float32 (float64 where the file has it), contiguous.
        family: gpt2, llama, qwen3 or bert.
        ignored: tensors of the file that the model does not need, each with the reason.
        folder: where it was read.
        dtypes: types of the file's tensors, as safetensors names them.
        non_finite: parameters that hold NaN or infinity, which is allowed and worth knowing.
    """

    config: ModelConfig
    parameters: dict[str, np.ndarray]
    family: str
    ignored: tuple[tuple[str, str], ...]
    folder: Path
    dtypes: tuple[str, ...]
    non_finite: tuple[str, ...]


def load_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in a folder; all is checked by names and shapes before the first value is read.

    Raises:
        ParityUsageError: one line with file, key, what was expected, what was found, what to do.
    """
    folder = existing(folder)
    files = open_tensors(folder)
    fields = read_fields(folder)
    family = family_of(fields)
    config = family.config(fields, pooler=any(re.match(r"(bert\.)?pooler\.", name) for name in files))
    if config.num_layers > len(files):  # before a table of that many layers is built
        raise refuse(
            f"{fields.path}: number of layers",
            f"no more than the {len(files)} tensors of {files.where}",
            f"{config.num_layers}",
            "take config.json and weights from one checkpoint",
        )
    shapes = {name: entry.shape for name, entry in files.stored.items()}
    plan = family.weight_map.plan(shapes, parameter_table(config), files.where)
    used = [*plan.reads, *(tie.name for tie in plan.ties)]
    for name in used:
        files.check_float(name)
    parameters = plan.read(files)
    return Checkpoint(
        config=config,
        parameters=parameters,
        family=family.name,
        ignored=plan.ignored,
        folder=folder,
        dtypes=tuple(sorted({files.stored[name].dtype for name in used})),
        non_finite=tuple(name for name, value in parameters.items() if not np.isfinite(value).all()),
    )


def save_checkpoint(folder: Path, config: ModelConfig, parameters: Mapping[str, np.ndarray], family: str) -> None:
    """Write config.json and model.safetensors with the family's names; `load_checkpoint` gives the same bits back.

    Raises:
        ParityUsageError: an unknown family, a config that it cannot express, other parameters than the config's, or a
            folder that holds a checkpoint already.
    """
    from safetensors.numpy import save_file

    folder = Path(folder)
    if family not in FAMILIES:
        raise refuse("family", f"one of {', '.join(FAMILIES)}", repr(family), "choose one of them")
    fields = FAMILIES[family].fields(config)
    try:
        check_parameters(config, parameters)
    except ValueError as error:
        raise refuse("parameters", "those of the config", str(error), "correct them") from error
    table = parameter_table(config)
    plain = unstack_layers(parameters) if config.scan_layers else parameters
    tensors = FAMILIES[family].weight_map.invert(plain, table)
    if folder.exists() and not folder.is_dir():
        raise refuse(f"{folder}", "a folder or a new name", "a file", "choose another name")
    if there := [name for name in (CONFIG, WEIGHTS, INDEX) if (folder / name).exists()]:
        raise refuse(f"{folder}", "a folder without a checkpoint", f"{there[0]} in it", "choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    # invert allocates every tensor contiguous; save_file writes others in the order of their memory, silently wrong
    save_file(tensors, folder / f"{WEIGHTS}.part", metadata={"format": "pt"})
    (folder / f"{CONFIG}.part").write_text(json.dumps(fields, indent=2) + "\n", "utf-8")
    for name in (WEIGHTS, CONFIG):
        os.replace(folder / f"{name}.part", folder / name)


def read_fields(folder: Path) -> Fields:
    """The fields of a folder's config.json."""
    return Fields(str(folder / CONFIG), read_json(folder, CONFIG))


def existing(folder: Path) -> Path:
    """The folder, if there is one."""
    folder = Path(folder)
    if not folder.is_dir():
        found = "a file" if folder.exists() else "no such folder"
        raise refuse(f"{folder}", "a checkpoint folder", found, "give the folder that holds config.json")
    return folder
