"""What a PyTorch module holds besides its parameters: what a run changes of it is compared, and then taken back."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import nn

from .versions import is_writable

#: What PyTorch's own base class keeps in a module.
_OWN = frozenset(vars(nn.Module()))


def buffers_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Every buffer by its name, and whether it is saved with the model."""
    for prefix, owner in module.named_modules():
        for key, buffer in owner._buffers.items():
            if buffer is not None:
                yield f"{prefix}.{key}".lstrip("."), buffer, key not in owner._non_persistent_buffers_set


class Snapshot:
    """Buffers and plain attributes of a module as they are now: counters, caches, statistics."""

    def __init__(self, module: nn.Module):
        self._module = module
        self._owners = [_Owner(owner) for owner in module.modules() if not isinstance(owner, torch.jit.ScriptModule)]
        held = [*module.buffers(), *(tensor for owner in self._owners for tensor in owner.tensors())]
        # what cannot be written to here cannot be in a run
        self._values = {id(tensor): _Value(tensor) for tensor in held if is_writable(tensor)}
        self._state = {
            name: self._values[id(buffer)] for name, buffer, _ in buffers_of(module) if id(buffer) in self._values
        }

    def restore(self) -> None:
        """Takes back what runs have changed, in place or by another tensor."""
        for owner in self._owners:
            owner.restore()
        for value in self._values.values():
            value.restore()

    def changed(self, paired: Collection[str]) -> dict[str, torch.Tensor]:
        """The buffers that are others than in the beginning: floats that are saved with the model, and the `paired`."""
        return {
            name: value.detach().clone()
            for name, value, is_saved in buffers_of(self._module)
            if ((is_saved and value.is_floating_point()) or name in paired)
            and name in self._state
            and not torch.equal(value, self._state[name].values)
        }


class _Owner:
    """One module: which buffers and attributes it has, apart from what these hold."""

    def __init__(self, module: nn.Module):
        self.module = module
        self.buffers = dict(module._buffers)
        # PyTorch's own modules keep nothing else that runs change, and lists of parameters that must stay
        self.is_torchs = type(module).__module__.startswith("torch.")
        self.names = frozenset() if self.is_torchs else frozenset(vars(module)) - _OWN
        self.attributes = {name: _copied(vars(module)[name]) for name in self.names}

    def tensors(self) -> Iterator[torch.Tensor]:
        """Those among the attributes, and in their containers."""
        for value in self.attributes.values():
            within = (
                value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
            )
            yield from (
                each for each in within if isinstance(each, torch.Tensor) and not isinstance(each, nn.Parameter)
            )

    def restore(self) -> None:
        """The same buffers and attributes again."""
        held = vars(self.module)
        self.module._buffers.clear()
        self.module._buffers.update(self.buffers)
        if self.is_torchs:
            return
        for name in frozenset(held) - _OWN - self.names:
            del held[name]
        held.update({name: _copied(value) for name, value in self.attributes.items()})


class _Value:
    """A tensor and its numbers; batch_norm updates its statistics without counting that as a new version."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor, self.values = tensor, tensor.detach().clone()

    def restore(self) -> None:
        """The same numbers again."""
        with torch.no_grad():
            self.tensor.copy_(self.values)


def _copied(value: Any) -> Any:
    """A container of its own, so that what a run puts into it is no part of the snapshot."""
    return value.copy() if type(value) in (list, dict, set) else value
