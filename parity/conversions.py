"""Parameters of one side that are computed from those of the other: a norm's scale less one, the sum of two biases.

A relation is taken as found where it holds at every element to within one rounding of float32 on either side, and where
no other one does. The candidate's parameter is then the relation of the reference's in float64, of which what it holds
itself is the rounding.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from .compare import nearest, wide
from .fingerprints import Fingerprint, fingerprint
from .formats import FORMATS
from .layouts import Layout, plain_layouts
from .links import Blocks, Cut, Link, part, put
from .matching import PARTS
from .runs import Arrays, is_float

FLOAT32 = FORMATS["float32"].unit_roundoff
#: Distinct numbers that a parameter must have before a relation says anything: float32 has 24 bits in each of them.
DISTINCT = 5
#: Largest n of a factor sqrt(n) or 1 / sqrt(n): beyond it float32 does not tell n from n + 1 well.
LARGEST_SQUARE = 4096


class Term(NamedTuple):
    """A block of a reference's parameter, where its elements stand in the candidate's, and their factor."""

    source: str
    layout: Layout
    factor: float = 1.0
    cut: Cut | None = None

    def __str__(self) -> str:
        cut = "" if self.cut is None else f"[{':, ' * self.cut[0]}{self.cut[1]}:{self.cut[2]}]"
        factor = {1.0: "", -1.0: "-"}.get(self.factor, f"{self.factor:.6g} x ")
        layout = "" if str(self.layout) == "same" else f" ({self.layout})"
        return f"{factor}{self.source}{cut}{layout}"


@dataclass(frozen=True)
class Formula:
    """A candidate's parameter out of one or two of the reference's: target = sum of factor x term, + offset."""

    target: str
    terms: tuple[Term, ...]
    offset: float = 0.0

    def __str__(self) -> str:
        offset = f" {'+' if self.offset > 0 else '-'} {abs(self.offset):g}" if self.offset else ""
        return f"{self.target} = {' + '.join(map(str, self.terms))}{offset}"

    @property
    def kind(self) -> tuple[float, ...]:
        """What formulas of other parameters have in common with this one."""
        return (self.offset, *(term.factor for term in self.terms))

    def forward(self, arrays: Arrays) -> np.ndarray:
        """The candidate's parameter in float64, rounded nowhere on the way there."""
        terms = [term.factor * wide(term.layout.there(part(arrays[term.source], term.cut))) for term in self.terms]
        return np.asarray(sum(terms[1:], terms[0]) + self.offset)


