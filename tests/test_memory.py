"""What a check keeps lies on disk: the same bits, read-only, gone with the last array; and no verdict depends on it."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import optax
import pytest
import torch

import parity
import parity.taps
from parity import memory
from parity.memory import LARGE, leave_memory_to_runs, settle

RANDOM = np.random.Generator(np.random.PCG64(0))
MANY = RANDOM.normal(size=LARGE // 8)

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def shelved(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What is kept once it is written."""
    kept = memory.shelved(arrays)
    settle()
    return kept


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files() -> int:
    """Files without a name that are mapped."""
    return Path("/proc/self/maps").read_text().count("(deleted)")


def test_every_type_and_shape_comes_back_bit_for_bit():
    given = {
        "many": MANY,
        "transposed": RANDOM.normal(size=(3, 5)).T,
        "one": np.float32(2.5).reshape(()),
        "empty": np.zeros((0, 4)),
        "bits": np.array([True, False]),
        "whole": np.arange(7),
        "bfloat16": RANDOM.normal(size=9).astype(ml_dtypes.bfloat16),
        "complex": np.array([1 + 2j]),
        "nan": np.array([np.nan, -0.0, np.inf]),
    }
    kept = shelved(given)
    assert list(kept) == list(given)
    for name, array in given.items():
        assert (kept[name].dtype, kept[name].shape) == (array.dtype, array.shape), name
        assert kept[name].tobytes() == array.tobytes(), name
        assert kept[name] is not array or not array.nbytes, name
    with pytest.raises(ValueError, match="read-only"):
        kept["many"][0] = 0


def test_what_is_small_stays_where_it_is():
    array = np.ones(LARGE // 8 - 1)
    assert shelved({"a": array})["a"] is array


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), FileNotFoundError("no TMPDIR")])
def test_without_a_disk_it_stays_in_memory(monkeypatch, error):
    def refuse(**_):
        raise error

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert shelved({"many": MANY})["many"] is MANY


@linux
def test_a_full_disk_keeps_everything_in_memory():
    """/dev/full takes no byte, as a disk without space."""
    files = open_files()
    with pytest.MonkeyPatch.context() as patch, Path("/dev/full").open("wb") as full:
        patch.setattr(tempfile, "TemporaryFile", lambda **_: full)
        assert shelved({"many": MANY})["many"] is MANY
    assert open_files() == files


@linux
def test_the_file_goes_with_the_last_array():
    files = open_files()
    kept = shelved({"many": MANY, "few": np.ones(3)})
    assert open_files() == files + 1
    few = kept["few"]
    del kept
    assert few.sum() == 3
    del few
    gc.collect()
    assert open_files() == files


def test_what_is_asked_for_before_it_is_written_is_there():
    given = {str(number): RANDOM.normal(size=LARGE // 64) for number in range(32)}
    kept = memory.shelved(given)
    early = {name: array.copy() for name, array in kept.items()}
    settle()
    assert all(np.array_equal(early[name], array) for name, array in given.items())
    assert all(np.array_equal(kept[name], array) and kept[name] is not array for name, array in given.items())


@linux
def test_its_pages_leave_the_process_and_come_back():
    kept = shelved({"many": RANDOM.normal(size=4 * LARGE // 8)})
    total = kept["many"].sum()
    looked_at = resident()
    leave_memory_to_runs()
    assert looked_at - resident() > 3 * LARGE
    assert kept["many"].sum() == total


def scaled(params, x):
    return {"y": parity.tap("scaled", x * params["w"]) ** 2}


PAIR = parity.Pair(
    "scaled",
    parity.Torch(scaled, optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)),
    parity.Jax(scaled, optimizer=lambda: optax.adamw(1e-3, weight_decay=1e-2)),
    {"w": np.linspace(0.5, 2, 15, dtype=np.float32)},
    lambda generator: {"x": generator.normal(size=(7, 15))},
)


def test_a_check_says_the_same_from_disk(monkeypatch):
    """Every float64 run and step of it shelved, against none of them."""

    def said(large: int) -> dict:
        monkeypatch.setattr(memory, "LARGE", large)
        document = parity.check(PAIR, points=True, batches=2, steps=2, precisions=("float32",), curve=2).to_dict()
        return {name: value for name, value in document.items() if name != "seconds"}

    kept = said(2**62)
    assert kept["verdict"] == "PASS", kept["reason"]
    assert said(1) == kept


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_writes_by_itself():
    """The thread of its parent is not there: waiting for it would never end."""
    code = (
        "import os, numpy as np\nfrom parity import memory\n"
        "many = np.ones(memory.LARGE // 8)\nmemory.shelved({'a': many}); memory.settle()\n"
        "memory.shelved({'a': many})\nchild = os.fork()\n"
        "kept = memory.shelved({'a': many}); memory.settle()\nassert kept['a'] is not many\n"
        "if child: raise SystemExit(os.waitpid(child, 0)[1])\nos._exit(0)\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)
