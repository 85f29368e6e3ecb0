"""Correct pairs never fail: random models of every choice that a ModelConfig has, through the whole check."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest

from jaxcore.config import ModelConfig, RopeScaling
from parity import Options, Result, check
from parity.pairs.text import standard_library
from parity.pairs.transformer import Source, transformer_pair

COUNT = 100
#: what a default run takes; the hundred together are `slow`
SLICE = (18, 19, 48, 78, 86, 99)
LEAST = 5

SCALING = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=13)

#: every choice of every field; the sizes are primes wherever a model allows it
CHOICES: dict[str, tuple[Any, ...]] = {
    "vocab_size": (37, 61, 97),
    "d_model": (23, 29, 31, 43),
    "num_layers": (1, 2, 2, 3),
    "num_kv_heads": (1, 2, 3),
    "group": (1, 2, 3),
    "d_head": (8, 10, 14, 22),
    "d_ff": (41, 47, 53),
    "max_seq_len": (19, 23),
    "norm": ("layer_norm", "rms_norm", "rms_norm_plus_one"),
    "norm_eps": (1e-5, 1e-6, 1e-12),
    "norm_position": ("pre", "post"),
    "qk_norm": (False, True),
    "position": ("learned", "rope", "rope", "none"),
    "rope_layout": ("half", "interleaved"),
    "rope_theta": (1e4, 5e5),
    "rope_fraction": (1.0, 0.5, 0.75),
    "rope_scaling": (None, SCALING),
    "causal": (True, False),
    "window": (None, None, 1, 3, 7),
    "qkv_bias": (False, True),
    "o_bias": (False, True),
    "mlp_bias": (False, True),
    "activation": ("gelu", "gelu_tanh", "relu", "swiglu", "geglu", "geglu_tanh"),
    "token_types": (0, 2, 3),
    "embedding_norm": (False, True),
    "embedding_scale": (False, True),
    "final_norm": (False, True),
    "head": ("tied", "untied", "none"),
    "pooler": (False, True),
    "kernel": ("einsum", "fused"),
    "scan_layers": (False, True),
    "recompute": (False, True),
}
ROPE_ONLY = ("rope_layout", "rope_theta", "rope_fraction", "rope_scaling")


def random_configs(seed: int, count: int = COUNT) -> list[ModelConfig]:
    """Every choice of a field equally often, the fields shuffled independently of one another."""
    generator = np.random.Generator(np.random.PCG64([seed, 100]))
    columns = {}
    for name, choices in CHOICES.items():
        places = np.arange(count) % len(choices)
        columns[name] = [choices[place] for place in generator.permutation(places)]
    return [_config({name: column[index] for name, column in columns.items()}) for index in range(count)]


def _config(values: dict[str, Any]) -> ModelConfig:
    values = dict(values)
    values["num_heads"] = values["num_kv_heads"] * values.pop("group")
    if values["rope_fraction"] < 1:
        # the nearest share that turns whole pairs; half an element more, so that cutting it off is exact
        pairs = round(values["d_head"] * values["rope_fraction"] / 2)
        values["rope_fraction"] = (2 * pairs + 0.5) / values["d_head"]
    return ModelConfig(**values)


def random_check(config: ModelConfig, index: int, **options: Any) -> Result:
    """One config through the whole check, on text, at a prime length."""
    tokens = np.frombuffer(standard_library(40_000), np.uint8).astype(np.int64) % config.vocab_size
    pair = transformer_pair(
        f"random {index}", config, Source(tokens, "text"), batch=2 + index % 2, seq=(11, 13, 17)[index % 3], seed=index
    )
    return check(pair, Options(**{"seed": index, **options}))


CONFIGS = random_configs(seed=0)


def assert_no_false_alarm(index: int, *precisions: str) -> None:
    result = random_check(CONFIGS[index], index, precisions=precisions)
    wrong = [
        (row.name, row.stage, row.measured, row.bound) for row in result.rows if row.verdict in ("FAIL", "VACUOUS")
    ]
    assert wrong == [], f"{CONFIGS[index]}"
    assert result.work.equal, result.work
    assert (result.verdict, result.rung, result.islands) == ("PASS", "same-function", ())
    assert {row.stage for row in result.rows} == {"float64", *precisions}
    exact = [row for row in result.rows if row.stage == "float64"]
    assert all(row.verdict == "PASS" for row in exact), "in float64 nothing is left undecided"


@pytest.mark.parametrize("place", range(len(SLICE)), ids=map(str, SLICE))
def test_a_correct_pair_passes(place: int, request: pytest.FixtureRequest) -> None:
    # XLA without its costly passes, float32 and bfloat16 by turns: a third of the time
    jax.config.update("jax_disable_most_optimizations", True)
    request.addfinalizer(lambda: jax.config.update("jax_disable_most_optimizations", False))
    assert_no_false_alarm(SLICE[place], ("float32", "bfloat16")[place % 2])


@pytest.mark.slow
@pytest.mark.parametrize("index", range(COUNT))
def test_every_correct_pair_passes(index: int) -> None:
    assert_no_false_alarm(index, "float32", "bfloat16")


def effective(config: ModelConfig) -> dict[str, Any]:
    """The choices that make a difference to this model: RoPE's fields only where there is RoPE."""
    values = {name: getattr(config, name) for name in CHOICES if name != "group"}
    values["group"] = config.num_heads // config.kv_heads
    values["rope_fraction"] = min(CHOICES["rope_fraction"], key=lambda choice: abs(choice - config.rope_fraction))
    return {name: value for name, value in values.items() if config.position == "rope" or name not in ROPE_ONLY}


@pytest.mark.parametrize("name", CHOICES)
def test_every_choice_of_every_field_is_made_often(name: str) -> None:
    made = Counter(str(effective(config).get(name)) for config in CONFIGS)
    for choice in CHOICES[name]:
        assert made[str(choice)] >= LEAST, f"{name}={choice}: {made}"


def test_the_slice_holds_the_choices_that_are_programs_of_their_own() -> None:
    for name in (
        "norm",
        "norm_position",
        "position",
        "kernel",
        "head",
        "qk_norm",
        "scan_layers",
        "recompute",
        "causal",
    ):
        found = {getattr(CONFIGS[index], name) for index in SLICE}
        assert found == set(CHOICES[name]), name


def test_the_configs_do_not_depend_on_anything_but_their_seed() -> None:
    assert random_configs(seed=0) == CONFIGS
    assert random_configs(seed=1) != CONFIGS
    assert len(set(map(str, CONFIGS))) == COUNT
