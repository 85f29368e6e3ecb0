"""Model FLOPs utilisation under each convention that has a name: no framework, no NumPy.

One run has as many utilisations as there are ways to say what a token costs. Training FLOPs per token, with N all
parameters, shared ones once, E those of tables that are looked up, L layers, n heads, h head width, T tokens of
context, and A = 12 L n h T the products without parameters, the full square of queries and keys:

    6N                   6 N
    6N non-embedding     6 (N - E - head): the N of Kaplan et al. 2020
    PaLM                 6 N + A (Chowdhery et al. 2022, appendix B; llm-foundry; nanoGPT takes N without positions)
    torchtitan           6 (N - E) + A, with a tied head 6 N + A (`get_dense_model_nparams_and_flops`)
    MaxText              exact - A / 2 under a causal mask (`calculate_tflops_training_per_device`)
    exact                every matmul forward and backward (formula.py), nothing that is run again
    HFU full recompute   4/3 of torchtitan's, as if every product of the forward pass were formed again

With a tied head the table of tokens is multiplied as well as looked up. torchtitan then takes nothing off, so that
positions count too. Recomputing whole blocks costs less than the last line: a block's last product is not run again
(`recomputed` in formula.py), the head neither.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from ..errors import ParityUsageError
from .formula import matmul_flops
from .laws import ATTENTION, model_flops


def flops_per_token(config: Any, seq: int, parameters: int) -> dict[str, Fraction]:
    """Training FLOPs per token of each convention by its name, in the order of the head of this module."""
    forward = matmul_flops(config, 1, seq)
    attention = 3 * Fraction(sum(forward[name] for name in ATTENTION), seq)
    exact = Fraction(model_flops(config, 1, seq)["forward_backward"], seq)
    tables = looked_up(config)
    head = config.vocab_size * config.d_model if config.head == "untied" else 0
    multiplied = parameters if config.head == "tied" else parameters - tables
    titan = 6 * multiplied + attention
    return {
        "6N": Fraction(6 * parameters),
        "6N non-embedding": Fraction(6 * (parameters - tables - head)),
        "PaLM": 6 * parameters + attention,
        "torchtitan": titan,
        "MaxText": exact - attention / 2 if config.causal else exact,
        "exact": exact,
        "HFU full recompute": titan * Fraction(4, 3),
    }


def looked_up(config: Any) -> int:
    """Parameters of the tables of tokens, learned positions and token types."""
    rows = config.vocab_size + config.token_types + (config.max_seq_len if config.position == "learned" else 0)
    return int(rows * config.d_model)


def mfu(config: Any, seq: int, tokens_per_second: float, peak: float, parameters: int) -> dict[str, float]:
    """Share of `peak` FLOP/s that the model's FLOPs take, for each convention; all of one device or all of a job.

    Raises:
        ParityUsageError: peak is not positive, seq is no whole number of at least 1.
    """
    if not peak > 0:
        raise ParityUsageError(f"peak: FLOP/s above 0, got {peak!r}; find_device(name).peak(format) has it")
    return {
        name: float(flops) * tokens_per_second / peak
        for name, flops in flops_per_token(config, seq, parameters).items()
    }