@dataclass(frozen=True)
class Converted(Link):
    """A link whose `formulas` give the candidate's parameters that `link` has no numbers for."""

    link: Blocks
    formulas: tuple[Formula, ...]

    @property
    def pairs(self) -> Iterable[tuple[str, str]]:
        """Those that are equal: the others are computed from several."""
        return self.link.pairs

    @property
    def apart(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The parameters of each side that have neither an equal nor a formula."""
        return self.link.apart

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each kind of formula."""
        kinds: dict[tuple[float, ...], list[Formula]] = {}
        for formula in self.formulas:
            kinds.setdefault(formula.kind, []).append(formula)
        more = {
            kind: f" and {len(each) - 1} more in the same way" if len(each) > 1 else "" for kind, each in kinds.items()
        }
        why = "so held to a rounding of float32, and so computed in every run"
        return tuple(f"weight {each[0]}{more[kind]}: {why}" for kind, each in kinds.items())

    def forward(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """The candidate's parameters, those of the formulas in float64."""
        moved = self.link.forward(arrays)
        for formula in self.formulas:
            if all(term.source in arrays for term in formula.terms):
                moved[formula.target] = formula.forward(arrays)
        return {name: moved[name] for name in self.link.targets if name in moved}

    def backward(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """The reference's gradients and first moments: d/d(term) is the factor times d/d(target), for each term."""
        return self._back(arrays, 1)

    def squares(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """The second moments of the reference."""
        return self._back(arrays, 2)

    def gradients(self, arrays: Arrays) -> dict[str, np.ndarray]:
        """The candidate's gradients out of the reference's: those of any one term, that they stand for all."""
        moved = self.link.forward(arrays)
        for formula in self.formulas:
            first = formula.terms[0]
            if first.source in arrays:
                value = first.layout.there(part(arrays[first.source], first.cut))
                moved[formula.target] = _scaled(value, 1 / first.factor)
        return {name: moved[name] for name in self.link.targets if name in moved}

    def stepped(self, arrays: Arrays, start: Arrays) -> dict[str, np.ndarray]:
        """The reference's parameters after a step of the candidate's: moved by what moves the target as far.

        Of two terms each takes half. `start` are the parameters that the step was taken from, which the candidate
        rounded to its own type; what comes back is not rounded, for a movement may be smaller than that.
        """
        moved = self.link.backward(arrays)
        for formula in self.formulas:
            if formula.target not in arrays:
                continue
            movement = _movement(arrays[formula.target], formula.forward(start))
            length = sum(term.factor**2 for term in formula.terms)
            for term in formula.terms:
                before = wide(part(start[term.source], term.cut))
                value = before + term.layout.back(movement) * (term.factor / length)
                put(moved, term.source, term.cut, value, self.link.sources)
        return {name: moved[name] for name in self.link.sources if name in moved}

    def _back(self, arrays: Arrays, power: int) -> dict[str, np.ndarray]:
        moved = self.link.backward(arrays)
        for formula in self.formulas:
            if formula.target in arrays:
                for term in formula.terms:
                    value = _scaled(term.layout.back(arrays[formula.target]), term.factor**power)
                    put(moved, term.source, term.cut, value, self.link.sources)
        return {name: moved[name] for name in self.link.sources if name in moved}


def converted(link: Blocks, reference: Arrays, candidate: Arrays) -> Blocks | Converted:
    """The link with a formula for every parameter without an equal that has one; the link itself where none has."""
    given = reference, candidate
    formulas: tuple[Formula, ...] = ()
    for rule in (_affine, _sums):
        formulas += tuple(
            rule(*({name: side[name] for name in names} for side, names in zip(given, link.apart, strict=True)))
        )
        done = {term.source for each in formulas for term in each.terms}, {each.target for each in formulas}
        left = [
            tuple(name for name in names if name not in taken) for names, taken in zip(link.apart, done, strict=True)
        ]
        link = replace(link, apart=(left[0], left[1]), kept={name: link.kept[name] for name in left[1]})
    return Converted(link, formulas) if formulas else link


def _affine(reference: Arrays, candidate: Arrays) -> list[Formula]:
    """target = factor x source, or source + a whole number, where neither of the two has another partner."""
    prints = [
        {name: fingerprint(array) for name, array in side.items() if _tells(array)} for side in (reference, candidate)
    ]
    found = []
    for (source, mine), (target, theirs) in product(*(side.items() for side in prints)):
        if mine.numel != theirs.numel:
            continue
        for factor, offset in _guesses(mine, theirs):
            exact = factor * wide(reference[source]) + offset
            layout = next(plain_layouts(exact, candidate[target], partial(_near, offset)), None)
            if layout is not None:
                found.append(Formula(target, (Term(source, layout, factor),), offset))
    return _alone(found)


def _guesses(mine: Fingerprint, theirs: Fingerprint) -> Iterator[tuple[float, float]]:
    """Factors and offsets that would make the moments of the reference's parameter those of the candidate's."""
    offset = theirs.mean - mine.mean
    whole = round(offset)
    if whole and abs(offset - whole) <= FLOAT32 * (mine.mean_abs + theirs.mean_abs):
        yield 1.0, float(whole)
    size = _plain(math.sqrt(theirs.mean_square / mine.mean_square))
    yield from ((factor, 0.0) for factor in (size, -size) if factor not in (0.0, 1.0))


def _plain(size: float) -> float:
    """The power of two, sqrt(n) or 1 / sqrt(n) that a ratio of float32 numbers is the rounding of; 0 for none."""
    square = round(max(size, 1 / size) ** 2)
    root = math.sqrt(square) if size > 1 else 1 / math.sqrt(square)
    for factor in (2.0 ** round(math.log2(size)), root if square <= LARGEST_SQUARE else 0.0):
        if abs(size - factor) <= 4 * FLOAT32 * size:
            return factor
    return 0.0


def _sums(reference: Arrays, candidate: Arrays) -> list[Formula]:
    """target = source + source, the whole of both or equal ranges of which every one is summed up somewhere."""
    blocks = [
        ((name, cut), block)
        for name, array in reference.items()
        for cut in _ranges(array)
        if _tells(block := part(array, cut))
    ]
    totals = np.asarray([block.sum(dtype=np.float64) for _, block in blocks])
    sizes = np.asarray([block.size for _, block in blocks])
    found = []
    for target, array in candidate.items():
        total, noise = array.sum(dtype=np.float64), FLOAT32 * np.abs(array, dtype=np.float64).sum()
        same = np.flatnonzero(sizes == array.size) if _tells(array) else np.zeros(0, int)
        near = np.abs(totals[same, None] + totals[same] - total) <= noise
        for i, j in same[np.argwhere(np.triu(near, 1))]:
            ((first, cut), a), ((second, other), b) = blocks[i], blocks[j]
            if first != second and a.shape == b.shape:
                layout = next(plain_layouts(wide(a) + wide(b), array, partial(_near, 0.0)), None)
                if layout is not None:
                    found.append(Formula(target, (Term(first, layout, cut=cut), Term(second, layout, cut=other))))
    alone = _alone(found)
    covered = Counter[str]()
    for formula in alone:
        covered.update({term.source: candidate[formula.target].size for term in formula.terms})
    return [each for each in alone if all(covered[term.source] == reference[term.source].size for term in each.terms)]


def _ranges(array: np.ndarray) -> Iterator[Cut | None]:
    """The whole array, and its first axis in two, three or four: the gates of a recurrent cell."""
    yield None
    for count in PARTS if array.ndim else ():
        if array.shape[0] % count == 0:
            width = array.shape[0] // count
            yield from ((0, start, start + width) for start in range(0, array.shape[0], width))


def _alone(found: Sequence[Formula]) -> list[Formula]:
    """The formulas whose target and whose terms no other formula has: what might be two things is neither."""
    targets = Counter(each.target for each in found)
    blocks = Counter((term.source, term.cut) for each in found for term in each.terms)
    return [
        each
        for each in found
        if targets[each.target] == 1 and all(blocks[term.source, term.cut] == 1 for term in each.terms)
    ]


def _near(offset: float, exact: np.ndarray, held: np.ndarray) -> bool:
    """Whether numbers of the candidate's are a relation of the reference's, one rounding of float32 on either side."""
    exact, held = wide(exact), wide(held)
    return bool(np.all(np.abs(exact - held) <= FLOAT32 * (np.abs(held) + np.abs(exact - offset))))


def _tells(array: np.ndarray) -> bool:
    """Whether an array has enough numbers to be known by them; of a large one the first are looked at."""
    several = is_float(array) and len(np.unique(array.reshape(-1)[:4096])) >= DISTINCT
    return several and bool(np.isfinite(array).all())


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    return array if factor == 1 else (factor * wide(array)).astype(array.dtype)


def _movement(after: np.ndarray, before: np.ndarray) -> np.ndarray:
    return wide(after) - wide(nearest(before, after.dtype))
