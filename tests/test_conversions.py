"""Parameters that one side computes from the other's: found by value, exact in float64, their gradients moved back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from parity import Jax, Options, Pair, Result, Torch, check
from parity.conversions import Converted, converted
from parity.matching import match_values
from parity.runs import Arrays

RATE = 1e-2


def numbers(*shape: int, seed: int = 0, scale: float = 0.3, shift: float = 0.0) -> np.ndarray:
    drawn = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return np.asarray(drawn * scale + shift, np.float32)


def link_of(reference: Arrays, candidate: Arrays) -> Any:
    return converted(match_values(reference, candidate).link, reference, candidate)


def found(reference: Arrays, candidate: Arrays) -> list[str]:
    link = link_of(reference, candidate)
    return [str(formula) for formula in link.formulas] if isinstance(link, Converted) else []


W = numbers(23, shift=1)
MADE: dict[str, tuple[np.ndarray, np.ndarray]] = {
    "b = a - 1": (W, W - 1),
    "b = a + 1": (numbers(23), 1 + numbers(23)),
    "b = -a": (W, -W),
    "b = 0.5 x a": (W, W / 2),
    "b = -4 x a": (W, -4 * W),
    "b = 5.2915 x a": (W, np.float32(28**0.5) * W),
    "b = 0.188982 x a (a b -> b a)": (numbers(7, 5), (numbers(7, 5) / np.float32(28**0.5)).T),
}


@pytest.mark.parametrize("formula", MADE)
def test_a_relation_is_found_by_value_and_holds_to_one_rounding(formula: str) -> None:
    a, b = MADE[formula]
    reference, candidate = {"a": a, "x": numbers(3)}, {"b": b, "y": numbers(3)}
    assert found(reference, candidate) == [formula]
    link = link_of(reference, candidate)
    assert link.apart == ((), ())
    forward = link.forward(reference)
    assert forward["b"].dtype == np.float64
    np.testing.assert_allclose(forward["b"], b, rtol=2**-23, atol=2**-24 * float(np.abs(a).max()))
    np.testing.assert_array_equal(forward["y"], candidate["y"])


def test_a_sum_is_found_and_so_is_that_of_every_gate() -> None:
    mine = {"ih": numbers(28, seed=1), "hh": numbers(28, seed=2)}
    total = mine["ih"] + mine["hh"]
    assert found(mine, {"b": total}) == ["b = ih + hh"]
    gates = {f"g{index}": total[7 * index : 7 * index + 7] for index in range(4)}
    assert found(mine, gates) == [
        f"g{index} = ih[{7 * index}:{7 * index + 7}] + hh[{7 * index}:{7 * index + 7}]" for index in range(4)
    ]
    assert link_of(mine, gates).notes == (
        "weight g0 = ih[0:7] + hh[0:7] and 3 more in the same way: so held to a rounding of float32, and so computed "
        "in every run",
    )
    np.testing.assert_allclose(link_of(mine, gates).forward(mine)["g2"], gates["g2"], rtol=2**-24)
    del gates["g3"]
    assert found(mine, gates) == [], "a part of both would stand for nothing"


def bent(array: np.ndarray, where: int = 3, roundings: float = 4) -> np.ndarray:
    array = array.copy()
    array[where] += roundings * 2.0**-24 * max(1, abs(array[where]))
    return array


BIAS = numbers(11, seed=1), numbers(11, seed=2)
UNTOLD: dict[str, tuple[Arrays, Arrays]] = {
    "one element a few roundings off": ({"a": W}, {"b": bent(W - 1)}),
    "an offset that is no whole number": ({"a": W}, {"b": W - np.float32(0.7)}),
    "a factor that is no root": ({"a": W}, {"b": W * np.float32(1.7)}),
    "constants": ({"a": np.ones(23, np.float32)}, {"b": np.zeros(23, np.float32)}),
    "too few numbers": ({"a": W[:4]}, {"b": W[:4] - 1}),
    "two that it may be of": ({"a": W, "c": W}, {"b": W - 1}),
    "two that it may be": ({"a": W}, {"b": W - 1, "c": W - 1}),
    "a sum that is a little off": ({"a": BIAS[0], "c": BIAS[1]}, {"b": bent(sum(BIAS))}),
    "a sum of two of three": ({"a": BIAS[0], "c": BIAS[1], "d": BIAS[1]}, {"b": sum(BIAS)}),
    "infinite numbers": ({"a": np.append(W, np.inf)}, {"b": np.append(W - 1, np.inf)}),
    "whole numbers": ({"a": np.arange(23)}, {"b": np.arange(23) + 1}),
    "two initialisations": ({f"a{i}": numbers(9, 5, seed=i) for i in range(9)}, {"b": numbers(9, 5, seed=10)}),
}


@pytest.mark.parametrize("what", UNTOLD)
def test_nothing_is_taken_for_a_relation_by_accident(what: str) -> None:
    reference, candidate = UNTOLD[what]
    reference = {
        name: array if array.dtype.kind == "i" else array.astype(np.float32) for name, array in reference.items()
    }
    assert found(reference, candidate) == []
    assert link_of(reference, candidate).apart[1] == tuple(candidate)


def test_gradients_moments_and_steps_come_back_by_the_derivative() -> None:
    mine = {"w": numbers(11, shift=1), "q": numbers(7, 5), "ih": numbers(13, seed=1), "hh": numbers(13, seed=2)}
    theirs = {"s": mine["w"] - 1, "k": (mine["q"] * -4).T, "b": mine["ih"] + mine["hh"]}
    link = link_of(mine, theirs)
    gradient = {name: numbers(*array.shape, seed=9) for name, array in theirs.items()}
    back, squares = link.backward(gradient), link.squares(gradient)
    assert list(back) == list(mine)
    np.testing.assert_array_equal(back["w"], gradient["s"])
    np.testing.assert_array_equal(back["q"], -4 * gradient["k"].T)
    np.testing.assert_array_equal(squares["q"], 16 * gradient["k"].T)
    np.testing.assert_array_equal(back["ih"], gradient["b"])
    np.testing.assert_array_equal(back["hh"], gradient["b"])
    assert {array.dtype for array in back.values()} == {np.dtype(np.float32)}
    for name, array in link.gradients(back).items():
        np.testing.assert_array_equal(array, gradient[name])
    # a step of the candidate's, in float32: no rounding of the reference's larger numbers is added to it
    after = {name: (array + 1e-6 * gradient[name]).astype(np.float32) for name, array in link.forward(mine).items()}
    step = {name: array - mine[name].astype(np.float64) for name, array in link.stepped(after, mine).items()}
    moved = {name: after[name] - theirs[name].astype(np.float64) for name in after}
    np.testing.assert_allclose(step["w"], moved["s"], atol=1e-15)
    np.testing.assert_allclose(step["q"], moved["k"].T / -4, atol=1e-15)
    np.testing.assert_allclose(step["ih"] + step["hh"], moved["b"], atol=1e-15)
    np.testing.assert_allclose(step["ih"], step["hh"], atol=1e-15)


# ---- whole checks


def normed(module: Any, scale: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def function(params: Any, x: Any) -> Any:
        hidden = module.tanh(x @ params["w"])
        return hidden / (hidden * hidden).mean(-1)[..., None] ** 0.5 * scale(params)

    return function


def norms(optimizers: tuple[Any, Any] = (None, None), held: float = 1.0, used: float = 1.0) -> Pair:
    """A norm by `weight`, and one by `used + scale`, which holds weight - `held`."""
    weight, w = numbers(19, shift=1), numbers(11, 19)
    reference = Torch(
        normed(torch, lambda params: params["weight"]), {"w": w, "weight": weight}, optimizer=optimizers[0]
    )
    scale = {"w": w, "scale": weight - np.float32(held)}
    candidate = Jax(normed(jnp, lambda params: used + params["scale"]), scale, optimizer=optimizers[1])
    return Pair("norm", reference, candidate, inputs=lambda generator: (generator.standard_normal((13, 11)),))


def judged(pair: Pair, **changes: Any) -> Result:
    return check(pair, Options(**{"precisions": ("float32",), "batches": 2, "steps": 2, "flops": False, **changes}))


ADAM = (lambda params: torch.optim.Adam(params, RATE), optax.adam(RATE))


def test_a_norm_that_holds_its_scale_less_one_is_the_same_function_and_trains_alike() -> None:
    result = judged(norms(ADAM), precisions=("float32", "bfloat16"), thorough=True, curve=5)
    assert (result.verdict, result.rung) == ("PASS", "same-function"), result
    assert result.notes[0].startswith("weight scale = weight - 1: so held to a rounding of float32")
    compared = {row.name for row in result.rows if row.stage == "float64" and row.verdict == "PASS"}
    assert {"gradient weight", "step parameters weight", "step mu weight", "step nu weight"} <= compared


@pytest.mark.parametrize(("held", "used"), [(1.0, 0.0), (1.0, 2.0), (2.0, 1.0), (-1.0, 1.0)])
def test_a_one_too_many_or_too_few_is_another_function(held: float, used: float) -> None:
    result = judged(norms(held=held, used=used))
    assert (result.verdict, result.rung) == ("FAIL", "different")
    assert result.first_difference is not None
    assert result.first_difference.name == "output"


def test_a_weight_decay_that_pulls_the_one_to_another_place_is_another_training() -> None:
    decayed = (lambda params: torch.optim.AdamW(params, RATE, weight_decay=0.1), optax.adamw(RATE, weight_decay=0.1))
    result = judged(norms(decayed))
    assert result.verdict == "FAIL"
    assert result.first_difference is not None
    assert result.first_difference.name == "step parameters weight"


def biases(optimizers: tuple[Any, Any] = (None, None), both: bool = True) -> Pair:
    """A layer with two biases, and one with their sum or with one of them twice."""
    w, one, other = numbers(11, 19), numbers(19, seed=1), numbers(19, seed=2)
    two = Torch(
        lambda params, x: torch.tanh(x @ params["w"] + params["one"] + params["other"]),
        {"w": w, "one": one, "other": other},
        optimizer=optimizers[0],
    )
    single = Jax(
        lambda params, x: jnp.tanh(x @ params["w"] + (1 if both else 2) * params["b"]),
        {"w": w, "b": one + other},
        optimizer=optimizers[1],
    )
    return Pair("biases", two, single, inputs=lambda generator: (generator.standard_normal((13, 11)),))


def test_the_gradient_of_a_sum_is_that_of_each_of_its_terms() -> None:
    result = judged(biases())
    assert (result.verdict, result.rung) == ("PASS", "same-function"), result
    assert {"gradient one", "gradient other"} <= {row.name for row in result.rows}
    wrong = judged(biases(both=False))
    assert wrong.verdict == "FAIL"


def test_two_biases_train_twice_as_fast_as_their_sum() -> None:
    result = judged(biases((lambda params: torch.optim.SGD(params, RATE), optax.sgd(RATE))))
    assert result.verdict == "FAIL"
    assert result.first_difference is not None
    assert result.first_difference.name == "step parameters one"
    assert result.first_difference.measured == pytest.approx(0.5, rel=1e-3)


def test_a_gradient_that_stops_at_the_converted_scale_fails() -> None:
    pair = norms()
    stopped = normed(jnp, lambda params: 1 + jax.lax.stop_gradient(params["scale"]))
    result = judged(Pair("norm", pair.reference, Jax(stopped, pair.candidate.params), inputs=pair.inputs))
    assert result.verdict == "FAIL"
    assert result.first_difference is not None
    assert result.first_difference.name == "gradient weight"
