"""The peak of a real training step of torchref in this process, as JSON: python tests/peak.py KERNEL VOCABULARY."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch

import torchref
from jaxcore.config import ModelConfig
from jaxcore.parameters import parameter_table
from jaxcore.presets import PRESETS
from parity.memory import return_freed_memory

LAYERS, BATCH, SEQ = 3, 4, 384


def sized(kernel: str, vocabulary: int) -> ModelConfig:
    """GPT-2's width in a few layers."""
    return replace(PRESETS["gpt2"], num_layers=LAYERS, vocab_size=vocabulary, kernel=kernel)


def resident() -> int:
    """Bytes of this process in memory that are of no file (Linux)."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def main(kernel: str, vocabulary: str) -> None:
    """Two steps of AdamW in float32, the second one watched."""
    return_freed_memory()
    torch.manual_seed(0)
    config = sized(kernel, int(vocabulary))
    before = resident()
    weights = {name: 0.02 * torch.randn(each.shape) for name, each in parameter_table(config).items()}
    module = torchref.Transformer(torchref.config_from_dict(asdict(replace(config, scan_layers=False))), weights)
    del weights  # of which the module has copies
    optimizer = torch.optim.AdamW(module.parameters(), foreach=False)
    tokens = torch.randint(0, config.vocab_size, (BATCH, SEQ))
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            peak[0] = max(peak[0], resident())
            time.sleep(0.001)

    def step() -> None:
        torchref.cross_entropy(module(tokens)["logits"], tokens).backward()
        optimizer.step()

    step()
    watching = threading.Thread(target=watch)
    watching.start()
    step()
    done.set()
    watching.join()
    print(json.dumps(peak[0] - before))


if __name__ == "__main__":
    main(*sys.argv[1:])
