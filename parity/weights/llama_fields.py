"""Fields of config.json that Llama and Qwen3 have and the older families have not: groups, biases, RoPE, window."""

from __future__ import annotations

from typing import Any

from jaxcore.config import ModelConfig, RopeScaling
from parity.errors import ParityUsageError

from .fields import Fields

_LAYER_KINDS = ("full_attention", "sliding_attention")
_SCALING = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_seq_len": "original_max_position_embeddings",
}


def read_llama(fields: Fields, values: dict[str, Any]) -> dict[str, Any]:
    """The rest of a Llama's ModelConfig."""
    bias = fields.flag("attention_bias", False)
    return {
        **_read_rope(fields),
        "num_kv_heads": _optional(fields, "num_key_value_heads", values["num_heads"]),
        "d_head": _optional(fields, "head_dim", values["d_model"] // values["num_heads"]),
        "qkv_bias": bias,
        "o_bias": bias,
        "mlp_bias": fields.flag("mlp_bias", False),
    }


def write_llama(config: ModelConfig) -> dict[str, Any]:
    """The rest of a Llama's config.json."""
    return {**_write_grouped(config), "mlp_bias": config.mlp_bias}


def read_qwen3(fields: Fields, values: dict[str, Any]) -> dict[str, Any]:
    """The rest of a Qwen3's ModelConfig."""
    # unlike Llama's, a missing num_key_value_heads is 32 and a missing head_dim is 128 in transformers
    kv_heads = fields.values.get("num_key_value_heads", 32)
    bias = fields.flag("attention_bias", False)
    return {
        **_read_rope(fields),
        "num_kv_heads": values["num_heads"] if kv_heads is None else fields.whole("num_key_value_heads", 32),
        "d_head": fields.whole("head_dim", 128),
        "qkv_bias": bias,
        "o_bias": bias,
        "mlp_bias": False,
        "window": _read_window(fields, values["num_layers"]),
    }


def write_qwen3(config: ModelConfig) -> dict[str, Any]:
    """The rest of a Qwen3's config.json."""
    window = {"use_sliding_window": config.window is not None, "sliding_window": config.window, "max_window_layers": 0}
    return {**_write_grouped(config), **window}


def _optional(fields: Fields, name: str, default: int) -> int:
    return default if fields.values.get(name) is None else fields.whole(name)


def _read_rope(fields: Fields) -> dict[str, Any]:
    """`rope_theta` and `rope_scaling`, or `rope_parameters`, which holds both."""
    name = "rope_parameters" if fields.values.get("rope_parameters") is not None else "rope_scaling"
    values = fields.values.get(name)
    if name == "rope_parameters":
        fields.only("rope_scaling", None, why="rope_parameters says the same; remove one")
        fields.only("rope_theta", why="rope_parameters says the same; remove one")
    theta = fields.number("rope_theta", 10_000.0)
    if values is None:
        return {"rope_theta": theta}
    if not isinstance(values, dict):
        raise fields.wrong(name, "an object or null")
    scaling = Fields(f"{fields.path}: {name}", values)
    scaled = scaling.choice(scaling.spelling("rope_type", "type"), {"default": False, "llama3": True})
    known = ("rope_type", "type", "rope_theta", *_SCALING.values())
    for key in values:
        if key not in known:
            raise scaling.wrong(key, f"one of {', '.join(known)}", "use another checkpoint; it is not implemented here")
    if name == "rope_parameters":
        theta = scaling.number("rope_theta")
    if not scaled:
        return {"rope_theta": theta}
    numbers: dict[str, Any] = {ours: scaling.number(theirs) for ours, theirs in _SCALING.items()}
    numbers["original_max_seq_len"] = scaling.whole(_SCALING["original_max_seq_len"])
    try:
        return {"rope_theta": theta, "rope_scaling": RopeScaling(**numbers)}
    except ValueError as error:
        raise ParityUsageError(f"{scaling.path}: {error}") from error


def _read_window(fields: Fields, num_layers: int) -> int | None:
    """Qwen3's sliding window: in no layer, or in every one; a mixture is refused."""
    used = fields.flag("use_sliding_window", False)
    kinds = fields.values.get("layer_types")
    if kinds is None:
        first = fields.values.get("max_window_layers", 28)
        if not isinstance(first, int):
            raise fields.wrong("max_window_layers", "a whole number")
        # null is transformers' way to say that nothing slides
        used = used and fields.values.get("sliding_window", 4096) is not None
        count = max(0, num_layers - max(0, first)) if used else 0
    elif not isinstance(kinds, list) or len(kinds) != num_layers or not set(map(str, kinds)) <= set(_LAYER_KINDS):
        raise fields.wrong("layer_types", f"{num_layers} of {' and '.join(_LAYER_KINDS)}")
    else:
        count = kinds.count("sliding_attention")
    if count == 0:
        return None
    if count < num_layers:
        which = "layer_types" if kinds is not None else "max_window_layers"
        remedy = "use another checkpoint; mixed windows are not implemented here"
        raise fields.wrong(which, "a sliding window in every layer or in none", remedy)
    if not used:
        raise fields.wrong("use_sliding_window", "true, for layer_types has sliding_attention")
    return fields.whole("sliding_window", 4096)


def _write_grouped(config: ModelConfig) -> dict[str, Any]:
    scaling = config.rope_scaling
    written: dict[str, Any] = {
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.d_head,
        "attention_bias": config.qkv_bias,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
    }
    if scaling is not None:
        numbers = {theirs: getattr(scaling, ours) for ours, theirs in _SCALING.items()}
        written["rope_scaling"] = {"rope_type": "llama3", **numbers}
    return written
