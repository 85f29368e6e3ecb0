"""Whether two candidates of one check give the same bits: then a fault in the second is in code that it never runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .compare import same_bits
from .kinds import all_same_bits
from .pair import Operation
from .preparation import Prepared
from .runners import Runner
from .runs import Arrays, running
from .sides import rounded
from .stages import Stages, is_narrow
from .streams import gradient_streams, stream_path


def acts_alike(stages: Stages, usual: Runner, faulty: Prepared) -> bool:
    """Whether the candidate of `faulty` gives the bits of `usual`, the one of `stages`, in every precision.

    Outputs and gradients of every pooled batch, the optimizer on synthetic gradients, and each operation alone: what
    else a check runs (twins, paths, curves) is made of these, and takes most of its time.
    """
    other = faulty.sides.candidate
    for precision in ("float64", *stages.options.precisions):
        with running(other.label, precision):
            alike = (
                _runs_alike(stages, usual, other, precision)
                and _optimizers_alike(stages, usual, other, precision)
                and _operations_alike(stages, usual, faulty, precision)
            )
        if not alike:
            return False
    return True


def _runs_alike(stages: Stages, usual: Runner, other: Runner, precision: str) -> bool:
    lifted = stages.sides.lifted and precision == "float64"
    weights = _numbers(stages.weights, precision)
    for batch in (_numbers(each, precision) for each in stages.pooled):
        mine, theirs = (runner.run(weights, batch, precision, lifted=lifted) for runner in (usual, other))
        if not all_same_bits(([mine], [theirs])):
            return False
    return True


def _optimizers_alike(stages: Stages, usual: Runner, other: Runner, precision: str) -> bool:
    if not stages.optimizes:
        return True
    path = stream_path(stages.options.seed, stages.shapes)
    for stream in gradient_streams(stages.options.seed, stages.shapes).values():
        mine, theirs = (runner.follow(path.points, stream, precision) for runner in (usual, other))
        for one, two in zip(mine, theirs, strict=True):
            if not all(map(same_arrays, (one.parameters, one.mu, one.nu), (two.parameters, two.mu, two.nu))):
                return False
    return True


def _operations_alike(stages: Stages, usual: Runner, faulty: Prepared, precision: str) -> bool:
    if not is_narrow(precision):
        return True
    results: list[Iterator[np.ndarray]] = []
    for runner, pair in ((usual, stages.prepared.pair), (faulty.sides.candidate, faulty.pair)):
        results.append(_evaluated(runner, pair.operations, stages.options.seed, precision))
    return all(same_bits(mine, theirs) for mine, theirs in zip(*results, strict=True))


def _evaluated(runner: Runner, operations: Sequence[Operation], seed: int, precision: str) -> Iterator[np.ndarray]:
    for operation in operations:
        operands = _numbers(operation.draw(np.random.Generator(np.random.PCG64(seed))), precision)
        yield from runner.evaluate(operation.candidate, [operands], precision)


def _numbers(arrays: Arrays, precision: str) -> Arrays:
    return rounded(arrays, precision) if is_narrow(precision) else arrays


def same_arrays(mine: Arrays, theirs: Arrays) -> bool:
    """Whether arrays have the same names and bits."""
    return mine.keys() == theirs.keys() and all(same_bits(mine[name], theirs[name]) for name in mine)
