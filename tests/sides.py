"""One test body for both packages: a `Side` runs a function forward and backward on NumPy arrays."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import jaxcore
import torchref

#: unit roundoff by dtype name: half the spacing of the numbers in [1, 2)
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}

#: of the largest element; measured gaps are near 1e-15, the smallest planted fault is above 1e-9
FLOAT64_BOUND = 1e-12


@dataclass(frozen=True)
class Side:
    """A package and its framework; `run` gives the value and the gradients of a function as float64 NumPy arrays."""

    package: ModuleType
    framework: str

    def dtype(self, name: str) -> Any:
        """The framework's own dtype by name."""
        return jnp.dtype(name) if self.framework == "jax" else getattr(torch, name)

    def mode(self, dtype: str) -> AbstractContextManager[Any]:
        """The context in which `dtype` exists."""
        return jax.enable_x64(dtype == "float64") if self.framework == "jax" else nullcontext()

    def array(self, value: np.ndarray, dtype: str) -> Any:
        """Floats in `dtype`, integers and booleans as they are."""
        value = np.array(value)
        if self.framework == "jax":
            return jnp.array(value, dtype if value.dtype.kind == "f" else None)
        tensor = torch.tensor(value)
        return tensor.to(self.dtype(dtype)) if value.dtype.kind == "f" else tensor

    def numpy(self, value: Any) -> np.ndarray:
        """Floats as float64, which holds every value of the narrower formats."""
        if isinstance(value, torch.Tensor):
            return value.detach().double().numpy() if value.is_floating_point() else value.detach().numpy()
        value = np.asarray(value)
        return value.astype(np.float64) if jnp.issubdtype(value.dtype, jnp.floating) else value

    def run(self, function: Callable[..., Any], *values: np.ndarray, dtype: str = "float64") -> list[np.ndarray]:
        """The value of `function` and its gradients by every float argument under a fixed random cotangent."""
        with self.mode(dtype):
            arrays = [self.array(value, dtype) for value in values]
            places = [i for i, value in enumerate(values) if np.asarray(value).dtype.kind == "f"]
            if self.framework == "jax":

                def of_floats(*floats: Any) -> Any:
                    full = list(arrays)
                    for place, each in zip(places, floats, strict=True):
                        full[place] = each
                    return function(*full)

                def both(*floats: Any) -> Any:
                    value, pull = jax.vjp(of_floats, *floats)
                    return value, pull(self.array(cotangent(value.shape), dtype).astype(value.dtype))

                value, gradients = self.compiled(both, dtype)(*(arrays[i] for i in places))
            else:
                for i in places:
                    arrays[i].requires_grad_(True)
                value = function(*arrays)
                weights = self.array(cotangent(tuple(value.shape)), dtype).to(value.dtype)
                gradients = torch.autograd.grad(value, [arrays[i] for i in places], weights)
            return [self.numpy(each) for each in (value, *gradients)]

    def compiled(self, function: Callable[..., Any], dtype: str = "float32") -> Callable[..., Any]:
        """Under jax.jit, which is quicker than one program per operation; PyTorch as it is.

        A float64 run asks whether the mathematics is the same: there LLVM's optimiser, half of the time, is left out.
        """
        if self.framework != "jax":
            return function
        return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0} if dtype == "float64" else None)

    def apply(self, build: Callable[[Any], Any], parameters: dict[str, Any], *inputs: Any) -> Any:
        """build(parameters)(*inputs) with gradients by the parameters: nn.Parameter would cut them off."""
        module = build(parameters)
        if self.framework == "jax":
            return module(*inputs)
        return torch.func.functional_call(module, flatten(parameters), inputs)

    def config(self, **choices: Any) -> Any:
        """A small config of this package: sizes are primes where they can be, so that no two axes are confused."""
        small = {"vocab_size": 37, "d_model": 24, "num_layers": 2, "num_heads": 4, "d_ff": 29, "max_seq_len": 17}
        return self.package.ModelConfig(**{**small, **choices})


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": x}} as {"a.b": x}."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


JAX = Side(jaxcore, "jax")
TORCH = Side(torchref, "torch")
both_sides = pytest.mark.parametrize("side", [JAX, TORCH], ids=["jaxcore", "torchref"])


def normal(name: str, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Standard normal float64 that float32 holds exactly, a stream of its own per name."""
    draw = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape) * scale
    return draw.astype(np.float32).astype(np.float64)


def cotangent(shape: tuple[int, ...]) -> np.ndarray:
    """The weights of the fixed random projection under which gradients are taken."""
    return normal("cotangent", *shape)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """To the nearest value of `dtype`, as float64."""
    return values.astype(getattr(ml_dtypes, dtype, None) or dtype).astype(np.float64)


def assert_equal_float64(actual: list[np.ndarray], expected: list[np.ndarray], bound: float = FLOAT64_BOUND) -> None:
    """Value and gradients finite, of the same shape, and within `bound` of the largest element."""
    assert len(actual) == len(expected)
    for place, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert a.shape == e.shape, f"result {place}: shape {a.shape}, the oracle has {e.shape}"
        assert np.isfinite(a).all(), f"result {place} is not finite"
        gap = np.abs(a - e).max(initial=0.0)
        assert gap <= bound * np.abs(e).max(initial=0.0), (
            f"result {place}: gap {gap:.2e}, largest {np.abs(e).max():.2e}"
        )


def rms(values: np.ndarray) -> float:
    """Root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values))))


