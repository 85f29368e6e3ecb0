"""Dropout: draws that both sides share, dropout left out by declaration, and what cannot be shared is refused."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx

import parity
from parity import Equinox, Jax, Linen, Pair, ParityUsageError, Result, Torch
from parity.backends.torch.draws import replacing_dropout
from parity.draws import Draws

WIDTHS = (5, 16, 3)
RATE = 0.3
QUICK = {"batches": 2, "steps": 0, "precisions": ("float32", "bfloat16"), "flops": False}


def numbers() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(87)
    return {
        "up": (0.5 * generator.standard_normal(WIDTHS[:2])).astype(np.float32),
        "down": (0.5 * generator.standard_normal(WIDTHS[1:])).astype(np.float32),
    }


def inputs(generator: np.random.Generator) -> tuple[np.ndarray]:
    return (generator.standard_normal((7, WIDTHS[0])).astype(np.float32),)


class Reference(torch.nn.Module):
    """Two products with a dropout after each."""

    def __init__(self, rate: float = RATE):
        super().__init__()
        self.up = torch.nn.Parameter(torch.tensor(numbers()["up"]))
        self.down = torch.nn.Parameter(torch.tensor(numbers()["down"]))
        self.dropout = torch.nn.Dropout(rate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.dropout(torch.tanh(x @ self.up)) @ self.down)


class Nnx(nnx.Module):
    """The same in nnx."""

    def __init__(self, rate: float = RATE):
        self.up, self.down = (nnx.Param(jnp.asarray(array)) for array in numbers().values())
        self.dropout = nnx.Dropout(rate, rngs=nnx.Rngs(3))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.dropout(self.dropout(jnp.tanh(x @ self.up[...])) @ self.down[...])


class InLinen(linen.Module):
    """The same in linen."""

    @linen.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        up, down = (self.param(name, lambda key, a=array: jnp.asarray(a)) for name, array in numbers().items())
        dropout = linen.Dropout(RATE, deterministic=False)
        return dropout(dropout(jnp.tanh(x @ up)) @ down)


class InEquinox(eqx.Module):
    """The same in equinox."""

    up: jax.Array
    down: jax.Array
    dropout: eqx.nn.Dropout

    def __call__(self, x: jax.Array) -> jax.Array:
        key = jax.random.key(0)
        return self.dropout(self.dropout(jnp.tanh(x @ self.up), key=key) @ self.down, key=key)


def plain(params: Any, x: jax.Array, rate: float = RATE) -> jax.Array:
    def dropped(y: jax.Array) -> jax.Array:
        return jnp.where(jax.random.bernoulli(jax.random.key(1), 1 - rate, y.shape), y / (1 - rate), 0)

    return dropped(dropped(jnp.tanh(x @ params["up"])) @ params["down"])


def linen_side() -> Linen:
    variables = InLinen().init({"params": jax.random.key(0), "dropout": jax.random.key(0)}, jnp.zeros((1, WIDTHS[0])))
    return Linen(InLinen(), variables)


SIDES = {
    "nnx": Nnx,
    "linen": linen_side,
    "equinox": lambda: Equinox(InEquinox(**numbers(), dropout=eqx.nn.Dropout(RATE))),
    "a function": lambda: Jax(plain, numbers()),
    "an eager function": lambda: Jax(plain, numbers(), jit=False),
    "torch": Reference,
}


def judged(candidate: Any, dropout: str | None = "shared", reference: Any = None, **options: Any) -> Result:
    pair = Pair("dropout", reference or Reference(), candidate, inputs=inputs, dropout=dropout)
    return parity.check(pair, **{**QUICK, **options})


@pytest.mark.parametrize("name", SIDES)
def test_shared_draws_make_one_function_of_two(name: str) -> None:
    result = judged(SIDES[name]())
    assert (result.verdict, result.rung) in (("PASS", "same-function"), ("PASS", "bitwise")), str(result)
    assert "dropout: 2 draws in each run, the same ones on both sides" in result.notes


@pytest.mark.parametrize("name", SIDES)
def test_dropout_is_off_by_declaration(name: str) -> None:
    if "function" in name:
        with pytest.raises(
            ParityUsageError, match=r"left out on both sides, got 2 draws of jax's own \(\(7, 16\) first\)"
        ):
            judged(SIDES[name](), "off")
        return
    assert judged(SIDES[name](), "off").verdict == "PASS"
    assert judged(Reference(), "off", Reference(rate=0.0)).verdict == "PASS"


def test_without_a_declaration_it_is_refused_and_the_way_out_is_said() -> None:
    with pytest.raises(ParityUsageError, match=r"dropout='shared' or 'off'"):
        judged(SIDES["a function"](), None)


@pytest.mark.parametrize("rate", [0.31, 0.7])
def test_another_rate_is_another_function(rate: float) -> None:
    result = judged(Nnx(rate))
    assert (result.verdict, result.rung) == ("FAIL", "different")


def test_a_dropout_that_is_not_scaled_is_found_where_it_is() -> None:
    def unscaled(params: Any, x: jax.Array) -> jax.Array:
        hidden = parity.tap("hidden", jnp.tanh(x @ params["up"]))
        kept = jax.random.bernoulli(jax.random.key(1), 1 - RATE, hidden.shape)
        hidden = parity.tap("dropped", jnp.where(kept, hidden, 0)) @ params["down"]
        return jnp.where(jax.random.bernoulli(jax.random.key(1), 1 - RATE, hidden.shape), hidden / (1 - RATE), 0)

    class Tapped(Reference):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = parity.tap("hidden", torch.tanh(x @ self.up))
            return self.dropout(parity.tap("dropped", self.dropout(hidden)) @ self.down)

    result = judged(Jax(unscaled, numbers()), reference=Tapped())
    assert result.verdict == "FAIL"
    assert "it begins at dropped" in result.reason


def test_a_dropout_on_one_side_alone_is_refused() -> None:
    with pytest.raises(ParityUsageError, match=r"got 2 of torch \(\(7, 16\), \(7, 3\)\) and 0 of nnx"):
        judged(Nnx(0.0))


def test_layers_that_are_scanned_are_refused() -> None:
    square = np.asarray(0.3 * np.random.default_rng(1).standard_normal((2, 5, 5)), np.float32)

    def looped(params: Any, x: torch.Tensor) -> torch.Tensor:
        for layer in params["w"]:
            x = torch.nn.functional.dropout(x @ layer, RATE)
        return x

    def scanned(params: Any, x: jax.Array) -> jax.Array:
        def body(x: jax.Array, layer: jax.Array) -> tuple[jax.Array, None]:
            keep = jax.random.bernoulli(jax.random.key(0), 1 - RATE, x.shape)
            return jnp.where(keep, (x @ layer) / (1 - RATE), 0), None

        return jax.lax.scan(body, x, params["w"])[0]

    pair = Pair("scanned", Torch(looped), Jax(scanned), {"w": square}, inputs=inputs, dropout="shared")
    with pytest.raises(ParityUsageError, match=r"got 2 of torch .* and 1 of jax .* scanned or mapped"):
        parity.check(pair, **QUICK)


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(ParityUsageError, match=r"^dropout: None, 'shared' or 'off', got 'same'; choose one of them$"):
        judged(Nnx(), "same")


def test_nothing_is_left_replaced() -> None:
    before = torch.nn.functional.dropout, jax.random.bernoulli, nnx.Dropout.__call__
    judged(Nnx(), "off")
    judged(Nnx())
    assert (torch.nn.functional.dropout, jax.random.bernoulli, nnx.Dropout.__call__) == before


def test_a_dropout_in_place_writes_into_its_input() -> None:
    x = torch.ones(50, 40)
    with replacing_dropout(Draws()):
        given = torch.nn.functional.dropout(x, RATE, inplace=True)
        assert torch.equal(torch.nn.functional.dropout(x, 1.0), torch.zeros(50, 40))
        assert torch.nn.functional.dropout(x, RATE, training=False) is x
    assert given is x
    assert set(x.unique().tolist()) == {0.0, float(torch.tensor(1.0).div(1 - RATE))}


def test_draws_are_uniform_and_each_is_another_one() -> None:
    draws, again = Draws(), Draws()
    one, two = draws.uniform((1000, 10)), draws.uniform((1000, 10))
    assert np.array_equal(one, again.uniform((1000, 10)))
    assert draws.shapes == [(1000, 10)] * 2
    for numbers in (one, two):
        assert abs(numbers.mean() - 0.5) < 4 / np.sqrt(12 * 10_000)
        assert 0 < numbers.min() < numbers.max() < 1
    assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 4 / np.sqrt(10_000)
