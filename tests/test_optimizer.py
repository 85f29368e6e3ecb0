"""SGD, Adam and AdamW against torch.optim and optax: 200 steps on gradients of three kinds, states, schedules."""

from __future__ import annotations

import copy
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from sides import JAX, TORCH, both_sides, normal

STEPS, SHAPE = 200, (5, 7)
RATE, B1, B2, EPS, DECAY = 3e-2, 0.8, 0.97, 1e-4, 0.1  # no default value: a dropped argument shows
START = normal("start", *SHAPE)


def gradients(kind):
    """Ordinary, near eps (where its place in the formula shows), and with exact zeros."""
    stream = normal(f"gradient {kind}", STEPS, *SHAPE)
    if kind == "near eps":
        return stream * EPS
    if kind == "zeros":
        stream[:, 0] = 0  # never a gradient: the update is 0 / (0 + eps)
        stream[::3, 1] = 0
    return stream


def jax_walk(transformation, stream, dtype="float64", start=START):
    """Parameters after every step, and the last state."""
    with jax.enable_x64(dtype == "float64"):
        parameters = jnp.array(start, dtype)
        state = transformation.init(parameters)

        def step(carry, gradient):
            parameters, state = carry
            update, state = transformation.update(gradient, state, parameters)
            parameters = optax.apply_updates(parameters, update)
            return (parameters, state), parameters

        (_, state), walk = jax.lax.scan(step, (parameters, state), jnp.array(stream, dtype))
        return np.asarray(walk).astype(np.float64), jax.tree.map(np.asarray, state)


def torch_walk(build, stream, dtype="float64", start=START):
    """The same for a torch.optim.Optimizer."""
    parameter = torch.nn.Parameter(torch.tensor(start).to(getattr(torch, dtype)))
    optimizer = build([parameter])
    walk = []
    for gradient in stream:
        parameter.grad = torch.tensor(gradient).to(parameter.dtype)
        optimizer.step()
        walk.append(parameter.detach().double().clone().numpy())
    return np.stack(walk), optimizer.state.get(parameter, {})


ARGUMENTS = {
    "SGD": {"learning_rate": RATE},
    "Adam": {"learning_rate": RATE, "b1": B1, "b2": B2, "eps": EPS},
    "AdamW": {"learning_rate": RATE, "b1": B1, "b2": B2, "eps": EPS, "weight_decay": DECAY},
}
IN_OPTAX = {"SGD": optax.sgd, "Adam": optax.adam, "AdamW": optax.adamw}
IN_TORCH = {
    "SGD": lambda p: torch.optim.SGD(p, lr=RATE),
    "Adam": lambda p: torch.optim.Adam(p, lr=RATE, betas=(B1, B2), eps=EPS),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=RATE, betas=(B1, B2), eps=EPS, weight_decay=DECAY),
}


@cache
def library_walk(library, name, kind):
    """Parameters and state of the library's own, by kind of gradient."""
    if library == "optax":
        return jax_walk(IN_OPTAX[name](**ARGUMENTS[name]), gradients(kind))
    return torch_walk(IN_TORCH[name], gradients(kind))


def our_walk(side, name, stream, dtype="float64", **changes):
    arguments = {**ARGUMENTS[name], **changes}
    if side is JAX:
        return jax_walk(getattr(side.package, name)(**arguments), stream, dtype)
    return torch_walk(lambda p: getattr(side.package, name)(p, **arguments), stream, dtype)


def worst_step(walk, oracle, start=START):
    """The largest difference of two walks at any step, as a fraction of the largest step of the oracle."""
    steps = np.abs(np.diff(oracle, axis=0, prepend=start[None])).max()
    return np.abs(walk - oracle).max() / steps


kinds = pytest.mark.parametrize("kind", ["ordinary", "near eps", "zeros"])
names = pytest.mark.parametrize("name", ARGUMENTS)
libraries = pytest.mark.parametrize("library", ["optax", "torch.optim"])


