"""Texts to tokens, with a checkpoint's own tokenizer or as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .checkpoint import existing, read_fields
from .families import family_of
from .files import file_in
from .refusal import brief, printable, refuse

TOKENIZER = "tokenizer.json"


def tokenize(folder: Path, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens (int64 "b t") and where they are real (bool "b t"), padded on the right to the longest text.

    The folder's tokenizer.json does it, special tokens included, in the same process and without any download; a model
    with a vocabulary of 256 and no tokenizer reads the bytes of UTF-8. Texts are cut at the model's longest sequence.

    Raises:
        ParityUsageError: no tokenizer, a broken one, one with tokens that the model does not have, no text.
    """
    folder = existing(folder)
    fields = read_fields(folder)
    config = family_of(fields).config(fields, pooler=False)
    if isinstance(texts, str) or not texts or not all(isinstance(text, str) for text in texts):
        raise refuse("texts", "a list of at least one text", brief(texts), "give a list of str")
    if (folder / TOKENIZER).exists():
        rows = _encode(file_in(folder, TOKENIZER, folder), texts, config.max_seq_len)
    elif config.vocab_size == 256:
        rows = [list(text.encode("utf-8", "surrogateescape"))[: config.max_seq_len] for text in texts]
    else:
        remedy = "take it from the same checkpoint; only a vocabulary of 256 is read as bytes"
        raise refuse(f"{folder / TOKENIZER}", "a tokenizer for this vocabulary", "no such file", remedy)
    longest = max(len(row) for row in rows)
    if longest == 0:
        raise refuse("texts", "at least one token in all", brief(texts), "give a text that is not empty")
    tokens = np.zeros((len(rows), longest), np.int64)
    padding = np.zeros((len(rows), longest), np.bool_)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = row
        padding[index, : len(row)] = True
    if tokens.max() >= config.vocab_size:
        rule = f"tokens below the model's vocab_size {config.vocab_size}"
        raise refuse(f"{folder / TOKENIZER}", rule, f"{tokens.max()}", "take both from one checkpoint")
    return tokens, padding


def _encode(file: Path, texts: Sequence[str], longest: int) -> list[list[int]]:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise refuse(f"{file}", "the package tokenizers", "no such package", "pip install tokenizers") from error
    try:
        tokenizer: Any = Tokenizer.from_str(file.read_text("utf-8"))
        # the file's own settings pad to a fixed length and cut where its authors liked
        tokenizer.no_padding()
        tokenizer.enable_truncation(longest)
        encodings = tokenizer.encode_batch(list(texts))
    except Exception as error:  # the library raises plain Exception for whatever is wrong with a file
        raise refuse(f"{file}", "a tokenizer", printable(str(error)), "download it again") from error
    return [encoding.ids for encoding in encodings]
