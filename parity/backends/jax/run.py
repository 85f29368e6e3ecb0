"""Running a JAX side: compiled once per precision, x64 on for float64 and off for everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ...islands import Island
from ...pair import Jax
from ...runs import MOMENTS, Arrays, Run, Step, is_float, named_outputs, projection
from ...work import Work, collect
from . import count, islands, lifting
from .versions import x64


class JaxRunner:
    """Runs `side.function` and `side.optimizer` at the precision asked for."""

    def __init__(self, side: Jax, loss: str | None, device: str):
        self.side = side
        self.label = side.label
        self.loss = loss
        self.device = jax.devices("gpu" if device == "cuda" else device)[0]
        self._programs: dict[Any, Any] = {}

    @contextmanager
    def mode(self, precision: str) -> Iterator[None]:
        """The type, the device and full-precision products (TensorFloat-32 off)."""
        with x64(precision == "float64"), jax.default_device(self.device), jax.default_matmul_precision("highest"):
            yield

    def run(self, weights: Arrays, batch: Arrays, precision: str, *, lifted: bool = False) -> Run:
        """Outputs and gradients of one batch."""
        with self.mode(precision):
            parameters, inputs = _cast(weights, precision), _cast(batch, precision)
            outputs, gradients = self._program(parameters, inputs, precision, lifted)(parameters, inputs)
            return Run(_to_numpy(outputs), _to_numpy(gradients))

    def steps(
        self, points: Sequence[Arrays], batches: Sequence[Arrays], precision: str, *, lifted: bool = False
    ) -> Iterator[Step]:
        """One optimizer step per batch."""

        def gradient(parameters: Mapping[str, jax.Array], batch: Arrays) -> Mapping[str, jax.Array]:
            inputs = _cast(batch, precision)
            return self._program(parameters, inputs, precision, lifted)(parameters, inputs)[1]

        return self._steps(points, batches, gradient, precision, lifted)

    def follow(
        self, points: Sequence[Arrays], gradients: Sequence[Arrays], precision: str, *, lifted: bool = False
    ) -> Iterator[Step]:
        """One optimizer step per given gradient."""
        return self._steps(points, gradients, lambda _, given: _cast(given, precision), precision, lifted)

    def evaluate(self, function: Callable[..., Any], draws: Sequence[Arrays], precision: str) -> list[np.ndarray]:
        """One operation on its own; a function object of its own keeps the trace caches of two precisions apart."""
        with self.mode(precision):
            compiled = jax.jit(partial(function))
            return [np.asarray(compiled(*_cast(operands, precision).values())) for operands in draws]

    def islands(self, weights: Arrays, batch: Arrays) -> list[Island]:
        """Where the float64 program drops to a lower precision, in data order."""
        with self.mode("float64"):
            parameters, inputs = _cast(weights, "float64"), _cast(batch, "float64")
            return islands.find_islands(self._differentiated(), parameters, inputs, side=self.label)

    def optimizer_islands(self, start: Arrays) -> list[Island]:
        """Where a float64 optimizer step drops to a lower precision, in data order."""
        init, update = self._optimizer()
        with self.mode("float64"):
            parameters = _cast(start, "float64")
            return islands.find_islands(update, parameters, init(parameters), parameters, side=self.label)

    def count(self, weights: Arrays, batch: Arrays) -> Work:
        """Matmul FLOPs by walking the traced program, and XLA's own count of everything before it optimises."""
        with self.mode("float32"):
            shapes = jax.eval_shape(lambda: (_cast(weights, "float32"), _cast(batch, "float32")))
            notes: list[str] = []

            def forward(parameters: Any, inputs: Any) -> Mapping[str, jax.Array]:
                return self.side.function(parameters, **inputs)

            def lowered(function: Callable[..., Any]) -> int | None:
                cost = count.lowered_flops(function, *shapes)
                notes[:] = [f"XLA's count, made before it optimises, is shown and not compared: {cost.note}"]
                return cost.flops

            methods: list[tuple[str, str, Callable[[], int | None]]] = []
            for name, function in (("forward", forward), ("forward_backward", self._differentiated())):
                methods.append((name, "jaxpr", partial(count.traced_flops, function, *shapes)))
                methods.append((name, "xla_lowered", partial(lowered, function)))
            work = collect(methods, self.label)
            return Work(work.flops, (*work.notes, *notes))

    def _differentiated(self) -> Callable[..., Any]:
        """(parameters, inputs) -> (outputs, gradients), a fresh function: no two precisions may share a trace."""

        def scalar(parameters: Any, inputs: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
            outputs = named_outputs(self.label, self.side.function(parameters, **inputs), self.loss)
            return (_project(outputs) if self.loss is None else outputs[self.loss]), outputs

        def both(parameters: Any, inputs: Any) -> tuple[dict[str, jax.Array], Any]:
            (_, outputs), gradients = jax.value_and_grad(scalar, has_aux=True)(parameters, inputs)
            return outputs, gradients

        return both

    def _program(self, parameters: Any, inputs: Any, precision: str, lifted: bool) -> Any:
        key = (precision, lifted, *_shapes(parameters), *_shapes(inputs))
        if key not in self._programs:
            function = self._differentiated()
            if lifted:
                function = lifting.lift(function)
            self._programs[key] = jax.jit(function).lower(parameters, inputs).compile()
        return self._programs[key]

    def _steps(
        self, points: Sequence[Arrays], items: Sequence[Any], gradient: Callable[..., Any], precision: str, lifted: bool
    ) -> Iterator[Step]:
        state = None
        for index, item in enumerate(items):
            with self.mode(precision):  # left while the caller looks at the step: the mode is the whole thread's
                parameters = _cast(points[index], precision)
                init, update = self._compiled_optimizer(parameters, precision, lifted)
                state = init(parameters) if state is None else state
                parameters, state = update(gradient(parameters, item), state, parameters)
            moments = {name: _to_numpy(_moment(state, names)) for name, names in MOMENTS.items()}
            yield Step(_to_numpy(parameters), **moments)
            del parameters, moments

    def _compiled_optimizer(self, parameters: Mapping[str, jax.Array], precision: str, lifted: bool) -> tuple[Any, Any]:
        key = (precision, lifted, *_shapes(parameters))
        if key not in self._programs:
            init, update = (lifting.lift(part) if lifted else part for part in self._optimizer())
            # init too: run eagerly, it would compile a program of its own for every shape
            state = jax.eval_shape(init, parameters)
            self._programs[key] = tuple(
                jax.jit(part).lower(*arguments).compile()
                for part, arguments in ((init, (parameters,)), (update, (parameters, state, parameters)))
            )
        return self._programs[key]

    def _optimizer(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """(parameters) -> state, and (gradients, state, parameters) -> (parameters, state)."""
        if self.side.optimizer is None:
            raise ValueError(f"{self.label}: needs an optimizer to take steps, got None; give one or use steps 0")
        given = self.side.optimizer
        optimizer = given if hasattr(given, "update") else given()

        def update(gradients: Any, state: Any, parameters: Any) -> tuple[Any, Any]:
            steps, state = optimizer.update(gradients, state, parameters)
            return optax.apply_updates(parameters, steps), state

        return optimizer.init, update


def _project(outputs: Mapping[str, jax.Array]) -> jax.Array:
    """The sum of every float output times its fixed random weights, in at least float32."""
    terms = []
    for name, value in outputs.items():
        if jnp.issubdtype(value.dtype, jnp.floating):
            wide = jnp.promote_types(value.dtype, jnp.float32)
            terms.append(jnp.sum(value.astype(wide) * jnp.asarray(projection(name, value.shape), wide)))
    return jnp.sum(jnp.stack(terms)) if terms else jnp.zeros(())


def _moment(state: Any, names: Sequence[str]) -> Mapping[str, jax.Array]:
    """What an optax state keeps under one of these names, gathered from every part of a chain or of groups."""
    found: dict[str, jax.Array] = {}
    for node in jax.tree.leaves(state, is_leaf=lambda node: any(hasattr(node, name) for name in names)):
        for tree in (getattr(node, name) for name in names if hasattr(node, name)):
            if isinstance(tree, Mapping):
                # a group has a placeholder for the parameters of the others
                found |= {name: value for name, value in tree.items() if isinstance(value, jax.Array)}
    return found


def _shapes(arrays: Mapping[str, jax.Array]) -> tuple[Any, ...]:
    return tuple((name, value.shape) for name, value in arrays.items())


def _cast(arrays: Arrays, precision: str) -> dict[str, jax.Array]:
    """Floats in the working precision, whole numbers as int32, truth values as they are; cast before JAX sees them."""
    cast = {}
    for name, array in arrays.items():
        if is_float(array):
            dtype = jnp.dtype(precision)
        else:
            dtype = np.dtype(bool if array.dtype == bool else np.int32)
        cast[name] = jax.device_put(array.astype(dtype))
    return cast


def _to_numpy(tree: Mapping[str, jax.Array]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in tree.items()}