@both_sides
@names
@kinds
def test_every_step_equals_both_libraries_in_float64(side, name, kind):
    """Of a step: what is left is mostly the rounding of the parameter itself, which is a thousand times as large."""
    walk, _ = our_walk(side, name, gradients(kind))
    for library in ("optax", "torch.optim"):
        assert worst_step(walk, library_walk(library, name, kind)[0]) <= 1e-12, library
    if kind == "zeros" and name != "AdamW":
        np.testing.assert_array_equal(walk[:, 0], np.broadcast_to(START[0], walk[:, 0].shape))


@both_sides
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
@libraries
def test_moments_and_count_equal_the_library(side, name, library):
    _, ours = our_walk(side, name, gradients("ordinary"))
    _, theirs = library_walk(library, name, "ordinary")
    count, mu, nu = (ours.count, ours.mu, ours.nu) if side is JAX else (ours["count"], ours["mu"], ours["nu"])
    if library == "optax":
        expected = (theirs[0].count, theirs[0].mu, theirs[0].nu)
    else:
        expected = (theirs["step"], theirs["exp_avg"], theirs["exp_avg_sq"])
    assert int(count) == int(expected[0]) == STEPS
    np.testing.assert_allclose(np.asarray(mu), np.asarray(expected[1]), rtol=1e-12)
    np.testing.assert_allclose(np.asarray(nu), np.asarray(expected[2]), rtol=1e-12)


@both_sides
@names
@kinds
def test_float32_steps_stay_within_rounding_of_the_float64_walk(side, name, kind):
    """A parameter of size p rounds by u p at each of t steps; each update by a few u of itself: 8 u sqrt(t) in all."""
    stream = gradients(kind)
    narrow, _ = our_walk(side, name, stream, "float32")
    wide, _ = library_walk("torch.optim", name, kind)
    scale = np.abs(wide).max() + np.abs(np.diff(wide, axis=0)).max()
    allowed = 8 * 2.0**-24 * np.sqrt(np.arange(1, STEPS + 1)) * scale
    assert (np.abs(narrow - wide).max(axis=(1, 2)) <= allowed).all()


FAULTS = {
    "eps inside the root": lambda m, v, c1, c2: -RATE * (m / c1) / np.sqrt(v / c2 + EPS),
    "no bias correction": lambda m, v, c1, c2: -RATE * m / (np.sqrt(v) + EPS),
    "eps before the correction": lambda m, v, c1, c2: -RATE * (m / c1) / ((np.sqrt(v) + EPS) / np.sqrt(c2)),
}


@pytest.mark.parametrize("fault", FAULTS)
@kinds
def test_a_wrong_adam_fails_the_bound(fault, kind):
    """The planted faults, as NumPy; the right formula passes by the same code."""
    stream = gradients(kind)
    oracle, _ = library_walk("torch.optim", "Adam", kind)

    def walk(update):
        theta, m, v, out = START.copy(), 0.0, 0.0, []
        for count, g in enumerate(stream, 1):
            m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g * g
            theta = theta + update(m, v, 1 - B1**count, 1 - B2**count)
            out.append(theta)
        return np.stack(out)

    assert worst_step(walk(lambda m, v, c1, c2: -RATE * (m / c1) / (np.sqrt(v / c2) + EPS)), oracle) <= 1e-12
    assert worst_step(walk(FAULTS[fault]), oracle) > 1e-6


@both_sides
def test_swapped_betas_and_coupled_decay_fail_the_bound(side):
    stream = gradients("ordinary")
    oracle, _ = library_walk("torch.optim", "AdamW", "ordinary")
    assert worst_step(our_walk(side, "AdamW", stream, b1=B2, b2=B1)[0], oracle) > 1e-3
    coupled, _ = torch_walk(lambda p: torch.optim.Adam(p, lr=RATE, betas=(B1, B2), eps=EPS, weight_decay=DECAY), stream)
    assert worst_step(coupled, oracle) > 1e-3


@both_sides
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bit_parameters_and_moments_keep_their_type_and_equations_run_in_float32(side, dtype):
    """One step from zero moments: the exact update from the rounded gradient, the sum rounded once."""
    stream = gradients("ordinary")[:1]
    walk, state = our_walk(side, "AdamW", stream, dtype)
    mu = state.mu if side is JAX else state["mu"]
    assert mu.dtype == side.dtype(dtype)
    start, g = (side.numpy(side.array(x, dtype)) for x in (START, stream[0]))
    exact = start - RATE * g / (np.abs(g) + EPS) - RATE * DECAY * start
    np.testing.assert_array_equal(walk[0], side.numpy(side.array(exact.astype(np.float32).astype(float), dtype)))


