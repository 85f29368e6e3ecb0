"""A pair of plain functions, small enough to be checked in a second or two, and what can be wrong with one side."""

from __future__ import annotations

import functools

import numpy as np

import parity

CANDIDATES = ("same", "tanh", "island", "nan")


def gate_pair(candidate: str = "same") -> parity.Pair:
    """gelu(x w): exact in PyTorch; in JAX the same, the tanh form, with a float32 inside, or without a number."""
    import jax
    import torch

    class Gate(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(31, 23))

        def forward(self, x):
            return {"y": torch.nn.functional.gelu(x @ self.w) * (np.nan if candidate == "nan" else 1)}

    def gate(weights, x):
        product = x @ weights["w"]
        if candidate == "island":
            product = product.astype("float32").astype(product.dtype)
        if candidate == "nan":
            product = product * np.nan
        return {"y": jax.nn.gelu(product, approximate=candidate == "tanh")}

    return parity.Pair(
        name="gate",
        reference=Gate(),
        candidate=parity.Jax(gate),
        weights={"w": np.random.default_rng(0).normal(size=(31, 23))},
        inputs=lambda generator: {"x": generator.normal(size=(7, 31))},
    )


@functools.cache
def gate_result(candidate: str = "same") -> parity.Result:
    """The check of `gate_pair`, once per process."""
    return parity.check(gate_pair(candidate), parity.Options(batches=2, steps=0))


def steep_square(factor: float):
    """A square whose gradient is `factor` times x, where 2 would be right, in PyTorch and in JAX."""
    import jax
    import torch

    class Steep(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            context.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(context, gradient):
            return factor * context.saved_tensors[0] * gradient

    @jax.custom_vjp
    def steep(x):
        return x * x

    steep.defvjp(lambda x: (x * x, x), lambda x, gradient: (factor * x * gradient,))
    return Steep.apply, steep
