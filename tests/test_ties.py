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
    assert (result.verdict, result.rung) == ("PASS", "same-function"), result.reason
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
