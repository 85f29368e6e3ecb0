"""The same JAX program with every value of lower precision in float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from ...islands import holds_float32, nudged

_seed: ContextVar[int | None] = ContextVar("seed of a nudge", default=None)

#: equations that only wrap a program: the lifted program runs what is inside
_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint")
#: parameters of an equation that name the type of its result
_DTYPES = ("new_dtype", "dtype", "preferred_element_type", "out_dtype", "accum_dtype")


def lift(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same program with every lower-precision float in float64; jit and grad work on it.

    An altered program, and labelled so: a constant that was computed in float32 keeps its rounded values. Give the
    gradient program (`lift(jax.value_and_grad(loss))`) rather than `jax.grad(lift(loss))`: a custom_vjp rule cannot be
    lifted afterwards and raises.
    """

    @functools.wraps(function)
    def lifted(*args: Any) -> Any:
        def fresh(*given: Any) -> Any:  # a function of its own shares no trace with another precision
            return function(*given)

        with jax.enable_x64(True):
            closed, shape = jax.make_jaxpr(fresh, return_shape=True)(*args)
            outputs = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(args))
            return jax.tree.unflatten(jax.tree.structure(shape), outputs)

    return lifted


def subprograms(equation: core.JaxprEqn) -> Iterator[tuple[core.Jaxpr, Sequence[Any]]]:
    """The programs among an equation's parameters, each with its constants."""
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                yield item.jaxpr, item.consts
            elif isinstance(item, core.Jaxpr):
                yield item, ()


def _wide(dtype: Any) -> Any:
    """float64 and complex128 for the narrower floats, every other type itself."""
    for kind, wide in ((jnp.floating, np.float64), (jnp.complexfloating, np.complex128)):
        if jnp.issubdtype(dtype, kind) and np.dtype(dtype).itemsize < np.dtype(wide).itemsize:
            return np.dtype(wide)
    return dtype


def is_low(aval: Any) -> bool:
    """Whether an array or its type is a float narrower than float64."""
    return hasattr(aval, "dtype") and _wide(aval.dtype) != aval.dtype


def dtype_of(atom: core.Var | core.Literal) -> Any:
    """The type of a variable or a literal of a program."""
    return getattr(atom.aval, "dtype", None)


