"""Which gradient is the derivative: each side's own against a float64 finite difference of its own loss.

Two frameworks can agree on a wrong gradient, and where they disagree neither says which is right. The difference
quotient needs the loss alone: central, at two step sizes, extrapolated (Richardson), so that its own error shows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .compare import rms
from .formats import FORMATS
from .result import Row
from .runners import Runner
from .runs import Arrays, Run, is_float, projection, running
from .sides import Sides

#: The step, in units of each parameter's size: u^(1/4), between the rounding of the loss and its curvature.
STEP = 2.0**-13
#: Slack over the quotient's own error, which the two step sizes show only roughly: a convention.
QUOTIENT_SLACK = 8


DERIVATIVE = "directional derivative"


def derivative_rows(sides: Sides, weights: Arrays, batch: Arrays, loss: object, seed: int) -> list[Row]:
    """A row for each side: its gradient along one random direction, and the quotient's.

    ABSTAIN where they differ: a stop_gradient or a custom rule may be meant, and a kink has no derivative.
    """
    generator = np.random.Generator(np.random.PCG64([seed, 3]))
    floats = {name: array for name, array in weights.items() if is_float(array)}
    direction = {name: generator.standard_normal(array.shape) * (rms(array) or 1.0) for name, array in floats.items()}
    if not direction:
        return []
    rows = []
    for runner in (sides.reference, sides.candidate):
        with running(runner.label, "float64"):
            rows.append(_row(sides, runner, weights, direction, batch, loss))
    return rows


def suspects(rows: list[Row]) -> str:
    """What the rows say about two sides whose gradients differ, in words; nothing if both are right or both wrong."""
    wrong = [row for row in rows if row.verdict == "ABSTAIN"]
    if len(wrong) != 1 or len(rows) != 2:
        return ""
    right = next(row for row in rows if row is not wrong[0])
    return f"; a finite difference agrees with {right.name.split(' of ')[1]}'s gradient, not with the other's"


def _row(sides: Sides, runner: Runner, weights: Arrays, direction: Arrays, batch: Arrays, loss: object) -> Row:
    def at(step: float) -> Run:
        moved = {
            name: array.astype(np.float64) + step * direction[name]
            for name, array in weights.items()
            if name in direction
        }
        return runner.run({**weights, **moved}, batch, "float64", lifted=sides.lifted)

    here = at(0.0)
    taken = sum(float(np.sum(here.gradients[name] * direction[name])) for name in direction if name in here.gradients)
    quotients = [(at(step).loss - at(-step).loss) / (2 * step) for step in (STEP, 2 * STEP)]
    extrapolated = (4 * quotients[0] - quotients[1]) / 3
    unit = FORMATS["float64"].unit_roundoff
    noise = abs(quotients[0] - quotients[1]) * STEP + unit * _size(here, loss) / STEP
    scale = max(abs(taken), abs(extrapolated)) or 1.0
    measured, bound = abs(taken - extrapolated) / scale, QUOTIENT_SLACK * noise / scale
    agrees = measured <= bound
    why = "a stop_gradient, a custom rule or a kink" if not agrees else "its own error, seen at two step sizes"
    return Row(
        name=f"{DERIVATIVE} of {runner.label}",
        group=DERIVATIVE,
        side_names=sides.labels,
        shape=(),
        dtype="float64",
        stage="float64",
        measured=measured,
        bound=bound,
        derivation=f"gradient {taken:.6g}, finite difference {extrapolated:.6g}: {why}",
        verdict="PASS" if agrees else "ABSTAIN",
    )


def _size(run: Run, loss: object) -> float:
    """The sum of the sizes of what the loss adds up, which rounding is relative to; of another loss its own size."""
    if loss is not None:
        return abs(run.loss)
    outputs = _floats(run.outputs)
    return sum(float(np.sum(np.abs(value * projection(name, value.shape)))) for name, value in outputs.items())


def _floats(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value for name, value in outputs.items() if is_float(value) and not name.startswith("state ")}
