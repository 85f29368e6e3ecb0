"""Checks that others relied on and that could not fail: each passes here on a fault as it did there, and parity fails.

The rules are written out from their sources (huggingface/transformers, stanford-crfm/levanter, PaddlePaddle's PaDiff,
jax.test_util, the JAX AI stack's tutorial on porting); the faults are the kind that each of them let through.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from jax.test_util import check_grads

import parity
from parity import Jax, Options, Pair, Torch
from parity.acceptance import accept
from parity.settings import find_settings

ALONE = Options(precisions=(), batches=2, steps=0, flops=False)
WIDTH = 24


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng([seed, 91])
    return {"w": (0.2 * generator.standard_normal((WIDTH, WIDTH))).astype(np.float32)}


def inputs(generator: np.random.Generator) -> tuple[np.ndarray]:
    return (generator.standard_normal((32, WIDTH)).astype(np.float32),)


def reference(params: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ params["w"])


def outputs(candidate: Callable[..., Any]) -> tuple[np.ndarray, np.ndarray]:
    (x,), params = inputs(np.random.default_rng(0)), weights()
    mine = reference({"w": torch.tensor(params["w"])}, torch.tensor(x)).numpy()
    return mine, np.asarray(candidate({"w": jnp.asarray(params["w"])}, jnp.asarray(x)))


def shifted(params: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["w"]) + 0.5


def reordered(params: Any, x: jax.Array) -> jax.Array:
    """The rows in another order, which no mean shows."""
    return jnp.tanh(x @ params["w"])[::-1]


def assert_different(candidate: Callable[..., Any], at: str = "output") -> None:
    found = parity.check(Pair("fault", Torch(reference), Jax(candidate), weights(), inputs), ALONE)
    assert (found.verdict, found.rung) == ("FAIL", "different")
    assert found.first_difference is not None
    assert found.first_difference.name == at, str(found)


def test_a_signed_sum_of_differences() -> None:
    # transformers PR #8829: `(a - b).sum() <= tol` is true of any b that is large enough
    mine, theirs = outputs(shifted)
    assert (mine - theirs).sum() <= 1e-3
    assert_different(shifted)


def test_signed_sums_of_weights() -> None:
    # transformers' weights equality test: `(p1 - p2).sum().item() <= 1e-3`
    held, other = weights()["w"], weights()["w"] + np.float32(0.25)
    assert (held - other).sum() <= 1e-3
    module = torch.nn.Linear(WIDTH, WIDTH, bias=False)
    module.weight.data = torch.tensor(held)
    pair = Pair("weights", module, Jax(lambda params, x: x @ params["w"].T, {"w": other}), inputs=inputs)
    found = parity.check(pair, ALONE)
    assert found.verdict == "FAIL"
    assert found.exit_status == 1


def test_a_comparison_that_never_ran() -> None:
    # transformers 2021, test_model_outputs_equivalence: the recursive checker's call stood inside the checker itself
    calls = []

    def recursive_check(mine: Any, theirs: Any) -> None:
        calls.append(1)
        assert np.allclose(mine, theirs)

        recursive_check(mine, theirs)

    assert not calls
    # a check without a number to compare is VACUOUS, and one that passed has a row for each tensor
    nothing = Pair("nothing", Torch(lambda x: x * float("nan")), Jax(lambda x: x * jnp.nan), inputs=inputs)
    found = parity.check(nothing, ALONE)
    assert (found.verdict, found.exit_status) == ("VACUOUS", 1)
    passed = parity.check(Pair("all", Torch(reference), Jax(same), weights(), inputs), ALONE)
    assert {row.name for row in passed.rows if row.verdict == "PASS"} >= {"output", "gradient w"}


def same(params: Any, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ params["w"])


def test_a_check_that_was_skipped_is_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # transformers PR #25334: GPT-NeoX's override skipped the check over a difference of 1.05
    assert_different(lambda params, x: same(params, x) + 1.05)
    # what a project accepts has a reason and a last day, and fails once it is over or not needed any more
    accepted = '[[tool.parity.accepted]]\npair = "fault"\nname = "output"\nreason = "later"\nexpires = 2020-01-01\n'
    (tmp_path / "pyproject.toml").write_text(accepted)
    settings = find_settings(tmp_path)
    pair = Pair("fault", Torch(reference), Jax(shifted), weights(), inputs)
    found = accept(parity.check(pair, ALONE), settings.accepted, date(2020, 1, 2))
    assert (found.verdict, found.passed, found.exit_status) == ("FAIL", False, 1)


@pytest.mark.parametrize("change", [lambda g: -g, lambda g: g[::-1]], ids=["negated", "unrelated"])
def test_an_optimizer_step_within_twice_the_learning_rate(change: Callable[[Any], Any]) -> None:
    # Levanter's AdamW step: atol 2e-3 at a learning rate of 1e-3; a step of Adam is at most about that long
    rate, start = 1e-3, weights()["w"]
    right = optax.adamw(rate, weight_decay=1e-2)

    def update(gradients: Any, state: Any, params: Any = None) -> Any:
        return right.update(jax.tree.map(change, gradients), state, params)

    faulty = optax.GradientTransformation(right.init, update)
    gradient = np.random.default_rng(3).standard_normal(start.shape).astype(np.float32)
    parameter = torch.nn.Parameter(torch.tensor(start))
    parameter.grad = torch.tensor(gradient)
    torch.optim.AdamW([parameter], lr=rate).step()
    steps, _ = faulty.update(jnp.asarray(gradient), faulty.init(jnp.asarray(start)), jnp.asarray(start))
    assert np.allclose(parameter.detach().numpy(), optax.apply_updates(start, steps), atol=2e-3)

    pair = Pair(
        "step",
        Torch(reference, optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=rate, weight_decay=1e-2)),
        Jax(same, optimizer=faulty),
        weights(),
        inputs,
    )
    found = parity.check(pair, ALONE, steps=1)
    assert found.verdict == "FAIL"
    assert found.first_difference is not None
    assert found.first_difference.name.startswith("step parameters")


def test_a_mean_of_each_tensor() -> None:
    # PaDiff's default compares the mean alone
    mine, theirs = outputs(reordered)
    assert np.isclose(mine.mean(), theirs.mean(), atol=1e-7)
    assert not np.allclose(mine, theirs, atol=0.5)
    assert_different(reordered)


def test_a_difference_that_is_logged_and_not_judged() -> None:
    # reprod_log writes mean and maximum of the differences down, and never raises
    pair = Pair("fault", Torch(reference), Jax(shifted), weights(), inputs)
    with pytest.raises(parity.ParityError, match="output differs in float64"):
        parity.check(pair, ALONE).raise_if_different()


def test_a_tolerance_that_grows_with_the_size() -> None:
    # jax.test_util.check_grads scales both tolerances by the number of elements: 1.5 times the derivative passes
    @jax.custom_jvp
    def wrong(x: jax.Array) -> jax.Array:
        return jnp.tanh(x)

    wrong.defjvp(lambda primals, tangents: (jnp.tanh(*primals), 1.5 * (1 - jnp.tanh(*primals) ** 2) * tangents[0]))
    x = jnp.asarray(np.random.default_rng(0).standard_normal(1000).astype(np.float32))
    check_grads(wrong, (x,), order=1, modes=("fwd",), atol=2e-3, rtol=2e-3)
    assert_different(lambda params, x: wrong(x @ params["w"]), "gradient w")


def test_the_tutorial_that_raises_its_tolerance() -> None:
    # "Porting a PyTorch model to JAX": tanh GELU for the exact one, LayerNorm eps 1e-6 for 1e-5, atol up to 1e-1
    generator = np.random.default_rng(5)
    gain, bias = (generator.standard_normal(WIDTH).astype(np.float32) * 0.1 for _ in range(2))
    torch_norm = torch.nn.LayerNorm(WIDTH)
    torch_norm.weight.data, torch_norm.bias.data = torch.tensor(1 + gain), torch.tensor(bias)
    mine = torch.nn.Sequential(torch_norm, torch.nn.GELU())

    def ported(eps: float, approximate: bool) -> nnx.Module:
        norm = nnx.LayerNorm(WIDTH, epsilon=eps, rngs=nnx.Rngs(0))
        norm.scale[...], norm.bias[...] = jnp.asarray(1 + gain), jnp.asarray(bias)
        return nnx.Sequential(norm, lambda x: jax.nn.gelu(x, approximate=approximate))

    (x,) = inputs(generator)
    theirs = ported(1e-6, True)
    assert np.allclose(mine(torch.tensor(x)).detach().numpy(), np.asarray(theirs(jnp.asarray(x))), atol=1e-1)
    for eps, approximate in ((1e-6, False), (1e-5, True)):
        found = parity.check(Pair("port", mine, ported(eps, approximate), inputs=inputs), ALONE)
        assert (found.verdict, found.rung) == ("FAIL", "different")
    assert parity.check(Pair("port", mine, ported(1e-5, False), inputs=inputs), ALONE).verdict == "PASS"
