"""Which point of one side is which of the other: by an explicit map, by equal values, by equal names."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from .capture import Capture, Point
from .errors import ParityUsageError
from .findings import Unmatched
from .fingerprints import HUGE, distance, distances
from .inputs import pair_inputs
from .layouts import Layout, find_layouts
from .point_names import Place, Site, normalised, similarities, site, unlayered


@dataclass(frozen=True, eq=False)
class PointPair:
    """Two points that are the same place.

    Args:
        how: "map"; "value"; "weights": of modules that hold the same; "place": as in the layers that agree; "name";
            "order": between the same neighbours; or "input": what the same module is given.
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
    reference: Capture,
    candidate: Capture,
    explicit: Mapping[str, str] | None = None,
    tolerance: float = 1e-9,
    inputs: bool = True,
    holders: Sequence[tuple[str, str]] = (),
) -> Pairing:
    """Pairs the points of two captures one to one; a point that has no partner is told with the reason.

    First the explicit map (reference name -> candidate name). Then equal values of equal size: those that no other
    point has; those of equal names, of the same two places as in other layers, of the same call between the same
    neighbours; the most similar names; unless most layers say otherwise (queries and keys exchanged in one of them).
    Then, where a fault shows, values that differ, of equal size: of modules that hold the same weights (`holders`, by
    path), and in the same three ways. Arrays of one element or of
    one number are recognised by name alone. Last, unless they are not wanted, the `inputs` of the same module: where
    one side computes something before it that the other one does not, one of them is a point with another partner.

    Raises:
        ParityUsageError: the map names a point that is not there, or one twice.
    """
    left, right = reference.points, candidate.points
    partner: dict[int, tuple[int, str]] = {i: (j, "map") for i, j in _mapped(left, right, explicit or {})}
    names = [normalised(point.name) for point in left], [normalised(point.name) for point in right]
    gaps = distances([point.fingerprint for point in left], [point.fingerprint for point in right])
    sizes = np.array([_numel(point) for point in left])[:, None] == np.array([_numel(point) for point in right])
    told = np.array([point.fingerprint.recognisable for point in left], bool)[:, None]
    equal = (gaps <= tolerance) & sizes & told
    sites = [site(point.name) for point in left], [site(point.name) for point in right]
    alone = equal & (equal.sum(0) == 1) & (equal.sum(1) == 1)[:, None]
    _join(partner, "value", np.argwhere(alone).tolist())
    similar = _by_value(equal, gaps, similarities(*names))
    for wanted in (equal, sizes):
        for how, found in (
            ("weights", lambda: _by_weights(left, right, holders)),
            ("name", lambda: _by_name(left, right, *names)),
            ("name", lambda: _by_site(left, right, *sites)),
            ("name", lambda: _by_last_word(left, right, *sites)),
            ("place", lambda: _by_place(partner, *sites)),
            ("order", lambda: _by_order(partner, left, right, *sites)),
            ("order", lambda: _by_order(partner, left, right, *sites, whole=False)),
        ):
            _join(partner, "value" if wanted is equal else how, [pair for pair in found() if wanted[pair]])
        if wanted is equal:
            # of values that several points have, none is taken from its namesake
            namesakes = _free(partner, _by_name(left, right, *names))
            mine, theirs = {i for i, _ in namesakes}, {j for _, j in namesakes}
            _join(partner, "value", [(i, j) for i, j in similar if i not in mine and j not in theirs])
            _uncross(partner, sizes, sites, names)
    _join(partner, "value", similar)
    known = {i: j for i, (j, _) in partner.items()}
    given = pair_inputs(reference, candidate, known, names) if inputs else []
    _join(partner, "input", [(each.left, each.right) for each in given if each.place is None])
    standing = [(each.place, each) for each in given if each.place is not None]
    pairs = [(float(i), _pair(left[i], right[j], how, tolerance)) for i, (j, how) in partner.items()]
    pairs += [(place, _pair(each.points[0], each.points[1], "input", tolerance)) for place, each in standing]
    pairs.sort(key=lambda pair: pair[0])
    mine, theirs = {*partner}, {j for j, _ in partner.values()}
    mine, theirs = mine.union(each.left for _, each in standing), theirs.union(each.right for _, each in standing)
    lonely = [
        *_lonely("reference", left, mine, names[0], right, names[1]),
        *_lonely("candidate", right, theirs, names[1], left, names[0]),
    ]
    return Pairing(tuple(pair for _, pair in pairs), tuple(lonely))