def assert_rounds_like(
    actual: list[np.ndarray], library: list[np.ndarray], truth: list[np.ndarray], dtype: str = "float32"
) -> None:
    """Rule B: the error against float64 is at most 3 times the library's own, plus the rounding of the result.

    The 3 is a convention for a single run of 64 or more elements: the ratio of two roundings scatters by that much.
    """
    for place, (a, b, t) in enumerate(zip(actual, library, truth, strict=True)):
        bound = 3 * rms(b - t) + 2 * rms(rounded(t, dtype) - t)
        assert rms(a - t) <= bound, f"result {place}: rms error {rms(a - t):.2e}, bound {bound:.2e}"


@dataclass(frozen=True)
class ModelRun:
    """What one side makes of a model: outputs, loss and the gradient of the loss by parameter name, as float64."""

    outputs: dict[str, np.ndarray]
    loss: np.ndarray
    gradients: dict[str, np.ndarray]


def run_model(
    side: Side,
    config: Any,
    parameters: dict[str, np.ndarray],
    inputs: dict[str, np.ndarray],
    objective: Callable[[Side, dict[str, Any]], Any],
    dtype: str = "float64",
) -> ModelRun:
    """The model forward and backward; `config` may be of either package."""
    config = side.package.config_from_dict(asdict(config))
    with side.mode(dtype):
        arrays = {name: side.array(value, dtype) for name, value in parameters.items()}
        inputs = {name: side.array(value, dtype) for name, value in inputs.items()}
        if side.framework == "jax":

            def loss_of(arrays: dict[str, Any]) -> Any:
                outputs = side.package.Transformer(config, arrays)(**inputs)
                return objective(side, outputs), outputs

            program = side.compiled(jax.value_and_grad(loss_of, has_aux=True), dtype)
            (loss, outputs), gradients = program(arrays)
        else:
            model = side.package.Transformer(config, arrays)
            outputs = model(**inputs)
            loss = objective(side, outputs)
            loss.backward()
            gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        numbers = {name: side.numpy(value) for name, value in outputs.items()}
        return ModelRun(numbers, side.numpy(loss), {name: side.numpy(value) for name, value in gradients.items()})


def run_outputs(
    side: Side, config: Any, parameters: dict[str, np.ndarray], dtype: str = "float64", **inputs: np.ndarray
) -> dict[str, np.ndarray]:
    """The model forward only."""
    config = side.package.config_from_dict(asdict(config))
    with side.mode(dtype):
        arrays = {name: side.array(value, dtype) for name, value in parameters.items()}
        model = side.compiled(side.package.Transformer(config, arrays), dtype)
        outputs = model(**{name: side.array(value, dtype) for name, value in inputs.items()})
        return {name: side.numpy(value) for name, value in outputs.items()}


def projection_of_outputs(side: Side, outputs: dict[str, Any]) -> Any:
    """A fixed random weighting of every output, so that every output has a part in every gradient."""
    total = 0.0
    for value in outputs.values():
        total = total + (value * side.array(cotangent(tuple(value.shape)), str(value.dtype).split(".")[-1])).sum()
    return total


def assert_same_model(actual: ModelRun, expected: ModelRun, bound: float = FLOAT64_BOUND) -> None:
    """Every output, the loss and every gradient by name, each within `bound` of its own largest element."""
    assert actual.outputs.keys() == expected.outputs.keys()
    assert actual.gradients.keys() == expected.gradients.keys()
    for name, value in {**expected.outputs, "loss": expected.loss}.items():
        assert_named(name, {**actual.outputs, "loss": actual.loss}[name], value, np.abs(value).max(), bound)
    largest = max(np.abs(value).max() for value in expected.gradients.values())
    for name, value in expected.gradients.items():
        # a gradient that is zero in theory (a key bias under softmax) is rounding of the others: 1e-3 of the largest
        assert_named(
            f"gradient of {name}", actual.gradients[name], value, max(np.abs(value).max(), 1e-3 * largest), bound
        )


def assert_named(name: str, actual: np.ndarray, expected: np.ndarray, scale: float, bound: float) -> None:
    """Finite, of the same shape, and within `bound` times `scale`."""
    assert actual.shape == expected.shape, f"{name}: shape {actual.shape}, expected {expected.shape}"
    assert np.isfinite(actual).all(), f"{name} is not finite"
    gap = np.abs(actual - expected).max()
    assert gap <= bound * scale, f"{name}: gap {gap:.2e} of {scale:.2e}"
