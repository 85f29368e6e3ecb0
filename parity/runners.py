"""One side of a pair as the stages see it, and runners that stand around another one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from .capture import Capture
from .draws import Shape
from .islands import Island
from .links import Link
from .runs import Arrays, Run, Step
from .work import Work


class Runner(Protocol):
    """One side of a pair, ready to run at any precision. `parity/backends/*/run.py` implement it.

    `aliases` are the pair's names of outputs that the side calls otherwise.
    """

    label: str
    aliases: Mapping[str, str]

    @property
    def optimizes(self) -> bool:
        """Whether it has an optimizer."""

    @property
    def own(self) -> Arrays:
        """The parameters that it holds itself, none where the pair gives them."""

    @property
    def state(self) -> Arrays:
        """What a run may change."""

    @property
    def draws(self) -> Sequence[Shape]:
        """The shapes of the shared random draws of the last run, or trace, of the model."""

    def share(self, paired: Collection[str], tables: Collection[str]) -> None:
        """Tells which state the other side has as well, and which floats of it that has not in the same numbers.

        Unless a run changes these, the model worked them out.
        """

    def run(self, weights: Arrays, batch: Arrays, precision: str, *, lifted: bool = False) -> Run:
        """Outputs and gradients of one batch; `lifted` widens every float32 island of a float64 run."""

    def runs_forward(self, weights: Arrays, batch: Arrays, precision: str) -> bool:
        """Whether what failed was the gradient, and the model itself runs; False where none is taken."""

    def steps(
        self, points: Sequence[Arrays], batches: Sequence[Arrays], precision: str, *, lifted: bool = False
    ) -> Iterator[Step]:
        """One optimizer step per batch, step t from the parameters `points[t]`, which are read no earlier than that."""

    def follow(
        self, points: Sequence[Arrays], gradients: Sequence[Arrays], precision: str, *, lifted: bool = False
    ) -> Iterator[Step]:
        """One optimizer step per given gradient, without the model."""

    def evaluate(self, function: Callable[..., Any], draws: Sequence[Arrays], precision: str) -> list[np.ndarray]:
        """One operation on its own for each set of operands, in `precision`."""

    def nudge(self, weights: Arrays, batch: Arrays, seed: int) -> Run:
        """A widened float64 run in which every constant of float32 numbers is one unit in the last place off."""

    def capture(
        self,
        weights: Arrays,
        batch: Arrays,
        precision: str,
        *,
        feed: Arrays | None = None,
        back: Arrays | None = None,
        lifted: bool = False,
    ) -> tuple[Arrays, Capture]:
        """A run of one batch whose points are seen; it goes on with the values that are fed in at points by name.

        A fed point ends the backward pass of what follows it; with a gradient in `back` another one starts there.
        """

    def islands(self, weights: Arrays, batch: Arrays) -> list[Island]:
        """Where a float64 run of outputs and gradients drops to a lower precision, in data order.

        In PyTorch up to the error, if one ends the run.
        """

    def optimizer_islands(self, start: Arrays) -> list[Island]:
        """Where a float64 optimizer step from these parameters drops to a lower precision, in data order."""

    def count(self, weights: Arrays, batch: Arrays) -> Work:
        """Matmul FLOPs of one batch by every method of the framework, unrun; what cannot be counted is a note."""


@dataclass
class Around:
    """A runner that leaves everything to the one within; what is built on it changes some of that."""

    runner: Runner

    @property
    def label(self) -> str:
        """What the report calls the side."""
        return self.runner.label

    @label.setter
    def label(self, label: str) -> None:
        self.runner.label = label

    @property
    def optimizes(self) -> bool:
        """Whether it has an optimizer."""
        return self.runner.optimizes

    @property
    def own(self) -> Arrays:
        """The parameters that it holds itself."""
        return self.runner.own

    @property
    def state(self) -> Arrays:
        """What a run may change."""
        return self.runner.state

    @property
    def draws(self) -> Sequence[Shape]:
        """The shapes of the shared random draws of the last run."""
        return self.runner.draws

    @property
    def aliases(self) -> Mapping[str, str]:
        """The pair's names of outputs that the side calls otherwise."""
        return self.runner.aliases

    @aliases.setter
    def aliases(self, aliases: Mapping[str, str]) -> None:
        self.runner.aliases = aliases

    def share(self, paired: Collection[str], tables: Collection[str]) -> None:
        """What the other side has of this one's state, and what it has not."""
        self.runner.share(paired, tables)

    def model_at(self, precision: str) -> Runner:
        """The runner whose model is run at a precision."""
        return self.runner

    def run(self, weights: Arrays, batch: Arrays, precision: str, *, lifted: bool = False) -> Run:
        """Outputs and gradients of one batch."""
        return self.model_at(precision).run(weights, batch, precision, lifted=lifted)

    def runs_forward(self, weights: Arrays, batch: Arrays, precision: str) -> bool:
        """Whether what failed was the gradient."""
        return self.model_at(precision).runs_forward(weights, batch, precision)

    def steps(
        self, points: Sequence[Arrays], batches: Sequence[Arrays], precision: str, *, lifted: bool = False
    ) -> Iterator[Step]:
        """One optimizer step per batch."""
        return self.model_at(precision).steps(points, batches, precision, lifted=lifted)

    def follow(
        self, points: Sequence[Arrays], gradients: Sequence[Arrays], precision: str, *, lifted: bool = False
    ) -> Iterator[Step]:
        """One optimizer step per given gradient."""
        return self.runner.follow(points, gradients, precision, lifted=lifted)

    def evaluate(self, function: Callable[..., Any], draws: Sequence[Arrays], precision: str) -> list[np.ndarray]:
        """One operation on its own."""
        return self.runner.evaluate(function, draws, precision)

    def nudge(self, weights: Arrays, batch: Arrays, seed: int) -> Run:
        """A widened float64 run in which every constant of float32 numbers is one unit in the last place off."""
        return self.runner.nudge(weights, batch, seed)

    def capture(
        self,
        weights: Arrays,
        batch: Arrays,
        precision: str,
        *,
        feed: Arrays | None = None,
        back: Arrays | None = None,
        lifted: bool = False,
    ) -> tuple[Arrays, Capture]:
        """A run of one batch whose points are seen."""
        return self.model_at(precision).capture(weights, batch, precision, feed=feed, back=back, lifted=lifted)

    def islands(self, weights: Arrays, batch: Arrays) -> list[Island]:
        """Where a float64 run drops to a lower precision."""
        return self.runner.islands(weights, batch)

    def optimizer_islands(self, start: Arrays) -> list[Island]:
        """Where a float64 optimizer step drops to a lower precision."""
        return self.runner.optimizer_islands(start)

    def count(self, weights: Arrays, batch: Arrays) -> Work:
        """Matmul FLOPs of one batch."""
        return self.runner.count(weights, batch)


