"""What one side of a pair gives back, whatever the framework: NumPy arrays with names. Loads no framework."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import ANYTHING, NoFloat64Error, NotRunError, ParityUsageError
from .frames import told
from .pair import Pair
from .trees import is_array, leaves, to_array

Arrays = Mapping[str, np.ndarray]
Loss = str | Callable[..., Any] | None

#: What the gradient in an input is called, beside those in parameters.
INPUT = "input "


@dataclass(frozen=True)
class Run:
    """Outputs by name, the loss, and its gradient in every parameter and in every float input (`inputs`)."""

    outputs: Arrays
    gradients: Arrays
    inputs: Arrays = field(default_factory=dict)
    loss: float = math.nan

    @property
    def named(self) -> Arrays:
        """Outputs and gradients, as their rows are called."""
        return {**self.outputs, **{f"gradient {name}": array for name, array in self.derivatives.items()}}

    @property
    def derivatives(self) -> dict[str, np.ndarray]:
        """The gradients in parameters, and those in inputs under `input NAME`."""
        return {**self.gradients, **{INPUT + name: value for name, value in self.inputs.items()}}


@dataclass(frozen=True)
class Step:
    """What one optimizer step leaves behind: parameters, and both moments where the optimizer keeps them, by name.

    The arrays may be the optimizer's own memory: they hold until the next step is taken.
    """

    parameters: Arrays
    mu: Arrays
    nu: Arrays


@dataclass(frozen=True)
class Path:
    """Where training goes: the parameters that each step starts from, and the unit of each parameter's movement.

    `points` are as many as there are steps, exact in the precision that is judged; `units` are sqrt(nu) + UNIT after
    each step for the parameters that have a nu; any other movement is measured as it is.
    """

    points: Sequence[Arrays]
    units: Sequence[Arrays] = ()


@dataclass(frozen=True)
class Trained:
    """Steps along a path: the sum of their movements in the path's units, and the last moments."""

    parameters: Arrays
    mu: Arrays
    nu: Arrays


def walk(path: Path, steps: Iterable[Step]) -> Trained:
    """Adds up how far the steps of one side went from the points of a path.

    Adam divides by sqrt(nu) + eps: noise in a gradient near zero becomes a whole step. Multiplying by the same of one
    exact run undoes that, so that errors are as large as the noise that caused them.
    """
    total: dict[str, np.ndarray] = {}
    last = Step({}, {}, {})
    for index, step in enumerate(steps):
        for name, value in step.parameters.items():
            movement = value.astype(np.float64)
            movement -= path.points[index][name]
            if path.units and name in path.units[index]:
                movement *= path.units[index][name]
            with np.errstate(invalid="ignore"):  # infinities of both signs: NaN, which the judge counts
                total[name] = total[name] + movement if name in total else movement
        if index == len(path.points) - 1:
            last = step
        del step  # as large as the model three times over: gone before the next one is taken
    return Trained(total, last.mu, last.nu)


def projection(name: str, shape: Sequence[int]) -> np.ndarray:
    """The fixed random weights, over the power of two nearest to sqrt(size), that turn an output into a loss.

    Signs times 1, 1 1/8, ... 1 7/8: exact in every format, so that they are no low-precision constants and the gradient
    in an output has no rounding. Signs alone would cancel where two elements get the same gradient.
    """
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    signs = np.asarray(generator.choice([-1.0, 1.0], tuple(shape)))
    sizes = 1 + generator.integers(0, 8, tuple(shape)) / 8
    return np.asarray(signs * sizes * 2.0 ** -round(np.log2(max(1, signs.size)) / 2))


def named_outputs(label: str, outputs: Any, loss: Loss, aliases: Mapping[str, str]) -> dict[str, Any]:
    """What a side returned, every array by its path in the containers.

    `aliases` are the pair's names of outputs that this side calls otherwise. What is None is left out.

    Raises:
        ParityUsageError: there is something else than arrays in it, or the loss that the pair names is not there.
    """
    named: dict[str, Any] = {}
    for path, value in leaves(outputs):
        name = aliases.get(path, path)
        if value is None:
            continue
        if not is_array(value):
            found = type(value).__name__
            raise ParityUsageError(f"{label}: must return arrays, got {found} for {name!r}; leave it out")
        if name in named:
            raise ParityUsageError(f"{label}: one output of each name, got two of {name!r}; rename one")
        named[name] = value
    if not named:
        found = type(outputs).__name__
        raise ParityUsageError(f"{label}: must return arrays, got none in {found}; return at least one")
    if isinstance(loss, str) and loss not in named:
        raise ParityUsageError(f"loss: one of the outputs {', '.join(named)}, got {loss!r}; name one of them")
    return named


