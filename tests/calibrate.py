"""Measured value over bound on random pairs that are right: the table of CHANGELOG.md ("Numerics"), and every alarm.

python tests/calibrate.py --seed 1 --count 24
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterator
from functools import partial

import click
import compiled
import numpy as np
from random_configs import COUNT, random_check, random_configs
from scipy.stats import beta

Figure = tuple[str, str, str, float, str]  # stage, kind, tensor, measured / bound, verdict

KINDS = ("output", "gradient", "step", "stream", "operation")


def kind_of(name: str) -> str:
    """Output, gradient, optimizer step, optimizer stream or single operation, by the first words of a row."""
    found = re.match(r"(gradient|step|operation) |.* (stream) ", name)
    return (found[1] or found[2]) if found else "output"


def figures(jit: bool, job: tuple[int, int]) -> tuple[tuple[int, int], str, list[Figure]]:
    """One random pair, by the seed of its hundred and its place: what went wrong ("" for nothing), and every row."""
    seed, index = job
    result = random_check(random_configs(seed)[index], index, jit)
    alarm = "" if (result.verdict, result.rung) == ("PASS", "same-function") else result.reason
    return (
        job,
        alarm,
        [
            (row.stage, kind_of(row.name), row.name, row.measured / row.bound, row.verdict)
            for row in result.rows
            if row.bound
        ],
    )


def table(found: list[Figure]) -> Iterator[str]:
    """A line per stage and kind; rows that abstain prove nothing and are not counted."""
    yield "| stage | rows | median | 99% | maximum |"
    yield "| --- | --- | --- | --- | --- |"
    for stage in dict.fromkeys(each[0] for each in found):
        for kind in KINDS:
            ratios = [ratio for a, b, _, ratio, verdict in found if (a, b) == (stage, kind) and verdict != "ABSTAIN"]
            if ratios:
                middle, high, most = np.quantile(ratios, [0.5, 0.99, 1])
                yield f"| {stage} {kind}s | {len(ratios):,} | {middle:.2g} | {high:.2g} | {most:.2g} |"


@click.command()
@click.option("--seed", "seeds", multiple=True, type=int, default=(0, 1, 2), show_default=True, help="Of a hundred.")
@click.option("--first", default=0, show_default=True, help="Of each hundred, the first config.")
@click.option("--count", default=COUNT, show_default=True, help="How many of each hundred.")
@click.option("--processes", default=2, show_default=True)
@click.option("--eager", is_flag=True, help="jaxcore operation by operation, over two batches and one step.")
def main(seeds: tuple[int, ...], first: int, count: int, processes: int, eager: bool) -> None:
    """Check random pairs, print the table and what share of alarms it leaves possible."""
    found: list[Figure] = []
    alarms = 0
    jobs = [(seed, index) for seed in seeds for index in range(first, min(COUNT, first + count))]
    compiled.share()  # an eager check compiles each operation by itself: 300 of them share most
    # not concurrent.futures: in Python 3.11 its pool hangs when it replaces a worker that has done its share
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=10) as pool:
        for (seed, index), alarm, rows in pool.imap_unordered(partial(figures, not eager), jobs):
            found += rows
            alarms += bool(alarm)
            click.echo(f"config {index} of seed {seed}: {alarm or 'passes'}", err=True)
    click.echo("\n".join(table(found)))
    click.echo(f"{alarms} of {len(jobs)} alarm: at 95% fewer than {beta.ppf(0.95, alarms + 1, len(jobs) - alarms):.2%}")


if __name__ == "__main__":
    main()