@both_sides
@pytest.mark.parametrize("count", [1, 2, 10, 1000, 100_000])
def test_bias_correction_keeps_its_digits_in_float32(side, count):
    """1 - 0.999^1 in float32 is off by 1.3e-5 of itself, -expm1 by a few 2^-24."""
    exact = -np.expm1(count * np.log(0.999))
    if side is JAX:
        value = float(side.package.bias_correction(0.999, jnp.asarray(count), jnp.dtype("float32")))
        naive = float(1 - jnp.float32(0.999) ** jnp.int32(count))
        assert count > 1 or abs(naive / exact - 1) > 1e-5
    else:
        value = side.package.bias_correction(0.999, count)
    assert abs(value / exact - 1) <= 4 * 2.0**-24


@both_sides
@pytest.mark.parametrize(
    ("argument", "value", "rule"),
    [
        ("b1", 1.0, "b1: in (0, 1), got 1.0"),
        ("b2", 0.0, "b2: in (0, 1), got 0.0"),
        ("eps", -1e-8, "eps: must not be negative"),
        ("learning_rate", float("nan"), "learning_rate: must not be negative, got nan"),
        ("weight_decay", -0.1, "weight_decay: must not be negative"),
    ],
)
def test_arguments_that_the_equations_do_not_allow_are_refused(side, argument, value, rule):
    first = () if side is JAX else ([torch.nn.Parameter(torch.zeros(2))],)
    with pytest.raises(ValueError, match=rule.split(",")[0].replace("(", r"\(")) as refusal:
        side.package.AdamW(*first, **{argument: value})
    assert rule in str(refusal.value)
    assert "\n" not in str(refusal.value)
    if argument == "learning_rate":
        with pytest.raises(ValueError, match="learning_rate: must not be negative"):
            side.package.SGD(*first, learning_rate=value)


# optax's conventions


@names
def test_jaxcore_optimizers_chain_with_clipping_and_schedules(name):
    """A chain of ours equals the chain of optax's, the schedule read at the same step numbers."""
    stream = gradients("ordinary") * 10
    with jax.enable_x64(True):
        schedule = optax.cosine_decay_schedule(RATE, STEPS)
    arguments = {**ARGUMENTS[name], "learning_rate": schedule}
    ours = optax.chain(optax.clip_by_global_norm(1.0), getattr(JAX.package, name)(**arguments))
    theirs = optax.chain(optax.clip_by_global_norm(1.0), IN_OPTAX[name](**arguments))
    assert worst_step(jax_walk(ours, stream)[0], jax_walk(theirs, stream)[0]) <= 1e-12


def test_jaxcore_optimizers_work_masked_injected_and_inside_nnx():
    """`optax.masked`, `optax.inject_hyperparams` and `nnx.Optimizer` take them as they take optax's own."""
    parameters, gradient = {"w": jnp.ones(3), "b": jnp.ones(2)}, {"w": jnp.ones(3), "b": jnp.ones(2)}
    masked = optax.masked(JAX.package.AdamW(0.1), {"w": True, "b": False})
    update, _ = masked.update(gradient, masked.init(parameters), parameters)
    np.testing.assert_array_equal(update["b"], gradient["b"])
    assert (update["w"] < 0).all()

    adam = optax.inject_hyperparams(JAX.package.Adam, static_args=("b1", "b2", "eps"))
    injected = adam(learning_rate=0.1)
    state = injected.init(parameters)
    state.hyperparams["learning_rate"] = jnp.asarray(0.0)
    update, _ = injected.update(gradient, state, parameters)
    np.testing.assert_array_equal(update["w"], np.zeros(3))

    projection = JAX.package.Projection({"weight": jnp.ones((2, 3)), "bias": jnp.zeros(3)})
    optimizer = nnx.Optimizer(projection, JAX.package.AdamW(0.1), wrt=nnx.Param)

    @nnx.jit
    def train(projection, optimizer):
        loss = nnx.grad(lambda p: (p(jnp.ones((1, 1, 2)), "b t d, d f -> b t f") ** 2).sum())
        optimizer.update(projection, loss(projection))

    train(projection, optimizer)
    assert (projection.weight[...] < 1).all()


