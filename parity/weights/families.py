"""The families of checkpoints: which config.json describes which `ModelConfig`, and the way back.

Fields, their defaults and what they do are those of transformers 4.57 (`configuration_*.py`, `modeling_*.py`); of the
newer form `rope_parameters` is read. A field that changes the function is honoured or refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from jaxcore.config import ModelConfig
from parity.errors import ParityUsageError

from .fields import Fields
from .llama_fields import read_llama, read_qwen3, write_llama, write_qwen3
from .refusal import refuse
from .weight_map import WeightMap

PLAIN = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "relu": "relu",
}
GATED = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_new": "geglu_tanh",
    "gelu_pytorch_tanh": "geglu_tanh",
}

#: For every family: fields that would make another function, the values at which they do not, and what to do.
COMMON: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("quantization_config", (None,), "save the checkpoint dequantised"),
    ("auto_map", (None, {}), "use a model that transformers itself has; code from a checkpoint is never run"),
    ("is_encoder_decoder", (None, False), "use another checkpoint; only one stack is implemented here"),
    ("add_cross_attention", (None, False), "use another checkpoint; only self-attention is implemented here"),
    ("pruned_heads", (None, {}), "save the checkpoint with all of its heads"),
)


@dataclass(frozen=True)
class Family:
    """One family of checkpoints.

    Attributes:
        name: of the map in maps/, and transformers' `model_type`.
        architectures: every class of transformers that is read, and whether it has a language head.
        sizes: our name of each size by the name in config.json.
        eps: name and default of the norm's epsilon in config.json.
        activation: name of the activation in config.json, its default, and ours by theirs.
        tied: whether the head is tied where config.json does not say.
        constants: what all models of the family have in common.
        only: as COMMON, for this family.
        read: the rest of the ModelConfig from config.json.
        write: the rest of config.json from the ModelConfig.
    """

    name: str
    architectures: Mapping[str, bool]
    sizes: Mapping[str, str]
    eps: tuple[str, float]
    activation: tuple[str, str, Mapping[str, str]]
    tied: bool
    constants: Mapping[str, Any]
    only: tuple[tuple[str, tuple[Any, ...], str], ...]
    read: Callable[[Fields, dict[str, Any]], dict[str, Any]]
    write: Callable[[ModelConfig], dict[str, Any]]

    @property
    def weight_map(self) -> WeightMap:
        """The family's map, from its data file."""
        return _load_map(self.name)

    def config(self, fields: Fields, pooler: bool) -> ModelConfig:
        """The model that a config.json describes; whether it has a pooler only the tensors say.

        Raises:
            ParityUsageError: names the field that is missing, of the wrong kind, or not implemented.
        """
        for name, allowed, why in COMMON + self.only:
            fields.only(name, *allowed, why=why)
        values: dict[str, Any] = {
            ours: fields.whole(fields.spelling(theirs, *_ALSO.get(theirs, ()))) for theirs, ours in self.sizes.items()
        }
        values["norm_eps"] = fields.number(*self.eps)
        name, default, choices = self.activation
        values["activation"] = fields.choice(name, choices, default)
        headed = self.architectures[_architecture(fields)]
        tied = fields.flag("tie_word_embeddings", self.tied)
        values["head"] = ("tied" if tied else "untied") if headed else "none"
        values |= {**self.constants, "pooler": pooler}
        try:
            return ModelConfig(**values, **self.read(fields, values))
        except ParityUsageError:
            raise
        except ValueError as error:
            raise ParityUsageError(f"{fields.path}: {error}") from error

    def fields(self, config: ModelConfig) -> dict[str, Any]:
        """The config.json of a model of this family.

        Raises:
            ParityUsageError: names what this family cannot express.
        """
        headed = config.head != "none" and any(self.architectures.values())
        name, _, choices = self.activation
        written: dict[str, Any] = {
            "architectures": [next(each for each, has_head in self.architectures.items() if has_head == headed)],
            "model_type": self.name,
            **{theirs: getattr(config, ours) for theirs, ours in self.sizes.items()},
            self.eps[0]: config.norm_eps,
            name: next((theirs for theirs, ours in choices.items() if ours == config.activation), config.activation),
            "tie_word_embeddings": config.head == "tied",
            **self.write(config),
        }
        read_back = asdict(self.config(Fields(f"config for {self.name}", written), config.pooler))
        asked = asdict(replace(config, kernel="einsum", scan_layers=False, recompute=False))
        if different := [field for field in asked if asked[field] != read_back[field]]:
            field = different[0]
            raise refuse(
                f"config: {field}",
                f"{read_back[field]!r} in this {self.name}",
                f"{asked[field]!r}",
                "use another family",
            )
        return written


