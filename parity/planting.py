"""A side with a fault in it, and a side that remembers what it has computed, so that faults cost little."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .mutants import Mutant
from .runners import Around
from .runs import Arrays, Run, Step

#: Runs that each side remembers, in bytes: the float64 stage of a model of ten million parameters.
REMEMBERED_BYTES = 2_000_000_000


class Stepping(Around):
    """A runner whose optimizer steps follow the gradients of its own runs, whatever these have become."""

    def steps(
        self, points: Sequence[Arrays], batches: Sequence[Arrays], precision: str, *, lifted: bool = False
    ) -> Iterator[Step]:
        """One optimizer step per batch."""
        return self.follow(points, Gradients(self, points, batches, precision, lifted), precision, lifted=lifted)


@dataclass
class Remembered(Stepping):
    """A runner that runs the same numbers once; it takes up no more once `learning` is off, or its memory is full."""

    learning: bool = True
    known: dict[bytes, Run] = field(default_factory=dict)
    bytes_left: int = REMEMBERED_BYTES

    def run(self, weights: Arrays, batch: Arrays, precision: str, *, lifted: bool = False) -> Run:
        """Outputs and gradients of one batch."""
        key = _digest(f"{precision} {lifted} {sorted(self.aliases.items())}", weights, batch)
        if key in self.known:
            return self.known[key]
        run = self.runner.run(weights, batch, precision, lifted=lifted)
        size = sum(array.nbytes for arrays in (run.outputs, run.gradients, run.inputs) for array in arrays.values())
        if self.learning and size <= self.bytes_left:
            self.known[key] = run
            self.bytes_left -= size
        return run


@dataclass
class Mutated(Stepping):
    """A runner with one fault: in what goes in, in what comes out, or in its optimizer."""

    mutant: Mutant

    def run(self, weights: Arrays, batch: Arrays, precision: str, *, lifted: bool = False) -> Run:
        """Outputs and gradients of one batch."""
        if not self.mutant.happens(precision):
            return self.runner.run(weights, batch, precision, lifted=lifted)
        changed = self.mutant.weights(weights), self.mutant.inputs(batch)
        return self._faulty(self.runner.run(*changed, precision, lifted=lifted))

    def nudge(self, weights: Arrays, batch: Arrays, seed: int) -> Run:
        """A widened float64 run in which every constant of float32 numbers is one unit in the last place off."""
        if not self.mutant.happens("float64"):
            return self.runner.nudge(weights, batch, seed)
        return self._faulty(self.runner.nudge(self.mutant.weights(weights), self.mutant.inputs(batch), seed))

    def follow(
        self, points: Sequence[Arrays], gradients: Sequence[Arrays], precision: str, *, lifted: bool = False
    ) -> Iterator[Step]:
        """One optimizer step per given gradient."""
        fed = Fed(gradients, self.mutant) if self.mutant.happens(precision) else gradients
        for index, step in enumerate(self.runner.follow(points, fed, precision, lifted=lifted)):
            yield self.mutant.step(points[index], step) if self.mutant.happens(precision) else step

    def evaluate(self, function: Callable[..., Any], draws: Sequence[Arrays], precision: str) -> list[np.ndarray]:
        """One operation on its own."""
        results = self.runner.evaluate(function, draws, precision)
        if function is not self.mutant.operation or not self.mutant.happens(precision):
            return results
        return [self.mutant.result(result) for result in results]

    def _faulty(self, run: Run) -> Run:
        return replace(
            run,
            outputs=self.mutant.outputs(run.outputs),
            gradients=self.mutant.gradients(run.gradients),
            inputs=self.mutant.input_gradients(run.inputs),
        )


@dataclass(frozen=True)
class Gradients(Sequence[Arrays]):
    """The gradients at the points of a path, each computed when it is asked for: the next point comes of it."""

    runner: Around
    points: Sequence[Arrays]
    batches: Sequence[Arrays]
    precision: str
    lifted: bool

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: Any) -> Any:
        run = self.runner.run(self.points[index], self.batches[index], self.precision, lifted=self.lifted)
        return run.gradients


@dataclass(frozen=True)
class Fed(Sequence[Arrays]):
    """Gradients as a faulty optimizer sees them."""

    gradients: Sequence[Arrays]
    mutant: Mutant

    def __len__(self) -> int:
        return len(self.gradients)

    def __getitem__(self, index: Any) -> Any:
        return self.mutant.fed(self.gradients[index])


def _digest(words: str, *parts: Mapping[str, np.ndarray]) -> bytes:
    """Of names, types, shapes and numbers."""
    digest = hashlib.blake2b(words.encode(), digest_size=16)
    for arrays in parts:
        for name, array in arrays.items():
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return digest.digest()
