"""Two pieces of work timed in turn, A B A B: every ratio that this project claims comes from here.

Taking turns puts a machine's mood (clock, temperature, other processes) on both. The minimum is what the work costs
when nothing is in its way, the median what it usually costs; a ratio is taken turn by turn, so that its spread shows
whether it means anything.

    python -m benchmarks.timer tiny --batch 4 --seq 128     forward and backward, jaxcore jitted against torchref eager
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# as the command line does, and before torch is imported: waiting threads must not take the other side's cores
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

Work = Callable[[], object]
Clock = Callable[[], float]

#: A turn shorter than this is repeated, so that the clock's own steps do not show.
SHORTEST_TURN = 0.01


@dataclass(frozen=True)
class Timing:
    """Seconds of one call of each side, one pair per turn; `calls` were made in each turn."""

    names: tuple[str, str]
    seconds: tuple[tuple[float, ...], tuple[float, ...]]
    calls: tuple[int, int]

    @property
    def ratios(self) -> list[float]:
        """Seconds of the first over seconds of the second, turn by turn, in ascending order."""
        return sorted(a / b for a, b in zip(*self.seconds, strict=True))

    @property
    def ratio(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """The middle half of the ratios: a quarter of the turns lies below it and a quarter above."""
        return _quartiles(self.ratios)

    @property
    def decides(self) -> bool:
        """Whether the middle half lies on one side of 1: otherwise neither is faster.

        Of two equal works 11 turns say so by chance in one run of fifteen: 9 of 11 coins alike.
        """
        low, high = self.spread
        return low > 1 or high < 1

    def __str__(self) -> str:
        lines = [f"{'':12}{'min':>12}{'median':>12}{'calls/turn':>12}"]
        for name, seconds, calls in zip(self.names, self.seconds, self.calls, strict=True):
            lines.append(f"{name:12}{_show(min(seconds)):>12}{_show(statistics.median(seconds)):>12}{calls:>12}")
        low, high = self.spread
        verdict = "" if self.decides else ": no difference that these turns can show"
        turns = len(self.seconds[0])
        lines.append(
            f"{' / '.join(self.names)} = {self.ratio:.2f} (middle half {low:.2f} to {high:.2f}, {turns} turns){verdict}"
        )
        return "\n".join(lines)


def compare(
    names: tuple[str, str],
    works: tuple[Work, Work],
    *,
    turns: int = 11,
    warmup: int = 2,
    clock: Clock = time.perf_counter,
) -> Timing:
    """Times two pieces of work in turn; each must be finished when its call returns.

    Raises:
        ValueError: fewer than three turns have no spread.
    """
    if turns < 3 or warmup < 0:
        raise ValueError(f"turns and warmup: at least 3 and 0, got {turns} and {warmup}; a spread needs three turns")
    for work in works:
        for _ in range(warmup):
            work()
    calls = tuple(_calls_in_a_turn(work, clock) for work in works)
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns):
        # the side that goes first changes, so that neither always inherits the other's cache
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            seconds[side].append(_turn(works[side], calls[side], clock))
    return Timing(names, (tuple(seconds[0]), tuple(seconds[1])), (calls[0], calls[1]))


def _calls_in_a_turn(work: Work, clock: Clock) -> int:
    calls = 1
    while _turn(work, calls, clock) * calls < SHORTEST_TURN:
        calls *= 2
    return calls


def _turn(work: Work, calls: int, clock: Clock) -> float:
    start = clock()
    for _ in range(calls):
        work()
    return (clock() - start) / calls


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _show(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def pair_works(preset: str, batch: int, seq: int, precision: str) -> tuple[Work, Work]:
    """Forward and backward of jaxcore, jitted, and torchref, eager, on the same weights and tokens of the text."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import torch

    from parity.models import find_preset, read_source
    from parity.pairs.transformer import torch_module, transformer_pair, with_loss

    config = find_preset(preset)
    pair = transformer_pair(preset, config, read_source(None, None, config), batch=batch, seq=seq)
    drawn = pair.inputs(np.random.Generator(np.random.PCG64(0)))
    parameters = {name: jnp.asarray(value, precision) for name, value in pair.weights.items()}
    inputs = {name: jnp.asarray(value) for name, value in drawn.items()}

    def scalar(outputs: Any) -> Any:
        """The loss, or without a head the mean of the hidden states, as something to differentiate."""
        return outputs["loss"] if "loss" in outputs else outputs["hidden"].mean()

    gradient = jax.jit(jax.value_and_grad(lambda parameters: scalar(pair.candidate.function(parameters, **inputs))))
    dtype = getattr(torch, precision)
    module = torch_module(config, {name: each.shape for name, each in pair.weights.items()})
    module.load_state_dict({name: torch.tensor(each, dtype=dtype) for name, each in pair.weights.items()}, assign=True)
    tensors = {name: torch.tensor(value) for name, value in drawn.items()}

    def torch_step() -> None:
        module.zero_grad(set_to_none=True)
        scalar(with_loss(module, **tensors)).backward()

    return lambda: jax.block_until_ready(gradient(parameters)), torch_step


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m benchmarks.timer`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timer", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("preset", nargs="?", default="tiny")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float64"], default="float32")
    options = parser.parse_args(arguments)
    if options.dtype == "float64":
        os.environ["JAX_ENABLE_X64"] = "1"  # a process of its own: no other precision runs in it
    try:
        works = pair_works(options.preset, options.batch, options.seq, options.dtype)
        timing = compare(("jaxcore", "torchref"), works, turns=options.turns)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.preset}, batch {options.batch} x {options.seq}, {options.dtype}, forward and backward")
    print(timing)
    return 0


if __name__ == "__main__":
    sys.exit(main())
