"""How often final losses over seeds pass and fail, by how far apart the two trainings really are.

python tests/calibrate_seeds.py
"""

from __future__ import annotations

from collections import Counter

import click
import numpy as np

from parity.seeds import final_loss_row

#: Of the reference's final losses; one standard deviation between seeds is 1.
LEVEL = 100.0
UNTRAINED = 1000.0


def drawn_losses(
    generator: np.random.Generator, seeds: int, apart: float, paired: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Final losses of two trainings whose means are `apart` standard deviations apart.

    `paired`: the same batches lead to the same loss but for rounding; else they have no more in common than two seeds.
    """
    reference = generator.normal(LEVEL, 1.0, seeds)
    if paired:
        return reference, reference + apart + generator.normal(0.0, 1e-7, seeds)
    return reference, generator.normal(LEVEL + apart, 1.0, seeds)


def outcomes(seeds: int, apart: float, *, paired: bool, count: int, start: int = 0) -> dict[str, float]:
    """The share of each verdict among `count` checks."""
    generator = np.random.default_rng([start, seeds, round(10 * apart), paired])
    found = Counter(
        final_loss_row(("reference", "candidate"), *drawn_losses(generator, seeds, apart, paired), UNTRAINED).verdict
        for _ in range(count)
    )
    return {verdict: found[verdict] / count for verdict in ("PASS", "FAIL", "ABSTAIN")}


@click.command()
@click.option("--count", default=4000, show_default=True, help="Checks behind each figure.")
@click.option("--seed", default=0, show_default=True, help="Of the losses.")
def main(count: int, seed: int) -> None:
    """Print PASS and FAIL in percent: a line for each number of seeds, a column for each distance."""
    for paired in (True, False):
        click.echo("by rounding alone" if paired else "as two seeds do")
        for seeds in (2, 4, 6, 8, 12):
            shares = [outcomes(seeds, apart, paired=paired, count=count, start=seed) for apart in (0, 1, 2, 3, 4)]
            cells = (f"{100 * share['PASS']:.1f} / {100 * share['FAIL']:.1f}" for share in shares)
            click.echo(f"| {seeds} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
