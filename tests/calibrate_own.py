"""The better side's own error on random pairs that are right, over what one unit does and over `bounds.own_bound`.

python tests/calibrate_own.py --seed 9 --first 60 --count 40

In 16 bits also how much one side alone is too large, over `bounds.scale_bound`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
import numpy as np
from random_configs import COUNT, random_check, random_configs

from parity import judge
from parity.bounds import own_bound, own_floor, scale_bound
from parity.compare import error_of, nearest, relative
from parity.judge import Judge
from parity.result import Row
from parity.rows import Batches
from parity.scale import same_scale, too_large

Figure = tuple[float, float, str]  # over one rounding + one unit, over the bound, the tensor


def own_error(
    name: str, exact: Batches, low: Batches, of: Judge, precision: str, response: Callable[[str], float]
) -> Figure:
    """The figures of one tensor; those of a single number would be chance."""

    def batches(side: Sequence[Any]) -> list[np.ndarray]:
        return [batch[name] for batch in side]

    truth = batches(exact.reference)
    error = min(error_of(batches(low.reference), truth), error_of(batches(low.candidate), batches(exact.candidate)))
    once, moved = relative([nearest(each, low.reference[0][name].dtype) for each in truth], truth), response(name)
    bound = own_bound(once, 10**6, own_floor(precision, of.roundings), moved)
    return error / (once + moved or 1.0), error / (bound.value or 1.0), f"{error:.2g}, {name}"


@click.command()
@click.option("--seed", default=9, show_default=True, help="Of a hundred.")
@click.option("--first", default=0, show_default=True, help="The first config.")
@click.option("--count", default=COUNT, show_default=True)
@click.option("--precision", default="float32", show_default=True)
def main(seed: int, first: int, count: int, precision: str) -> None:
    """Check random pairs at one working precision and print the figures of outputs and of gradients."""
    found: dict[str, list[Figure]] = {"output": [], "gradient": []}
    scales: list[float] = []
    judged = Judge.same_accuracy

    def seen(self: Judge, exact: Batches, low: Batches, kind: str, *rest: Any, **more: Any) -> list[Row]:
        zero = rest[0] if rest else more.get("zero", ())
        for name in low.names():
            if name not in zero and max(np.abs(batch[name]).max() for batch in exact.reference):
                found[exact.kind].append(own_error(name, exact, low, self, precision, more["response"]))
        return judged(self, exact, low, kind, *rest, **more)

    def weighed(row: Row, values: Any, truths: Any, errors: Any, rounded: float, count: int) -> Row:
        shares = [too_large(value, truth) for value, truth in zip(values, truths, strict=True)]
        bound = scale_bound(shares[1] - shares[0], errors, rounded, count)
        scales.append(abs(float(np.mean(shares[1] - shares[0]))) / (bound.value or 1.0))
        return same_scale(row, values, truths, errors, rounded, count)

    Judge.same_accuracy = seen  # type: ignore[method-assign]
    judge.same_scale = weighed  # type: ignore[attr-defined]
    for index in range(first, min(COUNT, first + count)):
        result = random_check(random_configs(seed)[index], index, precisions=(precision,), steps=0, flops=False)
        click.echo(f"config {index} of seed {seed}: {result.verdict}", err=True)
    for kind, figures in found.items():
        units, bounds = (np.asarray([figure[column] for figure in figures]) for column in (0, 1))
        most = figures[int(units.argmax())][2]
        click.echo(f"{len(figures)} {kind}s, over one rounding and one unit: median {np.median(units):.2g}, ", nl=False)
        click.echo(f"maximum {units.max():.3g} ({most}); over the bound: maximum {bounds.max():.2g}")
    if scales:
        click.echo(f"{len(scales)} outputs, too large on one side alone, over the bound: maximum {max(scales):.2g}")


if __name__ == "__main__":
    main()