def family_of(fields: Fields) -> Family:
    """The family of a config.json by its `architectures`.

    Raises:
        ParityUsageError: none, several, unknown, or of another family than `model_type`.
    """
    architecture = _architecture(fields)
    family = next((family for family in FAMILIES.values() if architecture in family.architectures), None)
    if family is None:
        known = [name for family in FAMILIES.values() for name in family.architectures]
        raise fields.wrong(
            "architectures", f"one of {', '.join(known)}", "use another checkpoint; no other is implemented here"
        )
    fields.only("model_type", family.name, why=f"{architecture} is a {family.name}; take config.json as it was saved")
    return family


def _architecture(fields: Fields) -> str:
    named = fields.values.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        raise fields.wrong("architectures", "a list with one name", "take config.json as transformers saved it")
    return named[0]


@cache
def _load_map(name: str) -> WeightMap:
    return WeightMap.parse((files(__package__) / "maps" / f"{name}.map").read_text("utf-8"))


def _read_gpt2(fields: Fields, values: dict[str, Any]) -> dict[str, Any]:
    inner = fields.values.get("n_inner")
    return {"d_ff": 4 * values["d_model"] if inner is None else fields.whole("n_inner")}


def _write_gpt2(config: ModelConfig) -> dict[str, Any]:
    return {"n_inner": config.d_ff}


def _nothing(*_: Any) -> dict[str, Any]:
    """BERT has no fields beyond sizes, epsilon and activation."""
    return {}


#: transformers reads these of a GPT-2 under either name (`attribute_map`).
_ALSO = {
    "n_embd": ("hidden_size",),
    "n_layer": ("num_hidden_layers",),
    "n_head": ("num_attention_heads",),
    "n_positions": ("max_position_embeddings",),
}
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "d_ff",
    "max_position_embeddings": "max_seq_len",
}
_ROTARY = (("partial_rotary_factor", (None, 1, 1.0), "use another checkpoint; this family rotates whole heads"),)

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            name="gpt2",
            architectures={"GPT2LMHeadModel": True, "GPT2Model": False},
            sizes={
                "vocab_size": "vocab_size",
                "n_embd": "d_model",
                "n_layer": "num_layers",
                "n_head": "num_heads",
                "n_positions": "max_seq_len",
            },
            eps=("layer_norm_epsilon", 1e-5),
            activation=("activation_function", "gelu_new", PLAIN),
            tied=True,
            constants={},
            only=(
                ("scale_attn_weights", (True,), "use another checkpoint; scores are divided by sqrt(d_head) here"),
                (
                    "scale_attn_by_inverse_layer_idx",
                    (False,),
                    "use another checkpoint; scores are divided by sqrt(d_head) alone here",
                ),
                (
                    "reorder_and_upcast_attn",
                    (False,),
                    "use another checkpoint; attention has one order and one precision here",
                ),
            ),
            read=_read_gpt2,
            write=_write_gpt2,
        ),
        Family(
            name="llama",
            architectures={"LlamaForCausalLM": True, "LlamaModel": False},
            sizes=_SIZES,
            eps=("rms_norm_eps", 1e-6),
            activation=("hidden_act", "silu", GATED),
            tied=False,
            constants={"norm": "rms_norm", "position": "rope"},
            only=(*_ROTARY, ("sliding_window", (None,), "use another checkpoint; this family has no window")),
            read=read_llama,
            write=write_llama,
        ),
        Family(
            name="qwen3",
            architectures={"Qwen3ForCausalLM": True, "Qwen3Model": False},
            sizes=_SIZES,
            eps=("rms_norm_eps", 1e-6),
            activation=("hidden_act", "silu", GATED),
            tied=False,
            constants={"norm": "rms_norm", "position": "rope", "qk_norm": True},
            only=_ROTARY,
            read=read_qwen3,
            write=write_qwen3,
        ),
        Family(
            name="bert",
            architectures={"BertModel": False, "BertForMaskedLM": False, "BertForPreTraining": False},
            sizes={**_SIZES, "type_vocab_size": "token_types"},
            eps=("layer_norm_eps", 1e-12),
            activation=("hidden_act", "gelu", PLAIN),
            tied=True,
            constants={"norm_position": "post", "causal": False, "embedding_norm": True, "final_norm": False},
            only=(
                (
                    "position_embedding_type",
                    ("absolute",),
                    "use another checkpoint; relative positions are not implemented here",
                ),
                ("is_decoder", (False,), "use another checkpoint; only the encoder is implemented here"),
            ),
            read=_nothing,
            write=_nothing,
        ),
    )
}
