"""Random models of every choice that a ModelConfig has, each through the whole check: a pair that must pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from jaxcore.config import ModelConfig, RopeScaling
from parity import Options, Pair, Result, check
from parity.pairs.text import standard_library
from parity.pairs.transformer import Source, transformer_pair

COUNT = 100

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


#: Of an eager check: compiled operation by operation JAX takes a minute or two for it.
SHORT = {"batches": 2, "steps": 1}


def random_pair(config: ModelConfig, index: int) -> Pair:
    """One config on text, at a prime length."""
    tokens = np.frombuffer(standard_library(40_000), np.uint8).astype(np.int64) % config.vocab_size
    return transformer_pair(
        f"random {index}", config, Source(tokens, "text"), batch=2 + index % 2, seq=(11, 13, 17)[index % 3], seed=index
    )


def random_check(config: ModelConfig, index: int, jit: bool = True, **options: Any) -> Result:
    """One config through the whole check; without `jit` jaxcore runs eagerly."""
    pair = random_pair(config, index)
    if not jit:
        pair, options = replace(pair, candidate=replace(pair.candidate, jit=False)), {**SHORT, **options}
    return check(pair, Options(**{"seed": index, **options}))
