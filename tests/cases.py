"""Mistakes that people met when they moved a model between JAX and PyTorch, each as a pair with it and one without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from parity import Jax, Options, Pair, ParityUsageError, Result, Torch, check

QUICK = {"precisions": ("float32",), "batches": 2, "steps": 2, "flops": False}
Make = Callable[[bool], Pair]


@dataclass(frozen=True)
class Case:
    """`make(fixed)` is the pair with its mistake or without; `bug` is the verdict on the mistake, or its refusal.

    `missed` says why the mistake is not found yet, `alarm` why the pair without it does not pass yet.
    """

    source: str
    make: Make
    bug: str = "FAIL"
    missed: str = ""
    alarm: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.make.__name__} ({self.source})"

    def judged(self, fixed: bool) -> Result:
        """The check of one of the two pairs."""
        return check(self.make(fixed), Options(**{**QUICK, **self.options}))

    def hold(self, fixed: bool) -> None:
        """Asserts that the mistake is found and that nothing is found without it."""
        if fixed or self.bug in ("FAIL", "ABSTAIN", "VACUOUS", "PASS"):
            result = self.judged(fixed)
            assert result.verdict == ("PASS" if fixed else self.bug), str(result)
            return
        with pytest.raises(ParityUsageError, match=self.bug):
            self.judged(fixed)


class Cases(list[Case]):
    """A table of cases that grows by a decorator: `@known("jax #3058")` before `def name(fixed: bool) -> Pair`."""

    def __call__(
        self, source: str, bug: str = "FAIL", missed: str = "", alarm: str = "", **options: Any
    ) -> Callable[[Make], Make]:
        """The fields of a Case, and fields of Options that it needs."""

        def known(make: Make) -> Make:
            self.append(Case(source, make, bug, missed, alarm, options))
            return make

        return known

    def params(self) -> Sequence[Any]:
        """Every case with its mistake and without, for `pytest.mark.parametrize(("case", "fixed"), ...)`.

        A default run has one of the two of each case, turn by turn; the other is `slow`.
        """
        return [
            pytest.param(
                case,
                fixed,
                id=f"{case}-{'without' if fixed else 'mistake'}",
                marks=[
                    *([pytest.mark.xfail(strict=True, reason=why)] if why else []),
                    *([pytest.mark.slow] if (index + fixed) % 2 else []),
                ],
            )
            for index, case in enumerate(self)
            for fixed, why in ((False, case.missed), (True, case.alarm))
        ]


def drawn(*shape: int, seed: int = 0, scale: float = 1.0, shift: float = 0.0) -> np.ndarray:
    """Normal float32 numbers, the same in every run."""
    numbers = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return np.asarray(numbers * scale + shift, np.float32)


def normal(*shape: int, scale: float = 1.0, shift: float = 0.0) -> Callable[[np.random.Generator], tuple[np.ndarray]]:
    """Batches of one input of normal float32 numbers."""
    return lambda generator: (np.asarray(generator.standard_normal(shape) * scale + shift, np.float32),)


def functions(
    reference: Callable[..., torch.Tensor], candidate: Callable[..., jnp.ndarray], inputs: Any, **fields: Any
) -> Pair:
    """A PyTorch and a JAX function without parameters."""
    return Pair("two functions", Torch(reference), Jax(candidate), inputs=inputs, **fields)


def seeded(module: Callable[..., torch.nn.Module], *sizes: Any, **how: Any) -> Any:
    """A PyTorch module with the same numbers in every run."""
    torch.manual_seed(0)
    return module(*sizes, **how)


def held(module: torch.nn.Module) -> dict[str, np.ndarray]:
    """A module's parameters as arrays that share its memory."""
    return {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}


def channels_last(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A call of a PyTorch module on images as JAX has them."""
    return module(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
