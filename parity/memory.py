"""What a check keeps for later is put out of the memory that its runs need. Loads no framework.

What a float64 run leaves behind (gradients, moments) is as large as the model twice over, and is looked at again only
after other runs. While the next run begins, which for JAX means to compile, a thread writes it to a temporary file
without a name, which goes with the last of its arrays, and maps it back read-only: its pages are the system's to take
and to read again. Where no file can be written (a full disk, a read-only one) everything stays in memory.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import IO
from weakref import WeakSet

import numpy as np

#: Bytes from which on what one run leaves behind goes to a file: less of it is not worth the system's calls.
LARGE = 2**24
#: Where each array begins in a file: at the start of a line of the cache.
ALIGNED = 64

M_MMAP_THRESHOLD = -3  # malloc.h of glibc
RETURNED_BYTES = 4 * 2**20

_mapped: WeakSet[mmap.mmap] = WeakSet()
_lock = Lock()
_writer = ThreadPoolExecutor(1, "parity-shelf")
_pending: list[Future[None]] = []


def _begin_anew() -> None:
    """A forked child has no thread of its parent's; what that was about to write stays in memory here."""
    global _lock, _writer
    _lock, _writer = Lock(), ThreadPoolExecutor(1, "parity-shelf")
    _pending.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def shelved(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same arrays, bit for bit, soon read-only on disk where together they have LARGE bytes or more.

    The dict that is returned holds those in memory until they are written, and then those on disk.
    """
    kept = dict(arrays)
    if sum(array.nbytes for array in kept.values()) >= LARGE:
        _pending[:] = [each for each in _pending if not each.done()]
        _pending.append(_writer.submit(_shelve, kept))
    return kept


def settle() -> None:
    """Waits until all that is to be written is."""
    for each in [*_pending]:
        each.result()


def _shelve(kept: dict[str, np.ndarray]) -> None:
    """Writes the arrays of a dict and puts those that are read from the file in their places."""
    with suppress(OSError), tempfile.TemporaryFile(prefix="parity-", buffering=0) as file:
        starts = {name: _write(file, array) for name, array in kept.items() if array.nbytes}
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with _lock:
            _mapped.add(mapped)
        for name, start in starts.items():
            array = kept[name]
            kept[name] = np.frombuffer(mapped, np.uint8, array.nbytes, start).view(array.dtype).reshape(array.shape)


def leave_memory_to_runs() -> None:
    """Takes the pages of everything shelved out of this process; they are read again when they are looked at."""
    if hasattr(mmap, "MADV_DONTNEED"):
        with _lock:
            found = [*_mapped]
        for mapped in found:
            mapped.madvise(mmap.MADV_DONTNEED)


def return_freed_memory() -> None:
    """Makes the C library give back blocks of 4 MB and more as soon as they are freed.

    glibc raises that border up to 32 MB as it sees such blocks freed, and then keeps them, in pieces that nothing of a
    large model fits into (mallopt(3), M_MMAP_THRESHOLD): docs/numerics.md has the figures. Other C libraries have no
    such border.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, RETURNED_BYTES)


def _write(file: IO[bytes], array: np.ndarray) -> int:
    """Appends an array to a file without a buffer, which would cost several times as much; where it begins."""
    start = -(-file.tell() // ALIGNED) * ALIGNED
    file.seek(start)
    left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    while left:  # the system writes 2 GB at once, and less where it is interrupted
        left = left[file.write(left) :]
    return start
