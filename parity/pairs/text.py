"""Real text as tokens: bytes of the Python standard library's own source, or of the user's file. No download."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np

from ..errors import ParityUsageError


def standard_library(limit: int = 4_000_000) -> bytes:
    """The first `limit` bytes of the standard library's top-level modules, in alphabetical order."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = b""
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    if not text:
        raise ParityUsageError(f"text: the standard library's sources, got none in {folder}; give a file with --text")
    return text[:limit]


def read_text(path: Path) -> bytes:
    """The bytes of a user's file.

    Raises:
        ParityUsageError: there is no such file, or it is empty.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ParityUsageError(
            f"--text: a file that can be read, got {path}: {error.strerror}; check the path"
        ) from None
    if not text:
        raise ParityUsageError(f"--text: a file with text in it, got {path} of 0 bytes; give another")
    return text


def draw_windows(tokens: np.ndarray, generator: np.random.Generator, batch: int, seq: int) -> np.ndarray:
    """`batch` windows of `seq` + 1 consecutive tokens from random places, int64 "b t"; a short text is repeated."""
    if len(tokens) < seq + 1:
        tokens = np.tile(tokens, -(-(seq + 1) // len(tokens)))
    starts = generator.integers(0, len(tokens) - seq, batch)
    return np.stack([tokens[start : start + seq + 1] for start in starts])
