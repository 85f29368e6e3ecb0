"""Matmul FLOPs of a JAX program, counted exactly in its trace.

Nothing runs and nothing is allocated: arguments may be `jax.ShapeDtypeStruct`s. A product and its sum count two in
every type, as in XLA and in PyTorch's counter. A Pallas kernel, a custom call or any other primitive whose work cannot
be read from the trace is refused by name, never taken for zero, unless the caller declares a rule for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, primitives
from jax.interpreters import partial_eval  # not covered by JAX's promise of stability: used in `live` alone

from parity.account.convolution import convolution_taps
from parity.errors import ParityUsageError

Rule = Callable[[JaxprEqn], int]

#: Primitives that form products inside, without a rule here: decompositions, transforms, kernels, host functions.
OPAQUE = """
    cholesky cholesky_update core_map eig eigh ffi_call fft geqp3 geqrf hessenberg householder_product io_callback lu
    ormqr pallas_call pure_callback qr schur svd triangular_solve tridiagonal tridiagonal_solve
"""

#: Primitives without products that `jax.extend.core.primitives` does not list in jax 0.10.
UNLISTED = """
    all_gather_invariant broadcast_to debug_callback debug_print dimension_size empty iota_2x32_shape layout_constraint
    lu_pivots_to_permutation mulhi optimization_barrier pbroadcast platform_index psum_invariant pvary random_clone
    random_unwrap random_wrap reduce_scatter reshard scatter-sub split stack tile unstack