def test_jaxcore_decay_asks_for_the_parameters():
    optimizer = JAX.package.AdamW(0.1)
    with pytest.raises(ValueError, match="params: needed by the weight decay, got None; call update"):
        optimizer.update(jnp.ones(2), optimizer.init(jnp.ones(2)))


def test_jaxcore_update_compiles_once():
    """No step makes a new program: the state has the same types after as before."""
    optimizer, traces = JAX.package.AdamW(1e-2), []

    @jax.jit
    def step(gradient, state, parameters):
        traces.append(1)
        return optimizer.update(gradient, state, parameters)

    parameters = jnp.ones(3, jnp.bfloat16)
    state = optimizer.init(parameters)
    for _ in range(3):
        _, state = step(parameters, state, parameters)
    assert len(traces) == 1


# torch.optim's conventions


def torch_optimizer(name, parameters, **changes):
    return getattr(TORCH.package, name)(parameters, **{**ARGUMENTS[name], **changes})


@names
def test_torchref_optimizers_resume_from_a_state_dict(name, tmp_path):
    """Saved after 7 of 20 steps and loaded into a fresh optimizer: the same bits as without the break."""
    stream = gradients("ordinary")[:20]
    whole, _ = torch_walk(lambda p: torch_optimizer(name, p), stream)
    parameter = torch.nn.Parameter(torch.tensor(START))
    optimizer = torch_optimizer(name, [parameter])
    for number, gradient in enumerate(stream):
        if number == 7:
            torch.save({"optimizer": optimizer.state_dict(), "parameter": parameter.detach()}, tmp_path / "state.pt")
            saved = torch.load(tmp_path / "state.pt", weights_only=True)
            parameter = torch.nn.Parameter(saved["parameter"])
            optimizer = torch_optimizer(name, [parameter], learning_rate=123.0)  # the file's rate wins
            optimizer.load_state_dict(saved["optimizer"])
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        np.testing.assert_array_equal(parameter.detach().numpy(), whole[number])


@names
def test_torchref_optimizers_keep_parameter_groups_apart(name):
    """Each group's rate is its own, and a parameter without a gradient stays."""
    fast, slow, idle = (torch.nn.Parameter(torch.tensor(START)) for _ in range(3))
    optimizer = torch_optimizer(name, [{"params": [fast, idle]}, {"params": [slow], "lr": 0.0}])
    fast.grad = slow.grad = torch.ones(SHAPE, dtype=torch.float64)
    optimizer.step()
    assert not torch.equal(fast, torch.tensor(START))
    assert torch.equal(slow, torch.tensor(START))
    assert torch.equal(idle, torch.tensor(START))


@names
def test_torchref_optimizers_follow_a_learning_rate_scheduler(name):
    """torch.optim.lr_scheduler moves the group's "lr", as it does for torch.optim's own."""

    def walk(build):
        parameter = torch.nn.Parameter(torch.tensor(START))
        optimizer = build([parameter])
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
        out = []
        for gradient in gradients("ordinary")[:20]:
            parameter.grad = torch.tensor(gradient)
            optimizer.step()
            scheduler.step()
            out.append(parameter.detach().clone().numpy())
        return np.stack(out)

    assert worst_step(walk(lambda p: torch_optimizer(name, p)), walk(IN_TORCH[name])) <= 1e-12


def test_torchref_step_evaluates_a_closure_with_gradients():
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = TORCH.package.SGD([parameter], learning_rate=0.5)

    def closure():
        optimizer.zero_grad()
        loss = (parameter**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    np.testing.assert_array_equal(parameter.detach().numpy(), np.zeros(2))


def test_torchref_optimizer_can_be_copied():
    parameter = torch.nn.Parameter(torch.ones(2))
    twin = copy.deepcopy(TORCH.package.AdamW([parameter], learning_rate=0.25))
    assert twin.param_groups[0]["lr"] == 0.25
