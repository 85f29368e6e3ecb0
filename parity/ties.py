"""Whole numbers and truth values that differ where the choice was as good as tied: argmax, top-k, routing, a threshold.

How near a choice was does not show in it. But what rounding may tip, a change of every number by a few roundings tips
as well: an element is tied if one side chooses in such a twin what the other one chose. Any other gap is larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .bounds import FLOAT64_SLACK
from .formats import FORMATS
from .result import Row
from .runs import Arrays, Run, is_float
from .sides import Sides

#: An exact tie falls either way in each: one that is missed by all of them is one in 65,536.
TWINS = 16


def without_ties(
    rows: Sequence[Row],
    exact: tuple[list[Run], list[Run]],
    sides: Sides,
    weights: Arrays,
    batches: Sequence[Arrays],
    seed: int,
) -> list[Row]:
    """The rows of a float64 stage; ABSTAIN where every element that differs is tied, and counted."""
    names = [row.name for row in rows if row.verdict == "FAIL" and row.compared and _is_choice(row.name, exact)]
    if not names:
        return list(rows)
    chosen = {name: [_choices(side, name) for side in exact] for name in names}
    differ = {name: mine != theirs for name, (mine, theirs) in chosen.items()}
    tied = {name: np.zeros_like(masks) for name, masks in differ.items()}
    for twin in range(TWINS):
        near = [_moved(batch, [seed, twin, 1]) for batch in batches]
        moved = sides.run(_moved(weights, [seed, twin]), near, "float64")
        for name, (mine, theirs) in chosen.items():
            twins = [_choices(side, name) for side in moved]
            tied[name] |= (twins[0] == theirs) | (twins[1] == mine)
    counts = {name: (int(differ[name].sum()), int((differ[name] & tied[name]).sum())) for name in names}
    return [_judged(row, *counts[row.name]) if row.name in counts else row for row in rows]


def _judged(row: Row, differing: int, tied: int) -> Row:
    """FAIL if there are elements that no rounding tips."""
    by = f"{FLOAT64_SLACK} (convention) roundings in weights and inputs turn the one into the other"
    if tied == differing:
        return replace(row, verdict="ABSTAIN", derivation=f"{differing} elements differ, all as good as tied: {by}")
    return replace(row, derivation=f"{differing} elements differ, {tied} of them as good as tied: {by}")


def _choices(runs: Sequence[Run], name: str) -> np.ndarray:
    """Of every batch in a row."""
    return np.concatenate([np.ravel(run.outputs[name]) for run in runs])


def _is_choice(name: str, exact: tuple[list[Run], list[Run]]) -> bool:
    outputs = exact[0][0].outputs
    return name in outputs and not is_float(outputs[name])


def _moved(arrays: Arrays, seed: Sequence[int]) -> dict[str, np.ndarray]:
    """Floats in float64, off by FLOAT64_SLACK roundings up or down."""
    generator = np.random.Generator(np.random.PCG64(seed))
    step = FLOAT64_SLACK * FORMATS["float64"].unit_roundoff
    return {
        name: array * (1 + step * generator.choice([-1.0, 1.0], array.shape)) if is_float(array) else array
        for name, array in arrays.items()
    }