def _pair(one: Point, other: Point, how: str, tolerance: float) -> PointPair:
    gap = distance(one.fingerprint, other.fingerprint)
    layout = layout_between(one.value, other.value, tolerance) if gap <= tolerance else None
    return PointPair(one, other, how, layout, gap)


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


def _mapped(left: Sequence[Point], right: Sequence[Point], explicit: Mapping[str, str]) -> list[tuple[int, int]]:
    sides = ([point.name for point in left], explicit), ([point.name for point in right], explicit.values())
    for known, given in sides:
        for name in given:
            if name not in known:
                raise ParityUsageError(
                    f"points: names of points, the reference's to the candidate's, got {name!r}; a report has them"
                )
    if len(set(explicit.values())) < len(explicit):
        raise ParityUsageError(f"points: each point of the candidate once, got {dict(explicit)}; pair one to one")
    return [(sides[0][0].index(a), sides[1][0].index(b)) for a, b in explicit.items()]


def _by_value(equal: np.ndarray, gaps: np.ndarray, alike: np.ndarray) -> list[tuple[int, int]]:
    """Equal values, the most similar names first, then the closest values, then the nearest places in the order."""
    i, j = np.nonzero(equal)
    decade = np.round(np.log10(np.maximum(gaps[i, j], 1e-14)))
    apart = np.abs(i / max(equal.shape[0], 1) - j / max(equal.shape[1], 1))
    order = np.lexsort((apart, decade, -np.round(alike[i, j], 3)))
    return [(int(i[k]), int(j[k])) for k in order]


def _by_weights(
    left: Sequence[Point], right: Sequence[Point], holders: Sequence[tuple[str, str]]
) -> list[tuple[int, int]]:
    """The outputs of modules that hold the same weights; linen's paths begin with the whole model's class."""

    def of(path: str, points: Sequence[Point]) -> list[int]:
        return [i for i, point in enumerate(points) if point.name == path or point.name.endswith(f".{path}")]

    found = [(of(mine, left), of(theirs, right)) for mine, theirs in holders]
    return [(a[0], b[0]) for a, b in found if len(a) == len(b) == 1]


def _by_name(
    left: Sequence[Point], right: Sequence[Point], names: Sequence[tuple[str, ...]], others: Sequence[tuple[str, ...]]
) -> list[tuple[int, int]]:
    """Equal names of equal size, in data order."""
    places = defaultdict(list)
    for j, name in enumerate(others):
        places[name].append(j)
    return [(i, j) for i, name in enumerate(names) for j in places[name] if _numel(left[i]) == _numel(right[j])]


def _by_site(
    left: Sequence[Point], right: Sequence[Point], sites: Sequence[Site], others: Sequence[Site]
) -> list[tuple[int, int]]:
    """The same place of the same layer, whose number stands within the path in a list and behind it in a scan."""
    places: dict[object, list[int]] = defaultdict(list)
    for j, (place, numbers) in enumerate(others):
        places[unlayered(place), numbers].append(j)
    return [
        (i, found[0])
        for i, (place, numbers) in enumerate(sites)
        if len(found := places[unlayered(place), numbers]) == 1
        and numbers
        and _numel(left[i]) == _numel(right[found[0]])
    ]


def _by_last_word(
    left: Sequence[Point], right: Sequence[Point], sites: Sequence[Site], others: Sequence[Site]
) -> list[tuple[int, int]]:
    """The last word of a path, in the same layer, where no other point of either side ends in it (a tap, a method)."""

    def ends(points: Sequence[Point], found: Sequence[Site]) -> dict[object, list[int]]:
        places: dict[object, list[int]] = defaultdict(list)
        for i, (point, (place, numbers)) in enumerate(zip(points, found, strict=True)):
            word = unlayered(place).path.rpartition(".")[2]
            if word and not place.call:
                places[word, place.slot, place.repeat, numbers if numbers != (1,) else (), _numel(point)].append(i)
        return places

    mine, theirs = ends(left, sites), ends(right, others)
    return [(found[0], theirs[end][0]) for end, found in mine.items() if len(found) == len(theirs.get(end, ())) == 1]


def _join(partner: dict[int, tuple[int, str]], how: str, found: Sequence[Sequence[int]]) -> None:
    """Adds the pairs of which neither has a partner yet."""
    taken: set[int] = set()
    for i, j in _free(partner, found):
        if i not in partner and j not in taken:
            partner[i] = (j, how)
            taken.add(j)


