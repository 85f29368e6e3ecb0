"""Choices that differ: as good as tied, which decides nothing, or not, which fails."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from parity import Jax, Options, Pair, Result, Torch, check
from parity.ties import TWINS

SHORT = Options(precisions=("float32",), batches=2, steps=0, flops=False)
COLUMNS = np.random.default_rng(7).standard_normal((6, 4)).astype(np.float32)
#: every expert twice: each choice between the two is an exact tie
TWICE = np.concatenate([COLUMNS, COLUMNS], axis=1)


def inputs(generator: np.random.Generator) -> tuple[np.ndarray]:
    return (generator.standard_normal((50, 6)).astype(np.float32),)


def reference(params: Any, x: torch.Tensor) -> dict[str, torch.Tensor]:
    scores = x @ params["w"]
    return {"scores": scores, "best": torch.argmax(scores, -1)}


def judged(candidate: Any, weights: np.ndarray = TWICE) -> Result:
    pair = Pair("routing", Torch(reference), Jax(candidate), {"w": weights}, inputs)
    return check(pair, SHORT)


def last(params: Any, x: jax.Array) -> dict[str, jax.Array]:
    """The last of equals, where PyTorch takes the first."""
    scores = x @ params["w"]
    return {"scores": scores, "best": scores.shape[-1] - 1 - jnp.argmax(scores[:, ::-1], -1)}


def row(result: Result, name: str = "best") -> Any:
    return next(each for each in result.rows if (each.name, each.stage) == (name, "float64"))


def test_exact_ties_that_fall_the_other_way_decide_nothing() -> None:
    result = judged(last)
    assert (result.verdict, result.rung, result.exit_status) == ("ABSTAIN", None, 3), result.reason
    assert result.reason.startswith("best: 100 elements differ, all as good as tied")
    assert row(result).verdict == "ABSTAIN"
    assert row(result).derivation.startswith("100 elements differ, all as good as tied")
    assert row(result).measured == 1.0


def test_what_is_no_tie_fails_and_is_counted() -> None:
    def second(params: Any, x: jax.Array) -> dict[str, jax.Array]:
        outputs = last(params, x)
        return {**outputs, "best": outputs["best"].at[:3].add(-1)}

    result = judged(second)
    assert (result.verdict, result.rung) == ("FAIL", "different")
    assert row(result).derivation.startswith("100 elements differ, 94 of them as good as tied")


def test_without_ties_every_choice_counts() -> None:
    def worst(params: Any, x: jax.Array) -> dict[str, jax.Array]:
        scores = x @ params["w"]
        return {"scores": scores, "best": jnp.argmin(scores, -1)}

    assert judged(worst, COLUMNS).verdict == "FAIL"
    assert row(judged(last, COLUMNS)).verdict == "PASS"


def test_a_tie_is_missed_by_all_twins_hardly_ever() -> None:
    assert 50 * 2 * 2.0**-TWINS < 0.01


def test_a_tie_of_many_is_a_tie() -> None:
    """Zero inputs: all scores are equal, and PyTorch takes the first, the port the last."""
    pair = Pair("zeros", Torch(reference), Jax(last), {"w": TWICE}, (np.zeros((50, 6), np.float32),))
    result = check(pair, SHORT)
    assert row(result).verdict == "ABSTAIN", row(result)
    assert row(result).derivation.startswith("50 elements differ, all as good as tied")


def expert(first: bool) -> Any:
    """What the chosen column of the weights gives: a float behind a choice."""

    def function(params: Any, x: Any) -> dict[str, Any]:
        scores = x @ params["w"]
        if first:
            best = torch.argmax(scores, -1)
            return {"mixed": params["v"][best] * x.sum(-1, keepdim=True), "scores": scores}
        best = scores.shape[-1] - 1 - jnp.argmax(scores[:, ::-1], -1)
        return {"mixed": params["v"][best] * x.sum(-1, keepdims=True), "scores": scores}

    return function


def routed(w: np.ndarray, **changes: Any) -> Result:
    v = np.random.default_rng(8).standard_normal((8, 3)).astype(np.float32)
    return check(Pair("expert", Torch(expert(True)), Jax(expert(False)), {"w": w, "v": v}, inputs), SHORT, **changes)


def test_floats_behind_a_tie_decide_nothing_and_neither_do_their_gradients() -> None:
    result = routed(TWICE)
    assert (result.verdict, result.rung) == ("ABSTAIN", None), result.reason
    assert row(result, "mixed").verdict == "ABSTAIN"
    assert "elements differ, all as good as tied" in row(result, "mixed").derivation
    assert row(result, "gradient v").verdict == "ABSTAIN"


def test_floats_that_differ_without_a_tie_fail() -> None:
    def wrong(params: Any, x: jax.Array) -> dict[str, jax.Array]:
        outputs = expert(False)(params, x)
        return {**outputs, "mixed": outputs["mixed"] * 1.001}

    w = np.random.default_rng(9).standard_normal((6, 8)).astype(np.float32)
    v = np.random.default_rng(8).standard_normal((8, 3)).astype(np.float32)
    assert check(Pair("expert", Torch(expert(True)), Jax(expert(False)), {"w": w, "v": v}, inputs), SHORT).passed
    result = check(Pair("expert", Torch(expert(True)), Jax(wrong), {"w": w, "v": v}, inputs), SHORT)
    assert row(result, "mixed").verdict == "FAIL"
    result = check(Pair("expert", Torch(expert(True)), Jax(wrong), {"w": TWICE, "v": v}, inputs), SHORT)
    assert row(result, "mixed").verdict == "FAIL"  # ties and a fault


def test_a_gradient_at_a_kink_is_no_tie() -> None:
    x = np.where(np.random.default_rng(1).random((5, 6)) < 0.5, 0, 1).astype(np.float32)
    pair = Pair("kink", Torch(torch.relu), Jax(lambda x: jnp.maximum(x, 0)), inputs=(x,))
    assert check(pair, SHORT).verdict == "FAIL"


def test_what_roundings_of_the_inputs_move_as_far_is_no_difference() -> None:
    """PyTorch adds up a variance in more than float32 on a CPU: that says little of how it rounds in float64."""

    def shifted(generator: np.random.Generator) -> dict[str, np.ndarray]:
        return {"x": (generator.standard_normal((16, 9)) + 1000).astype(np.float32)}

    options = Options(precisions=(), batches=2, steps=0, flops=False)
    for factor, rung in ((1.0, "same-function"), (1 + 1e-9, "different")):
        port = Jax(lambda x, factor=factor: jnp.var(x, axis=-1, ddof=1) * factor)
        result = check(Pair("variance", Torch(lambda x: torch.var(x, dim=-1)), port, inputs=shifted), options)
        assert result.rung == rung, result.reason
        if rung == "same-function":
            (conditioned,) = [row for row in result.rows if "move the reference as far" in row.derivation]
            assert conditioned.measured <= conditioned.bound < 1e-10
