"""The pair that ships with the project: jaxcore's transformer against torchref's, on the same weights and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from jaxcore.config import ModelConfig
from jaxcore.parameters import count_parameters, initial_parameters, stack_layers

from ..account.formula import forward_backward_flops, forward_flops
from ..errors import ParityUsageError
from ..pair import Factory, Jax, Pair, Torch
from .text import draw_windows

IGNORED = -100

#: AdamW as the families were trained (GPT-3 paper, appendix B; Llama papers), so that a step moves every tensor.
ADAMW = {"learning_rate": 1e-3, "b1": 0.9, "b2": 0.95, "eps": 1e-8, "weight_decay": 0.1}


@dataclass(frozen=True)
class Source:
    """Where tokens come from: a stream of ids (int64 "t"), and one line that says so."""

    tokens: np.ndarray
    description: str


def transformer_pair(
    name: str,
    config: ModelConfig,
    source: Source,
    *,
    batch: int,
    seq: int,
    seed: int = 0,
    weights: Mapping[str, np.ndarray] | None = None,
    weights_from: str = "",
    device: str = "cpu",
    changes: str = "",
) -> Pair:
    """The Pair of one config; `weights` None draws them, biases and gains randomised too.

    `changes` are the words by which the config is another one than its name says.

    Raises:
        ParityUsageError: the length or the tokens do not fit the model.
    """
    _check_sizes(config, source, batch, seq)
    if weights is None:
        weights = initial_parameters(config, seed, randomise_constants=True)
        weights_from = f"seed {seed}, PCG64 per tensor, biases and gains randomised"
    elif config.scan_layers:
        weights = stack_layers(weights)
    from .operations import operations

    return Pair(
        name=name,
        reference=Factory(
            lambda dtype: Torch(
                torch_module(config, {name: value.shape for name, value in weights.items()}), call=with_loss
            ),
            label="torchref",
            optimizer=torch_adamw,
        ),
        candidate=Jax(jax_function(config), label="jaxcore", optimizer=jax_adamw()),
        weights=weights,
        inputs=lambda generator: draw_batch(config, source.tokens, generator, batch, seq),
        loss="loss" if config.head != "none" else None,
        operations=operations(config, seq),
        roundings=longest_path(config, seq),
        formula={
            "forward": forward_flops(config, batch, seq),
            "forward_backward": forward_backward_flops(
                config, batch, seq, unreached=() if config.head == "none" else ("pooler",)
            ),
        },
        notes=(
            f"{' '.join((name, changes)).strip()}: {count_parameters(config):,} parameters; weights: {weights_from}",
            f"batch {batch} x {seq} tokens, the last row a quarter padding; {source.description}"
            + (", repeated" if source.tokens.size <= seq else ""),
            kernel_note(config, device),
        ),
    )


def jax_function(config: ModelConfig) -> Any:
    """`function(parameters, **inputs)` of jaxcore as it is now, the loss among its outputs where there is a head."""
    import jaxcore

    transformer, cross_entropy = jaxcore.Transformer, jaxcore.cross_entropy

    def function(
        parameters: Any, tokens: Any, padding: Any = None, types: Any = None, targets: Any = None
    ) -> dict[str, Any]:
        outputs = transformer(config, parameters)(tokens, padding, types)
        if targets is not None:
            outputs["loss"] = cross_entropy(outputs["logits"], targets, IGNORED)
        return outputs

    return function


def torch_module(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """torchref's module without numbers."""
    import torch

    import torchref

    empty = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    return torchref.Transformer(torchref.config_from_dict(asdict(config)), empty)


def with_loss(module: Any, tokens: Any, padding: Any = None, types: Any = None, targets: Any = None) -> dict[str, Any]:
    """What torchref's module returns, the loss among it where there is a head.

    Taken outside the module, as in `jax_function`: inside, the gradient at the module's own output would be zero.
    """
    import torchref

    outputs = module(tokens, padding, types)
    if targets is not None:
        outputs["loss"] = torchref.cross_entropy(outputs["logits"], targets, IGNORED)
    return outputs


def jax_adamw() -> Any:
    """AdamW of jaxcore as it is now."""
    import jaxcore

    return jaxcore.AdamW(**ADAMW)


def torch_adamw(parameters: Any) -> Any:
    """AdamW of torchref."""
    import torchref

    return torchref.AdamW(parameters, **ADAMW)


def draw_batch(
    config: ModelConfig, tokens: np.ndarray, generator: np.random.Generator, batch: int, seq: int
) -> dict[str, np.ndarray]:
    """Tokens, a padding mask whose last row is short, token types, and next-token targets that leave padding out.

    A causal model needs no mask for what stands at the end, and the fused kernels have a path of their own without one:
    that is what training runs, so the mask is left out there; the masked path is among the operations.
    """
    windows = draw_windows(tokens, generator, batch, seq)
    padding = np.ones((batch, seq), bool)
    padding[-1, seq - seq // 4 :] = False
    drawn = {"tokens": windows[:, :-1]}
    if config.kernel != "fused" or not config.causal or config.window is not None:
        drawn["padding"] = padding
    if config.token_types:
        drawn["types"] = (np.arange(seq) >= seq // 2).astype(np.int64) * np.ones((batch, 1), np.int64)
    if config.head != "none":
        drawn["targets"] = np.where(padding, windows[:, 1:], IGNORED)
    return drawn


def longest_path(config: ModelConfig, seq: int) -> int:
    """Products added one after another from the tokens to the loss: the contracted axes of every matmul in a row."""
    attention = config.d_model + config.head_width + seq + config.num_heads * config.head_width
    block = attention + config.d_model + config.d_ff
    return config.num_layers * block + config.d_model + (config.vocab_size if config.head != "none" else 0)


def kernel_note(config: ModelConfig, device: str) -> str:
    """The attention kernel of each side by name, at the working precision."""
    if config.kernel == "einsum":
        return "attention: einsum on both sides, written out"
    import jax.numpy as jnp
    import torch

    import jaxcore
    import torchref

    low, exact = (jaxcore.fused_implementation(dtype) for dtype in (jnp.bfloat16, jnp.float64))
    return (
        f"attention: fused; torchref F.scaled_dot_product_attention, {torchref.fused_implementation(torch.bfloat16)}; "
        f"jaxcore jax.nn.dot_product_attention(implementation={low!r}), in float64 {exact} (the library's softmax "
        f"is float32); device {device}"
    )


def _check_sizes(config: ModelConfig, source: Source, batch: int, seq: int) -> None:
    if batch < 1 or seq < 4:
        raise ParityUsageError(f"--batch and --seq: at least 1 and 4, got {batch} and {seq}; choose larger ones")
    if seq > config.max_seq_len:
        raise ParityUsageError(f"--seq: at most the model's {config.max_seq_len}, got {seq}; choose a shorter one")
    largest = int(source.tokens.max())
    if largest >= config.vocab_size or int(source.tokens.min()) < 0:
        raise ParityUsageError(
            f"text: token ids below the vocabulary of {config.vocab_size}, got {largest}; use the model's own tokenizer"
        )
