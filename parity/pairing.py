"""Which point of one side is which of the other: by an explicit map, by equal values, by equal names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .capture import Capture, Point
from .errors import ParityUsageError
from .findings import Unmatched
from .fingerprints import HUGE, distances
from .layouts import Layout, find_layouts

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


@dataclass(frozen=True, eq=False)
class PointPair:
    """Two points that are the same place.

    Args:
        how: "map", "value" or "name".
        layout: that takes the reference's value to the candidate's; None where the values differ, and where they are
            the same numbers in an order that no layout explains.
        distance: between the fingerprints of the two values.
    """

    reference: Point
    candidate: Point
    how: str
    layout: Layout | None
    distance: float


@dataclass(frozen=True, eq=False)
class Pairing:
    """Pairs in the reference's data order; every point is in a pair or among the unmatched."""

    pairs: tuple[PointPair, ...]
    unmatched: tuple[Unmatched, ...]


def pair_points(
    reference: Capture, candidate: Capture, explicit: Mapping[str, str] | None = None, tolerance: float = 1e-9
) -> Pairing:
    """Pairs the points of two captures one to one; a point that has no partner is told with the reason.

    First the explicit map (reference name -> candidate name); then equal values of equal size, the most similar names
    first; then, for values that differ, equal normalised names of equal size in data order, where a fault shows. Arrays
    of one element or of one number are recognised by name alone.

    Raises:
        ParityUsageError: the map names a point that is not there, or one twice.
    """
    left, right = reference.points, candidate.points
    partner: dict[int, tuple[int, str]] = {i: (j, "map") for i, j in _mapped(left, right, explicit or {})}
    names = [normalised(point.name) for point in left], [normalised(point.name) for point in right]
    gaps = distances([point.fingerprint for point in left], [point.fingerprint for point in right])
    for how, found in (
        ("value", _by_value(left, right, gaps, _similarities(*names), tolerance)),
        ("name", _by_name(left, right, *names)),
    ):
        taken = {j for j, _ in partner.values()}
        for i, j in found:
            if i not in partner and j not in taken:
                partner[i] = (j, how)
                taken.add(j)
    pairs = []
    for i, (j, how) in sorted(partner.items()):
        equal = gaps[i, j] <= tolerance
        layout = layout_between(left[i].value, right[j].value, tolerance) if equal else None
        pairs.append(PointPair(left[i], right[j], how, layout, float(gaps[i, j])))
    taken = {j for j, _ in partner.values()}
    lonely = [
        *_lonely("reference", left, set(partner), names[0], right, names[1]),
        *_lonely("candidate", right, taken, names[1], left, names[0]),
    ]
    return Pairing(tuple(pairs), tuple(lonely))


def layout_between(reference: np.ndarray, candidate: np.ndarray, tolerance: float = 1e-9) -> Layout | None:
    """The plainest layout that takes one array to the other within `tolerance` of the largest element, if there is one.

    Whatever is huge or not finite equals its like: masks are made with any constant.
    """
    a, b = moderate(reference), moderate(candidate)
    unit = tolerance * max(float(np.nanmax(np.abs(x), initial=0)) for x in (a, b))

    def equal(one: np.ndarray, other: np.ndarray) -> bool:
        return bool(((np.abs(one - other) <= unit) | (np.isnan(one) & np.isnan(other))).all())

    return next(find_layouts(a, b, equal), None)


def moderate(x: np.ndarray) -> np.ndarray:
    """An array in float64 or complex128, NaN for all that is huge or not finite."""
    wide = np.asarray(x).astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    ordinary = np.abs(wide) < HUGE
    return wide if ordinary.all() else np.where(ordinary, wide, np.nan)


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
    for i, (word, following) in enumerate(pairwise((*words, ""))):
        if word == "layer" and not following.isdigit():
            if iterations:
                words[i] = iterations.pop(0)
            else:
                words[i], repeat = str(repeat - 1), 1
            break
    words = [word for word in words if word not in _GENERIC] + call.split(" ", 1) * bool(call)
    words += [f"#{int(iteration) + 1}" for iteration in iterations if iteration != "0"]
    return (*words, *([] if slot in ("", ":0") else [slot.lower()]), *([f"#{repeat}"] if repeat > 1 else []))


#: path, then an einops call, then the slot within an output, then the number of the repetition
_NAME = re.compile(
    r"(?P<path>[^/':#]*?)/?(?P<call>\w+ '[^']*')?(?P<slot>:[^#]*)?(?:#(?P<repeat>\d+))?|(?P<other>.*)", re.S
)


def _mapped(left: Sequence[Point], right: Sequence[Point], explicit: Mapping[str, str]) -> list[tuple[int, int]]:
    sides = ([point.name for point in left], explicit), ([point.name for point in right], explicit.values())
    for known, given in sides:
        for name in given:
            if name not in known:
                raise ParityUsageError(f"explicit: names of points of the captures, got {name!r}; see their points")
    if len(set(explicit.values())) < len(explicit):
        raise ParityUsageError(f"explicit: each candidate point once, got {dict(explicit)}; pair one to one")
    return [(sides[0][0].index(a), sides[1][0].index(b)) for a, b in explicit.items()]


def _by_value(
    left: Sequence[Point], right: Sequence[Point], gaps: np.ndarray, alike: np.ndarray, tolerance: float
) -> list[tuple[int, int]]:
    """Equal values, the most similar names first, then the closest values, then the nearest places in the order."""
    sizes = np.array([p.fingerprint.numel for p in left])[:, None] == np.array([p.fingerprint.numel for p in right])
    told = np.array([p.fingerprint.recognisable for p in left], bool)[:, None]
    i, j = np.nonzero((gaps <= tolerance) & sizes & told)
    decade = np.round(np.log10(np.maximum(gaps[i, j], 1e-14)))
    apart = np.abs(i / max(len(left), 1) - j / max(len(right), 1))
    order = np.lexsort((apart, decade, -np.round(alike[i, j], 3)))
    return [(int(i[k]), int(j[k])) for k in order]


def _by_name(
    left: Sequence[Point], right: Sequence[Point], names: Sequence[tuple[str, ...]], others: Sequence[tuple[str, ...]]
) -> list[tuple[int, int]]:
    """Equal names of equal size, in data order."""
    places = defaultdict(list)
    for j, name in enumerate(others):
        places[name].append(j)
    return [(i, j) for i, name in enumerate(names) for j in places[name] if _numel(left[i]) == _numel(right[j])]


def _similarities(names: Sequence[tuple[str, ...]], others: Sequence[tuple[str, ...]]) -> np.ndarray:
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


def _lonely(
    side: str,
    points: Sequence[Point],
    paired: set[int],
    names: Sequence[tuple[str, ...]],
    others: Sequence[Point],
    other_names: Sequence[tuple[str, ...]],
) -> list[Unmatched]:
    """The points of one side without a partner, with the reason."""
    namesakes = defaultdict(list)
    for other, name in zip(others, other_names, strict=True):
        namesakes[name].append(other)
    lonely = []
    for i, (point, name) in enumerate(zip(points, names, strict=True)):
        if i in paired:
            continue
        sizes = sorted({_numel(other) for other in namesakes[name]})
        if not sizes:
            reason = "the other side has no point of this value or name"
        elif _numel(point) in sizes:
            reason = f"{namesakes[name][0].name} on the other side has another partner"
        else:
            found = namesakes[name][0]
            reason = f"{found.name} on the other side has shape {found.shape}, this one {point.shape}"
        lonely.append(Unmatched(side, point.name, reason))
    return lonely


def _numel(point: Point) -> int:
    return point.fingerprint.numel