@dataclass
class Linked(Around):
    """A runner under the parameter names and in the layouts of another side."""

    link: Link

    def run(self, weights: Arrays, batch: Arrays, precision: str, *, lifted: bool = False) -> Run:
        """Outputs and gradients of one batch."""
        run = self.runner.run(self.link.forward(weights), batch, precision, lifted=lifted)
        return replace(run, gradients=self.link.backward(run.gradients) if run.gradients else {})

    def runs_forward(self, weights: Arrays, batch: Arrays, precision: str) -> bool:
        """Whether what failed was the gradient."""
        return self.runner.runs_forward(self.link.forward(weights), batch, precision)

    def steps(
        self, points: Sequence[Arrays], batches: Sequence[Arrays], precision: str, *, lifted: bool = False
    ) -> Iterator[Step]:
        """One optimizer step per batch."""
        steps = self.runner.steps(Forward(points, self.link.forward), batches, precision, lifted=lifted)
        return self._back(steps, points)

    def follow(
        self, points: Sequence[Arrays], gradients: Sequence[Arrays], precision: str, *, lifted: bool = False
    ) -> Iterator[Step]:
        """One optimizer step per given gradient; synthetic parameters have no names of the model's, and stay."""
        if not self.link.forward(points[0]):
            return self.runner.follow(points, gradients, precision, lifted=lifted)
        moved = Forward(points, self.link.forward), Forward(gradients, self.link.gradients)
        return self._back(self.runner.follow(*moved, precision, lifted=lifted), points)

    def nudge(self, weights: Arrays, batch: Arrays, seed: int) -> Run:
        """A widened float64 run in which every constant of float32 numbers is one unit in the last place off."""
        run = self.runner.nudge(self.link.forward(weights), batch, seed)
        return replace(run, gradients=self.link.backward(run.gradients) if run.gradients else {})

    def capture(
        self,
        weights: Arrays,
        batch: Arrays,
        precision: str,
        *,
        feed: Arrays | None = None,
        back: Arrays | None = None,
        lifted: bool = False,
    ) -> tuple[Arrays, Capture]:
        """A run of one batch whose points are seen, under the side's own names."""
        return self.runner.capture(self.link.forward(weights), batch, precision, feed=feed, back=back, lifted=lifted)

    def islands(self, weights: Arrays, batch: Arrays) -> list[Island]:
        """Where a float64 run drops to a lower precision."""
        return self.runner.islands(self.link.forward(weights), batch)

    def optimizer_islands(self, start: Arrays) -> list[Island]:
        """Where a float64 optimizer step drops to a lower precision."""
        return self.runner.optimizer_islands(self.link.forward(start) or start)

    def count(self, weights: Arrays, batch: Arrays) -> Work:
        """Matmul FLOPs of one batch."""
        return self.runner.count(self.link.forward(weights), batch)

    def _back(self, steps: Iterator[Step], points: Sequence[Arrays]) -> Iterator[Step]:
        for index, step in enumerate(steps):
            parameters = self.link.stepped(step.parameters, points[index])
            yield Step(parameters, self.link.backward(step.mu), self.link.squares(step.nu))


@dataclass(frozen=True)
class Forward(Sequence[Arrays]):
    """Parameters of the other side that are moved when they are read: a path holds many times the model."""

    points: Sequence[Arrays]
    move: Callable[[Arrays], Arrays]

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: Any) -> Any:
        return self.move(self.points[index])
