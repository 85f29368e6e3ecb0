"""Measured value over bound on random pairs that are right: the table of CHANGELOG.md ("Numerics"), and every alarm.

python tests/calibrate.py --seed 1 --count 24
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

import click
import numpy as np
from random_configs import COUNT, random_check, random_configs

Figure = tuple[str, str, str, float, str]  # stage, kind, tensor, measured / bound, verdict

KINDS = ("output", "gradient", "step", "stream", "operation")


def kind_of(name: str) -> str:
    """Output, gradient, optimizer step, optimizer stream or single operation, by the first words of a row."""
    found = re.match(r"(gradient|step|operation) |.* (stream) ", name)
    return (found[1] or found[2]) if found else "output"


def figures(seed: int, index: int) -> tuple[str, list[Figure]]:
    """What went wrong with one random pair ("" for nothing), and every row."""
    result = random_check(random_configs(seed)[index], index)
    alarm = "" if (result.verdict, result.rung) == ("PASS", "same-function") else result.reason
    return alarm, [
        (row.stage, kind_of(row.name), row.name, row.measured / row.bound, row.verdict)
        for row in result.rows
        if row.bound
    ]


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
@click.option("--seed", default=0, show_default=True, help="Of the configs; tests/test_random_configs.py has seed 0.")
@click.option("--count", default=COUNT, show_default=True, help="How many of the hundred.")
def main(seed: int, count: int) -> None:
    """Check random pairs and print the table."""
    found: list[Figure] = []
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn, max_tasks_per_child=10) as pool:
        jobs = {pool.submit(figures, seed, index): index for index in range(count)}
        for done in as_completed(jobs):
            alarm, rows = done.result()
            found += rows
            if alarm:
                click.echo(f"config {jobs[done]} of seed {seed}: {alarm}", err=True)
    click.echo("\n".join(table(found)))


if __name__ == "__main__":
    main()
