"""Random draws that both sides of a pair share: which elements a dropout keeps. Loads no framework."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from .errors import ParityUsageError

SHARED, OFF = "shared", "off"
#: Numbers are the middles of so many equal parts of [0, 1): exact in float32, and no rate that is written out is one.
PARTS = 2**16

Shape = tuple[int, ...]


@dataclass
class Draws:
    """The draws of one run, in their order: the n-th of a shape is the same in every run and on either side."""

    shapes: list[Shape] = field(default_factory=list)

    def uniform(self, shape: Sequence[int]) -> np.ndarray:
        """The next numbers, float32, uniform in [0, 1)."""
        self.shapes.append(tuple(shape))
        seed = [len(self.shapes), zlib.crc32(repr(tuple(shape)).encode())]
        generator = np.random.Generator(np.random.PCG64(seed))
        return np.asarray((generator.integers(0, PARTS, tuple(shape)) + 0.5) / PARTS, np.float32)


class Replacing(Protocol):
    """How a framework draws from `draws` for as long as it lasts; if that is not `shared` it leaves dropout out.

    Then `draws` are what was drawn nonetheless, by a function of the caller's.
    """

    def __call__(self, draws: Draws, shared: bool) -> AbstractContextManager[None]:
        """What `Dropout.run` enters around a run of the model."""


@dataclass
class Dropout:
    """What a side does about dropout: `mode` is "shared", "off" or None, which leaves the model as it is."""

    mode: str | None
    replacing: Replacing
    last: Draws = field(default_factory=Draws)

    @contextmanager
    def run(self) -> Iterator[None]:
        """Around one run, or one trace, of the model."""
        draws = Draws()
        with self.replacing(draws, self.mode == SHARED) if self.mode else nullcontext():
            yield
        self.last = draws


def refuse_any_draws(labels: tuple[str, str], drawn: tuple[Sequence[Shape], Sequence[Shape]]) -> None:
    """Raises ParityUsageError if a side drew although dropout is left out."""
    for label, shapes in zip(labels, drawn, strict=True):
        if shapes:
            raise ParityUsageError(
                f"dropout: left out on both sides, got {len(shapes)} draws of {label}'s own ({shapes[0]} first), which "
                "are no layer's; use dropout='shared', or leave them out there"
            )


def refuse_other_draws(labels: tuple[str, str], drawn: tuple[Sequence[Shape], Sequence[Shape]]) -> None:
    """Raises ParityUsageError unless both sides drew for the same shapes in the same order."""
    if list(drawn[0]) == list(drawn[1]):
        return
    found = " and ".join(
        f"{len(shapes)} of {label} ({', '.join(map(str, shapes[:3]))}{', ...' if len(shapes) > 3 else ''})"
        for label, shapes in zip(labels, drawn, strict=True)
    )
    raise ParityUsageError(
        f"dropout: the same draws in the same order on both sides, got {found}; dropout='off' leaves layers' out, "
        "as it must be where they are scanned or mapped"
    )
