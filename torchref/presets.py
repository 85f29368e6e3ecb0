"""Published models as configurations; their parameter counts are tests (tests/test_presets.py).

This file stands byte for byte the same in jaxcore and torchref (tests/test_mirror.py) and loads no framework.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from .config import ModelConfig, RopeScaling


def _gpt2(d_model: int, num_layers: int, num_heads: int) -> ModelConfig:
    """GPT-2 (Radford et al. 2019): pre-norm, learned positions, tanh GELU, tied head."""
    return ModelConfig(
        vocab_size=50_257,
        d_model=d_model,
        num_layers=num_layers,
        num_heads=num_heads,
        d_ff=4 * d_model,
        max_seq_len=1024,
    )


def _llama3(d_model: int, num_layers: int, num_heads: int, d_ff: int) -> ModelConfig:
    """Llama 3.1 (Grattafiori et al. 2024): RMSNorm, scaled RoPE, grouped queries, SwiGLU, untied head, no biases."""
    return ModelConfig(
        vocab_size=128_256,
        d_model=d_model,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=8,
        d_ff=d_ff,
        max_seq_len=131_072,
        norm="rms_norm",
        position="rope",
        rope_theta=500_000.0,
        rope_scaling=RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_seq_len=8192),
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        activation="swiglu",
        head="untied",
    )


def _qwen3(d_model: int, num_layers: int, num_heads: int, d_ff: int, tied: bool) -> ModelConfig:
    """Qwen3 (Yang et al. 2025): Llama's block with QK-norm and a head width of its own."""
    return ModelConfig(
        vocab_size=151_936,
        d_model=d_model,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=8,
        d_head=128,
        d_ff=d_ff,
        max_seq_len=40_960,
        norm="rms_norm",
        norm_eps=1e-6,
        qk_norm=True,
        position="rope",
        rope_theta=1_000_000.0,
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        activation="swiglu",
        head="tied" if tied else "untied",
    )


def _bert(d_model: int, num_layers: int, num_heads: int) -> ModelConfig:
    """BERT (Devlin et al. 2019): post-norm encoder, exact GELU, token types, pooler, no head."""
    return ModelConfig(
        vocab_size=30_522,
        d_model=d_model,
        num_layers=num_layers,
        num_heads=num_heads,
        d_ff=4 * d_model,
        max_seq_len=512,
        norm_eps=1e-12,
        norm_position="post",
        causal=False,
        activation="gelu",
        token_types=2,
        embedding_norm=True,
        final_norm=False,
        head="none",
        pooler=True,
    )


def shrink(config: ModelConfig) -> ModelConfig:
    """The same architecture at a size that runs anywhere: every choice is kept, only widths and depth are reduced."""
    groups = min(2, config.num_heads // config.kv_heads)
    kv_heads = min(2, config.kv_heads)
    d_head = 16
    d_model = groups * kv_heads * d_head
    if config.num_heads * config.head_width != config.d_model:
        d_model = 3 * d_model // 4  # heads of a width of their own keep it
    scaling = config.rope_scaling
    return replace(
        config,
        vocab_size=min(256, config.vocab_size),
        d_model=d_model,
        num_layers=min(2, config.num_layers),
        num_heads=groups * kv_heads,
        num_kv_heads=kv_heads,
        d_head=d_head,
        d_ff=3 * d_model,
        max_seq_len=min(128, config.max_seq_len),
        rope_scaling=scaling and replace(scaling, original_max_seq_len=32),
        window=config.window and min(config.window, 11),
    )


#: `tiny` and its relatives read bytes (vocabulary 256) and run anywhere; the others are the published models.
PRESETS = MappingProxyType(
    {
        "tiny": ModelConfig(vocab_size=256, d_model=192, num_layers=4, num_heads=4, d_ff=768, max_seq_len=256),
        "tiny-llama": shrink(_llama3(4096, 32, 32, 14_336)),
        "tiny-qwen3": shrink(_qwen3(1024, 28, 16, 3072, tied=True)),
        "tiny-bert": shrink(_bert(768, 12, 12)),
        "gpt2": _gpt2(768, 12, 12),
        "gpt2-medium": _gpt2(1024, 24, 16),
        "gpt2-large": _gpt2(1280, 36, 20),
        "gpt2-xl": _gpt2(1600, 48, 25),
        "llama3-8b": _llama3(4096, 32, 32, 14_336),
        "llama3-70b": _llama3(8192, 80, 64, 28_672),
        "llama3-405b": _llama3(16_384, 126, 128, 53_248),
        "qwen3-0.6b": _qwen3(1024, 28, 16, 3072, tied=True),
        "qwen3-8b": _qwen3(4096, 36, 32, 12_288, tied=False),
        "bert-base": _bert(768, 12, 12),
        "minilm-l6": _bert(384, 6, 12),
    }
)
