"""Inputs of modules whose partner is another point: where one side computes something that the other one does not.

An activation between two modules is a point as the input of the second one. Where the other side has none, that
input is the output of the first module, a point with a partner of its own; or it is a module's, of another name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from .capture import GIVEN, Capture, Point, owner

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
    normalised: Callable[[str], Name],
) -> list[InputPair]:
    """For the inputs that have no partner, by the names of both sides' points as `normalised` has them."""
    found = []
    for side, (own, other) in enumerate(((reference, candidate), (candidate, reference))):
        done = ({*partner}, {*partner.values()})
        index = {point.name: k for k, point in enumerate(other.points)}
        known = {normalised(alias): (alias, point) for alias, point in other.aliases.items() if point in index}
        for k, point in enumerate(own.points):
            if point.source != GIVEN or k in done[side] or names[side][k] not in known:
                continue
            alias, name = known[names[side][k]]
            there = other[name]
            if there.fingerprint.numel != point.fingerprint.numel:
                continue
            place = None
            if index[name] in done[1 - side]:
                there = replace(there, name=alias, source=GIVEN, gradient=None)
                place = k if side == 0 else _before(reference, owner(alias), index[name])
            points = (point, there) if side == 0 else (there, point)
            places = (k, index[name]) if side == 0 else (index[name], k)
            found.append(InputPair(points, *places, place))
    return found


def _before(capture: Capture, module: str, otherwise: int) -> float:
    """Just before the first point that is of a module, or within it; else just after another one."""
    return next((k - 0.5 for k, point in enumerate(capture.points) if _within(point.name, module)), otherwise + 0.5)


def _within(name: str, module: str) -> bool:
    return name == module or name.startswith(tuple(f"{module}{mark}" for mark in "./:#["))
