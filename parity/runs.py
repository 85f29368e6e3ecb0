"""What one side of a pair gives back, whatever the framework: NumPy arrays with names. Loads no framework."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import ParityUsageError, first_line

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Run:
    """Outputs by name and the gradient of the loss in every parameter."""

    outputs: Arrays
    gradients: Arrays


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
    """The fixed random signs, over the power of two nearest to sqrt(size), that turn an output into a loss.

    Exact in every format, so that the projection adds no rounding of its own and is no low-precision constant.
    """
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    signs = np.asarray(generator.choice([-1.0, 1.0], tuple(shape)))
    return np.asarray(signs * 2.0 ** -round(np.log2(max(1, signs.size)) / 2))


def named_outputs(label: str, outputs: Any, loss: str | None) -> dict[str, Any]:
    """What a side returned, as a dict with the loss in it.

    Raises:
        ParityUsageError: it is no mapping by name, or the loss that the pair names is not there.
    """
    if not isinstance(outputs, Mapping) or not outputs:
        raise ParityUsageError(
            f"{label}: must return a dict of arrays by name, got {type(outputs).__name__}; return {{'output': ...}}"
        )
    for name, value in outputs.items():
        if not hasattr(value, "dtype") or not hasattr(value, "shape"):
            found = type(value).__name__
            raise ParityUsageError(
                f"{label}: a dict of arrays by name, got {found} for {name!r}; give each array a name"
            )
    if loss is not None and loss not in outputs:
        raise ParityUsageError(f"loss: one of the outputs {', '.join(outputs)}, got {loss!r}; name one of them")
    if loss is not None and tuple(outputs[loss].shape) != ():
        shape = tuple(outputs[loss].shape)
        raise ParityUsageError(f"loss: a single number, got {loss!r} of shape {shape} from {label}; sum it up")
    return dict(outputs)


def named_arrays(what: str, given: Any) -> dict[str, np.ndarray]:
    """Weights or inputs as NumPy arrays; arrays and tensors of a framework are taken too.

    Raises:
        ParityUsageError: it is no mapping by name, or holds what is no array of numbers.
    """
    if not isinstance(given, Mapping):
        found = type(given).__name__
        raise ParityUsageError(f"{what}: a dict of arrays by name, got {found}; give {{'name': array}}")
    arrays = {name: np.asarray(value) for name, value in given.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
            raise ParityUsageError(f"{what}: arrays of numbers, got {name!r} of type {array.dtype}; convert it")
        if array.dtype.kind in "iu" and array.size and max(-int(array.min()), int(array.max())) >= 2**31:
            raise ParityUsageError(f"{what}: whole numbers of 32 bits, which is what JAX has, got more in {name!r}")
    return arrays


@contextmanager
def running(label: str, precision: str) -> Iterator[None]:
    """Whatever a side raises is the caller's to mend, and is told with the side's name.

    Raises:
        ParityUsageError: from the error of the side.
    """
    try:
        yield
    except (ParityUsageError, MemoryError, ImportError):
        raise
    except Exception as error:
        raise ParityUsageError(
            f"{label}: a function that runs on these weights and inputs in {precision}, got {type(error).__name__}: "
            f"{first_line(error)}; try it by itself, the traceback (--debug) shows where"
        ) from error


def is_float(array: np.ndarray) -> bool:
    """Floating point, bfloat16 included."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


#: The optimizer state of the two frameworks under one name (optax and jaxcore; torchref; torch.optim).
MOMENTS = {"mu": ("mu", "exp_avg", "trace", "momentum_buffer"), "nu": ("nu", "exp_avg_sq", "square_avg", "exp_inf")}

#: What stands for eps in the unit of a movement: the usual one. Without it an element whose nu is zero would not count.
UNIT = 1e-8
