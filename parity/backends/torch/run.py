"""Running a PyTorch side: eager, a fresh module per run, at the precision asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import torch

from ...capture import Capture
from ...draws import Shape
from ...errors import ANYTHING, ParityUsageError
from ...formats import TENSORFLOAT32
from ...islands import Island
from ...pair import Pair
from ...runs import MOMENTS, Arrays, Run, Step, is_float, loss_of, named_outputs, projection, scalar_loss
from ...trees import Form
from ...work import Work, collect
from . import count, islands
from .capture import Recording, capturing
from .leaves import gradients_kept
from .models import Model
from .versions import DTYPES, cast_float, float32_products, from_numpy, to_numpy


class TorchRunner:
    """Runs a PyTorch side and its optimizer at the precision asked for; `role` is "reference" or "candidate"."""

    def __init__(self, role: str, pair: Pair, weights: Arrays | None, form: Form, device: str, grads: bool = True):
        self.model = Model(role, getattr(pair, role), weights, form, pair.dropout)
        self.side = self.model.side
        self.label = self.side.label
        self.own: Arrays = self.model.own
        self.state: Arrays = self.model.state
        self.optimizes = self.side.optimizer is not None
        self.loss = loss_of(role, pair)
        self.grads = grads
        self.aliases: Mapping[str, str] = {}
        self.share((), ())
        self.device = torch.device(device)

    def share(self, paired: Collection[str], tables: Collection[str]) -> None:
        """Which state the other side has as well, and which it has not in the same numbers."""
        self.paired, self.tables = paired, tables

    @property
    def draws(self) -> Sequence[Shape]:
        """The shapes of the shared random draws of the last run."""
        return self.model.dropout.last.shapes

    @contextmanager
    def mode(self, precision: str = "float64") -> Iterator[None]:
        """Full-precision products: TensorFloat-32 (unless that is asked for) and reduced-precision reductions off.

        What was set before is restored.
        """
        matmul = torch.backends.cuda.matmul
        reduced = matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction
        matmul.allow_bf16_reduced_precision_reduction = matmul.allow_fp16_reduced_precision_reduction = False
        try:
            with float32_products(precision == TENSORFLOAT32):
                yield
        finally:
            matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction = reduced

    def run(self, weights: Arrays, batch: Arrays, precision: str, *, lifted: bool = False) -> Run:
        """Outputs and gradients of one batch."""
        with self.mode(precision):
            module = self._module(weights, precision)
            run = self._run_once(module, *self._differentiable(batch, precision), lifted)
            self.model.release()
            return run

    def runs_forward(self, weights: Arrays, batch: Arrays, precision: str) -> bool:
        """Whether what failed was the gradient, and the model itself runs; False where none is taken."""
        with self.mode(precision), suppress(*ANYTHING):
            module = self._module(weights, precision)
            self._backward(module, *self._differentiable(batch, precision), lifted=False, grads=False)
            self.model.release()
            return self.grads
        return False

    def steps(
        self, points: Sequence[Arrays], batches: Sequence[Arrays], precision: str, *, lifted: bool = False
    ) -> Iterator[Step]:
        """One optimizer step per batch."""
        module = self._module(points[0], precision)
        named = dict(module.named_parameters())

        def backward(batch: Arrays) -> None:
            self._backward(module, *self._differentiable(batch, precision), lifted)
            for parameter in named.values():
                parameter.grad = _gradient(parameter)  # None would exempt it from the weight decay as well

        return self._steps(named, points, batches, backward, precision, lifted)

    def follow(
        self, points: Sequence[Arrays], gradients: Sequence[Arrays], precision: str, *, lifted: bool = False
    ) -> Iterator[Step]:
        """One optimizer step per given gradient."""
        named = {name: torch.nn.Parameter(value) for name, value in self._cast(points[0], precision).items()}

        def assign(given: Arrays) -> None:
            for name, value in self._cast(given, precision).items():
                named[name].grad = value

        return self._steps(named, points, gradients, assign, precision, lifted)

    def evaluate(self, function: Callable[..., Any], draws: Sequence[Arrays], precision: str) -> list[np.ndarray]:
        """One operation on its own."""
        with self.mode(precision), torch.no_grad():
            return [to_numpy(function(*self._cast(operands, precision).values())) for operands in draws]

    def nudge(self, weights: Arrays, batch: Arrays, seed: int) -> Run:
        """A widened float64 run in which every constant of float32 numbers is one unit in the last place off."""
        with self.mode():
            module = self._module(weights, "float64")
            with torch.no_grad():  # until the next run: every one starts from the first state
                for buffer in islands.constants_of(module, self.tables):
                    buffer.copy_(islands.nudge_tensor(buffer, seed))
            given = self._differentiable(batch, "float64")  # before: they are float32 numbers, and no table
            with islands.lift(seed):
                return self._run_once(module, *given, lifted=False)

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
            module = self._module(weights, precision)
            with capturing(module, feed=feed, back=back, gradients=self.grads) as recording:
                given = self._differentiable(batch, precision)
                outputs, _ = self._backward(module, *given, lifted, self.grads, recording)
            self.model.release()
            return _to_numpy(outputs), recording.capture()

    def islands(self, weights: Arrays, batch: Arrays) -> list[Island]:
        """Where a float64 run drops to a lower precision, in data order; up to the error, if one ends it."""
        with self.mode():
            # cast before the trace: float32 numbers in a float64 tensor are right for an input
            module, (inputs, floats) = self._module(weights, "float64"), self._differentiable(batch, "float64")
            with islands.trace_islands(module, self.label, inputs, self.tables) as found, suppress(*ANYTHING):
                self._backward(module, inputs, floats, False, self.grads)
            return list(found)

    def optimizer_islands(self, start: Arrays) -> list[Island]:
        """Where a float64 optimizer step drops to a lower precision, in data order."""
        with self.mode():
            tensors = self._cast(start, "float64")
            named = torch.nn.ParameterDict(tensors)
            for name, parameter in named.items():
                parameter.grad = tensors[name].clone()
            optimizer = self._optimizer(dict(named.items()))
            with islands.trace_islands(named, side=self.label) as found:
                optimizer.step()
            return list(found)

    def count(self, weights: Arrays, batch: Arrays) -> Work:
        """Matmul FLOPs by PyTorch's counter, on the meta device, where what the model makes by itself is made too."""
        inputs = self._cast(batch, "float32")

        def forward(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> None:
            with torch.device("meta"):
                self.model.call(module, inputs)

        def forward_backward(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> None:
            with torch.device("meta"):
                self._backward(module, inputs, {}, lifted=False)

        def counted(function: Callable[..., None]) -> Callable[[], int]:
            return lambda: count.counted_flops(function, self._module(weights, "float32"), inputs)

        return collect([(each.__name__, "torch", counted(each)) for each in (forward, forward_backward)], self.label)

    def _run_once(
        self,
        module: torch.nn.Module,
        inputs: Mapping[str, torch.Tensor],
        floats: Mapping[str, torch.Tensor],
        lifted: bool,
    ) -> Run:
        outputs, loss = self._backward(module, inputs, floats, lifted, self.grads)
        state = {f"state {name}": value for name, value in self.model.changed_state(self.paired).items()}
        gradients = {name: _gradient(parameter) for name, parameter in module.named_parameters() if self.grads}
        of_inputs = {name: _gradient(leaf) for name, leaf in floats.items() if self.grads}
        named = _to_numpy(outputs | self._renamed(state))
        return Run(named, _to_numpy(gradients), _to_numpy(of_inputs), float(loss.detach()))

    def _module(self, weights: Arrays, precision: str) -> torch.nn.Module:
        return self.model.at(self._cast(weights, precision), precision)

    def _differentiable(self, batch: Arrays, precision: str) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Inputs, and the leaves among them that get a gradient.

        In every run: torch 2.13 crashes in the backward pass of GroupNorm where a channels-last input needs none.
        """
        inputs = self._cast(batch, precision)
        floats = {name: tensor.requires_grad_() for name, tensor in inputs.items() if tensor.is_floating_point()}
        # a leaf that needs a gradient could not be written to in place
        return {**inputs, **{name: leaf.clone() for name, leaf in floats.items()}}, floats

    def _renamed(self, arrays: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {self.aliases.get(name, name): value for name, value in arrays.items()}

    def _backward(
        self,
        module: torch.nn.Module,
        inputs: Mapping[str, torch.Tensor],
        floats: Mapping[str, torch.Tensor],
        lifted: bool,
        grads: bool = True,
        recording: Recording | None = None,
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Outputs and loss of a run that leaves the gradients, if asked for, in the parameters and in `floats`."""
        with islands.lift() if lifted else nullcontext():
            returned = self.model.call(module, inputs)
            outputs = named_outputs(self.label, returned, self.loss, self.aliases)
            loss = _project(outputs) if self.loss is None else scalar_loss(self.label, self.loss, returned, outputs)
            if recording is not None:
                loss = loss + recording.started
            if grads and loss.requires_grad:  # it may depend on no parameter: then every gradient is zero, as in JAX
                with gradients_kept(loss, (*module.parameters(), *floats.values())):
                    loss.backward()
        return outputs, loss

    def _steps(
        self,
        named: Mapping[str, torch.nn.Parameter],
        points: Sequence[Arrays],
        items: Sequence[Any],
        prepare: Callable[[Any], None],
        precision: str,
        lifted: bool,
    ) -> Iterator[Step]:
        optimizer = self._optimizer(named)
        for index, item in enumerate(items):
            with self.mode(precision):  # left while the caller looks at the step: the switches are the whole process's
                with torch.no_grad():
                    for name, value in self._cast(points[index], precision).items():
                        named[name].copy_(value)
                optimizer.zero_grad()
                prepare(item)
                with islands.lift() if lifted else nullcontext():
                    optimizer.step()
            yield Step(_to_numpy(named), **_moments(optimizer, named))

    def _optimizer(self, named: Mapping[str, torch.nn.Parameter]) -> torch.optim.Optimizer:
        if self.side.optimizer is None:
            raise ValueError(f"{self.label}: needs an optimizer to take steps, got None; give one or use steps 0")
        if isinstance(self.side.optimizer, torch.optim.Optimizer):
            name = type(self.side.optimizer).__name__
            raise ParityUsageError(
                f"optimizer: a function from parameters to a torch.optim.Optimizer, got one of parameters of its own; "
                f"give lambda parameters: {name}(parameters, ...)"
            )
        return self.side.optimizer(list(named.values()))

    def _cast(self, arrays: Arrays, precision: str) -> dict[str, torch.Tensor]:
        """Floats in the working precision, whole numbers as int64, truth values as they are."""
        cast = {}
        for name, array in arrays.items():
            if is_float(array):
                cast[name] = cast_float(array, self.device, DTYPES[precision])
            else:
                tensor = from_numpy(array, self.device)
                cast[name] = tensor if array.dtype == bool else tensor.to(torch.int64)
        return cast


def _moments(
    optimizer: torch.optim.Optimizer, named: Mapping[str, torch.nn.Parameter]
) -> dict[str, dict[str, np.ndarray]]:
    """Both moments by parameter name, under whichever of their names the optimizer keeps them."""
    return {
        moment: {
            name: to_numpy(optimizer.state[parameter][key])
            for name, parameter in named.items()
            for key in keys
            if key in optimizer.state[parameter]
        }
        for moment, keys in MOMENTS.items()
    }


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    """The gradient, zeros where autograd left none: JAX gives zeros for a parameter that the loss does not reach."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _project(outputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The sum of every float output times its fixed random weights, in at least float32."""
    terms = []
    for name, value in outputs.items():
        if value.is_floating_point():
            wide = torch.promote_types(value.dtype, torch.float32)
            weights = torch.from_numpy(projection(name, value.shape)).to(value.device, wide)
            terms.append(torch.sum(value.to(wide) * weights))
    return torch.sum(torch.stack(terms)) if terms else torch.zeros(())


def _to_numpy(tensors: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: to_numpy(tensor) for name, tensor in tensors.items()}
