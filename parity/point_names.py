"""What the names of points say: which words tell a place, which numbers a layer, and how alike two names are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

#: words of one meaning
_SYNONYMS = {
    "h": "layer",
    "layers": "layer",
    "block": "layer",
    "blocks": "layer",
    "attention": "attn",
    "layernorm": "norm",
    "ln": "norm",
    "rmsnorm": "norm",
    "embeddings": "embed",
    "embedding": "embed",
    "emb": "embed",
    "proj": "projection",
}
#: words that say nothing
_GENERIC = {"model", "transformer", "module", "kernel", "weight", "self", "call", "layer"}


def normalised(name: str) -> tuple[str, ...]:
    """The words of a name that tell one place from another, spelt alike for every framework.

    Lower case, split at punctuation, CamelCase and digits; synonyms merged, words that say nothing dropped. Layers
    without a number get that of the scan's iteration or of the repetition; any other iteration counts like "#2". An
    einops pattern stays one word, and the first of several outputs is the output.
    """
    parts = _NAME.fullmatch(name)
    assert parts is not None
    path, call, slot = parts["path"] or parts["other"] or "", parts["call"] or "", parts["slot"] or ""
    iterations = re.findall(r"\[(\d+)\]", path)
    path = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", re.sub(r"\[\d+\]", "", path)).lower()
    path = path.replace("layer_norm", "norm")
    words, repeat = re.findall(r"[a-z]+|\d+", path), int(parts["repeat"] or 1)
    words = [_SYNONYMS.get(word, word) for word in words]
    numbered = len(words) > 1 or bool(iterations) or repeat > 1  # a lone "h" is a name, and no layer
    for i, (word, following) in enumerate(pairwise((*words, ""))):
        if word == "layer" and not following.isdigit() and numbered:
            if iterations:
                words[i] = iterations.pop(0)
            else:
                words[i], repeat = str(repeat - 1), 1
            break
    words = ([word for word in words if word not in _GENERIC] if numbered else words) + call.split(" ", 1) * bool(call)
    words += [f"#{int(iteration) + 1}" for iteration in iterations if iteration != "0"]
    return (*words, *([] if slot in ("", ":0") else [slot.lower()]), *([f"#{repeat}"] if repeat > 1 else []))


#: path, then an einops call, then the slot within an output, then the number of the repetition
_NAME = re.compile(
    r"(?P<path>[^/':#]*?)/?(?P<call>\w+ '[^']*')?(?P<slot>:[^#]*)?(?:#(?P<repeat>\d+))?|(?P<other>.*)", re.S
)


class Place(NamedTuple):
    """What a point shares with its like in other layers."""

    path: str
    call: str
    slot: str
    repeat: str


class Site(NamedTuple):
    """A place and the numbers that were in its path, of layer or iteration; a tap has that of the repetition."""

    place: Place
    numbers: tuple[int, ...]


def site(name: str) -> Site:
    """A name without its numbers, and these."""
    parts = _NAME.fullmatch(name)
    assert parts is not None
    path, repeat = parts["path"] or parts["other"] or "", parts["repeat"] or "1"
    call, numbers = parts["call"] or "", tuple(map(int, re.findall(r"\d+", path)))
    place = Place(re.sub(r"\d+", "", path), call, parts["slot"] or "", repeat if numbers else "")
    return Site(place, numbers or (() if call else (int(repeat),)))


def unlayered(place: Place) -> Place:
    """The same for layers in a list, whose number stands within the path, and in a scan, whose number follows it."""
    return place._replace(path=".".join(word for word in re.split(r"[.\[\]]+", place.path) if word))


def similarities(names: Sequence[tuple[str, ...]], others: Sequence[tuple[str, ...]]) -> np.ndarray:
    """(len(names), len(others)): shared words and pairs of neighbours (Dice), halved where the numbers differ."""
    features = [_features(name) for name in (*names, *others)]
    index = {feature: k for k, feature in enumerate(sorted(set().union(*features)))} if features else {}
    table = np.zeros((len(features), len(index)))
    for row, found in zip(table, features, strict=True):
        row[[index[feature] for feature in found]] = 1
    a, b = table[: len(names)], table[len(names) :]
    dice = 2 * a @ b.T / np.maximum(a.sum(1)[:, None] + b.sum(1), 1)
    numbers = {name: tuple(word for word in name if word.isdigit()) for name in (*names, *others)}
    codes = {number: k for k, number in enumerate(dict.fromkeys(numbers.values()))}
    rows, columns = ([codes[numbers[name]] for name in side] for side in (names, others))
    same = np.array(rows, int)[:, None] == np.array(columns, int)
    return np.where(same, dice, dice / 2)


def _features(name: tuple[str, ...]) -> set[tuple[str | int, ...]]:
    """Each word with its number of occurrence, and each pair of neighbours."""
    return {(word, name[:k].count(word)) for k, word in enumerate(name)} | {("", *pair) for pair in pairwise(name)}
