"""HLO text read: the instructions of a lowered program, its functions, and how often its loops run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_INSTRUCTION = re.compile(r"\s+(?P<root>ROOT )?(?P<name>\S+) = (?P<type>.+?) (?P<opcode>[a-z][a-z\d-]*)\((?P<rest>.*)")
_COMPUTATION = re.compile(r"(?P<entry>ENTRY )?(?P<name>[^\s,]+) (?:\(.*)?\{$")
_COMMENT = re.compile(r"/\*.*?\*/|%")


@dataclass(frozen=True)
class Instruction:
    """One line of HLO text.

    Attributes:
        kind: type and shape of the result, as XLA writes it: `f32[2,3]{1,0}`, or a tuple of such.
        operands: names of the instructions whose results it takes.
        rest: all that stands behind the opening bracket of the operands.
    """

    name: str
    kind: str
    opcode: str
    operands: tuple[str, ...]
    rest: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the result; of a tuple those of its first member."""
        found = re.search(r"\[([\d,<=]*)\]", self.kind)
        return sizes(found[1]) if found else ()

    @property
    def size(self) -> int:
        """Elements of the result."""
        return math.prod(self.shape)

    def attribute(self, name: str) -> str:
        """What stands behind `name=`, without its braces; "" where it is not there."""
        found = re.search(rf"\b{name}=(?:\{{([^}}]*)\}}|([^\s,]+))", self.rest)
        return (found[1] or found[2] or "") if found else ""

    @property
    def window(self) -> dict[str, str]:
        """`size`, `stride`, `pad` ... of a window, a number per axis with an x between them."""
        return dict(re.findall(r"(\w+)=(\S+)", self.attribute("window")))

    @property
    def taps(self) -> int:
        """Elements of a window."""
        return math.prod(map(int, self.window["size"].split("x")))

    @property
    def parameter(self) -> int:
        """Which argument of its function a parameter is."""
        return int(self.rest.partition(")")[0])

    @property
    def number(self) -> int | None:
        """The whole number that a constant is, None for anything else."""
        found = re.match(r"(-?\d+)\)", self.rest) if self.opcode == "constant" else None
        return int(found[1]) if found else None


@dataclass(frozen=True)
class Computation:
    """A function of the program: its instructions by name, in order, the last one its result."""

    instructions: Mapping[str, Instruction]
    root: str

    @property
    def result(self) -> Instruction:
        """The instruction whose result is the function's."""
        return self.instructions[self.root]

    def operands(self, each: Instruction) -> list[Instruction]:
        """What an instruction of this function takes."""
        return [self.instructions[name] for name in each.operands]

    def member(self, each: Instruction, place: int) -> Instruction | None:
        """What makes that member of a tuple; None where the tuple does not stand here."""
        return self.operands(each)[place] if each.opcode == "tuple" else None


class Program:
    """HLO text, as `Lowered.as_text("hlo")` gives it."""

    def __init__(self, text: str) -> None:
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        found: dict[str, Instruction] = {}
        for line in _COMMENT.sub("", text).splitlines():
            if opened := _COMPUTATION.match(line):
                name, found = opened["name"], {}
                self.entry = name if opened["entry"] else self.entry
            elif read := _INSTRUCTION.match(line):
                arguments = "" if read["opcode"] in ("constant", "parameter") else read["rest"].partition(")")[0]
                operands = tuple(word.strip() for word in arguments.split(",") if word.strip())
                found[read["name"]] = Instruction(read["name"], read["type"], read["opcode"], operands, read["rest"])
                if read["root"]:
                    self.computations[name] = Computation(found, read["name"])

    def called(self, each: Instruction, attribute: str) -> Computation:
        """The function that an instruction names."""
        return self.computations[each.attribute(attribute)]

    def branches(self, each: Instruction) -> list[Computation]:
        """The functions of which a conditional runs one."""
        names = each.attribute("branch_computations").split(", ")
        names = names if names != [""] else [each.attribute(f"{word}_computation") for word in ("true", "false")]
        return [self.computations[name] for name in names]

    def turns(self, loop: Instruction, inside: Computation) -> int | None:
        """How often a loop runs that counts `i < limit`, then `i + step`, all written out; None for any other."""
        condition, body = self.called(loop, "condition"), self.called(loop, "body")
        test = condition.result
        if test.opcode != "compare" or test.attribute("direction") != "LT":
            return None
        counter, limit = condition.operands(test)
        if counter.opcode != "get-tuple-element":
            return None
        place = int(counter.attribute("index"))
        first = inside.member(inside.operands(loop)[0], place)
        step = self._step(body, place)
        if first is None or first.number is None or limit.number is None or not step:
            return None
        return max(0, math.ceil((limit.number - first.number) / step))

    def _step(self, body: Computation, place: int) -> int | None:
        """What one turn adds to that member of the state; JAX may put the sum into a function of its own."""
        update = body.member(body.result, place)
        if update is None:
            return None
        if update.opcode == "call":
            given, inner = body.operands(update), self.called(update, "to_apply")
            update = inner.result
            terms = [given[each.parameter] if each.opcode == "parameter" else each for each in inner.operands(update)]
        else:
            terms = body.operands(update)
        carried = any(each.opcode == "get-tuple-element" and each.attribute("index") == str(place) for each in terms)
        steps = [each.number for each in terms if each.number is not None]
        return steps[0] if update.opcode == "add" and carried and steps else None


def sizes(words: str) -> tuple[int, ...]:
    """Numbers with commas between them; `<=4` is the most that an axis may have."""
    return tuple(int(word.lstrip("<=")) for word in words.split(",") if word)
