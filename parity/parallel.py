"""The same work on many tensors, by as many threads as there are processors: NumPy works outside Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")

#: More threads would only wait for memory.
MOST_THREADS = 4


def side_by_side(function: Callable[[Item], Found], items: Iterable[Item]) -> list[Found]:
    """`function` of every item, in order. It must not run a model: precision modes are a thread's own.

    Raises:
        Exception: the first that `function` raises.
    """
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as threads:
        return list(threads.map(function, items))
