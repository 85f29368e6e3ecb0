"""The transformer, the low-precision matmul and the optimizers in PyTorch; read it beside its mirror.

Names are looked up when they are first used, so that `torchref.config` can be read without loading PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .attention import Attention, attend, attend_fused, fused_implementation, visible
    from .block import Block
    from .config import ModelConfig, RopeScaling, config_from_dict
    from .loss import cross_entropy
    from .mlp import MLP, activate
    from .norm import Norm, layer_norm, rms_norm
    from .optimizer import SGD, Adam, AdamW, adam_update, adamw_update, bias_correction, sgd_update
    from .parameters import (
        Parameter,
        check_parameters,
        count_parameters,
        initial_parameters,
        nest,
        parameter_table,
        stack_layers,
        unstack_layers,
    )
    from .precision import at_least_float32, einsum, matmul
    from .presets import PRESETS, shrink
    from .projection import Projection
    from .rope import rope_frequencies, rope_table, rotate
    from .transformer import Embedding, Transformer

_HOME = {
    "config": (
        "ModelConfig",
        "RopeScaling",
        "config_from_dict",
    ),
    "presets": (
        "PRESETS",
        "shrink",
    ),
    "parameters": (
        "Parameter",
        "check_parameters",
        "count_parameters",
        "initial_parameters",
        "nest",
        "parameter_table",
        "stack_layers",
        "unstack_layers",
    ),
    "precision": (
        "at_least_float32",
        "einsum",
        "matmul",
    ),
    "norm": (
        "Norm",
        "layer_norm",
        "rms_norm",
    ),
    "rope": (
        "rope_frequencies",
        "rope_table",
        "rotate",
    ),
    "projection": ("Projection",),
    "attention": (
        "Attention",
        "attend",
        "attend_fused",
        "fused_implementation",
        "visible",
    ),
    "mlp": (
        "MLP",
        "activate",
    ),
    "block": ("Block",),
    "loss": ("cross_entropy",),
    "transformer": (
        "Embedding",
        "Transformer",
    ),
    "optimizer": (
        "SGD",
        "Adam",
        "AdamW",
        "adam_update",
        "adamw_update",
        "bias_correction",
        "sgd_update",
    ),
}

__all__ = [
    "Adam",
    "AdamW",
    "Attention",
    "Block",
    "Embedding",
    "MLP",
    "ModelConfig",
    "Norm",
    "PRESETS",
    "Parameter",
    "Projection",
    "RopeScaling",
    "SGD",
    "Transformer",
    "activate",
    "adam_update",
    "adamw_update",
    "at_least_float32",
    "attend",
    "attend_fused",
    "bias_correction",
    "check_parameters",
    "config_from_dict",
    "count_parameters",
    "cross_entropy",
    "einsum",
    "fused_implementation",
    "initial_parameters",
    "layer_norm",
    "matmul",
    "nest",
    "parameter_table",
    "rms_norm",
    "rope_frequencies",
    "rope_table",
    "rotate",
    "sgd_update",
    "shrink",
    "stack_layers",
    "unstack_layers",
    "visible",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
