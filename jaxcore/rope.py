"""Rotary position embedding: both layouts, partial rotation, Llama 3's frequency scaling."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from einops import pack, rearrange, unpack
from jaxtyping import Array, Float, Int

from .config import ModelConfig, RopeScaling


def rope_frequencies(width: int, theta: float, scaling: RopeScaling | None) -> Float[np.ndarray, "r"]:
    """theta^(-2 i / width) for i < width / 2, in radians per position and float64 (Su et al. 2021, section 3.2.2).

    With `scaling` waves longer than original_max_seq_len / low_freq_factor are slowed by `factor`, those shorter than
    original_max_seq_len / high_freq_factor stay, and between them the two are blended (Llama 3.1).
    """
    frequencies = theta ** (-np.arange(0, width, 2, dtype=np.float64) / width)
    if scaling is None:
        return frequencies
    turns = scaling.original_max_seq_len * frequencies / (2 * math.pi)
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    return frequencies * (blend + (1 - blend) / scaling.factor)


def rope_table(
    config: ModelConfig, positions: Int[Array, "b t"], dtype: jnp.dtype
) -> tuple[Float[Array, "b t 1 r"], Float[Array, "b t 1 r"]]:
    """Cosine and sine of position times frequency, in `dtype`."""
    frequencies = rope_frequencies(config.rotary_width, config.rope_theta, config.rope_scaling)
    steps = rearrange(positions, "b t -> b t 1 1").astype(dtype)
    angles = steps * jnp.asarray(frequencies, dtype)
    return jnp.cos(angles), jnp.sin(angles)


def rotate(
    x: Float[Array, "b t n h"], cos: Float[Array, "b t 1 r"], sin: Float[Array, "b t 1 r"], layout: str
) -> Float[Array, "b t n h"]:
    """Turn the pairs of the first 2 r elements of each head by their angle; the rest of the head passes.

    Layout "half" pairs element i with i + r (Hugging Face's checkpoints), "interleaved" 2 i with 2 i + 1 (Meta's).
    """
    width = 2 * cos.shape[-1]
    turned, rest = unpack(x, [[width], [x.shape[-1] - width]], "b t n *")
    turned = turned.astype(cos.dtype)
    if layout == "half":
        first, second = rearrange(turned, "b t n (two r) -> two b t n r", two=2)
        turned = rearrange([first * cos - second * sin, first * sin + second * cos], "two b t n r -> b t n (two r)")
    else:
        first, second = rearrange(turned, "b t n (r two) -> two b t n r", two=2)
        turned = rearrange([first * cos - second * sin, first * sin + second * cos], "two b t n r -> b t n (r two)")
    rotated, _ = pack([turned.astype(x.dtype), rest], "b t n *")
    return rotated
