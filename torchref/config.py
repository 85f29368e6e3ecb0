"""The one description of a model that both implementations read.

This file stands byte for byte the same in jaxcore and torchref (tests/test_mirror.py) and loads no framework.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

Norm = Literal["layer_norm", "rms_norm", "rms_norm_plus_one"]
NormPosition = Literal["pre", "post"]
Position = Literal["learned", "rope", "none"]
RopeLayout = Literal["half", "interleaved"]
Kernel = Literal["einsum", "fused"]
Activation = Literal["gelu", "gelu_tanh", "relu", "swiglu", "geglu", "geglu_tanh"]
Head = Literal["tied", "untied", "none"]

GATED = ("swiglu", "geglu", "geglu_tanh")


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Llama 3's stretch of the slow rotary frequencies (Llama 3.1 model card and reference code, `apply_scaling`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_seq_len: int

    def __post_init__(self) -> None:
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"rope_scaling: 0 < low_freq_factor < high_freq_factor, got {self.low_freq_factor} and "
                f"{self.high_freq_factor}; give the two as the checkpoint has them"
            )
        for name in ("factor", "original_max_seq_len"):
            if getattr(self, name) <= 0:
                raise ValueError(f"rope_scaling.{name}: must be positive, got {getattr(self, name)}; correct it")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A transformer of the GPT, Llama, Qwen and BERT family.

    Sizes are counts of elements. `num_kv_heads` None means `num_heads`; `d_head` None means `d_model / num_heads`;
    `rope_fraction` is the share of each head that is rotated; `window` is the number of keys that a query sees on each
    side, itself included. `embedding_norm`, `token_types` and `pooler` are BERT's. `kernel`, `scan_layers`
    and `recompute` choose how the same function is computed, not which function.

    Raises:
        ValueError: a size or a combination that no model can have, as `<field>: <rule>, got <value>; <what to do>`.
    """

    vocab_size: int
    d_model: int
    num_layers: int
    num_heads: int
    d_ff: int
    max_seq_len: int
    num_kv_heads: int | None = None
    d_head: int | None = None
    norm: Norm = "layer_norm"
    norm_eps: float = 1e-5
    norm_position: NormPosition = "pre"
    qk_norm: bool = False
    position: Position = "learned"
    rope_layout: RopeLayout = "half"
    rope_theta: float = 10_000.0
    rope_fraction: float = 1.0
    rope_scaling: RopeScaling | None = None
    causal: bool = True
    window: int | None = None
    qkv_bias: bool = True
    o_bias: bool = True
    mlp_bias: bool = True
    activation: Activation = "gelu_tanh"
    token_types: int = 0
    embedding_norm: bool = False
    embedding_scale: bool = False
    final_norm: bool = True
    head: Head = "tied"
    pooler: bool = False
    kernel: Kernel = "einsum"
    scan_layers: bool = False
    recompute: bool = False

    def __post_init__(self) -> None:
        if self.num_kv_heads is None:
            object.__setattr__(self, "num_kv_heads", self.num_heads)
        for name in ("vocab_size", "d_model", "num_heads", "num_kv_heads", "d_ff", "max_seq_len"):
            _whole(name, getattr(self, name), 1)
        _whole("num_layers", self.num_layers, 1)
        _whole("token_types", self.token_types, 0)
        if self.d_head is None:
            if self.d_model % self.num_heads:
                raise ValueError(
                    f"d_model: must be a multiple of num_heads {self.num_heads}, got {self.d_model}; "
                    "or give d_head as well"
                )
            object.__setattr__(self, "d_head", self.d_model // self.num_heads)
        _whole("d_head", self.d_head, 1)
        if self.num_heads % self.kv_heads:
            raise ValueError(
                f"num_heads: must be a multiple of num_kv_heads {self.num_kv_heads}, got {self.num_heads}; "
                "each key head serves a whole group of query heads"
            )
        if not self.norm_eps >= 0:
            raise ValueError(f"norm_eps: must not be negative, got {self.norm_eps}; give the checkpoint's own")
        for name, kind in _CHOICES.items():
            if getattr(self, name) not in get_args(kind):
                raise ValueError(
                    f"{name}: one of {', '.join(get_args(kind))}, got {getattr(self, name)!r}; choose one of them"
                )
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: True or False, got {getattr(self, name)!r}; correct it")
        if self.window is not None:
            _whole("window", self.window, 1)
        if self.position == "rope":
            if not 0 < self.rope_fraction <= 1:
                raise ValueError(f"rope_fraction: in (0, 1], got {self.rope_fraction}; 1 rotates the whole head")
            if self.rotary_width % 2 or self.rotary_width == 0:
                raise ValueError(
                    f"rope_fraction: must rotate an even number of elements, got {self.rotary_width} of "
                    f"d_head {self.d_head}; choose another fraction"
                )
            if not self.rope_theta > 0:
                raise ValueError(f"rope_theta: must be positive, got {self.rope_theta}; 10000 is usual")

    @property
    def kv_heads(self) -> int:
        """`num_kv_heads` once its default is filled in."""
        assert self.num_kv_heads is not None
        return self.num_kv_heads

    @property
    def head_width(self) -> int:
        """`d_head` once its default is filled in."""
        assert self.d_head is not None
        return self.d_head

    @property
    def rotary_width(self) -> int:
        """Elements of each head that RoPE rotates."""
        return int(self.head_width * self.rope_fraction)

    @property
    def gated(self) -> bool:
        """Whether the MLP multiplies by a gate (SwiGLU, GeGLU)."""
        return self.activation in GATED


def config_from_dict(values: dict[str, Any]) -> ModelConfig:
    """The inverse of `dataclasses.asdict(config)`.

    Raises:
        ValueError: an unknown field is named.
    """
    known = {field.name for field in fields(ModelConfig)}
    if unknown := sorted(set(values) - known):
        raise ValueError(f"ModelConfig: fields are {', '.join(sorted(known))}, got {', '.join(unknown)}; remove them")
    scaling = values.get("rope_scaling")
    if isinstance(scaling, dict):
        values = {**values, "rope_scaling": RopeScaling(**scaling)}
    return ModelConfig(**values)


def _whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}: a whole number, at least {least}, got {value!r}; correct it")


_CHOICES: dict[str, Any] = {
    "norm": Norm,
    "norm_position": NormPosition,
    "position": Position,
    "rope_layout": RopeLayout,
    "activation": Activation,
    "head": Head,
    "kernel": Kernel,
}

_FLAGS = (
    "qk_norm",
    "causal",
    "qkv_bias",
    "o_bias",
    "mlp_bias",
    "embedding_norm",
    "embedding_scale",
    "final_norm",
    "pooler",
    "scan_layers",
    "recompute",
)