def loss_of(role: str, pair: Pair) -> Loss:
    """What one side of a pair differentiates; `role` is "reference" or "candidate"."""
    if isinstance(pair.loss, tuple | list):
        return pair.loss[role == "candidate"]
    return pair.loss


def scalar_loss(label: str, loss: str | Callable[..., Any], outputs: Any, named: Mapping[str, Any]) -> Any:
    """The number that is differentiated, by its name among the outputs or as a function of what the side returned.

    Raises:
        ParityUsageError: it is no single number.
    """
    value = named[loss] if isinstance(loss, str) else loss(outputs)
    if not is_array(value) or tuple(value.shape) != ():
        found = f"shape {tuple(value.shape)}" if is_array(value) else type(value).__name__
        what = repr(loss) if isinstance(loss, str) else "a function's result"
        raise ParityUsageError(f"loss: a single number, got {what} of {found} from {label}; sum it up")
    return value


def named_arrays(what: str, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Weights or inputs as NumPy arrays; arrays and tensors of a framework are taken too.

    Raises:
        ParityUsageError: it is no mapping by name, or holds what is no array of numbers.
    """
    if not isinstance(given, Mapping):
        found = type(given).__name__
        raise ParityUsageError(f"{what}: a dict of arrays by name, got {found}; give {{'name': array}}")
    arrays = {str(name): to_array(value) for name, value in given.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
            raise ParityUsageError(f"{what}: arrays of numbers, got {name!r} of type {array.dtype}; convert it")
    return arrays


def check_names(label: str, weights: Mapping[str, Any], held: Mapping[str, Any]) -> None:
    """The weights that a pair gives are those that the side has.

    Raises:
        ParityUsageError: one of them is missing, or the side has no parameter of its name.
    """
    if weights.keys() != held.keys():
        missing, surplus = sorted(held.keys() - weights.keys()), sorted(weights.keys() - held.keys())
        found = f"missing: {', '.join(missing) or 'none'}, surplus: {', '.join(surplus) or 'none'}"
        raise ParityUsageError(f"weights: the parameters of {label}, got {found}; give each by its name")


@contextmanager
def running(label: str, precision: str) -> Iterator[None]:
    """Whatever a side raises is the caller's to mend, and is told with the side's name.

    Raises:
        NotRunError: from the error of the side; NoFloat64Error if that is the precision.
    """
    kind = NoFloat64Error if precision.startswith("float64") else NotRunError
    try:
        yield
    except (ParityUsageError, MemoryError, ImportError):
        raise
    except ANYTHING as error:
        said = told(error)
        raise kind(
            f"{label}: a function that runs on these weights and inputs in {precision}, got {said}; "
            "try it by itself, the traceback (--debug) shows where",
            label,
            said,
        ) from error


def is_float(array: np.ndarray) -> bool:
    """Floating point, bfloat16 included."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def is_mask(array: np.ndarray) -> bool:
    """Truth values, or zeros and ones."""
    return not is_float(array) and set(np.unique(array)) <= {0, 1}


def is_additive_mask(array: np.ndarray) -> bool:
    """Floats of which some are zero and all others so far below that nothing is left of what they are added to."""
    return is_float(array) and bool((array == 0).any() and array.min() < 0) and bool((array[array != 0] <= -1e4).all())


def is_state(name: str) -> bool:
    """Whether an output is state that the run changed, and nothing that the side returned."""
    return name.startswith("state ")


#: The optimizer state of the two frameworks under one name (optax and jaxcore; torchref; torch.optim).
MOMENTS = {"mu": ("mu", "exp_avg", "trace", "momentum_buffer"), "nu": ("nu", "exp_avg_sq", "square_avg", "exp_inf")}

#: What stands for eps in the unit of a movement: the usual one. Without it an element whose nu is zero would not count.
UNIT = 1e-8