"""

LISTED = {value.name for name, value in vars(primitives).items() if name.endswith("_p")}
FREE = LISTED.union(UNLISTED.split()).difference(OPAQUE.split())


def traced_flops(function: Callable[..., Any], *args: Any, rules: Mapping[str, Rule] | None = None) -> int:
    """Matmul FLOPs of `function(*args)` as JAX traces it, dead code left out, over all devices.

    A scan counts its body times its length, a cond its larger branch. `rules` declares FLOPs by primitive name, for a
    kernel of the caller's: `{"pallas_call": lambda equation: ...}`.

    Raises:
        ValueError: a primitive without a rule, or a while loop whose trip count the program does not state.
    """
    program = live(jax.make_jaxpr(function)(*args).jaxpr)
    return jaxpr_flops(program, {**RULES, **(rules or {})})


def live(jaxpr: Jaxpr) -> Jaxpr:
    """The program without what no output needs, as XLA will see it (jax 0.10: `jax.interpreters.partial_eval`)."""
    return partial_eval.dce_jaxpr(jaxpr, True, instantiate=True)[0]


def jaxpr_flops(jaxpr: Jaxpr, rules: Mapping[str, Rule]) -> int:
    """The sum over the equations: by rule, else by what they contain, else zero where they are known to be free."""
    total = 0
    for equation in jaxpr.eqns:
        name, inner = equation.primitive.name, list(subjaxprs(equation))
        if name in rules:
            total += rules[name](equation)
        elif name in OPAQUE.split():
            raise refusal(name, "a primitive whose matmuls the trace shows")
        elif name == "while":
            each = sum(jaxpr_flops(body, rules) for body in inner)
            total += each and each * trip_count(equation)
        elif name == "cond":
            total += max(jaxpr_flops(branch, rules) for branch in inner)
        elif inner:
            total += repeats(equation) * sum(jaxpr_flops(body, rules) for body in inner)
        elif name not in FREE:
            raise refusal(name, "a primitive of JAX that is known to multiply no matrices")
    return total


def refusal(name: str, rule: str) -> ParityUsageError:
    """The error for a primitive that cannot be counted."""
    return ParityUsageError(
        f"traced_flops: {rule}, got {name}; declare its FLOPs with rules={{{name!r}: lambda equation: ...}}"
    )


def subjaxprs(equation: JaxprEqn) -> Iterator[Jaxpr]:
    """The programs that an equation runs, wherever its parameters hold them."""
    if equation.primitive.name == "custom_linear_solve":  # the other three serve its derivatives
        yield from programs(equation.params["jaxprs"].solve)
    else:
        for value in equation.params.values():
            yield from programs(value)


def programs(value: Any) -> Iterator[Jaxpr]:
    """Every jaxpr in a parameter: itself, closed, or in a tuple or list."""
    if isinstance(value, ClosedJaxpr):
        yield value.jaxpr
    elif isinstance(value, Jaxpr):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from programs(each)


def repeats(equation: JaxprEqn) -> int:
    """How often an equation runs its body: a scan its length, a shard_map once on each device, anything else once."""
    if equation.primitive.name == "scan":
        return equation.params["length"]
    if equation.primitive.name == "shard_map":
        return math.prod(equation.params["mesh"].shape[axis] for axis in equation.params["newly_manual_axes"])
    return 1


def trip_count(equation: JaxprEqn) -> int:
    """How often a while loop runs that counts `i < limit`, then `i + step`, from a start, all three written out.

    Raises:
        ValueError: any other loop.
    """
    condition, body = equation.params["cond_jaxpr"].jaxpr, equation.params["body_jaxpr"].jaxpr
    shared, more = equation.params["cond_nconsts"], equation.params["body_nconsts"]
    start = dict(zip(condition.invars, equation.invars[:shared] + equation.invars[shared + more :], strict=True))
    before = dict(zip(condition.invars[shared:], body.invars[more:], strict=True))
    after = dict(zip(condition.invars[shared:], body.outvars, strict=True))

    def fixed(value: Any) -> int | None:
        """The number that the condition reads at every turn, None where the program does not write it out."""
        if not isinstance(value, Literal) and after.get(value) is before.get(value):
            value = start.get(value)
        return int(value.val) if isinstance(value, Literal) else None

    if [test.primitive.name for test in condition.eqns] == ["lt"]:
        counter, limit = condition.eqns[0].invars
        for update in body.eqns:
            if update.outvars == [after.get(counter)] and update.primitive.name == "add":
                (source, step), first, last = update.invars, start[counter], fixed(limit)
                numbers = isinstance(first, Literal) and isinstance(step, Literal) and step.val > 0
                if numbers and last is not None and source is before[counter]:
                    return max(0, math.ceil((last - int(first.val)) / int(step.val)))
    raise ParityUsageError(
        "traced_flops: a while loop that writes out start, limit and step, got while with another condition; use "
        "lax.scan or lax.fori_loop with fixed bounds, or count one turn"
    )


def shape(variable: Any) -> tuple[int, ...]:
    """Sizes of a variable of the program."""
    return variable.aval.shape


def dot_general_flops(equation: JaxprEqn) -> int:
    """Two per element of the result and contracted index."""
    (contracted, _), _ = equation.params["dimension_numbers"]
    lhs = shape(equation.invars[0])
    return 2 * math.prod(shape(equation.outvars[0])) * math.prod(lhs[axis] for axis in contracted)


def ragged_dot_flops(equation: JaxprEqn) -> int:
    """Each row meets the matrix of its group only: the group axis of rhs does not multiply the work.

    XLA's analysis says M N on CUDA and TPU, groups times too much on a CPU (facts: both wrong).
    """
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (_, contracted), (_, batched) = numbers.dot_dimension_numbers
    lhs, rhs = map(shape, equation.invars[:2])
    shared = {*contracted, *batched, *numbers.rhs_group_dimensions}
    return 2 * math.prod(lhs) * math.prod(size for axis, size in enumerate(rhs) if axis not in shared)


def convolution_flops(equation: JaxprEqn) -> int:
    """Two per pair of channels, image and tap that meets an element (`convolution_taps`)."""
    params, (lhs, rhs) = equation.params, map(shape, equation.invars)
    numbers, out = params["dimension_numbers"], shape(equation.outvars[0])
    pairs = math.prod(out[axis] for axis in numbers.out_spec[:2]) * rhs[numbers.rhs_spec[1]]
    for axis, (before, _) in enumerate(params["padding"]):
        pairs *= convolution_taps(
            lhs[numbers.lhs_spec[2 + axis]],
            out[numbers.out_spec[2 + axis]],
            rhs[numbers.rhs_spec[2 + axis]],
            stride=params["window_strides"][axis],
            padding=before,
            dilation=params["rhs_dilation"][axis],
            holes=params["lhs_dilation"][axis],
        )
    return 2 * pairs


def cudnn_attention_flops(matmuls: int) -> Rule:
    """cuDNN's attention over the full square, `matmuls` of them: 2 forward (logits, values) and 4 backward.

    The kernel works the logits out once more backward; like every recomputation inside a kernel this is not counted.
    """

    def flops(equation: JaxprEqn) -> int:
        query, key = map(shape, equation.invars[:2])
        batch, (t, s), heads, width = query[0], (query[1], key[1]), query[2], query[3]
        if equation.params["layout"] != 0:  # "b n t h" instead of "b t n h"
            (t, s), heads = (query[2], key[2]), query[1]
        return matmuls * 2 * batch * heads * t * s * width

    return flops


RULES: dict[str, Rule] = {
    "dot_general": dot_general_flops,
    "ragged_dot_general": ragged_dot_flops,
    "conv_general_dilated": convolution_flops,
    "dot_product_attention_fwd_wrapper": cudnn_attention_flops(2),
    "dot_product_attention_bwd_wrapper": cudnn_attention_flops(4),
}
