"""Running a JAX side: compiled once per precision, or eagerly; x64 on for float64 and off for everything else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ...capture import Capture
from ...draws import Shape
from ...errors import ANYTHING
from ...formats import FORMATS, TENSORFLOAT32
from ...islands import Island
from ...pair import Pair
from ...runs import MOMENTS, Arrays, Run, Step, is_float, loss_of, named_outputs, projection, scalar_loss
from ...trees import Form
from ...work import Reconciliation, Work, collect
from . import islands, lifting
from .compiling import compiler_options
from .count import traced_flops
from .harvest import captured
from .lowered import lowered_flops
from .models import Model, by_name
from .versions import x64


class JaxRunner:
    """Runs a JAX side and its optimizer at the precision asked for; `role` is "reference" or "candidate"."""

    def __init__(self, role: str, pair: Pair, weights: Arrays | None, form: Form, device: str, grads: bool = True):
        self.device = jax.devices("gpu" if device == "cuda" else device)[0]
        self.form = form
        self.model = Model(role, getattr(pair, role), weights, pair.dropout)
        self.side = self.model.side
        self.label = self.side.label
        self.own: Arrays = self.model.own
        self.state: Arrays = self.model.state
        self.optimizes = self.side.optimizer is not None
        self.loss = loss_of(role, pair)
        self.grads = grads
        self.aliases: Mapping[str, str] = {}
        self.share((), ())
        self._programs: dict[Any, Any] = {}
        self._runs = 0

    def share(self, paired: Collection[str], tables: Collection[str]) -> None:
        """Which state the other side has as well, and which it has not in the same numbers."""
        self.paired, self.tables = paired, tables

    @property
    def draws(self) -> Sequence[Shape]:
        """The shapes of the shared random draws of the last trace, or run where it is eager."""
        return self.model.dropout.last.shapes

    @contextmanager
    def mode(self, precision: str) -> Iterator[None]:
        """The type, the device, and full-precision products: TensorFloat-32 off unless that is asked for."""
        products = jax.default_matmul_precision(precision if precision == TENSORFLOAT32 else "highest")
        with x64(precision == "float64"), jax.default_device(self.device), products:
            yield

    def run(self, weights: Arrays, batch: Arrays, precision: str, *, lifted: bool = False) -> Run:
        """Outputs and gradients of one batch."""
        with self.mode(precision):
            arguments = self._arguments(weights, batch, precision)
            return self._run(self._program(*arguments, precision, lifted)(*arguments), precision)

    def runs_forward(self, weights: Arrays, batch: Arrays, precision: str) -> bool:
        """Whether what failed was the gradient, and the model itself runs; False where none is taken."""
        with self.mode(precision), suppress(*ANYTHING):
            jax.eval_shape(self._differentiated(precision, grads=False), *self._arguments(weights, batch, precision))
            return self.grads
        return False

    def steps(
        self, points: Sequence[Arrays], batches: Sequence[Arrays], precision: str, *, lifted: bool = False
    ) -> Iterator[Step]:
        """One optimizer step per batch."""

        def gradient(parameters: Mapping[str, jax.Array], batch: Arrays) -> Mapping[str, jax.Array]:
            arguments = (parameters, *self._arguments({}, batch, precision)[1:])
            return self._program(*arguments, precision, lifted)(*arguments)[1]

        return self._steps(points, batches, gradient, precision, lifted)

    def follow(
        self, points: Sequence[Arrays], gradients: Sequence[Arrays], precision: str, *, lifted: bool = False
    ) -> Iterator[Step]:
        """One optimizer step per given gradient."""
        return self._steps(points, gradients, lambda _, given: _cast(given, precision), precision, lifted)

    def evaluate(self, function: Callable[..., Any], draws: Sequence[Arrays], precision: str) -> list[np.ndarray]:
        """One operation on its own; a function object of its own keeps the trace caches of two precisions apart."""
        with self.mode(precision):
            program = jax.jit(partial(function)) if self.side.jit else function
            return [np.asarray(program(*_cast(operands, precision).values())) for operands in draws]

    def nudge(self, weights: Arrays, batch: Arrays, seed: int) -> Run:
        """A widened float64 run in which every constant of float32 numbers is one unit in the last place off."""
        with self.mode("float64"), lifting.nudging(seed):
            arguments = self._arguments(weights, batch, "float64")
            return self._run(self._program(*arguments, "float64", True, seed)(*arguments), "float64")

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
        """A run's outputs and points; it goes on with the values that are fed in, and starts back with `back`."""
        with self.mode(precision):
            parameters, state, inputs = self._arguments(weights, batch, precision)
            scalar = self._scalar(precision)

            def run(parameters: Any, state: Any, inputs: Any) -> Any:
                loss, (outputs, _) = scalar(parameters, {}, state, inputs)
                return loss, outputs

            program = lifting.lift(run) if lifted else run
            (_, outputs), seen = captured(program, (parameters, state, inputs), feed, back=back, gradients=self.grads)
            return _to_numpy(outputs), seen

    def islands(self, weights: Arrays, batch: Arrays) -> list[Island]:
        """Where the float64 program drops to a lower precision, in data order."""
        with self.mode("float64"):
            arguments = self._arguments(weights, batch, "float64")
            return islands.find_islands(self._differentiated("float64", self.grads), *arguments, side=self.label)

    def optimizer_islands(self, start: Arrays) -> list[Island]:
        """Where a float64 optimizer step drops to a lower precision, in data order."""
        init, update = self._optimizer()
        with self.mode("float64"):
            parameters = _cast(start, "float64")
            return islands.find_islands(update, parameters, init(parameters), parameters, side=self.label)

    def count(self, weights: Arrays, batch: Arrays) -> Work:
        """Matmul FLOPs by walking the traced program, and XLA's own count of everything before it optimises."""
        with self.mode("float32"):
            shapes = jax.eval_shape(lambda: self._arguments(weights, batch, "float32"))
            notes: list[str] = []
            apart: dict[str, Reconciliation] = {}

            def forward(parameters: Any, state: Any, inputs: Any) -> Any:
                return by_name(self.model.call("float32", parameters, state, self.form, inputs)[0])

            def lowered(name: str, function: Callable[..., Any]) -> int | None:
                cost = lowered_flops(function, *shapes)
                if cost.reconciliation is not None:
                    apart[name] = cost.reconciliation
                notes[:] = [f"XLA's count, made before it optimises, is shown and not compared: {cost.note}"]
                return cost.flops

            methods: list[tuple[str, str, Callable[[], int | None]]] = []
            for name, function in (
                ("forward", forward),
                ("forward_backward", self._differentiated("float32", grads=True, inputs_too=False)),
            ):
                methods.append((name, "jaxpr", partial(traced_flops, function, *shapes)))
                methods.append((name, "xla_lowered", partial(lowered, name, function)))
            work = collect(methods, self.label)
            return Work(work.flops, (*work.notes, *notes), {"xla_lowered": apart} if apart else {})

    def _scalar(self, precision: str) -> Callable[..., tuple[jax.Array, tuple[Any, Any]]]:
        """(parameters, float inputs, state, other inputs) -> (loss, (outputs, state)), a fresh function."""

        def scalar(parameters: Any, floats: Any, state: Any, others: Any) -> tuple[jax.Array, tuple[Any, Any]]:
            # tables are constants of the program
            held = {**_cast({name: self.state[name] for name in self.tables}, precision), **state}
            returned, changed = self.model.call(precision, parameters, held, self.form, {**floats, **others})
            outputs = named_outputs(self.label, returned, self.loss, self.aliases)
            loss = _project(outputs) if self.loss is None else scalar_loss(self.label, self.loss, returned, outputs)
            return loss, (outputs, changed)

        return scalar

    def _differentiated(self, precision: str, grads: bool, inputs_too: bool = True) -> Callable[..., Any]:
        """(parameters, state, inputs) -> (outputs, gradients, gradients of float inputs, state, loss).

        A fresh function: no two precisions may share a trace.
        """
        scalar = self._scalar(precision)

        def outputs_alone(parameters: Any, state: Any, inputs: Any) -> tuple[Any, Any, Any, Any, Any]:
            loss, (outputs, changed) = scalar(parameters, {}, state, inputs)
            return outputs, {}, {}, changed, loss

        def all_of_it(parameters: Any, state: Any, inputs: Any) -> tuple[Any, Any, Any, Any, Any]:
            floats = {name: value for name, value in inputs.items() if jnp.issubdtype(value.dtype, jnp.floating)}
            others = {name: value for name, value in inputs.items() if name not in floats}
            by = (0, 1) if inputs_too else (0,)
            differentiated = jax.value_and_grad(scalar, by, has_aux=True)
            (loss, (outputs, changed)), (gradients, *rest) = differentiated(parameters, floats, state, others)
            return outputs, gradients, rest[0] if rest else {}, changed, loss

        return all_of_it if grads else outputs_alone

    def _arguments(self, weights: Arrays, batch: Arrays, precision: str) -> tuple[Any, Any, Any]:
        """Parameters, state and inputs; what counts random draws goes on from run to run, as in the module itself."""
        floats = {name: value for name, value in self.state.items() if is_float(value) and name not in self.tables}
        state = _cast(floats, precision)
        self._runs += 1
        for name, drawn in self.model.at(precision).counters.items():
            state[name] = jnp.asarray(drawn + np.asarray(self._runs, drawn.dtype))
        return _cast(weights, precision), state, _cast(batch, precision)

    def _run(self, found: tuple[Any, Any, Any, Any, Any], precision: str) -> Run:
        """What a differentiated program gave, in NumPy."""
        outputs, gradients, of_inputs, state, loss = found
        named = _to_numpy(outputs) | self._changed(state, precision)
        return Run(named, _to_numpy(gradients), _to_numpy(of_inputs), float(loss))

    def _changed(self, state: Mapping[str, jax.Array], precision: str) -> dict[str, np.ndarray]:
        """The state that a run left other than it found it, under the pair's names."""
        before = _to_numpy(_cast(self.state, precision))
        changed = {}
        for name, value in _to_numpy(state).items():
            known = name in before and (is_float(value) or name in self.paired)
            if known and not np.array_equal(before[name], value, equal_nan=True):
                changed[self.aliases.get(f"state {name}", f"state {name}")] = value
        return changed

    def _program(
        self, parameters: Any, state: Any, inputs: Any, precision: str, lifted: bool, nudge: int | None = None
    ) -> Any:
        """`all_of_it`, compiled; `nudge` is the seed of nudged constants, whose programs are run a few times each."""
        key = (precision, lifted, nudge, *_shapes(parameters), *_shapes(inputs), *self.aliases.items())
        if key not in self._programs:
            function = self._differentiated(precision, self.grads)
            if lifted:
                function = lifting.lift(function)
            if self.side.jit or nudge is not None:
                options = compiler_options((parameters, inputs), once=nudge is not None)
                function = jax.jit(function).lower(parameters, state, inputs).compile(options)
            self._programs[key] = function
        return self._programs[key]

    def _steps(
        self, points: Sequence[Arrays], items: Sequence[Any], gradient: Callable[..., Any], precision: str, lifted: bool
    ) -> Iterator[Step]:
        state = None
        for index, item in enumerate(items):
            with self.mode(precision):  # left while the caller looks at the step: the mode is the whole thread's
                parameters = _cast(points[index], precision)
                init, update = self._prepared_optimizer(parameters, precision, lifted)
                state = init(parameters) if state is None else state
                parameters, state = update(gradient(parameters, item), state, parameters)
            moments = {name: _to_numpy(_moment(state, names)) for name, names in MOMENTS.items()}
            yield Step(_to_numpy(parameters), **moments)
            del parameters, moments

    def _prepared_optimizer(self, parameters: Mapping[str, jax.Array], precision: str, lifted: bool) -> tuple[Any, Any]:
        key = (precision, lifted, *_shapes(parameters))
        if key not in self._programs:
            init, update = (lifting.lift(part) if lifted else part for part in self._optimizer())
            if self.side.jit:
                # init too: run eagerly, it would compile a program of its own for every shape
                state = jax.eval_shape(init, parameters)
                init = jax.jit(init).lower(parameters).compile()
                update = jax.jit(update).lower(parameters, state, parameters).compile()
            self._programs[key] = init, update
        return self._programs[key]

    def _optimizer(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """(parameters) -> state, and (gradients, state, parameters) -> (parameters, state)."""
        if self.side.optimizer is None:
            raise ValueError(f"{self.label}: needs an optimizer to take steps, got None; give one or use steps 0")
        given = self.side.optimizer
        optimizer = given if hasattr(given, "update") else given()

        def init(parameters: Any) -> Any:
            return optimizer.init(self.model.tree(parameters))

        def update(gradients: Any, state: Any, parameters: Any) -> tuple[Any, Any]:
            steps, state = optimizer.update(self.model.tree(gradients), state, self.model.tree(parameters))
            return optax.apply_updates(dict(parameters), _like(parameters, steps)), state

        return init, update


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
            if not isinstance(tree, jax.Array):
                found |= by_name(tree)  # a group has a placeholder for the parameters of the others
    return found


def _like(parameters: Mapping[str, jax.Array], steps: Any) -> dict[str, Any]:
    """Updates by name, in the order of the parameters."""
    named = by_name(steps)
    return {name: named[name] for name in parameters}


def _shapes(arrays: Mapping[str, jax.Array]) -> tuple[Any, ...]:
    return tuple((name, value.shape) for name, value in arrays.items())


def _cast(arrays: Arrays, precision: str) -> dict[str, jax.Array]:
    """Floats in the working precision, truth values as they are; cast before JAX sees them.

    Whole numbers get 64 bits with float64 and 32 without, where JAX has no more and cuts off what is beyond.
    """
    cast = {}
    for name, array in arrays.items():
        if is_float(array):
            dtype = jnp.dtype(FORMATS[precision].dtype)
        else:
            whole = np.int64 if precision == "float64" else np.int32
            dtype = np.dtype(bool if array.dtype == bool else whole)
        cast[name] = jax.device_put(array.astype(dtype))
    return cast


def _to_numpy(tree: Mapping[str, jax.Array]) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in tree.items()}
