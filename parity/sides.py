"""Both sides of a pair, run alike: everything here comes as (reference, candidate)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from .capture import Capture
from .formats import FORMATS
from .islands import Island
from .links import Link
from .pair import Pair
from .recognition import recognised
from .runs import UNIT, Arrays, Path, Run, Step, Trained, is_float, running, walk
from .trees import Form
from .work import Work, merge

#: How a function without inputs is called.
EMPTY = Form(())


class Runner(Protocol):
    """One side of a pair, ready to run at any precision. `parity/backends/*/run.py` implement it.

    `optimizes` says whether it has an optimizer. `own` are the parameters that it holds itself, none where the pair
    gives them; `state` is what a run may change; `aliases` are the pair's names of outputs that the side calls
    otherwise.
    """

    label: str
    optimizes: bool
    own: Arrays
    state: Arrays
    aliases: Mapping[str, str]

    def run(self, weights: Arrays, batch: Arrays, precision: str, *, lifted: bool = False) -> Run:
        """Outputs and gradients of one batch; `lifted` widens every float32 island of a float64 run."""

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
        """Where a float64 run of outputs and gradients drops to a lower precision, in data order."""

    def optimizer_islands(self, start: Arrays) -> list[Island]:
        """Where a float64 optimizer step from these parameters drops to a lower precision, in data order."""

    def count(self, weights: Arrays, batch: Arrays) -> Work:
        """Matmul FLOPs of one batch by every method of the framework, unrun; what cannot be counted is a note."""


@dataclass
class Linked:
    """A runner under the parameter names and in the layouts of another side."""

    runner: Runner
    link: Link

    def __post_init__(self) -> None:
        self.label, self.own, self.state = self.runner.label, self.runner.own, self.runner.state
        self.optimizes = self.runner.optimizes

    @property
    def aliases(self) -> Mapping[str, str]:
        """The pair's names of outputs that the side calls otherwise."""
        return self.runner.aliases

    @aliases.setter
    def aliases(self, aliases: Mapping[str, str]) -> None:
        self.runner.aliases = aliases

    def run(self, weights: Arrays, batch: Arrays, precision: str, *, lifted: bool = False) -> Run:
        """Outputs and gradients of one batch."""
        run = self.runner.run(self.link.forward(weights), batch, precision, lifted=lifted)
        return replace(run, gradients=self.link.backward(run.gradients))

    def steps(
        self, points: Sequence[Arrays], batches: Sequence[Arrays], precision: str, *, lifted: bool = False
    ) -> Iterator[Step]:
        """One optimizer step per batch."""
        return self._back(self.runner.steps(Forward(points, self.link), batches, precision, lifted=lifted))

    def follow(
        self, points: Sequence[Arrays], gradients: Sequence[Arrays], precision: str, *, lifted: bool = False
    ) -> Iterator[Step]:
        """One optimizer step per given gradient; synthetic parameters have no names of the model's, and stay."""
        if not self.link.forward(points[0]):
            return self.runner.follow(points, gradients, precision, lifted=lifted)
        moved = Forward(points, self.link), Forward(gradients, self.link)
        return self._back(self.runner.follow(*moved, precision, lifted=lifted))

    def evaluate(self, function: Callable[..., Any], draws: Sequence[Arrays], precision: str) -> list[np.ndarray]:
        """One operation on its own."""
        return self.runner.evaluate(function, draws, precision)

    def nudge(self, weights: Arrays, batch: Arrays, seed: int) -> Run:
        """A widened float64 run in which every constant of float32 numbers is one unit in the last place off."""
        run = self.runner.nudge(self.link.forward(weights), batch, seed)
        return replace(run, gradients=self.link.backward(run.gradients))

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

    def _back(self, steps: Iterator[Step]) -> Iterator[Step]:
        for step in steps:
            yield Step(*(self.link.backward(each) for each in (step.parameters, step.mu, step.nu)))


