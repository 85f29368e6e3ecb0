"""Mistakes in optimizers: defaults, where eps stands, what is clipped or decayed, when a schedule starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest
import torch
from cases import Case, Cases, drawn, normal

from parity import Jax, Pair, Torch

known = Cases()
RATE = 1e-2
WEIGHTS = {"w": drawn(11, 7), "scale": drawn(7, shift=1, scale=0.1), "bias": drawn(7)}


def model(module: Any) -> Callable[[Mapping[str, Any], Any], Any]:
    """One layer, in the framework whose tanh is given."""
    return lambda params, x: (module.tanh(x @ params["w"]) * params["scale"] + params["bias"]) ** 2


def trained(reference: Callable[[list[torch.Tensor]], torch.optim.Optimizer], candidate: Any) -> Pair:
    """One model under two optimizers."""
    sides = Torch(model(torch), optimizer=reference), Jax(model(jnp), optimizer=candidate)
    return Pair("one layer", *sides, weights=WEIGHTS, inputs=normal(13, 11))


class Kept(NamedTuple):
    """The state of `by_direction`: how many steps, and what it keeps of each parameter."""

    count: jax.Array
    each: tuple[Any, ...]


def by_direction(step: Callable[..., Any], kept: int) -> optax.GradientTransformation:
    """An optimizer written out: `step(count, gradient, *kept) -> (direction, *kept)` for each parameter, from zeros."""

    def init(params: Any) -> Kept:
        return Kept(jnp.zeros((), int), tuple(jax.tree.map(jnp.zeros_like, params) for _ in range(kept)))

    def update(gradients: Any, state: Kept, params: Any = None) -> tuple[Any, Kept]:
        count = state.count + 1
        results = jax.tree.map(lambda *each: step(count, *each), gradients, *state.each)
        moved, *rest = (jax.tree.map(lambda _, each, i=i: each[i], gradients, results) for i in range(1 + kept))
        return jax.tree.map(lambda each: -RATE * each, moved), Kept(count, tuple(rest))

    return optax.GradientTransformation(init, update)


@known("optax #417")
def adamw_default_decay(fixed: bool) -> Pair:
    candidate = optax.adamw(RATE, weight_decay=1e-2) if fixed else optax.adamw(RATE)
    return trained(lambda params: torch.optim.AdamW(params, RATE), candidate)


@known("optax #417")
def decay_in_the_gradient(fixed: bool) -> Pair:
    decayed = optax.chain(optax.add_decayed_weights(0.1), optax.adam(RATE))
    candidate = decayed if fixed else optax.adamw(RATE, weight_decay=0.1)
    return trained(lambda params: torch.optim.Adam(params, RATE, weight_decay=0.1), candidate)


@known("optax #532")
def rmsprop_defaults(fixed: bool) -> Pair:
    candidate = optax.rmsprop(RATE, decay=0.99, eps_in_sqrt=False) if fixed else optax.rmsprop(RATE)
    return trained(lambda params: torch.optim.RMSprop(params, RATE), candidate)


@known("optax #532")
def rmsprop_eps_in_the_root(fixed: bool) -> Pair:
    candidate = optax.rmsprop(RATE, decay=0.99, eps=1e-2, eps_in_sqrt=not fixed)
    return trained(lambda params: torch.optim.RMSprop(params, RATE, eps=1e-2), candidate)


@known("optax #1389")
def amsgrad_maximum_after_the_correction(fixed: bool) -> Pair:
    def step(count, gradient, mu, nu, largest):
        mu, nu = 0.9 * mu + 0.1 * gradient, 0.999 * nu + 0.001 * gradient**2
        largest = jnp.maximum(largest, nu)
        direction = mu / (1 - 0.9**count) / (jnp.sqrt(largest / (1 - 0.999**count)) + 1e-8)
        return direction, mu, nu, largest

    candidate = by_direction(step, 3) if fixed else optax.amsgrad(RATE)
    return trained(lambda params: torch.optim.Adam(params, RATE, amsgrad=True), candidate)


def clipped(optimizer: torch.optim.Optimizer, most: float) -> torch.optim.Optimizer:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_norm_(parameters, most) and None)
    return optimizer


@known("spd #643")
def clipping_without_eps(fixed: bool) -> Pair:
    def update(gradients, state, params=None):
        factor = jnp.minimum(1.0, 0.05 / (optax.tree.norm(gradients) + 1e-6))
        return jax.tree.map(lambda gradient: gradient * factor, gradients), state

    same = optax.GradientTransformation(lambda params: optax.EmptyState(), update)
    clip = same if fixed else optax.clip_by_global_norm(0.05)
    return trained(lambda params: clipped(torch.optim.SGD(params, RATE), 0.05), optax.chain(clip, optax.sgd(RATE)))


@known("spd #643")
def clipping_by_value_for_norm(fixed: bool) -> Pair:
    def reference(params):
        optimizer = torch.optim.SGD(params, RATE)
        optimizer.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_value_(params, 0.05))
        return optimizer

    clip = optax.clip(0.05) if fixed else optax.clip_by_global_norm(0.05)
    return trained(reference, optax.chain(clip, optax.sgd(RATE)))


def scheduled(optimizer: torch.optim.Optimizer, factor: Callable[[int], float]) -> torch.optim.Optimizer:
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    return optimizer


@known("optax #415")
def warm_up_starts_at_zero(fixed: bool) -> Pair:
    ramp = optax.linear_schedule(0.0, RATE, 5)
    return trained(
        lambda params: scheduled(torch.optim.SGD(params, RATE), lambda step: min((step + 1) / 5, 1.0)),
        optax.sgd(lambda count: ramp(count + 1) if fixed else ramp(count)),
    )


@known("torchtitan #1261")
def cosine_over_another_length(fixed: bool) -> Pair:
    def reference(params):
        optimizer = torch.optim.Adam(params, RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
        optimizer.register_step_post_hook(lambda *_: schedule.step())
        return optimizer

    return trained(reference, optax.adam(optax.cosine_decay_schedule(RATE, 100 if fixed else 99)))


@known("pytorch #887")
def nesterov_of_the_textbook(fixed: bool) -> Pair:
    rate = lambda count: RATE * 0.8**count  # noqa: E731

    def step(count, gradient, velocity):
        velocity = 0.9 * velocity + 0.8 ** (count - 1) * gradient
        return 0.9 * velocity + 0.8 ** (count - 1) * gradient, velocity

    return trained(
        lambda params: scheduled(torch.optim.SGD(params, RATE, momentum=0.9, nesterov=True), lambda step: 0.8**step),
        optax.sgd(rate, momentum=0.9, nesterov=True) if fixed else by_direction(step, 1),
    )


@known("pytorch #1196")
def rate_inside_the_momentum(fixed: bool) -> Pair:
    inside = optax.chain(optax.scale_by_learning_rate(lambda count: RATE * 0.8**count), optax.trace(0.9))
    return trained(
        lambda params: scheduled(torch.optim.SGD(params, RATE, momentum=0.9), lambda step: 0.8**step),
        optax.sgd(lambda count: RATE * 0.8**count, momentum=0.9) if fixed else inside,
    )


@known("optax #719")
def nadam_without_its_schedule(fixed: bool) -> Pair:
    def step(count, gradient, mu, nu, product):
        now, after = (0.9 * (1 - 0.5 * 0.96 ** (k * 4e-3)) for k in (count, count + 1))
        product = jnp.where(count == 1, 1, product) * now
        mu, nu = 0.9 * mu + 0.1 * gradient, 0.999 * nu + 0.001 * gradient**2
        ahead = after * mu / (1 - product * after) + (1 - now) * gradient / (1 - product)
        return ahead / (jnp.sqrt(nu / (1 - 0.999**count)) + 1e-8), mu, nu, product

    candidate = by_direction(step, 3) if fixed else optax.nadam(RATE)
    return trained(lambda params: torch.optim.NAdam(params, RATE), candidate)


@known("optax #1755", precisions=("float16",))
def adam_eps_below_float16(fixed: bool) -> Pair:
    eps = 1e-6 if fixed else 1e-8
    return trained(lambda params: torch.optim.Adam(params, RATE, eps=eps), optax.adam(RATE, eps=eps))


@known("optax #494")
def decay_of_scales_and_biases(fixed: bool) -> Pair:
    def reference(params):
        groups = [{"params": params[:1]}, {"params": params[1:], "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, RATE, weight_decay=0.1)

    mask = {"w": True, "scale": False, "bias": False} if fixed else None
    return trained(reference, optax.adamw(RATE, weight_decay=0.1, mask=mask))


@known("optax #494")
def decay_by_the_number_of_axes(fixed: bool) -> Pair:
    def reference(params):
        matrices, vectors = [p for p in params if p.ndim > 1], [p for p in params if p.ndim < 2]
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, RATE, weight_decay=0.1)

    def mask(params):
        return jax.tree.map(lambda each: each.ndim > 1 if fixed else each.ndim > 0, params)

    return trained(reference, optax.adamw(RATE, weight_decay=0.1, mask=mask))


@pytest.mark.parametrize(("case", "fixed"), known.params())
def test_optimizers(case: Case, fixed: bool) -> None:
    case.hold(fixed)
