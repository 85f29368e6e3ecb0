"""SGD, Adam and AdamW: the equations on arrays, and optax transformations that apply them to a tree."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from .precision import at_least_float32

Rate: TypeAlias = float | Array
Schedule: TypeAlias = Callable[[Any], Any]


class AdamState(NamedTuple):
    """Steps taken, first and second moments in the type of the parameters (torch.optim: step, exp_avg, exp_avg_sq)."""

    count: Int[Array, ""]  # type: ignore[assignment]  # hides tuple.count, as optax's own states do
    mu: PyTree
    nu: PyTree


def sgd_update(gradient: Float[Array, "*p"], learning_rate: Rate) -> Float[Array, "*p"]:
    """-learning_rate g, in at least float32."""
    g = gradient.astype(at_least_float32(gradient.dtype))
    return -learning_rate * g


def bias_correction(b: float, count: Int[Array, ""], dtype: Any) -> Float[Array, ""]:
    """1 - b^count, as -expm1(count log b): digits survive when b is near 1.

    Differs: optax evaluates 1 - b**count, in float32 off by 1.3e-5 of itself at the first step for b = 0.999.
    """
    return -jnp.expm1(count.astype(dtype) * math.log(b))


def adam_update(
    gradient: Float[Array, "*p"],
    mu: Float[Array, "*p"],
    nu: Float[Array, "*p"],
    count: Int[Array, ""],
    learning_rate: Rate,
    b1: float,
    b2: float,
    eps: float,
) -> tuple[Float[Array, "*p"], Float[Array, "*p"], Float[Array, "*p"]]:
    """Adam (Kingma and Ba 2015, algorithm 1), eps outside the root; `count` is 1 at the first step.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  -learning_rate m_hat / (sqrt(v_hat) + eps)

    Returns the update, m and v in at least float32.
    """
    wide = at_least_float32(gradient.dtype)
    g = gradient.astype(wide)
    m = b1 * mu.astype(wide) + (1 - b1) * g
    v = b2 * nu.astype(wide) + (1 - b2) * (g * g)
    m_hat = m / bias_correction(b1, count, wide)
    v_hat = v / bias_correction(b2, count, wide)
    return -learning_rate * m_hat / (jnp.sqrt(v_hat) + eps), m, v


def adamw_update(
    parameter: Float[Array, "*p"],
    gradient: Float[Array, "*p"],
    mu: Float[Array, "*p"],
    nu: Float[Array, "*p"],
    count: Int[Array, ""],
    learning_rate: Rate,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
) -> tuple[Float[Array, "*p"], Float[Array, "*p"], Float[Array, "*p"]]:
    """Adam's update and the decay -learning_rate weight_decay theta beside it (Loshchilov and Hutter 2019, alg. 2)."""
    update, m, v = adam_update(gradient, mu, nu, count, learning_rate, b1, b2, eps)
    theta = parameter.astype(update.dtype)
    return update - learning_rate * weight_decay * theta, m, v


class SGD(optax.GradientTransformation):
    """theta - learning_rate g; a schedule is read at the number of steps already taken."""

    def __new__(cls, learning_rate: Rate | Schedule = 1e-3) -> SGD:
        require_not_negative(learning_rate=learning_rate)

        def init(params: PyTree) -> Int[Array, ""]:
            return jnp.zeros((), jnp.int32)

        def update(updates: PyTree, state: Int[Array, ""], params: PyTree = None) -> tuple[PyTree, Int[Array, ""]]:
            rate = _rate(learning_rate, state)
            return jax.tree.map(lambda g: sgd_update(g, rate), updates), state + 1

        return super().__new__(cls, init, update)


class AdamW(optax.GradientTransformation):
    """Adam with decoupled weight decay, the moments stored in the type of the parameters.

    `optax.inject_hyperparams` moves `learning_rate`; name the others in its `static_args`.

    Differs: optax.adamw decays by 1e-4 by default, torch.optim.AdamW by 1e-2 as here.
    """

    def __new__(
        cls,
        learning_rate: Rate | Schedule = 1e-3,
        b1: float = 0.9,
        b2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> AdamW:
        require_fraction(b1=b1, b2=b2)
        require_not_negative(learning_rate=learning_rate, eps=eps, weight_decay=weight_decay)

        def init(params: PyTree) -> AdamState:
            zeros = jax.tree.map(jnp.zeros_like, params)
            return AdamState(jnp.zeros((), jnp.int32), zeros, jax.tree.map(jnp.zeros_like, params))

        def update(updates: PyTree, state: AdamState, params: PyTree = None) -> tuple[PyTree, AdamState]:
            if params is None and weight_decay:
                raise ValueError("params: needed by the weight decay, got None; call update(updates, state, params)")
            rate = _rate(learning_rate, state.count)
            count = state.count + 1

            def one(g: Array, mu: Array, nu: Array, parameter: Array) -> tuple[Array, Array, Array]:
                if not weight_decay:
                    step, m, v = adam_update(g, mu, nu, count, rate, b1, b2, eps)
                else:
                    step, m, v = adamw_update(parameter, g, mu, nu, count, rate, b1, b2, eps, weight_decay)
                return step, m.astype(mu.dtype), v.astype(nu.dtype)

            steps = jax.tree.map(one, updates, state.mu, state.nu, updates if params is None else params)
            step, mu, nu = jax.tree.transpose(jax.tree.structure(updates), jax.tree.structure((0, 0, 0)), steps)
            return step, AdamState(count, mu, nu)

        return super().__new__(cls, init, update)


class Adam(AdamW):
    """AdamW without decay."""

    def __new__(
        cls, learning_rate: Rate | Schedule = 1e-3, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
    ) -> Adam:
        return super().__new__(cls, learning_rate, b1, b2, eps, weight_decay=0.0)


def require_fraction(**values: float) -> None:
    """Raises ValueError for what is not in (0, 1)."""
    for name, value in values.items():
        if not 0 < value < 1:
            raise ValueError(f"{name}: in (0, 1), got {value}; 0.9 and 0.999 are usual")


def require_not_negative(**values: Rate | Schedule) -> None:
    """Raises ValueError for a negative number or NaN; schedules and arrays are not looked into."""
    for name, value in values.items():
        if isinstance(value, int | float) and not value >= 0:
            raise ValueError(f"{name}: must not be negative, got {value}; correct it")


def _rate(learning_rate: Rate | Schedule, count: Int[Array, ""]) -> Any:
    return learning_rate(count) if callable(learning_rate) else learning_rate
