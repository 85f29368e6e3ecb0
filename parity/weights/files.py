"""A checkpoint folder from a stranger: JSON and safetensors read with suspicion, nothing ever unpickled."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from parity.errors import ParityUsageError

from .refusal import brief, refuse, some

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"

#: Types of a file that hold weights; the narrow ones are read as float32, which holds each of their values exactly.
FLOATS = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_LARGEST_JSON = 64 * 2**20


@dataclass(frozen=True)
class Stored:
    """Where one tensor lies: its file, type as safetensors names it, shape, and first byte."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int


@dataclass(frozen=True)
class TensorFiles(Mapping[str, np.ndarray]):
    """The tensors of a folder by name; a value, if `check_float` accepts its type, is read whenever it is asked for."""

    where: str
    stored: Mapping[str, Stored]

    def __getitem__(self, name: str) -> np.ndarray:
        # the library's own NumPy reader knows bfloat16 in some versions and float8 in none, so the bytes that it has
        # validated are read here
        entry = self.stored[name]
        count = math.prod(entry.shape)
        tensor = np.fromfile(entry.file, FLOATS[entry.dtype], count, offset=entry.start)
        if tensor.size != count:
            raise refuse(f"{entry.file}: {name}", f"{count} elements", f"{tensor.size}", "the file changed; try again")
        return tensor.reshape(entry.shape).astype("f8" if entry.dtype == "F64" else "f4", copy=False)

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def check_float(self, name: str) -> None:
        """Raises ParityUsageError unless the tensor's type holds weights."""
        entry = self.stored[name]
        if entry.dtype not in FLOATS:
            raise refuse(
                f"{entry.file}: {name}",
                f"one of {', '.join(FLOATS)}",
                entry.dtype,
                "save the checkpoint in float32, float16 or bfloat16; quantised weights mean nothing without scales",
            )


def open_tensors(folder: Path) -> TensorFiles:
    """Names, types, shapes and places of all tensors of a checkpoint folder; headers are read, values are not.

    Raises:
        ParityUsageError: no safetensors, pickles only, a broken file, an index that does not agree with its shards.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise refuse(f"{folder}", "a folder that can be read", str(error), "give yourself the right to it") from error
    if "adapter_config.json" in names:
        raise refuse(f"{folder}", "a whole model", "an adapter (adapter_config.json)", "merge it into its model first")
    if WEIGHTS in names and INDEX in names:
        raise refuse(f"{folder}", f"{WEIGHTS} or {INDEX}", "both", "remove the one that is out of date")
    if WEIGHTS in names:
        file = file_in(folder, WEIGHTS, folder)
        return TensorFiles(str(file), _read_header(file))
    if INDEX in names:
        return _open_shards(folder)
    if pickles := [name for name in names if name.endswith(_PICKLES)]:
        raise refuse(
            f"{folder}",
            f"{WEIGHTS} or {INDEX}",
            f"only {some(pickles)}, pickle files, which can run code when they are read and are never opened here",
            "convert the checkpoint to safetensors where you trust it (transformers: save_pretrained)",
        )
    raise refuse(f"{folder}", f"{WEIGHTS} or {INDEX}", some(names) or "an empty folder", "give a checkpoint folder")


def _open_shards(folder: Path) -> TensorFiles:
    index = folder / INDEX
    places = read_json(folder, INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise refuse(f"{index}: weight_map", "tensor names to file names", brief(places), "download it again")
    shards = {shard: file_in(folder, shard, index) for shard in sorted(set(places.values()))}
    stored: dict[str, Stored] = {}
    for shard, file in shards.items():
        for name, entry in _read_header(file).items():
            if name in stored:
                raise refuse(
                    f"{file}: {name}", "each tensor in one shard", f"another in {stored[name].file.name}", "remove one"
                )
            if places.get(name) != shard:
                rule = f"listed in {INDEX} under this shard"
                raise refuse(f"{file}: {name}", rule, brief(places.get(name)), "take index and shards together")
            stored[name] = entry
    for name, shard in places.items():
        if name not in stored:
            rule = f"in {shard}, as {INDEX} says"
            raise refuse(f"{folder / shard}: {name}", rule, "no such tensor", "take index and shards together")
    return TensorFiles(str(index), {name: stored[name] for name in places})


def file_in(folder: Path, name: str, named_by: Path) -> Path:
    """The regular file `name` of the folder; links are followed, but not out of it.

    The Hugging Face cache is the exception: its folders hold links to the blobs beside them.

    Raises:
        ParityUsageError: no such file, or a name that leads elsewhere.
    """
    if name != Path(name).name or name in ("", ".", "..") or "\\" in name or not name.isprintable():
        raise refuse(f"{named_by}", "names of files in its own folder", brief(name), "do not trust this checkpoint")
    path = folder / name
    home = folder.resolve()
    roots = [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]
    try:
        real = path.resolve()
        regular = path.is_file()
    except (OSError, RuntimeError) as error:  # a link that leads to itself is one or the other, by Python version
        raise refuse(f"{path}", "a file", str(error), "download it again") from error
    if not any(real.is_relative_to(root) for root in roots):
        raise refuse(f"{path}", "within its own folder", f"a link to {real}", "do not trust this checkpoint")
    if not regular:
        found = "something else" if path.exists() else "no such file"
        raise refuse(f"{path}", f"a file, named by {named_by}", found, "download the whole checkpoint")
    return path


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file of the folder.

    Raises:
        ParityUsageError: no such file, not JSON, not an object, a key twice.
    """
    path = file_in(folder, name, folder)
    try:
        size = path.stat().st_size
        raw = path.read_bytes() if size <= _LARGEST_JSON else b""
    except OSError as error:
        raise refuse(f"{path}", "a file that can be read", str(error), "give yourself the right to it") from error
    if size > _LARGEST_JSON:
        raise refuse(f"{path}", f"at most {_LARGEST_JSON} bytes", f"{size}", "give the checkpoint's own")
    return _parse_json(path, raw)


def _parse_json(path: Path, raw: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) != len(pairs):
            key = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise refuse(f"{path}: {key}", "each key once", "it twice or more", "remove all but the right one")
        return values

    try:
        values = json.loads(raw.decode("utf-8"), object_pairs_hook=once)
    except RecursionError as error:
        raise refuse(f"{path}", "a JSON object", "one nested too deeply", "download it again") from error
    except ParityUsageError:
        raise
    except ValueError as error:  # no UTF-8, no JSON, or a number of more digits than Python reads
        raise refuse(f"{path}", "a JSON object", f"no JSON ({error})", "download it again") from error
    if not isinstance(values, dict):
        raise refuse(f"{path}", "a JSON object", brief(values), "download it again")
    return values


def _read_header(file: Path) -> dict[str, Stored]:
    """The header of one safetensors file, once the library has found it whole: offsets, sizes, types, JSON."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        size = file.stat().st_size
        raise refuse(f"{file}", "a whole safetensors file", f"{size} bytes: {error}", "download it again") from error
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = _parse_json(file, stream.read(length))
    return {
        name: Stored(file, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
        for name, entry in header.items()
        if name != "__metadata__"
    }
