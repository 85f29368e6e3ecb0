"""Measured value over bound of right optimizers over learning rates, decays, decay rates and seeds: every alarm.

python tests/calibrate_optimizers.py --seed 0 --seed 1
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import click
import compiled
import numpy as np
import optax
import torch

import parity

RATES = (1e-2, 1e-3, 3e-4, 1e-4, 5e-5, 2e-5, 1e-5, 1e-6)
DECAYS = (0.0, 1e-2, 0.1)
FORGETTING = (0.95, 0.999)

Names = tuple[Callable[..., Any], Callable[..., Any]]


def optimizers(rate: float, decay: float, b2: float) -> dict[str, Names]:
    """Both frameworks' optimizers, of the same constants."""
    adam = {"betas": (0.9, b2)}
    return {
        "adamw": (
            partial(torch.optim.AdamW, lr=rate, weight_decay=decay, **adam),
            optax.adamw(rate, b2=b2, weight_decay=decay),
        ),
        "adam": (partial(torch.optim.Adam, lr=rate, **adam), optax.adam(rate, b2=b2)),
        "sgd": (
            partial(torch.optim.SGD, lr=rate, momentum=0.9, weight_decay=decay),
            optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate, 0.9)),
        ),
    }


def optimizer_pair(name: str, rate: float, decay: float, b2: float, swapped: bool = False) -> parity.Pair:
    """A small linear model with one optimizer in both frameworks; `swapped`: JAX is the reference."""
    of_torch, of_optax = optimizers(rate, decay, b2)[name]
    torch.manual_seed(0)
    module = torch.nn.Linear(5, 3)
    weights = {each: value.detach().numpy().copy() for each, value in module.named_parameters()}
    sides = (
        parity.Torch(module, optimizer=of_torch),
        parity.Jax(lambda p, x: x @ p["weight"].T + p["bias"], weights, optimizer=of_optax),
    )
    draw = lambda generator: (generator.normal(size=(4, 5)).astype(np.float32),)  # noqa: E731
    return parity.Pair(f"{name} {rate:g} {decay:g} {b2:g}", *(sides[::-1] if swapped else sides), inputs=draw)


def judged(job: tuple[str, float, float, float, bool, int]) -> tuple[str, str, dict[str, float]]:
    """Name, alarm ("" for none), and the largest measured value over bound of streams and steps by precision."""
    *constants, seed = job
    result = parity.check(optimizer_pair(*constants), seed=seed)
    largest: dict[str, float] = {}
    for row in result.rows:
        if row.bound and row.name.split(" ")[0] in ("step", "ordinary", "near-eps", "zeros") and row.verdict == "PASS":
            key = f"{row.stage} {'step' if row.name.startswith('step') else 'stream'}"
            largest[key] = max(largest.get(key, 0.0), row.measured / row.bound)
    return f"{result.target} seed {seed}", "" if result.verdict == "PASS" else result.reason, largest


@click.command()
@click.option("--seed", "seeds", multiple=True, type=int, default=(0,), show_default=True)
@click.option("--jobs", default=1, show_default=True, help="Processes.")
def main(seeds: tuple[int, ...], jobs: int) -> None:
    """Every optimizer with every rate, decay and decay rate, JAX as the reference in every second one."""
    compiled.share()
    cases = [
        *(("adamw", rate, decay, b2) for rate, decay, b2 in product(RATES, DECAYS, FORGETTING)),
        *(("adam", rate, 0.0, 0.999) for rate in RATES),
        *(("sgd", rate, decay, 0.0) for rate, decay in product(RATES, DECAYS)),
    ]
    work = [(*case, index % 2 == 1, seed) for seed in seeds for index, case in enumerate(cases)]
    largest: dict[str, float] = {}
    alarms = 0
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for name, alarm, found in pool.imap_unordered(judged, work):
            alarms += bool(alarm)
            if alarm:
                print(f"{name}: {alarm}", flush=True)
            for key, ratio in found.items():
                largest[key] = max(largest.get(key, 0.0), ratio)
    print(f"{alarms} of {len(work)} alarm")
    for key, ratio in sorted(largest.items()):
        print(f"{key}: {ratio:.2g} of the bound")


if __name__ == "__main__":
    main()
