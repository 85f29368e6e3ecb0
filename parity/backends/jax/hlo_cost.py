"""XLA's analysis of a lowered program, taken apart: the FLOPs of every instruction, by kind, as exact integers.

The rules are those of XLA's `HloCostAnalysis` (openxla/xla, `xla/service/hlo_cost_analysis.cc`), which adds the same
figures up in float32 and gives their sum alone.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from parity.account.convolution import convolution_taps

from .hlo import Computation, Instruction, Program, sizes

MATMULS, ARITHMETIC, CHOICES, CASTS = "matmuls", "arithmetic", "comparisons and choices", "casts"
REDUCTIONS, SCATTERS, SORTS, CALLS = "sums and maxima", "scatters", "sorts", "library calls, -1 each"
TRANSCENDENTALS = "transcendentals"  # exp, tanh, rsqrt ...: XLA keeps them apart from FLOPs

KINDS = (MATMULS, ARITHMETIC, REDUCTIONS, CHOICES, CASTS, SCATTERS, SORTS, CALLS)

_FREE = """
    after-all bitcast broadcast concatenate constant copy dynamic-slice dynamic-update-slice gather get-dimension-size
    get-tuple-element iota opt-barrier optimization-barrier pad parameter partition-id replica-id reshape reverse
    rng-bit-generator slice topk transpose tuple
"""
_ARITHMETIC = """
    abs add ceil complex count-leading-zeros divide floor imag is-finite maximum minimum multiply negate popcnt real
    remainder round-nearest-afz round-nearest-even shift-left shift-right-arithmetic shift-right-logical sign subtract
"""
_TRANSCENDENTAL = """
    atan2 cbrt cosine erf exponential exponential-minus-one log log-plus-one logistic power rsqrt sine sqrt tan tanh
