"""Inputs of modules whose partner is another point: where one side computes something that the other one does not.

An activation between two modules is a point as the input of the second one. Where the other side has none, that
input is the output of the first module, a point with a partner of its own; or it is a module's, of another name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .capture import GIVEN, Capture, Point, owner
from .point_names import normalised

Name = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class InputPair:
    """Two values that the same module is given.

    `left` and `right` are the places of the points on their sides. Where one of them has another partner already it
    stands for itself under the input's name, and `place` is where the pair comes in the reference's order.
    """

    points: tuple[Point, Point]
    left: int
    right: int
    place: float | None = None


def pair_inputs(
    reference: Capture,
    candidate: Capture,
    partner: Mapping[int, int],
    names: tuple[Sequence[Name], Sequence[Name]],
) -> list[InputPair]:
    """For the inputs that have no partner, by the names of both sides' points as `normalised` has them."""
    found: list[InputPair] = []
    for side, (own, other) in enumerate(((reference, candidate), (candidate, reference))):
        done, index = ({*partner}, {*partner.values()}), {point.name: k for k, point in enumerate(other.points)}
        taken = {(each.left, each.right)[side] for each in found}
        known = {normalised(alias): (alias, point) for alias, point in other.aliases.items() if point in index}
        for k, name in _inputs(own, names[side]):
            if k in done[side] or k in taken or name not in known:
                continue
            taken.add(k)
            point, (alias, there) = own.points[k], known[name]
            same = other[there]
            if same.fingerprint.numel != point.fingerprint.numel:
                continue
            place = None
            if index[there] in done[1 - side]:
                same = replace(same, name=alias, source=GIVEN, gradient=None)
                place = k if side == 0 else _before(reference, owner(alias), index[there])
            points = (point, same) if side == 0 else (same, point)
            places = (k, index[there]) if side == 0 else (index[there], k)
            found.append(InputPair(points, *places, place))
    return found


def _inputs(capture: Capture, names: Sequence[Name]) -> Iterator[tuple[int, Name]]:
    """Points that modules are given, and how the input is called: inputs themselves, then what is a point otherwise."""
    index = {point.name: k for k, point in enumerate(capture.points)}
    yield from ((k, names[k]) for k, point in enumerate(capture.points) if point.source == GIVEN)
    yield from ((index[point], normalised(alias)) for alias, point in capture.aliases.items() if point in index)


def _before(capture: Capture, module: str, otherwise: int) -> float:
    """Just before the first point that is of a module, or within it; else just after another one."""
    return next((k - 0.5 for k, point in enumerate(capture.points) if _within(point.name, module)), otherwise + 0.5)


def _within(name: str, module: str) -> bool:
    return name == module or name.startswith(tuple(f"{module}{mark}" for mark in "./:#["))
