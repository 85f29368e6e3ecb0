"""SGD, Adam and AdamW: the equations on tensors, and torch.optim optimizers that apply them to parameter groups."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim.optimizer import ParamsT

from .precision import at_least_float32

Rate: TypeAlias = float | Tensor


def sgd_update(gradient: Float[Tensor, "*p"], learning_rate: Rate) -> Float[Tensor, "*p"]:
    """-learning_rate g, in at least float32."""
    g = gradient.to(at_least_float32(gradient.dtype))
    return -learning_rate * g


def bias_correction(b: float, count: int) -> float:
    """1 - b^count, as -expm1(count log b): digits survive when b is near 1."""
    return -math.expm1(count * math.log(b))


def adam_update(
    gradient: Float[Tensor, "*p"],
    mu: Float[Tensor, "*p"],
    nu: Float[Tensor, "*p"],
    count: int,
    learning_rate: Rate,
    b1: float,
    b2: float,
    eps: float,
) -> tuple[Float[Tensor, "*p"], Float[Tensor, "*p"], Float[Tensor, "*p"]]:
    """Adam (Kingma and Ba 2015, algorithm 1), eps outside the root; `count` is 1 at the first step.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  -learning_rate m_hat / (sqrt(v_hat) + eps)

    Returns the update, m and v in at least float32.
    """
    wide = at_least_float32(gradient.dtype)
    g = gradient.to(wide)
    m = b1 * mu.to(wide) + (1 - b1) * g
    v = b2 * nu.to(wide) + (1 - b2) * (g * g)
    m_hat = m / bias_correction(b1, count)
    v_hat = v / bias_correction(b2, count)
    return -learning_rate * m_hat / (torch.sqrt(v_hat) + eps), m, v


def adamw_update(
    parameter: Float[Tensor, "*p"],
    gradient: Float[Tensor, "*p"],
    mu: Float[Tensor, "*p"],
    nu: Float[Tensor, "*p"],
    count: int,
    learning_rate: Rate,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
) -> tuple[Float[Tensor, "*p"], Float[Tensor, "*p"], Float[Tensor, "*p"]]:
    """Adam's update and the decay -learning_rate weight_decay theta beside it (Loshchilov and Hutter 2019, alg. 2)."""
    update, m, v = adam_update(gradient, mu, nu, count, learning_rate, b1, b2, eps)
    theta = parameter.to(update.dtype)
    return update - learning_rate * weight_decay * theta, m, v


class SGD(torch.optim.Optimizer):
    """theta - learning_rate g; the group's "lr" is what torch.optim.lr_scheduler moves."""

    def __init__(self, params: ParamsT, learning_rate: Rate = 1e-3):
        require_not_negative(learning_rate=learning_rate)
        super().__init__(params, {"lr": learning_rate})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step over every parameter that has a gradient."""
        loss = _evaluate(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.copy_(parameter + sgd_update(parameter.grad, group["lr"]))
        return loss


class AdamW(torch.optim.Optimizer):
    """Adam with decoupled weight decay, the moments stored in the type of the parameters.

    State per parameter: `count`, `mu`, `nu` (torch.optim: `step`, `exp_avg`, `exp_avg_sq`).

    Differs: optax.adamw decays by 1e-4 by default, torch.optim.AdamW by 1e-2 as here.
    """

    def __init__(
        self,
        params: ParamsT,
        learning_rate: Rate = 1e-3,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ):
        require_fraction(b1=b1, b2=b2)
        require_not_negative(learning_rate=learning_rate, eps=eps, weight_decay=weight_decay)
        super().__init__(params, {"lr": learning_rate, "b1": b1, "b2": b2, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step over every parameter that has a gradient."""
        loss = _evaluate(closure)
        for group in self.param_groups:
            rate, b1, b2, eps, weight_decay = (group[name] for name in ("lr", "b1", "b2", "eps", "weight_decay"))
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state.update(count=0, mu=torch.zeros_like(parameter), nu=torch.zeros_like(parameter))
                state["count"] += 1
                g, mu, nu, count = parameter.grad, state["mu"], state["nu"], state["count"]
                if not weight_decay:
                    step, m, v = adam_update(g, mu, nu, count, rate, b1, b2, eps)
                else:
                    step, m, v = adamw_update(parameter, g, mu, nu, count, rate, b1, b2, eps, weight_decay)
                parameter.copy_(parameter + step)
                mu.copy_(m)
                nu.copy_(v)
        return loss


class Adam(AdamW):
    """AdamW without decay."""

    def __init__(
        self, params: ParamsT, learning_rate: Rate = 1e-3, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
    ):
        super().__init__(params, learning_rate, b1, b2, eps, weight_decay=0.0)


def require_fraction(**values: float) -> None:
    """Raises ValueError for what is not in (0, 1)."""
    for name, value in values.items():
        if not 0 < value < 1:
            raise ValueError(f"{name}: in (0, 1), got {value}; 0.9 and 0.999 are usual")


def require_not_negative(**values: Rate) -> None:
    """Raises ValueError for a negative number or NaN; schedules and arrays are not looked into."""
    for name, value in values.items():
        if isinstance(value, int | float) and not value >= 0:
            raise ValueError(f"{name}: must not be negative, got {value}; correct it")


def _evaluate(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
