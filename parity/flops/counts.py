"""What one step of a model costs in matmul FLOPs, by method, class of matmul and layer. Loads no framework."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..account.laws import Law
from ..work import FORWARD, FORWARD_BACKWARD, Placed, Work

#: Version of the JSON that `Flops.to_dict` gives.
SCHEMA = 1
PASSES = (FORWARD, FORWARD_BACKWARD)
#: Pass -> class of matmul -> method -> FLOPs.
Classes = Mapping[str, Mapping[str, Mapping[str, int]]]
#: Pass -> method -> FLOPs of each layer.
Layers = Mapping[str, Mapping[str, Sequence[int]]]


@dataclass(frozen=True)
class Flops:
    """The counts of one target.

    Args:
        target: its name.
        about: what is counted, in one line: sizes, attention, recomputation.
        work: every method's count of each pass; with recomputation these are hardware FLOPs.
        model: the counts without what is run again.
        classes: the same counts by class of matmul, from each method that can tell.
        layers: pass -> method -> FLOPs of each layer, in order.
        laws: rules of thumb and what they come to.
        parameters: shared ones counted once; None where they are not known.
    """

    target: str
    about: str
    work: Work
    model: Mapping[str, int] = field(default_factory=dict)
    classes: Classes = field(default_factory=dict)
    layers: Layers = field(default_factory=dict)
    laws: Sequence[Law] = ()
    parameters: int | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def equal(self) -> bool | None:
        """Whether the counts are one integer, in all, in every class and layer; None: there is nothing to compare."""
        apart = any(len(set(counts.values())) > 1 for found in self.classes.values() for counts in found.values())
        apart |= any(len({*map(tuple, found.values())}) > 1 for found in self.layers.values())
        return False if apart else self.work.equal

    @property
    def exit_status(self) -> int:
        """1 where counts differ that must not; 3 where one could not be made."""
        if self.equal is False:
            return 1
        found = [counts[method] for counts in self.work.flops.values() for method in self.work.methods]
        return 3 if not found or None in found else 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values. Counts are integers, of which a large model's are beyond 2^53: JavaScript and jq round them."""
        return {
            "schema": SCHEMA,
            "target": self.target,
            "about": self.about,
            "parameters": self.parameters,
            "equal": self.equal,
            **{each: dict(self.work.flops.get(each, {})) for each in PASSES},
            "model": dict(self.model),
            "classes": {
                each: {name: dict(counts) for name, counts in found.items()} for each, found in self.classes.items()
            },
            "layers": {
                each: {method: list(counts) for method, counts in found.items()} for each, found in self.layers.items()
            },
            "reconciled": {
                method: {each: found.to_dict() for each, found in passes.items()}
                for method, passes in self.work.reconciled.items()
            },
            "laws": {law.name: law.value for law in self.laws},
            "notes": list(self.work.notes),
            "environment": dict(self.environment),
        }

    def to_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)


def by_class(placed: Placed) -> dict[str, dict[str, int]]:
    """FLOPs by the last word of the place: `layers.3.mlp.up_proj` is `up_proj`; what no module wrote is "head"."""
    found: dict[str, dict[str, int]] = {}
    for each, places in placed.items():
        counts: Counter[str] = Counter()
        for place, flops in places.items():
            counts[place.rpartition(".")[2] or "head"] += flops
        found[each] = dict(counts)
    return found


def by_layer(placed: Placed) -> dict[str, list[int]]:
    """FLOPs of each layer in order: of all places with that number; none where no place has one."""
    found = {}
    for each, places in placed.items():
        counts: Counter[int] = Counter()
        for place, flops in places.items():
            if number := re.search(r"(?:^|\.)(\d+)\.", place):
                counts[int(number[1])] += flops
        found[each] = [counts[index] for index in sorted(counts)]
    return found


def evenly(counts: Mapping[str, int], layers: int, outside: Collection[str]) -> list[int]:
    """FLOPs of each layer where all layers are one and the same: what is of no class `outside`, in equal parts."""
    return [sum(count for name, count in counts.items() if name not in outside) // layers] * layers


def merge_classes(methods: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Classes:
    """Method -> pass -> class -> FLOPs, the other way round; a class that one method has no count for has 0 there."""
    merged: dict[str, dict[str, dict[str, int]]] = {}
    for each in PASSES:
        names = dict.fromkeys(name for found in methods.values() for name in found.get(each, {}))
        merged[each] = {name: {method: found[each].get(name, 0) for method, found in methods.items()} for name in names}
    return merged