def _free(partner: Mapping[int, tuple[int, str]], found: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    taken = {j for j, _ in partner.values()}
    return [(i, j) for i, j in found if i not in partner and j not in taken]


def _uncross(
    partner: dict[int, tuple[int, str]],
    sizes: np.ndarray,
    both_sites: tuple[Sequence[Site], Sequence[Site]],
    names: tuple[Sequence[tuple[str, ...]], Sequence[tuple[str, ...]]],
) -> None:
    """Exchanges the partners of two values that cross in the order where the same two places of most layers do not.

    Where as many do as do not, the names decide.
    """
    sites, others = both_sites
    usual: dict[Place, Counter[Place]] = defaultdict(Counter)
    layers: dict[Place, dict[tuple[int, ...], int]] = defaultdict(dict)
    for i, (j, how) in partner.items():
        if how == "value":
            usual[sites[i].place][others[j].place] += 1
            layers[sites[i].place][sites[i].numbers] = i
    for one, other in combinations([place for place, found in layers.items() if len(found) > 1], 2):
        both = [(i, layers[other][numbers]) for numbers, i in layers[one].items() if numbers in layers[other]]
        crossing = [(i, k) for i, k in both if (i < k) != (partner[i][0] < partner[k][0])]
        if 2 * len(crossing) > len(both):
            continue
        tied = 2 * len(crossing) == len(both)
        for i, k in crossing:
            pairs = (i, partner[k][0]), (k, partner[i][0])
            if all(
                sizes[a, b]
                and (
                    names[0][a] == names[1][b]
                    if tied
                    else usual[sites[a].place].most_common(1)[0][0] == others[b].place
                )
                for a, b in pairs
            ):
                partner.update({a: (b, "place") for a, b in pairs})


def _by_place(
    partner: Mapping[int, tuple[int, str]], sites: Sequence[Site], others: Sequence[Site]
) -> list[tuple[int, int]]:
    """What two layers at least, and most of those that agree, say of a place: its partner's, and that one's number."""
    votes: dict[Place, Counter[tuple[Place, tuple[int, ...]]]] = defaultdict(Counter)
    for i, (j, how) in partner.items():
        if how == "value" and len(sites[i].numbers) == len(others[j].numbers) > 0:
            further = tuple(b - a for a, b in zip(sites[i].numbers, others[j].numbers, strict=True))
            votes[sites[i].place][others[j].place, further] += 1
    index = {other: j for j, other in enumerate(others)}
    found = []
    for i, (place, numbers) in enumerate(sites):
        if i in partner or not votes[place]:
            continue
        ((other, further), count), *_ = votes[place].most_common(1)
        meant = index.get(Site(other, tuple(a + b for a, b in zip(numbers, further, strict=False))), -1)
        if meant >= 0 and count > 1 and 2 * count > votes[place].total():
            found.append((i, meant))
    return found


def _by_order(
    partner: Mapping[int, tuple[int, str]],
    left: Sequence[Point],
    right: Sequence[Point],
    sites: Sequence[Site],
    others: Sequence[Site],
    whole: bool = True,
) -> list[tuple[int, int]]:
    """The same einops calls of equal size, as many of them on both sides, between the same two neighbours.

    Unless `whole` the patterns may differ.
    """
    pairs = np.array([(i, j) for i, (j, _) in sorted(partner.items())], int).reshape(-1, 2)
    i, j = pairs.T
    kept = pairs[~(((i[:, None] < i) != (j[:, None] < j)).any(1))]
    taken = {j for j, _ in partner.values()}
    gaps: list[dict[tuple[object, ...], list[int]]] = []
    for points, places, done, anchors in ((left, sites, partner, kept[:, 0]), (right, others, taken, kept[:, 1])):
        gap: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for k, (point, (place, _)) in enumerate(zip(points, places, strict=True)):
            if k not in done and place.call:
                call = place.call if whole else place.call.split(" ")[0]
                gap[int(np.searchsorted(anchors, k)), call, place.slot, _numel(point)].append(k)
        gaps.append(gap)
    return [
        each
        for key, found in gaps[0].items()
        if len(found) == len(gaps[1].get(key, ()))
        for each in zip(found, gaps[1][key], strict=True)
    ]


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
