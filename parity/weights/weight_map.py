"""A weight map: rules, ignored tensors and ties of one family of checkpoints, applied, inverted and proved complete."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .refusal import refuse, some
from .rules import Rule, match


@dataclass(frozen=True)
class Ignore:
    """`! source : reason`: a file tensor that the model does not need, and why."""

    source: str
    reason: str


@dataclass(frozen=True)
class Tie:
    """`tie name = source`: a file tensor that repeats another; it must be equal to it in every bit."""

    name: str
    source: str


@dataclass(frozen=True)
class Spelling:
    """`either a or b`: files that never write `a` in their names write `b` (`-`: nothing) in its place."""

    usual: str
    other: str


@dataclass(frozen=True)
class WeightMap:
    """How the tensors of a file become the parameters of a model; `parse` reads it from text, one entry a line.

    `#` starts a comment. Rules are as in `Rule`; `! source : reason`, `tie a = b` and `either a or b` as above.
    """

    rules: tuple[Rule, ...]
    ignores: tuple[Ignore, ...] = ()
    ties: tuple[Tie, ...] = ()
    spellings: tuple[Spelling, ...] = ()

    @classmethod
    def parse(cls, text: str) -> WeightMap:
        """The map that `text` writes.

        Raises:
            ParityUsageError: names the line.
        """
        rules, ignores, ties, spellings = [], [], [], []
        for line in (line.partition("#")[0].strip() for line in text.splitlines()):
            words = line.split()
            if line.startswith("!"):
                source, _, reason = (part.strip() for part in line[1:].partition(" : "))
                if not reason:
                    raise refuse(f"weight map: {line}", "! source : reason", "no reason", "say why it is not needed")
                ignores.append(Ignore(source, reason))
            elif len(words) == 4 and words[0] == "tie" and words[2] == "=":
                ties.append(Tie(words[1], words[3]))
            elif len(words) == 4 and words[0] == "either" and words[2] == "or":
                spellings.append(Spelling(words[1], "" if words[3] == "-" else words[3]))
            elif line:
                rules.append(Rule.parse(line))
        return cls(tuple(rules), tuple(ignores), tuple(ties), tuple(spellings))

    def spelled_like(self, names: Iterable[str]) -> WeightMap:
        """This map in the spelling of a file with these tensors."""
        names, spelled = list(names), self
        for usual, other in ((each.usual, each.other) for each in self.spellings):
            if any(usual in name for name in names):
                continue
            spelled = WeightMap(
                tuple(replace(rule, source=rule.source.replace(usual, other)) for rule in spelled.rules),
                tuple(replace(ignore, source=ignore.source.replace(usual, other)) for ignore in spelled.ignores),
                tuple(Tie(tie.name.replace(usual, other), tie.source.replace(usual, other)) for tie in spelled.ties),
            )
        return spelled

    def reason_to_ignore(self, name: str) -> str | None:
        """Why the model does not need this tensor of the file, or None if the map does not say so."""
        return next((ignore.reason for ignore in self.ignores if match(ignore.source, name)), None)

    def bind(self, table: Mapping[str, Any]) -> list[Rule]:
        """One rule for each parameter of the model's table, its layer filled in.

        Raises:
            ParityUsageError: a parameter that no rule, or more than one, writes, or writes in another shape.
        """
        bound, sizes = [], axis_sizes(table)
        for target, parameter in table.items():
            found = [rule for each in self.rules if (rule := each.at(target))]
            if len(found) != 1:
                raise refuse(f"weight map: {target}", "written by one rule", f"{len(found)}", "complete the map")
            if (shape := found[0].parameter_shape(sizes)) != tuple(parameter.shape):
                raise refuse(f"weight map: {found[0]}", f"shape {parameter.shape}", f"{shape}", "correct the pattern")
            bound.append(found[0])
        return bound

    def plan(self, shapes: Mapping[str, tuple[int, ...]], table: Mapping[str, Any], where: str = "weights") -> Plan:
        """Prove from names and shapes alone that the map covers file and model, each element once; read nothing.

        Args:
            shapes: of the file's tensors by name.
            table: the model's parameters (`parameter_table(config)`): anything with `axes` and `shape`.
            where: the file, for messages.

        Raises:
            ParityUsageError: names what is missing, surplus, of another shape, or used other than once.
        """
        spelled = self.spelled_like(shapes)
        sizes = axis_sizes(table)
        reads: dict[str, list[Rule]] = {}
        for rule in spelled.bind(table):
            reads.setdefault(rule.source, []).append(rule)
        ties = [tie for tie in spelled.ties if tie.name in shapes and tie.name not in reads and tie.source in reads]
        tied = {tie.name for tie in ties}
        reasons = {name: reason for name in shapes if (reason := spelled.reason_to_ignore(name)) is not None}
        if both := [name for name in reasons if name in reads or name in tied]:
            raise refuse(f"weight map: {both[0]}", "used or ignored", "both", "correct the map")
        surplus = [name for name in shapes if name not in reads and name not in tied and name not in reasons]
        missing = [name for name in reads if name not in shapes]
        if missing or surplus:
            raise refuse(
                where,
                f"the {len(reads)} tensors that config.json calls for",
                f"missing: {some(missing) or 'none'}, surplus: {some(surplus) or 'none'}",
                "take config.json and weights from one checkpoint, of an architecture named there",
            )
        for tie in ties:
            _check_shape(where, tie.name, reads[tie.source][0].file_shape(sizes), shapes[tie.name])
        for source, rules in reads.items():
            for rule in rules:
                _check_shape(where, source, rule.file_shape(sizes), shapes[source])
            _check_uses(source, rules, sizes)
        return Plan(where, sizes, reads, tuple(ties), tuple(reasons.items()), tuple(table))

    def apply(self, tensors: Mapping[str, np.ndarray], table: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The model's parameters, in the order of its table, out of a file's tensors; coverage is proved first."""
        return self.plan({name: tensor.shape for name, tensor in tensors.items()}, table).read(tensors)

    def invert(self, parameters: Mapping[str, np.ndarray], table: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The file's tensors out of the model's parameters; `apply` of the result gives the same bits back."""
        sizes = axis_sizes(table)
        shapes = {rule.source: rule.file_shape(sizes) for rule in self.bind(table)}
        tensors = {}
        for source, rules in self.plan(shapes, table).reads.items():
            tensors[source] = np.empty(shapes[source], np.result_type(*(parameters[rule.target] for rule in rules)))
            for rule in rules:
                rule.backward(parameters[rule.target], tensors[source], sizes)
        return tensors


@dataclass(frozen=True)
class Plan:
    """A map bound to one file and one model, proved complete; `read` moves the values, one file tensor at a time."""

    where: str
    sizes: Mapping[str, int]
    reads: Mapping[str, list[Rule]]
    ties: tuple[Tie, ...]
    ignored: tuple[tuple[str, str], ...]
    targets: tuple[str, ...]

    def read(self, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every parameter, in the order of the model's table, with one file tensor (two for a tie) held beside them.

        Raises:
            ParityUsageError: a tied tensor differs from the one that it repeats.
        """
        for tie in self.ties:
            self._check_tie(tie, tensors[tie.name], tensors[tie.source])
        parameters = {}
        for source, rules in self.reads.items():
            tensor = tensors[source]
            for rule in rules:
                parameters[rule.target] = rule.forward(tensor, self.sizes)
        return {target: parameters[target] for target in self.targets}

    def _check_tie(self, tie: Tie, repeated: np.ndarray, original: np.ndarray) -> None:
        a, b = _bits(repeated), _bits(original)
        differing = a.size if a.dtype != b.dtype else int(np.count_nonzero(a != b))
        if differing:
            raise refuse(
                f"{self.where}: {tie.name}",
                f"the bits of {tie.source}, to which config.json ties it (tie_word_embeddings)",
                f"{differing} of {a.size} elements that differ",
                "set tie_word_embeddings to false if the head is its own, or remove the tensor",
            )


def axis_sizes(table: Mapping[str, Any]) -> dict[str, int]:
    """Size of every axis letter in a parameter table."""
    pairs: Iterator[tuple[str, int]] = (
        pair for entry in table.values() for pair in zip(entry.axes.split(), entry.shape, strict=True)
    )
    return dict(pairs)


def _check_shape(where: str, name: str, expected: tuple[int, ...], found: tuple[int, ...]) -> None:
    if tuple(found) != expected:
        raise refuse(
            f"{where}: {name}",
            f"shape {expected} by config.json",
            f"{tuple(found)}",
            "take config.json and weights from one checkpoint",
        )


def _check_uses(source: str, rules: list[Rule], sizes: Mapping[str, int]) -> None:
    """Each element of a file tensor used by one rule; a lone rule without `take` is a bijection and needs no count."""
    if len(rules) == 1 and not rules[0].take:
        return
    uses = np.zeros(rules[0].file_shape(sizes), np.uint8)
    for rule in rules:
        rule.part(uses, sizes)[...] += 1
    if wrong := int(np.count_nonzero(uses != 1)):
        raise refuse(
            f"weight map: {source}",
            f"each of its {uses.size} elements used once",
            f"{wrong} used {uses.min()} to {uses.max()} times",
            "correct `take` in its rules",
        )


def _bits(tensor: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(tensor).view(f"u{tensor.dtype.itemsize}")
