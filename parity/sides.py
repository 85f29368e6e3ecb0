"""Both sides of a pair, run alike: everything here comes as (reference, candidate)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from .capture import Capture
from .errors import NotRunError
from .formats import FORMATS
from .islands import Island
from .memory import leave_memory_to_runs, shelved
from .pair import Pair
from .recognition import recognised
from .rounding import dtype_of, to_bits
from .runners import Runner
from .runs import UNIT, Arrays, Path, Run, Step, Trained, is_float, running, walk
from .trees import Form
from .work import Work, merge

#: How a function without inputs is called.
EMPTY = Form(())


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
    def of(cls, pair: Pair, form: Form = EMPTY, device: str = "cpu", grads: bool = True) -> Sides:
        """The runners of a pair as they stand; each framework is imported only if a side needs it."""
        weights = pair.weights if isinstance(pair.weights, Mapping) else None
        reference, candidate = (
            make_runner(role, pair, weights, form, device, grads) for role in ("reference", "candidate")
        )
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

    @property
    def holders(self) -> list[tuple[str, str]]:
        """Modules of the two sides whose own parameters hold the same numbers, by path; those of one other alone."""
        link = getattr(self.candidate, "link", None)
        pairs = link.pairs if link is not None else []
        paths = dict.fromkeys((a.rpartition(".")[0], b.rpartition(".")[0]) for a, b in pairs)
        mine, theirs = Counter(a for a, _ in paths), Counter(b for _, b in paths)
        return [(a, b) for a, b in paths if mine[a] == theirs[b] == 1 and a and b]

    def rename(self, aliases: Mapping[str, str]) -> None:
        """Gives outputs of the candidate the names that the reference has for them."""
        self.candidate.aliases = {**self.candidate.aliases, **aliases}

    def run(self, weights: Arrays, batches: Sequence[Arrays], precision: str) -> tuple[list[Run], list[Run]]:
        """Outputs and gradients of every batch."""
        return self.reference_run(weights, batches, precision), self.candidate_run(weights, batches, precision)

    def nudged(self, runner: Runner, weights: Arrays, batches: Sequence[Arrays], seed: int) -> list[Run]:
        """One side's widened float64 runs of every batch, with float32 constants one unit in the last place off."""
        with running(runner.label, "float64"):
            moved = [runner.nudge(weights, batch, seed) for batch in batches]
        return [replace(run, gradients=self._shared(run.gradients)) for run in moved]

    def lead(self, weights: Arrays, batches: Sequence[Arrays], precision: str) -> Path:
        """The reference's own training in float64, its parameters rounded to `precision` after each step."""
        points, units = [weights], []
        with running(self.reference.label, "float64"):
            for step in self.reference.steps(points, batches, "float64", lifted=self.lifted):
                points.append(shelved(rounded(step.parameters, precision)))
                units.append(
                    shelved({name: (np.sqrt(value) + UNIT).astype(np.float32) for name, value in step.nu.items()})
                )
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

    def capture(
        self, runner: Runner, weights: Arrays, batch: Arrays, precision: str, **given: Arrays
    ) -> tuple[Arrays, Capture]:
        """What one side gives, and its points; `given` as in `Runner.capture`."""
        leave_memory_to_runs()
        with running(runner.label, f"{precision}, its points captured,"):
            return runner.capture(weights, batch, precision, lifted=self._lifts(precision), **given)

    def reference_run(self, weights: Arrays, batches: Sequence[Arrays], precision: str) -> list[Run]:
        """Outputs and gradients of the reference alone."""
        return [self._run(self.reference, weights, batch, precision) for batch in batches]

    def candidate_run(self, weights: Arrays, batches: Sequence[Arrays], precision: str) -> list[Run]:
        """Outputs and gradients of the candidate alone."""
        return [self._run(self.candidate, weights, batch, precision) for batch in batches]

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
        leave_memory_to_runs()
        try:
            with running(runner.label, precision):
                run = runner.run(weights, batch, precision, lifted=self._lifts(precision))
        except NotRunError as error:
            if not runner.runs_forward(weights, batch, precision):
                raise
            raise type(error)(
                f"{error}; its outputs alone run: grads=False", error.label, error.said
            ) from error.__cause__
        keep = shelved if precision == "float64" else dict  # the others are judged soon, and half as large
        return Run(keep(run.outputs), keep(self._shared(run.gradients)), keep(run.inputs), run.loss)

    def _walk(self, runner: Runner, path: Path, steps: Callable[..., Iterator[Step]], precision: str) -> Trained:
        leave_memory_to_runs()
        with running(f"{runner.label} with its optimizer", precision):
            trained = walk(path, steps(precision, lifted=self._lifts(precision)))
        return Trained(*(shelved(self._shared(arrays)) for arrays in (trained.parameters, trained.mu, trained.nu)))

    def _shared(self, arrays: Arrays) -> dict[str, np.ndarray]:
        return {name: value for name, value in arrays.items() if name not in self.unpaired}

    def _lifts(self, precision: str) -> bool:
        return self.lifted and precision == "float64"


def make_runner(role: str, pair: Pair, weights: Arrays | None, form: Form, device: str, grads: bool = True) -> Runner:
    """The runner of one side of a pair, in its framework; `weights` None: those that it holds itself.

    `grads` is whether its runs take gradients.

    Raises:
        ParityUsageError: it is nothing that can be run.
    """
    side = recognised(role, getattr(pair, role))
    with running(side.label, "any precision"):
        if side.framework == "jax":
            from .backends.jax.run import JaxRunner

            return JaxRunner(role, pair, weights, form, device, grads)
        from .backends.torch.run import TorchRunner

        return TorchRunner(role, pair, weights, form, device, grads)


def rounded(arrays: Arrays, precision: str) -> dict[str, np.ndarray]:
    """Floats rounded to a format of at most 32 bits and kept as float32, which holds them all; the rest as it is.

    What is finite but beyond the range of float32 becomes its largest number: masks are often written so.
    """
    dtype = dtype_of(precision)
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
        if is_float(array) and FORMATS[precision].held:
            kept[name] = to_bits(kept[name], FORMATS[precision].precision)
    return kept


def neighbours(
    weights: Arrays, batches: Sequence[Arrays], precision: str, seed: int, count: int
) -> Iterator[tuple[dict[str, np.ndarray], list[dict[str, np.ndarray]]]]:
    """Weights and batches that are one unit in the last place away, so many times over."""
    for index in range(count):
        near = [perturbed(batch, precision, [seed, index, 1]) for batch in batches]
        yield perturbed(weights, precision, [seed, index]), near


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