@dataclass(frozen=True)
class Forward(Sequence[Arrays]):
    """Parameters of the other side that are moved when they are read: a path holds many times the model."""

    points: Sequence[Arrays]
    link: Link

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: Any) -> Any:
        return self.link.forward(self.points[index])


@dataclass
class Sides:
    """The two runners of a pair; once `lifted` is set their float64 runs have every float32 island widened.

    `unpaired` are parameters of the reference that the candidate has not: what comes of them is left out.
    """

    reference: Runner
    candidate: Runner
    lifted: bool = False
    unpaired: frozenset[str] = frozenset()

    @classmethod
    def of(cls, pair: Pair, form: Form = EMPTY, device: str = "cpu") -> Sides:
        """The runners of a pair as they stand; each framework is imported only if a side needs it."""
        weights = pair.weights if isinstance(pair.weights, Mapping) else None
        reference, candidate = (_runner(role, pair, weights, form, device) for role in ("reference", "candidate"))
        if reference.label == candidate.label:
            label = reference.label
            reference.label, candidate.label = f"{label} (reference)", f"{label} (candidate)"
        return cls(reference, candidate)

    @property
    def labels(self) -> tuple[str, str]:
        """What the report calls the sides."""
        return self.reference.label, self.candidate.label

    @property
    def own(self) -> tuple[Arrays, Arrays]:
        """The parameters that each side holds itself."""
        return self.reference.own, self.candidate.own

    def rename(self, aliases: Mapping[str, str]) -> None:
        """Gives outputs of the candidate the names that the reference has for them."""
        self.candidate.aliases = {**self.candidate.aliases, **aliases}

    def run(self, weights: Arrays, batches: Sequence[Arrays], precision: str) -> tuple[list[Run], list[Run]]:
        """Outputs and gradients of every batch."""
        reference, candidate = (
            [self._run(runner, weights, batch, precision) for batch in batches]
            for runner in (self.reference, self.candidate)
        )
        return reference, candidate

    def nudged(self, weights: Arrays, batches: Sequence[Arrays], seed: int) -> tuple[list[Run], list[Run]]:
        """Widened float64 runs of every batch, with float32 constants one unit in the last place off."""
        runs = []
        for runner in (self.reference, self.candidate):
            with running(runner.label, "float64"):
                moved = [runner.nudge(weights, batch, seed) for batch in batches]
            runs.append([replace(run, gradients=self._shared(run.gradients)) for run in moved])
        return runs[0], runs[1]

    def lead(self, weights: Arrays, batches: Sequence[Arrays], precision: str) -> Path:
        """The reference's own training in float64, its parameters rounded to `precision` after each step."""
        points, units = [weights], []
        with running(self.reference.label, "float64"):
            for step in self.reference.steps(points, batches, "float64", lifted=self.lifted):
                points.append(rounded(step.parameters, precision))
                units.append({name: (np.sqrt(value) + UNIT).astype(np.float32) for name, value in step.nu.items()})
        return Path(points[:-1], units)

    def train(self, path: Path, batches: Sequence[Arrays], precision: str) -> tuple[Trained, Trained]:
        """Optimizer steps along a path, on each side's own gradients."""
        # JAX needs more memory for a step than PyTorch: the candidate goes first, while less is kept
        candidate, reference = (
            self._walk(runner, path, partial(runner.steps, path.points, batches), precision)
            for runner in (self.candidate, self.reference)
        )
        return reference, candidate

    def follow(self, path: Path, gradients: Sequence[Arrays], precision: str) -> tuple[Trained, Trained]:
        """Optimizer steps along a path, on the same given gradients."""
        reference, candidate = (
            self._walk(runner, path, partial(runner.follow, path.points, gradients), precision)
            for runner in (self.reference, self.candidate)
        )
        return reference, candidate

    def reference_run(self, weights: Arrays, batches: Sequence[Arrays], precision: str) -> list[Run]:
        """Outputs and gradients of the reference alone."""
        return [self._run(self.reference, weights, batch, precision) for batch in batches]

    def reference_train(self, path: Path, batches: Sequence[Arrays], precision: str) -> Trained:
        """Optimizer steps of the reference alone."""
        return self._walk(self.reference, path, partial(self.reference.steps, path.points, batches), precision)

    def reference_follow(self, path: Path, gradients: Sequence[Arrays], precision: str) -> Trained:
        """Optimizer steps of the reference alone on given gradients."""
        return self._walk(self.reference, path, partial(self.reference.follow, path.points, gradients), precision)

    def islands(self, weights: Arrays, batch: Arrays) -> list[Island]:
        """Every place where a float64 run of outputs and gradients is less than float64."""
        return [*self.reference.islands(weights, batch), *self.candidate.islands(weights, batch)]

    def optimizer_islands(self, start: Arrays) -> list[Island]:
        """Every place where a float64 optimizer step is less than float64."""
        return [*self.reference.optimizer_islands(start), *self.candidate.optimizer_islands(start)]

    def count(self, weights: Arrays, batch: Arrays, formula: Mapping[str, int] | None) -> Work:
        """Matmul FLOPs by every method of both frameworks, and by the formula where there is one."""
        reference, candidate = (runner.count(weights, batch) for runner in (self.reference, self.candidate))
        return merge(reference, candidate, self.candidate.label, formula)

    def _run(self, runner: Runner, weights: Arrays, batch: Arrays, precision: str) -> Run:
        with running(runner.label, precision):
            run = runner.run(weights, batch, precision, lifted=self._lifts(precision))
        return replace(run, gradients=self._shared(run.gradients)) if self.unpaired else run

    def _walk(self, runner: Runner, path: Path, steps: Callable[..., Iterator[Step]], precision: str) -> Trained:
        with running(f"{runner.label} with its optimizer", precision):
            trained = walk(path, steps(precision, lifted=self._lifts(precision)))
        return Trained(*map(self._shared, (trained.parameters, trained.mu, trained.nu)))

    def _shared(self, arrays: Arrays) -> dict[str, np.ndarray]:
        return {name: value for name, value in arrays.items() if name not in self.unpaired}

    def _lifts(self, precision: str) -> bool:
        return self.lifted and precision == "float64"


