"""How much of a check to do."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ParityUsageError
from .formats import FORMATS, TENSORFLOAT32

DEVICES = ("cpu", "cuda")


#: What each field has to be.
KINDS = (
    *((name, int, "a whole number") for name in ("batches", "steps", "seed", "curve", "seeds", "budget")),
    *((name, bool, "True or False") for name in ("grads", "points", "flops", "thorough", "mutate")),
)


@dataclass(frozen=True)
class Options:
    """`precisions` are judged after float64, in this order.

    `batches` are pooled; `steps` are the optimizer's; `grads` False compares outputs only, and takes no steps; `points`
    compares what can be seen inside even where the outputs agree, since two errors may cancel; `thorough` asks the
    float64 question on other inputs and parameters too; `curve` trains each side on its own for so many steps in
    float32, whatever the verdict before; `seeds` does so once more for each of so many draws of batches, and compares
    the final losses; `mutate` plants faults into a check that has passed, and counts those that it notices; no stage is
    begun after `budget` seconds, the most telling ones coming first.

    Raises:
        ParityUsageError: a value that no check can have.
    """

    precisions: tuple[str, ...] = ("float32", "bfloat16")
    batches: int = 8
    steps: int = 3
    grads: bool = True
    points: bool = False
    seed: int = 0
    device: str = "cpu"
    flops: bool = True
    thorough: bool = False
    curve: int = 0
    seeds: int = 0
    mutate: bool = False
    budget: int | None = None

    def __post_init__(self) -> None:
        for name, kind, rule in KINDS:
            value = getattr(self, name)
            is_one = isinstance(value, kind) and (kind is bool) == isinstance(value, bool)
            if not is_one and (name, value) != ("budget", None):
                raise ParityUsageError(f"{name}: {rule}, got {value!r}; give one")
        if isinstance(self.precisions, str) or not isinstance(self.precisions, tuple | list):
            raise ParityUsageError(f"precisions: a tuple of names, got {self.precisions!r}; write ('float32',)")
        object.__setattr__(self, "precisions", tuple(self.precisions))
        for name in self.precisions:
            if name not in FORMATS or name == "float64":
                known = ", ".join(each for each in FORMATS if each != "float64")
                raise ParityUsageError(f"precisions: of {known}, got {name!r}; float64 is always judged")
        if TENSORFLOAT32 in self.precisions and self.device == "cpu":
            raise ParityUsageError(
                f"precisions: {TENSORFLOAT32} on a GPU, which alone has it, got cpu; use device cuda"
            )
        if self.device not in DEVICES:
            raise ParityUsageError(f"device: one of {', '.join(DEVICES)}, got {self.device!r}; choose one of them")
        if self.steps and not self.grads:
            object.__setattr__(self, "steps", 0)
        if self.curve and not self.grads:
            raise ParityUsageError(
                f"curve: steps on gradients, got {self.curve} with grads False; leave one of them out"
            )
        if self.seeds and not self.curve:
            raise ParityUsageError(
                f"seeds: trainings of as many steps as --curve (curve=) says, got {self.seeds} without it; give both"
            )
        if self.seeds == 1:
            raise ParityUsageError("seeds: at least 2, since one has no spread, got 1; give 6 or more for a decision")
        for name, least in (("batches", 1), ("steps", 0), ("curve", 0), ("seeds", 0), ("seed", 0), ("budget", 1)):
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise ParityUsageError(f"{name}: at least {least}, got {getattr(self, name)}; choose a larger one")
