"""What the tests of the plugin and of `[tool.parity]` write to a folder of their own: pairs and settings, as text."""

from __future__ import annotations

#: The one place that makes them: y = x w in both frameworks, the candidate's times `factor`.
MAKING = """
import numpy as np

import parity


def make(name="line", factor=1.0):
    weights = {"w": np.random.default_rng(0).normal(size=(3, 2)).astype("float32")}
    return parity.Pair(
        name=name,
        reference=parity.Torch(lambda weights, x: {"y": x @ weights["w"]}, weights),
        candidate=parity.Jax(lambda weights, x: {"y": x @ weights["w"] * factor}, weights),
        inputs=lambda generator: {"x": generator.normal(size=(5, 3))},
    )
"""

#: What makes a check of them short.
SHORT = """
[tool.parity]
precisions = []
batches = 2
steps = 0
"""

FUTURE, PAST = "2999-12-31", "2001-01-01"


def accepted(pair: str, name: str = "*", expires: str = FUTURE, reason: str = "the port rounds", more: str = "") -> str:
    """An entry of [[tool.parity.accepted]]."""
    fields = f'pair = "{pair}"\nname = "{name}"\nreason = "{reason}"\nexpires = {expires}'
    return f"\n[[tool.parity.accepted]]\n{fields}\n{more}"