"""

#: Instructions that cost nothing in XLA's analysis.
FREE = frozenset(_FREE.split())

#: Instructions that cost one FLOP per element of their result, by kind.
ELEMENTWISE = {
    **dict.fromkeys(_ARITHMETIC.split(), ARITHMETIC),
    **dict.fromkeys(["and", "clamp", "compare", "not", "or", "select", "xor"], CHOICES),
    **dict.fromkeys(["bitcast-convert", "convert", "reduce-precision"], CASTS),
    **dict.fromkeys(_TRANSCENDENTAL.split(), TRANSCENDENTALS),
}


@dataclass(frozen=True)
class Parts:
    """What a program costs by XLA's rules.

    Attributes:
        flops: kind of instruction -> FLOPs; "transcendentals" are in it and in no sum.
        additions: how many figures XLA adds to come to its own sum.
        unread: opcodes for which there is no rule here, so that their work is missing.
        loops: how many loops the program has.
        unstated: those whose trip count it does not write out; their bodies are counted once.
    """

    flops: Counter[str] = field(default_factory=Counter)
    additions: int = 0
    unread: frozenset[str] = frozenset()
    loops: int = 0
    unstated: int = 0

    @property
    def total(self) -> int:
        """FLOPs of all kinds, transcendentals apart."""
        return sum(count for kind, count in self.flops.items() if kind != TRANSCENDENTALS)

    @property
    def rounding(self) -> float:
        """How far a float32 sum of these figures may be from the exact one.

        n additions are off by at most n u / (1 - n u) of a sum of positive figures, u = 2^-24 (Higham 2002, 4.2); two
        more stand for writing each figure as a float32 and for multiplying that of a reduction. Below 2^24 nothing is
        rounded.
        """
        error = (self.additions + 2) * 2.0**-24
        return self.total * error / (1 - error) if self.total >= 2**24 else 0.0

    def times(self, factor: int, kind: str | None = None) -> Parts:
        """As often as that, all of it as one kind where that is given."""
        counts = Counter({name: factor * count for name, count in self.flops.items()})
        if kind is not None:
            apart = counts.pop(TRANSCENDENTALS, 0)
            counts = Counter({kind: sum(counts.values()), TRANSCENDENTALS: apart})
        return replace(self, flops=counts)

    def __add__(self, other: Parts) -> Parts:
        return Parts(
            Counter({name: self.flops[name] + other.flops[name] for name in (*self.flops, *other.flops)}),
            self.additions + other.additions,
            self.unread | other.unread,
            self.loops + other.loops,
            self.unstated + other.unstated,
        )


def cost(program: Program, once: bool) -> Parts:
    """What the whole program costs; the body of a loop once, as XLA counts it, or as often as it runs."""
    return _of_function(program, program.computations[program.entry], once)


def _of_function(program: Program, function: Computation, once: bool) -> Parts:
    parts = Parts()
    for each in function.instructions.values():
        if each.opcode in ELEMENTWISE:
            parts += _counted(ELEMENTWISE[each.opcode], each.size)
        elif each.opcode in RULES:
            parts += RULES[each.opcode](_Site(program, function, each, once))
        elif each.opcode not in FREE:
            parts += Parts(unread=frozenset({each.opcode}))
    return parts


def _counted(kind: str, flops: int) -> Parts:
    return Parts(Counter({kind: flops}), 1)


@dataclass(frozen=True)
class _Site:
    """An instruction where it stands."""

    program: Program
    function: Computation
    each: Instruction
    once: bool

    @property
    def operands(self) -> list[Instruction]:
        return self.function.operands(self.each)

    def called(self, attribute: str) -> Parts:
        """What one call of the function costs that the instruction names."""
        return _of_function(self.program, self.program.called(self.each, attribute), self.once)


def _dot(site: _Site) -> Parts:
    return _counted(MATMULS, dot_flops(site.each, site.operands[0]))


def _convolution(site: _Site) -> Parts:
    return _counted(MATMULS, convolution_flops(site.each, *site.operands))


def _reduce(site: _Site) -> Parts:
    return site.called("to_apply").times(site.operands[0].size - site.each.size, REDUCTIONS)


def _reduce_window(site: _Site) -> Parts:
    return site.called("to_apply").times((site.each.taps - 1) * site.each.size, REDUCTIONS)


def _scatter(site: _Site) -> Parts:
    return site.called("to_apply").times(site.operands[-1].size, SCATTERS)


def _select_and_scatter(site: _Site) -> Parts:
    source = site.operands[1].size
    chosen = site.called("select").times((site.each.taps - 1) * source, REDUCTIONS)
    return chosen + site.called("scatter").times(source, SCATTERS)


def _sort(site: _Site) -> Parts:
    length = site.operands[0].size
    return _counted(SORTS, length * max(0, length - 1).bit_length())


def _call(site: _Site) -> Parts:
    return site.called("to_apply")


def _while(site: _Site) -> Parts:
    turns = None if site.once else site.program.turns(site.each, site.function)
    turn = site.called("body") + site.called("condition")
    return turn.times(1 if turns is None else turns) + Parts(loops=1, unstated=int(turns is None))


def _conditional(site: _Site) -> Parts:
    """The larger branch; XLA takes the larger of each figure by itself."""
    branches = [_of_function(site.program, branch, site.once) for branch in site.program.branches(site.each)]
    larger = max(branches, key=lambda parts: parts.total)
    most = max(parts.flops[TRANSCENDENTALS] for parts in branches)
    return replace(larger, flops=larger.flops | Counter({TRANSCENDENTALS: most}))


def _library_call(site: _Site) -> Parts:
    return _counted(CALLS, -1)


RULES: dict[str, Callable[[_Site], Parts]] = {
    "call": _call,
    "conditional": _conditional,
    "convolution": _convolution,
    "custom-call": _library_call,
    "dot": _dot,
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "scatter": _scatter,
    "select-and-scatter": _select_and_scatter,
    "sort": _sort,
    "while": _while,
}


def dot_flops(each: Instruction, lhs: Instruction) -> int:
    """Two per element of the result and contracted index."""
    return 2 * each.size * math.prod(lhs.shape[axis] for axis in sizes(each.attribute("lhs_contracting_dims")))


def convolution_flops(each: Instruction, lhs: Instruction, rhs: Instruction) -> int:
    """Two per pair of channels, image and tap that meets an element (`convolution_taps`)."""
    labels = re.match(r"(\w+)_(\w+)->(\w+)", each.attribute("dim_labels"))
    if labels is None:
        raise ValueError(f"dim_labels of {each.name}: as in b01f_01io->b01f, got {each.attribute('dim_labels')!r}")
    of_lhs, of_rhs, of_out = labels.groups()
    window = each.window
    spatial = [label for label in of_out if label.isdigit()]
    pairs = math.prod(each.shape[of_out.index(label)] for label in "bf") * rhs.shape[of_rhs.index("i")]

    def along(name: str, missing: str) -> list[str]:
        return window[name].split("x") if name in window else [missing] * len(spatial)

    for number, label in enumerate(spatial):
        pairs *= convolution_taps(
            lhs.shape[of_lhs.index(label)],
            each.shape[of_out.index(label)],
            rhs.shape[of_rhs.index(label)],
            stride=int(along("stride", "1")[number]),
            padding=int(along("pad", "0_0")[number].partition("_")[0]),
            dilation=int(along("rhs_dilate", "1")[number]),
            holes=int(along("lhs_dilate", "1")[number]),
        )
    return 2 * pairs
