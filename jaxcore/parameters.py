"""Names, shapes and starting values of every parameter, as NumPy; shared parameters stand once.

This file stands byte for byte the same in jaxcore and torchref (tests/test_mirror.py) and loads no framework.
Weights are einsum operands: axis `d` of `q_proj.weight` ("d n h") is the one that meets the activations.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .config import ModelConfig


@dataclass(frozen=True)
class Parameter:
    """Axis letters (design: b t s d n k h f v l), shape, and the standard deviation or constant that it starts from."""

    axes: str
    shape: tuple[int, ...]
    std: float | None = None
    constant: float = 0.0

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def parameter_table(config: ModelConfig) -> dict[str, Parameter]:
    """Every parameter of the model by name, in the order of the computation.

    Standard deviations are those that the families were published with: N(0, 0.02) for weights (GPT-2 and BERT papers,
    `initializer_range` of Llama and Qwen), GPT-2's 0.02 / sqrt(2 L) for the two projections that write to the residual
    stream and 0.01 for learned positions; gains one (zero where they are stored as 1 + w), biases zero.
    """
    sizes = {
        "d": config.d_model,
        "n": config.num_heads,
        "k": config.kv_heads,
        "h": config.head_width,
        "f": config.d_ff,
        "v": config.vocab_size,
        "t": config.max_seq_len,
        "y": config.token_types,
        "e": config.d_model,
    }
    gpt = config.norm == "layer_norm" and config.norm_position == "pre"
    residual_std = 0.02 / math.sqrt(2 * config.num_layers) if gpt else 0.02
    table: dict[str, Parameter] = {}

    def add(name: str, axes: str, std: float | None = None, constant: float = 0.0) -> None:
        table[name] = Parameter(axes, tuple(sizes[axis] for axis in axes.split()), std, constant)

    def add_norm(name: str, axes: str = "d") -> None:
        add(f"{name}.weight", axes, constant=0.0 if config.norm == "rms_norm_plus_one" else 1.0)
        if config.norm == "layer_norm":
            add(f"{name}.bias", axes)

    def add_projection(name: str, axes: str, bias: str | None, std: float = 0.02) -> None:
        add(f"{name}.weight", axes, std)
        if bias is not None:
            add(f"{name}.bias", bias)

    add("token_embedding.weight", "v d", 0.02)
    if config.position == "learned":
        add("position_embedding.weight", "t d", 0.01 if gpt else 0.02)
    if config.token_types:
        add("type_embedding.weight", "y d", 0.02)
    if config.embedding_norm:
        add_norm("embedding_norm")
    for layer in range(config.num_layers):
        block = f"layers.{layer}"
        add_norm(f"{block}.attention_norm")
        add_projection(f"{block}.attention.q_proj", "d n h", "n h" if config.qkv_bias else None)
        add_projection(f"{block}.attention.k_proj", "d k h", "k h" if config.qkv_bias else None)
        add_projection(f"{block}.attention.v_proj", "d k h", "k h" if config.qkv_bias else None)
        if config.qk_norm:
            add_norm(f"{block}.attention.q_norm", "h")
            add_norm(f"{block}.attention.k_norm", "h")
        add_projection(f"{block}.attention.o_proj", "n h d", "d" if config.o_bias else None, residual_std)
        add_norm(f"{block}.mlp_norm")
        if config.gated:
            add_projection(f"{block}.mlp.gate_proj", "d f", "f" if config.mlp_bias else None)
        add_projection(f"{block}.mlp.up_proj", "d f", "f" if config.mlp_bias else None)
        add_projection(f"{block}.mlp.down_proj", "f d", "d" if config.mlp_bias else None, residual_std)
    if config.final_norm:
        add_norm("final_norm")
    if config.head == "untied":
        add("head.weight", "d v", 0.02)
    if config.pooler:
        add_projection("pooler", "d e", "e")
    return table


def count_parameters(config: ModelConfig) -> int:
    """Number of parameters, shared ones counted once."""
    return sum(parameter.size for parameter in parameter_table(config).values())


def initial_parameters(
    config: ModelConfig, seed: int = 0, *, randomise_constants: bool = False, dtype: Any = np.float32
) -> dict[str, np.ndarray]:
    """Starting values from NumPy's PCG64, a stream of its own per tensor, so that adding one leaves the others alone.

    With `randomise_constants` biases and gains move off zero and one by N(0, 0.1): a bias that is zero hides that it is
    missing, a gain that is one hides which norm it belongs to.
    `scan_layers` stacks the layers (`stack_layers`).
    """
    values = {}
    for name, parameter in parameter_table(config).items():
        generator = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
        std = parameter.std if parameter.std is not None else (0.1 if randomise_constants else 0.0)
        # float32 first: the float64 run then starts from the very numbers that the float32 run has
        draw = parameter.constant + std * generator.standard_normal(parameter.shape)
        values[name] = np.asarray(draw, np.float32).astype(dtype)
    return stack_layers(values) if config.scan_layers else values


def stack_layers(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """`layers.0.x ... layers.L-1.x` become one `layers.x` with a leading layer axis "l"; the rest is passed through."""
    stacked: dict[str, Any] = {}
    for name, value in parameters.items():
        if not name.startswith("layers."):
            stacked[name] = value
            continue
        _, layer, rest = name.split(".", 2)
        stacked.setdefault(f"layers.{rest}", {})[int(layer)] = value
    for name, layers in stacked.items():
        if name.startswith("layers."):
            stacked[name] = np.stack([layers[layer] for layer in sorted(layers)])  # by number: "10" sorts before "2"
    return stacked


def unstack_layers(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `stack_layers`, for anything with a leading layer axis: parameters, gradients, moments."""
    stacked = {name: value for name, value in parameters.items() if name.startswith("layers.")}
    depth = len(next(iter(stacked.values()))) if stacked else 0
    flat: dict[str, Any] = {}
    for name, value in parameters.items():
        if name not in stacked:
            flat[name] = value
        elif not any(key.startswith("layers.") for key in flat):
            for layer in range(depth):
                for each, tensor in stacked.items():
                    flat[f"layers.{layer}.{each.removeprefix('layers.')}"] = tensor[layer]
    return flat


def nest(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a.b.c": x}` as `{"a": {"b": {"c": x}}}`: the form that modules take."""
    tree: dict[str, Any] = {}
    for name, value in parameters.items():
        *path, last = name.split(".")
        node = tree
        for key in path:
            node = node.setdefault(key, {})
        node[last] = value
    return tree


def check_parameters(config: ModelConfig, parameters: Mapping[str, Any]) -> None:
    """Every name, and no other, each with its shape.

    Raises:
        ValueError: names what is missing, surplus or of another shape.
    """
    table = parameter_table(config)
    expected = {name: parameter.shape for name, parameter in table.items()}
    if config.scan_layers:
        expected = {}
        for name, parameter in table.items():
            if name.startswith("layers."):
                expected[f"layers.{name.split('.', 2)[2]}"] = (config.num_layers, *parameter.shape)
            else:
                expected[name] = parameter.shape
    missing, surplus = sorted(expected.keys() - parameters.keys()), sorted(parameters.keys() - expected.keys())
    if missing or surplus:
        raise ValueError(
            f"parameters: the {len(expected)} names of the config, got missing {missing[:3]}, surplus {surplus[:3]}; "
            "build them with initial_parameters or a checkpoint of the same config"
        )
    for name, shape in expected.items():
        if tuple(parameters[name].shape) != shape:
            raise ValueError(
                f"{name}: shape {shape}, got {tuple(parameters[name].shape)}; the config and the weights disagree"
            )