def _evaluate(jaxpr: core.Jaxpr, consts: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Run a program with every low-precision value in float64; whatever holds none runs as it is."""
    given = [*map(_constant, consts), *map(_widen, values)]
    environment = dict(zip([*jaxpr.constvars, *jaxpr.invars], given, strict=True))

    def read(atom: Any) -> Any:
        if not isinstance(atom, core.Literal):
            return environment[atom]
        dtype = dtype_of(atom)
        if is_low(atom.aval) and not np.shape(atom.val) and jnp.issubdtype(dtype, jnp.floating):
            return _number(float(atom.val), dtype)
        return _constant(atom.val)

    for equation in jaxpr.eqns:
        results = _run_lifted(equation, [read(atom) for atom in equation.invars])
        environment.update(zip(equation.outvars, map(_widen, results), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _run_lifted(equation: core.JaxprEqn, xs: list[Any]) -> Sequence[Any]:
    """The results of one equation in float64."""
    name, params = equation.primitive.name, equation.params
    if not _touches_low(equation):
        return bind(equation, xs, params)
    if name in _CALLS:
        ((program, consts),) = subprograms(equation)
        return _evaluate(program, consts, xs)
    if name in _REBUILT:
        return _REBUILT[name](equation, xs)
    if name == "reduce_precision":
        return xs
    if name == "bitcast_convert_type" or any("aval" in key for key in params) or _is_opaque(equation):
        narrow = [jnp.asarray(x, dtype_of(atom)) for x, atom in zip(xs, equation.invars, strict=True)]
        return bind(equation, narrow, params)
    wide = {key: _wide(value) if key in _DTYPES and value is not None else value for key, value in params.items()}
    if "preferred_element_type" in params:
        wide["precision"] = None  # float64 has one; a preset for float32 operands would be refused
    if params.get("update_jaxpr") is not None:  # a scatter's own little program: how two updates combine
        combine = functools.partial(_evaluate, params["update_jaxpr"], params["update_consts"])
        wide["update_jaxpr"] = jax.make_jaxpr(lambda *pair: combine(pair))(np.float64(0), np.float64(0)).jaxpr
    return bind(equation, xs, wide)


def bind(equation: core.JaxprEqn, xs: Sequence[Any], params: dict[str, Any]) -> Sequence[Any]:
    """The results of one equation on these operands, as a sequence."""
    results = equation.primitive.bind(*xs, **equation.primitive.get_bind_params(params))
    return results if equation.primitive.multiple_results else [results]


@contextmanager
def nudging(seed: int) -> Iterator[None]:
    """While it lasts, lifting moves every constant of float32 numbers by one unit in the last place of float32."""
    token = _seed.set(seed)
    try:
        yield
    finally:
        _seed.reset(token)


def _constant(x: Any) -> Any:
    """Widened; nudged, or if it is a single number the one that was meant, where it holds float32 numbers."""
    dtype = getattr(x, "dtype", None)
    if dtype is None or isinstance(x, jax.core.Tracer) or not jnp.issubdtype(dtype, jnp.floating):
        return _widen(x)  # a key of jax.random has a type that NumPy has not
    values = np.asarray(x)
    if not (is_low(x) or holds_float32(values.reshape(-1))):
        return x
    if values.ndim == 0:
        return jnp.asarray(_number(float(values), dtype if is_low(x) else np.float32))
    seed = _seed.get()
    return _widen(x) if seed is None else jnp.asarray(nudged(values, seed))


def _number(value: float, dtype: Any) -> np.float64:
    """A single number of a low type in float64: nudged, or the one that was rounded to it."""
    seed = _seed.get()
    return np.float64(sharpen(value, dtype) if seed is None else nudged(np.asarray([value]), seed)[0])


def _widen(x: Any) -> Any:
    return jnp.asarray(x, _wide(x.dtype)) if is_low(x) else x


def _touches_low(equation: core.JaxprEqn) -> bool:
    """Whether a low-precision value goes in, comes out or lives inside; a rounding to fewer bits counts as one."""
    if equation.primitive.name == "reduce_precision":
        return True
    if any(is_low(atom.aval) for atom in (*equation.invars, *equation.outvars)):
        return True
    return any(_touches_low(inner) for program, _ in subprograms(equation) for inner in program.eqns)


def _is_opaque(equation: core.JaxprEqn) -> bool:
    """A kernel with a program of its own that is not rebuilt here."""
    return any(subprograms(equation)) and "update_jaxpr" not in equation.params


def sharpen(value: float, dtype: Any = np.float32) -> float:
    """A float64 number that rounds to this literal of type `dtype` and that a person would have written.

    Tracing rounds eps 1e-5 and sqrt(2 / pi) to float32 before anyone sees them. Tried in turn: the shortest decimal of
    at most six digits; p / q, sqrt(p / q), p / (q pi) and sqrt(p / (q pi)) for q up to 128; else the literal itself.
    Whatever is taken rounds to the literal, so that a wrong guess is no worse than none.
    """
    if not math.isfinite(value) or value == 0:
        return value
    candidates = [float(f"{value:.{digits}g}") for digits in range(1, 7)]
    for factor in (1.0, math.pi):
        for power in (1, 2):
            ratio = Fraction(abs(value) ** power * factor).limit_denominator(128)
            candidates.append(math.copysign((float(ratio) / factor) ** (1 / power), value))
    narrow = np.dtype(dtype).type
    with np.errstate(over="ignore"):  # finfo.min to three digits is beyond the type
        return next((number for number in candidates if narrow(number) == narrow(value)), value)


def _scan(equation: core.JaxprEqn, xs: list[Any]) -> Sequence[Any]:
    params = equation.params
    body, num_consts = params["jaxpr"], params["num_consts"]
    num_fixed = num_consts + params["num_carry"]

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        results = _evaluate(body.jaxpr, body.consts, [*xs[:num_consts], *carry, *x])
        return results[: params["num_carry"]], results[params["num_carry"] :]

    options = {key: params[key] for key in ("length", "reverse", "unroll")}
    carry, stacked = jax.lax.scan(step, xs[num_consts:num_fixed], xs[num_fixed:], **options)
    return [*carry, *stacked]


def _while(equation: core.JaxprEqn, xs: list[Any]) -> Sequence[Any]:
    going, body = equation.params["cond_jaxpr"], equation.params["body_jaxpr"]
    a = equation.params["cond_nconsts"]
    b = a + equation.params["body_nconsts"]
    return jax.lax.while_loop(
        lambda carry: _evaluate(going.jaxpr, going.consts, [*xs[:a], *carry])[0],
        lambda carry: _evaluate(body.jaxpr, body.consts, [*xs[a:b], *carry]),
        xs[b:],
    )


def _cond(equation: core.JaxprEqn, xs: list[Any]) -> Sequence[Any]:
    branches = [functools.partial(_branch, branch) for branch in equation.params["branches"]]
    return jax.lax.switch(xs[0], branches, *xs[1:])


def _branch(program: core.ClosedJaxpr, *xs: Any) -> list[Any]:
    return _evaluate(program.jaxpr, program.consts, xs)


def _custom_jvp(equation: core.JaxprEqn, xs: list[Any]) -> Sequence[Any]:
    """The user's rule is kept: it is a program too, and is lifted like one."""
    rule, num_consts = equation.params["jvp_jaxpr_fun"], equation.params["num_consts"]
    moves = [jnp.issubdtype(dtype_of(atom), jnp.inexact) for atom in equation.invars[num_consts:]]

    @jax.custom_jvp
    def run(*primals: Any) -> list[Any]:
        return _branch(equation.params["call_jaxpr"], *xs[:num_consts], *primals)

    @run.defjvp
    def run_jvp(primals: Any, tangents: Any) -> tuple[list[Any], list[Any]]:
        program, consts, still = rule.call_wrapped(*(not move for move in moves))
        moving = [tangent for tangent, move in zip(tangents, moves, strict=True) if move]
        results = _evaluate(program, consts, [*primals, *moving])
        outputs, rest = results[: len(still)], iter(results[len(still) :])
        return outputs, [jnp.zeros_like(y) if zero else next(rest) for y, zero in zip(outputs, still, strict=True)]

    return run(*xs[num_consts:])


def _custom_vjp(equation: core.JaxprEqn, xs: list[Any]) -> Sequence[Any]:
    """The value is lifted; the backward rule was traced for the lower type."""
    run = jax.custom_vjp(functools.partial(_branch, equation.params["call_jaxpr"]))

    def refuse(*_: Any) -> Any:
        raise ValueError(
            "lift: a custom_vjp rule around low precision cannot be differentiated afterwards, got jax.grad(lift(f)); "
            "lift the gradient program instead: lift(jax.grad(f))"
        )

    run.defvjp(refuse, refuse)
    return run(*xs)


_REBUILT = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "custom_jvp_call": _custom_jvp,
    "custom_vjp_call": _custom_vjp,
}
