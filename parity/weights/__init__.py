"""Checkpoints of strangers through weight maps in einops notation, proved complete; loads no framework."""

from .checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from .families import FAMILIES, Family
from .rules import Rule
from .tokens import tokenize
from .weight_map import Ignore, Plan, Tie, WeightMap

__all__ = [
    "Checkpoint",
    "load_checkpoint",
    "save_checkpoint",
    "FAMILIES",
    "Family",
    "Rule",
    "tokenize",
    "Ignore",
    "Plan",
    "Tie",
    "WeightMap",
]
