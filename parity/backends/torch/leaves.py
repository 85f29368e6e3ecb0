"""Parameters that a run reaches and that are not its own: of a module that a function closes over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def gradients_kept(loss: torch.Tensor, own: Iterable[torch.Tensor]) -> Iterator[None]:
    """A backward pass from `loss` that leaves the gradients of other leaves than `own` as they were."""
    ours = {id(leaf) for leaf in own}
    before = [(leaf, leaf.grad) for leaf in _leaves(loss) if id(leaf) not in ours]
    for leaf, _ in before:
        leaf.grad = None
    try:
        yield
    finally:
        for leaf, gradient in before:
            leaf.grad = gradient


def _leaves(loss: torch.Tensor) -> Iterator[torch.Tensor]:
    """The leaves that a backward pass would come to."""
    waiting, met = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in met:
            continue
        met.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        waiting += [before for before, _ in node.next_functions]
