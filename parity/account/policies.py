"""Where a training keeps its numbers, and what an optimizer keeps and does for each: no framework, no NumPy."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ParityUsageError


@dataclass(frozen=True)
class Optimizer:
    """Moments that it keeps for each parameter, and FLOPs of an update: optax's, as XLA counts it, roots apart."""

    name: str
    moments: int
    flops: int


OPTIMIZERS = {
    each.name: each
    for each in (
        Optimizer("sgd", 0, 2),
        Optimizer("momentum", 1, 4),
        Optimizer("adam", 2, 13),
        Optimizer("adamw", 2, 15),
    )
}


def find_optimizer(name: str) -> Optimizer:
    """The optimizer of that name.

    Raises:
        ParityUsageError: there is none.
    """
    if name not in OPTIMIZERS:
        raise ParityUsageError(f"optimizer: one of {', '.join(OPTIMIZERS)}, got {name!r}; choose one of them")
    return OPTIMIZERS[name]


@dataclass(frozen=True)
class Policy:
    """Bytes per parameter of weights, gradients, master copy and each moment; `compute` is an activation's element.

    `format` is the one that matmuls run in, by its name in hardware.toml.
    """

    name: str
    weights: int
    gradients: int
    master: int
    moment: int
    compute: int
    format: str
    says: str

    def update_bytes(self, optimizer: str) -> int:
        """Bytes per parameter that an update reads and writes: gradient in, moments and weight or master in and out.

        Where there is a master copy, the weight itself is only written.

        Raises:
            ParityUsageError: an unknown optimizer.
        """
        kept = 2 * self.master + self.weights if self.master else 2 * self.weights
        return self.gradients + 2 * find_optimizer(optimizer).moments * self.moment + kept


POLICIES = {
    each.name: each
    for each in (
        Policy("fp32", 4, 4, 0, 4, 4, "fp32", "everything in float32, products without TensorFloat-32"),
        Policy("tf32", 4, 4, 0, 4, 4, "tf32", "everything in float32, products in TensorFloat-32"),
        Policy("bf16-mixed", 2, 2, 4, 4, 2, "bf16", "bfloat16 with a float32 master and moments (ZeRO)"),
        Policy("bf16-mixed-fp32-grads", 2, 4, 4, 4, 2, "bf16", "the same, gradients added up in float32 (Megatron-LM)"),
        Policy("autocast", 4, 4, 0, 4, 2, "bf16", "float32 weights, cast to bfloat16 where used (torch.autocast)"),
        Policy("bf16", 2, 2, 0, 2, 2, "bf16", "everything in bfloat16, the moments too"),
        Policy("fp16-mixed", 2, 2, 4, 4, 2, "fp16", "float16 with a float32 master and moments, and loss scaling"),
    )
}