def _runner(role: str, pair: Pair, weights: Arrays | None, form: Form, device: str) -> Runner:
    side = recognised(role, getattr(pair, role))
    with running(side.label, "any precision"):
        if side.framework == "jax":
            from .backends.jax.run import JaxRunner

            return JaxRunner(role, pair, weights, form, device)
        from .backends.torch.run import TorchRunner

        return TorchRunner(role, pair, weights, form, device)


def rounded(arrays: Arrays, precision: str) -> dict[str, np.ndarray]:
    """Floats rounded to a format of at most 32 bits and kept as float32, which holds them all; the rest as it is.

    What is finite but beyond the range of float32 becomes its largest number: masks are often written so.
    """
    import ml_dtypes

    dtype = np.dtype(ml_dtypes.bfloat16 if precision == "bfloat16" else precision)
    kept = {}
    for name, array in arrays.items():
        kept[name] = array
        if is_float(array) and array.dtype != np.float32:
            largest = np.finfo(np.float32).max
            inside = np.where(np.isfinite(array), np.clip(array, -largest, largest), array)
            kept[name] = np.asarray(inside, np.float32)
        if is_float(array) and dtype != np.float32:
            with np.errstate(over="ignore"):  # infinite beyond the range of the format
                kept[name] = kept[name].astype(dtype).astype(np.float32)
    return kept


def perturbed(weights: Arrays, precision: str, seed: Sequence[int]) -> dict[str, np.ndarray]:
    """Floats moved by one unit in the last place of `precision`, up or down at random."""
    generator = np.random.Generator(np.random.PCG64(seed))
    ulp = 2 * FORMATS[precision].unit_roundoff
    moved = {
        name: (array * (1 + ulp * generator.choice([-1.0, 1.0], array.shape))).astype(np.float32)
        for name, array in weights.items()
        if is_float(array)
    }
    return {**weights, **rounded(moved, precision)}
