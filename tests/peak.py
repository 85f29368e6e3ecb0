"""The peak of a real training step of torchref in this process, as JSON: python -m tests.peak KERNEL VOCABULARY."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace

import torch

import torchref
from benchmarks.check_cost import Watched, used_bytes
from jaxcore.config import ModelConfig
from jaxcore.parameters import parameter_table
from jaxcore.presets import PRESETS
from parity.memory import return_freed_memory

LAYERS, BATCH, SEQ = 3, 4, 384


def sized(kernel: str, vocabulary: int) -> ModelConfig:
    """GPT-2's width in a few layers."""
    return replace(PRESETS["gpt2"], num_layers=LAYERS, vocab_size=vocabulary, kernel=kernel)


def main(kernel: str, vocabulary: str) -> None:
    """Two steps of AdamW in float32, the second one watched."""
    return_freed_memory()
    torch.manual_seed(0)
    config = sized(kernel, int(vocabulary))
    before = used_bytes()
    weights = {name: 0.02 * torch.randn(each.shape) for name, each in parameter_table(config).items()}
    module = torchref.Transformer(torchref.config_from_dict(asdict(replace(config, scan_layers=False))), weights)
    del weights  # of which the module has copies
    optimizer = torch.optim.AdamW(module.parameters(), foreach=False)
    tokens = torch.randint(0, config.vocab_size, (BATCH, SEQ))

    def step() -> None:
        torchref.cross_entropy(module(tokens)["logits"], tokens).backward()
        optimizer.step()

    step()
    with Watched() as watched:
        step()
    print(json.dumps(watched.peak - before))


if __name__ == "__main__":
    main(*sys.argv[1:])
