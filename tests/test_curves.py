"""Training curves: clean pairs stay in the envelope of their twins, faults leave it, and the step is said."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

import parity
from parity import ParityUsageError, Result

STEPS = 20
RATE = 0.01


def weights(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng([seed, 81])
    return {
        "w1": (0.3 * generator.standard_normal((11, 23))).astype(np.float32),
        "b1": (0.1 * generator.standard_normal(23)).astype(np.float32),
        "w2": (0.3 * generator.standard_normal((23, 7))).astype(np.float32),
    }


def batch(generator: np.random.Generator) -> dict[str, np.ndarray]:
    x = generator.standard_normal((13, 11)).astype(np.float32)
    return {"x": x, "y": np.tanh(x[:, :7] * x[:, 4:])}


def with_jax(params: Any, x: Any, y: Any) -> dict[str, Any]:
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return {"out": hidden @ params["w2"], "y": y}


def with_torch(params: Any, x: Any, y: Any) -> dict[str, Any]:
    hidden = torch.tanh(x @ params["w1"] + params["b1"])
    return {"out": hidden @ params["w2"], "y": y}


def mean_square(outputs: Any) -> Any:
    return ((outputs["out"] - outputs["y"]) ** 2).mean()


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.1)


def trained(optimizer: Any = None, candidate: Any = with_jax, seed: int = 0, **options: Any) -> Result:
    optimizer = optimizer or optax.adamw(RATE, weight_decay=0.1)
    pair = parity.Pair(
        "trained",
        parity.Torch(with_torch, optimizer=adamw),
        parity.Jax(candidate, optimizer=optimizer),
        weights=weights(seed),
        inputs=batch,
        loss=mean_square,
    )
    return parity.check(
        pair, **{"seed": seed, "precisions": (), "batches": 1, "steps": 0, "curve": STEPS, "flops": False, **options}
    )


def curves(result: Result) -> dict[str, parity.Row]:
    return {row.name: row for row in result.rows if row.group == "training curve"}


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_the_same_training_stays_far_inside_the_envelope(seed: int) -> None:
    result = trained(seed=seed)
    rows = curves(result)
    assert list(rows) == ["training loss", "training gradient norm", "training weight norm"]
    assert result.verdict == "PASS", result.reason
    for row in rows.values():
        assert 0 < row.measured < row.bound < 1e-4, row
        assert row.headroom > 2, row
        assert row.shape == (STEPS,)


FAULTS = {
    "learning rate 1e-4 off": (optax.adamw(RATE * (1 + 1e-4), weight_decay=0.1), 6),
    "schedule one step late": (optax.adamw(lambda step: RATE * jnp.where(step == 0, 0.0, 1.0), weight_decay=0.1), 2),
    "decay left out of the vector": (
        optax.adamw(RATE, weight_decay=0.1, mask=lambda tree: {name: value.ndim > 1 for name, value in tree.items()}),
        3,
    ),
    "coupled decay": (optax.chain(optax.add_decayed_weights(0.1), optax.adam(RATE)), 3),
    "b2 of 0.99": (optax.adamw(RATE, b2=0.99, weight_decay=0.1), 5),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_leaves_the_envelope_at_a_step_that_is_said(name: str) -> None:
    optimizer, latest = FAULTS[name]
    result = trained(optimizer)
    assert result.verdict == "FAIL"
    assert "the functions agree, but training" in result.reason
    left = [row for row in curves(result).values() if row.verdict == "FAIL"]
    steps = [int(row.derivation.split("left before step ")[1].split(" of")[0]) for row in left]
    assert 1 < min(steps) <= latest, steps


def test_a_model_that_differs_is_trained_too_and_its_step_is_added() -> None:
    def other(params: Any, x: Any, y: Any) -> dict[str, Any]:
        return with_jax({**params, "b1": params["b1"] + 1e-4}, x, y)

    result = trained(candidate=other)
    assert (result.verdict, result.rung) == ("FAIL", "different")
    assert "differs in float64" in result.reason
    assert f"training loss left before step 1 of {STEPS}" in result.reason


def test_a_quantity_that_is_never_finite_on_either_side_is_vacuous() -> None:
    def explodes(params: Any, x: Any, y: Any) -> dict[str, Any]:
        return {**with_jax(params, x, y), "y": y + 1e20}

    def explodes_too(params: Any, x: Any, y: Any) -> dict[str, Any]:
        return {**with_torch(params, x, y), "y": y + 1e20}

    pair = parity.Pair(
        "explodes",
        parity.Torch(explodes_too, optimizer=lambda p: torch.optim.SGD(p, lr=1.0)),
        parity.Jax(explodes, optimizer=optax.sgd(1.0)),
        weights=weights(0),
        inputs=batch,
        loss=mean_square,
    )
    rows = curves(parity.check(pair, precisions=(), batches=1, steps=0, curve=3, flops=False))
    assert rows["training loss"].verdict == "VACUOUS"  # beyond float32 from the start
    assert rows["training weight norm"].verdict != "FAIL"


def test_the_report_has_a_table_of_the_curves() -> None:
    text = str(trained())
    assert "float32, training curves  The same training?" in text
    assert "training curve" in text


def test_curves_need_two_optimizers_and_gradients() -> None:
    pair = parity.Pair("none", parity.Torch(with_torch), parity.Jax(with_jax), weights=weights(0), inputs=batch)
    with pytest.raises(ParityUsageError, match="curve: an optimizer on both sides"):
        parity.check(pair, curve=2, steps=0)
    with pytest.raises(ParityUsageError, match="curve: steps on gradients"):
        parity.check(pair, curve=2, grads=False)


def test_an_eager_jax_side_may_look_at_its_values() -> None:
    """`jit=False` runs operation by operation: Python sees numbers, which no traced function does."""

    def looks(params: Any, x: Any, y: Any) -> dict[str, Any]:
        assert bool((x * x).sum() > 0)
        return with_jax(params, x, y)

    pair = parity.Pair(
        "eager",
        parity.Torch(with_torch),
        parity.Jax(looks, jit=False),
        weights=weights(0),
        inputs=batch,
    )
    assert parity.check(pair, precisions=("float32",), batches=1, steps=0, flops=False).verdict == "PASS"
    with pytest.raises(ParityUsageError, match="TracerBoolConversionError"):
        parity.check(parity.Pair("jit", pair.reference, parity.Jax(looks), weights=weights(0), inputs=batch), steps=0)
