"""Measured value over bound on random pairs that are judged without float64: CHANGELOG.md ("Numerics") has the table.

python tests/calibrate_twins.py --seed 12 --count 60
"""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from functools import partial

import click
from calibrate import Figure, kind_of, table
from random_configs import COUNT, random_configs, random_pair

from parity import Options, Row
from parity.preparation import prepare
from parity.stages import Stages
from parity.without_float64 import twin_precision

PRECISIONS = ("float32", "bfloat16", "float16")


def rows_by_twins(seed: int, index: int, precision: str) -> list[Row]:
    """Every output and gradient of a random model, jaxcore against torchref, bounded by torchref's twins."""
    pair = replace(random_pair(random_configs(seed)[index], index), operations=())
    options = Options(seed=index, precisions=(precision,), steps=0, flops=False, batches=2)
    return twin_precision(Stages(prepare(pair, options), options, lambda message: None), precision)


def figures(seed: int, index: int) -> tuple[int, list[Figure], int]:
    """A random pair by its place: every row with a bound, and how many of them fail."""
    rows = [row for precision in PRECISIONS for row in rows_by_twins(seed, index, precision) if row.bound]
    found = [(row.stage, kind_of(row.name), row.name, row.measured / row.bound, row.verdict) for row in rows]
    return index, found, sum(row.verdict not in ("PASS", "ABSTAIN") for row in rows)


@click.command()
@click.option("--seed", default=12, show_default=True, help="Of a hundred.")
@click.option("--count", default=COUNT, show_default=True, help="How many of the hundred.")
@click.option("--processes", default=2, show_default=True)
def main(seed: int, count: int, processes: int) -> None:
    """Check random pairs by twins, print the table and every alarm."""
    found: list[Figure] = []
    alarms = 0
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=10) as pool:
        for index, rows, failed in pool.imap_unordered(partial(figures, seed), range(count)):
            found += rows
            alarms += failed
            click.echo(f"config {index}: {failed or 'no'} alarm", err=True)
    click.echo("\n".join(table(found)))
    click.echo(f"{alarms} of {len(found)} rows fail; {sum(each[-1] == 'ABSTAIN' for each in found)} abstain")


if __name__ == "__main__":
    main()
