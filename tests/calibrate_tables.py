"""How near right pairs with float32 tables come to their bounds: CHANGELOG.md ("Numerics") has the figures.

python tests/calibrate_tables.py --seed 0 --count 60
"""

from __future__ import annotations

import re

import click
import jax
import jax.numpy as jnp
import numpy as np
import torch

from parity import Jax, Pair, Torch, check


class Rotary(torch.nn.Module):
    """Attention whose queries and keys are turned by float32 tables: angles, or their sines and cosines."""

    def __init__(self, generator: np.random.Generator):
        super().__init__()
        self.width, self.seq = 2 * int(generator.integers(2, 17)), int(generator.integers(3, 65))
        self.base, self.causal = 10.0 ** generator.uniform(2, 6), bool(generator.integers(2))
        self.turned = bool(generator.integers(2))
        size = (self.width, self.width)
        for name in ("query", "key", "value"):
            weight = generator.standard_normal(size).astype(np.float32) / np.float32(np.sqrt(self.width))
            setattr(self, name, torch.nn.Parameter(torch.from_numpy(weight)))
        rates = self.base ** -(torch.arange(0, self.width, 2) / self.width)
        angles = torch.outer(torch.arange(float(self.seq)), rates)
        table = torch.stack([angles.cos(), angles.sin()]) if self.turned else rates
        self.register_buffer("table", table, persistent=False)

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.table if self.turned else self.angles(x)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def angles(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.outer(torch.arange(self.seq).to(x.dtype), self.table.to(x.dtype))
        return angles.cos(), angles.sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.turn(x @ self.query) @ self.turn(x @ self.key).transpose(1, 2) / self.width**0.5
        if self.causal:
            logits = logits.masked_fill(torch.ones(self.seq, self.seq).triu(1).bool(), -torch.inf)
        return logits.softmax(-1) @ (x @ self.value)


def port(module: Rotary) -> Jax:
    """The same without a table."""

    def turn(x: jax.Array) -> jax.Array:
        rates = module.base ** -(jnp.arange(0, module.width, 2, dtype=x.dtype) / module.width)
        angles = jnp.outer(jnp.arange(module.seq, dtype=x.dtype), rates)
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate(
            [a * jnp.cos(angles) - b * jnp.sin(angles), b * jnp.cos(angles) + a * jnp.sin(angles)], -1
        )

    def function(p: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        logits = turn(x @ p["query"]) @ turn(x @ p["key"]).swapaxes(1, 2) / module.width**0.5
        if module.causal:
            logits = jnp.where(jnp.triu(jnp.ones((module.seq, module.seq), bool), 1), -jnp.inf, logits)
        return jax.nn.softmax(logits, -1) @ (x @ p["value"])

    return Jax(function, {name: value.detach().numpy() for name, value in module.named_parameters()})


@click.command()
@click.option("--seed", default=0, show_default=True)
@click.option("--count", default=60, show_default=True)
def main(seed: int, count: int) -> None:
    """Check random pairs that are right, print the largest shares of their bounds and every alarm."""
    whole, single, rows, alarms = 0.0, 0.0, 0, 0
    for index in range(count):
        module = Rotary(np.random.default_rng([seed, index]))
        shape = 2, module.seq, module.width
        pair = Pair(
            "rotary",
            Torch(module),
            port(module),
            inputs=lambda generator, shape=shape: {"x": generator.standard_normal(shape).astype(np.float32)},
        )
        result = check(pair, precisions=(), steps=0, flops=False, batches=2, seed=index)
        if result.verdict != "PASS":
            alarms += 1
            click.echo(f"pair {index}: {result.verdict}, {result.reason}", err=True)
        for row in result.rows:
            if found := re.search(r"along the last axis at most (\S+) of that", row.derivation):
                rows += 1
                whole, single = max(whole, row.measured / row.bound), max(single, float(found[1]))
    click.echo(
        f"{alarms} of {count} pairs alarm; {rows} rows: at most {whole:.2g} of the bound, {single:.2g} of a vector's"
    )


if __name__ == "__main__":
    main()
