"""Gap over bound of training curves of random pairs that are right: the figures of CHANGELOG.md ("Numerics").

python tests/calibrate_curves.py --seed 5 --count 12
"""

from __future__ import annotations

import click
import numpy as np
from random_configs import random_check, random_configs


@click.command()
@click.option("--seed", default=5, show_default=True, help="Of a hundred configs.")
@click.option("--count", default=12, show_default=True, help="How many of them.")
@click.option("--steps", default=25, show_default=True, help="Of training.")
def main(seed: int, count: int, steps: int) -> None:
    """Train both sides of random pairs and print the largest gap over bound of each quantity."""
    found: dict[str, list[float]] = {}
    for index, config in enumerate(random_configs(seed)[:count]):
        result = random_check(config, index, precisions=(), batches=1, steps=0, curve=steps)
        rows = [row for row in result.rows if row.group == "training curve"]
        for row in rows:
            found.setdefault(row.name, []).append(row.measured / row.bound)
        click.echo(f"config {index}: {result.verdict} {[f'{1 / row.headroom:.2f}' for row in rows]}", err=True)
    for name, ratios in found.items():
        click.echo(f"{name}: median {np.median(ratios):.2g}, maximum {max(ratios):.2g} of {len(ratios)}")


if __name__ == "__main__":
    main()
