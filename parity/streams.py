"""Synthetic gradients for optimizers: what a model's own hide (where eps stands, exact zeros, first steps)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .runs import Arrays, Path

#: Bias correction matters in the first steps and b2 = 0.95 forgets within 20: longer streams show nothing new.
STREAM_STEPS = 20

SHAPES: Mapping[str, tuple[int, ...]] = {"matrix": (31, 23), "vector": (67,)}


def small(shape: Sequence[int]) -> tuple[int, ...]:
    """A tensor's shape cut down, its axes kept: optimizers treat matrices and vectors apart, not large and small."""
    return tuple(min(size, 11) for size in shape)


def gradient_streams(seed: int, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> dict[str, list[Arrays]]:
    """Three streams of STREAM_STEPS gradients: |g| in [1e-3, 1], |g| near eps = 1e-8, the first with exact zeros."""
    generator = np.random.Generator(np.random.PCG64([seed, 46]))

    def draw(low: float, high: float, zeros: float = 0.0) -> list[Arrays]:
        stream: list[Arrays] = []
        # an eighth never has a gradient at all, as rows of an embedding that no token reaches
        reached = {name: generator.random(shape) >= zeros / 4 for name, shape in shapes.items()}
        for _ in range(STREAM_STEPS):
            step: dict[str, np.ndarray] = {}
            for name, shape in shapes.items():
                size = np.exp(generator.uniform(np.log(low), np.log(high), shape))
                sign = generator.choice([-1.0, 1.0], shape)
                given = reached[name] & (generator.random(shape) >= zeros)
                step[name] = (size * sign * given).astype(np.float32)
            stream.append(step)
        return stream

    return {"ordinary": draw(1e-3, 1.0), "near-eps": draw(1e-9, 1e-7), "zeros": draw(1e-3, 1.0, zeros=0.5)}


def stream_path(seed: int, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> Path:
    """Each step from the same parameters, of the size that weights have, so that weight decay shows beside the step."""
    generator = np.random.Generator(np.random.PCG64([seed, 47]))
    start = {name: generator.normal(0.0, 0.02, shape).astype(np.float32) for name, shape in shapes.items()}
    return Path([start] * STREAM_STEPS)
