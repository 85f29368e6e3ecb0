"""Values and gradients at the marked points of a JAX program, by transforming the program: jit and grad work on it."""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from ...capture import GIVEN, Capture, Names, Point, check_fed, numbered, owner, refuse_unknown
from ...errors import ParityUsageError
from .compiling import compiler_options
from .lifting import bind, subprograms
from .marks import PREFIX, Mark, Marks, label_name, traced

#: index of a mark -> what is computed there, one leading axis per enclosing scan
Found = dict[int, jax.Array]
#: index of a mark -> "mask" and "fed" (go on with fed where mask), "added" (a perturbation), shaped as in Found
Changes = Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class Spec:
    """A point of a program before it runs.

    Args:
        changeable: whether a value can be fed in and a gradient taken.
    """

    name: str
    source: str
    where: str
    shape: tuple[int, ...]
    dtype: str
    changeable: bool
    mark: int
    iteration: tuple[int, ...]

    @property
    def has_gradient(self) -> bool:
        """Whether a gradient can be taken: floats outside custom rules."""
        return self.changeable and jnp.issubdtype(jnp.dtype(self.dtype), jnp.floating)


def harvest(function: Callable[..., Any], *args: Any, forced: Collection[str] = ()) -> Harvest:
    """Trace `function(*args)` under marking, whatever of it was traced before; twice if it imports its modules.

    `forced` are inputs of modules that become points although they are the points that `aliases` says.
    """
    (closed, shape), marks = traced(lambda: jax.make_jaxpr(function, return_shape=True)(*args), forced)
    return Harvest(closed, jax.tree.structure(shape), marks)


class Harvest:
    """A traced program that gives the values at its points besides its outputs.

    Args:
        points: what can be seen, in data order.
        unseen: a line for each thing that cannot, and why.
    """

    def __init__(self, program: core.ClosedJaxpr, outputs: Any, marks: Marks):
        self._program = program
        self._outputs = outputs
        survey = _Survey()
        order = list(survey.walk(program.jaxpr))
        self._sites = survey.sites
        self._shared = marks.shared
        repeats = _repeats({mark: marks.marks[mark] for mark in survey.sites})
        self.points = tuple(_spec(marks.marks[k], k, at, survey.sites[k], repeats[k]) for k, at in order)
        self.aliases = dict(_aliases(marks, survey.sites, self.points))
        lost = (f"{label_name(marks.marks[k].path, marks.marks[k].label)}: {why}" for k, why in survey.lost)
        self.unseen = tuple(dict.fromkeys((*marks.unseen, *lost)))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the points, in data order."""
        return tuple(point.name for point in self.points)

    def call(
        self,
        args: Sequence[Any],
        feed: Mapping[str, Any] | None = None,
        perturbation: Mapping[str, jax.Array] | None = None,
    ) -> tuple[Any, dict[str, jax.Array]]:
        """The function's outputs and the value of every point as it was computed; pure, for jit and grad.

        The program goes on with the fed value where there is one, plus the perturbation where there is one.

        Raises:
            ParityUsageError: a name that no point has, a shape that is not the point's, a point inside a custom rule.
        """
        changes = self._changes(feed or {}, perturbation or {})
        values = jax.tree.leaves(tuple(args))
        outputs, found = _evaluate(self._program.jaxpr, self._program.consts, changes, values)
        seen = {point.name: found[point.mark][point.iteration] for point in self.points}
        return jax.tree.unflatten(self._outputs, outputs), seen

    def zeros(self) -> dict[str, jax.Array]:
        """A perturbation that changes nothing, for every point that has a gradient."""
        return {point.name: jnp.zeros(point.shape, point.dtype) for point in self.points if point.has_gradient}

    def _changes(self, feed: Mapping[str, Any], perturbation: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
        """What happens at each mark, the iterations of a scan stacked."""
        refuse_unknown({**feed, **perturbation}, self.names)
        changes: dict[int, dict[str, Any]] = {}
        for point in self.points:
            if point.name not in feed and point.name not in perturbation:
                continue
            if not point.changeable:
                raise ParityUsageError(
                    f"feed: points outside custom_jvp and custom_vjp rules, got {point.name!r}; feed the rule's result"
                )
            lengths = self._sites[point.mark].lengths
            change = changes.setdefault(point.mark, {})
            blank = jnp.zeros((*lengths, *point.shape), point.dtype)
            if point.name in feed:
                check_fed(point.name, feed[point.name], point.shape)
                scope = "everywhere" if point.mark in self._shared else "here"
                change.setdefault(scope, np.zeros(lengths, bool))[point.iteration] = True
                value = jnp.asarray(feed[point.name], point.dtype)
                change["fed"] = change.get("fed", blank).at[point.iteration].set(value)
            if point.name in perturbation:
                change["added"] = change.get("added", blank).at[point.iteration].set(perturbation[point.name])
        return changes


def captured(
    function: Callable[..., Any],
    args: Sequence[Any],
    feed: Mapping[str, Any] | None = None,
    gradients: bool = True,
    keep: Callable[[str], bool] = lambda name: True,
    back: Mapping[str, Any] | None = None,
) -> tuple[Any, Capture]:
    """Run `function(*args) -> (loss, outputs)` as one compiled program; gives what it returns, and the capture.

    The gradient of the loss, one real number, is taken in every float point, at the fed values where there are some;
    points inside custom_jvp and custom_vjp rules have values only. `keep(name)` says whose values and gradients are
    wanted. A fed point ends the backward pass of what follows it; with a gradient in `back` another one starts there.

    Raises:
        ParityUsageError: a fed name that no point has, or an array that is not of its shape.
    """
    forced = {re.sub(r"\[\d+\]|#\d+$", "", name) for name in feed or {} if owner(name) != name}
    program = harvest(function, *args, forced=forced)
    kept = [point for point in program.points if keep(point.name)]
    names = {point.name for point in kept}

    def run(
        args: Any, feed: Mapping[str, Any], back: Mapping[str, Any]
    ) -> tuple[Any, Mapping[str, jax.Array], Mapping[str, jax.Array]]:
        def scalar(perturbation: Mapping[str, jax.Array]) -> tuple[jax.Array, Any]:
            result, seen = program.call(args, feed, perturbation)
            started = sum(jnp.sum(seen[name] * gradient) for name, gradient in back.items())
            return result[0] + started, (result, {name: seen[name] for name in names})

        zeros = {name: zero for name, zero in program.zeros().items() if gradients and name in names}
        if not zeros:
            return (*scalar({})[1], {})
        taken, (result, seen) = jax.grad(scalar, has_aux=True)(zeros)
        return result, seen, taken

    compiled = jax.jit(run, compiler_options=compiler_options(args, once=True))
    result, seen, taken = compiled(tuple(args), dict(feed or {}), dict(back or {}))
    points = tuple(_point(spec, seen, taken) for spec in kept)
    return result, Capture(points, program.unseen, aliases=program.aliases)


def _point(spec: Spec, seen: Mapping[str, jax.Array], taken: Mapping[str, jax.Array]) -> Point:
    gradient = np.asarray(taken[spec.name]) if spec.name in taken else None
    value = np.asarray(seen[spec.name])
    return Point(spec.name, spec.source, spec.where, spec.shape, spec.dtype, value, gradient, spec.changeable)


def _repeats(marks: Mapping[int, Mark]) -> dict[int, str]:
    """What the names of marks end in: "#2" from the second of a name on, for inputs from the second call on."""
    names, done = Names(), dict[str, Counter[str]]()  # path -> how often each part of its output was met
    repeats, taken = {}, set[str]()
    for index, mark in marks.items():
        plain = label_name(mark.path, mark.label)
        outputs = done.setdefault(mark.path, Counter())
        if mark.source == "module":
            outputs[mark.label] += 1
        number = _calls(outputs) + 1
        while mark.source == GIVEN and numbered(plain, number) in taken:  # a module that gives nothing, or calls itself
            number += 1
        name = numbered(plain, number) if mark.source == GIVEN else names.unique(plain)
        taken.add(name)
        repeats[index] = name.removeprefix(plain)
    return repeats


def _aliases(marks: Marks, sites: Collection[int], points: Sequence[Spec]) -> Iterator[tuple[str, str]]:
    """The names that inputs would have which are points already, and these points."""
    outputs: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for index in sorted(sites):
        if (mark := marks.marks[index]).source == "module":
            outputs[mark.path].append((index, mark.label))
    by_mark: dict[int, list[Spec]] = defaultdict(list)
    for point in points:
        by_mark[point.mark].append(point)
    for alias in marks.aliases:
        call = _calls(Counter(label for index, label in outputs[alias.path] if index < alias.before)) + 1
        for point in by_mark[alias.mark]:
            yield numbered(label_name(alias.path, alias.label, point.iteration), call), point.name


def _calls(outputs: Counter[str]) -> int:
    """How often a module has ended, from how often each part of its output was met."""
    return max(outputs.values(), default=0)


def _spec(mark: Mark, index: int, iteration: tuple[int, ...], site: _Site, repeat: str) -> Spec:
    name = label_name(mark.path, mark.label, iteration) + repeat
    return Spec(name, mark.source, mark.where, site.shape, site.dtype, site.changeable, index, iteration)


@dataclass(frozen=True)
class _Site:
    """Where a mark stands: the lengths of the scans around it, its shape inside them."""

    lengths: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: str
    changeable: bool


class _Survey:
    """Which marks can be seen, in data order, and which cannot."""

    def __init__(self) -> None:
        self.sites: dict[int, _Site] = {}
        self.lost: list[tuple[int, str]] = []

    def walk(
        self, jaxpr: core.Jaxpr, lengths: tuple[int, ...] = (), changeable: bool = True
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Each mark with the iterations of the scans around it."""
        for equation in jaxpr.eqns:
            name, inside = equation.primitive.name, _marks_in(equation)
            if (mark := _mark_of(equation)) is not None:
                aval: Any = equation.outvars[0].aval
                site = _Site(lengths, tuple(aval.shape), str(aval.dtype), changeable)
                if mark in self.sites:
                    self.lost.append((mark, "computed again, in a backward pass; recorded the first time"))
                else:
                    self.sites[mark] = site
                    yield mark, ()
            elif inside and name == "scan":
                params = equation.params
                body = list(self.walk(params["jaxpr"].jaxpr, (*lengths, params["length"]), changeable))
                steps = range(params["length"])
                for i in reversed(steps) if params["reverse"] else steps:
                    yield from ((mark, (i, *inner)) for mark, inner in body)
            elif inside and name in _OPENED:
                ((program, _),) = subprograms(equation)
                custom = name in _CUSTOM
                if custom:
                    self.lost += ((mark, f"inside a {name}: its value only, no gradient, no feed") for mark in inside)
                yield from self.walk(program, lengths, changeable and not custom)
            else:
                self.lost += ((mark, f"inside a {name}, whose values are not kept") for mark in inside)


#: by identity: a program holds its equations, so that the numbers of its marks need to be gathered once
_marks_by_program: WeakKeyDictionary[core.Jaxpr, tuple[int, ...]] = WeakKeyDictionary()


def _mark_of(equation: core.JaxprEqn) -> int | None:
    label = str(equation.params.get("name", "")) if equation.primitive.name == "name" else ""
    return int(label.removeprefix(PREFIX)) if label.startswith(PREFIX) else None


def _marks_in(equation: core.JaxprEqn) -> tuple[int, ...]:
    """The marks in the programs of an equation, in order."""
    found: list[int] = []
    for program, _ in subprograms(equation):
        if program not in _marks_by_program:
            own = [(_mark_of(inner), _marks_in(inner)) for inner in program.eqns]
            flat = [mark for here, below in own for mark in (*(() if here is None else (here,)), *below)]
            _marks_by_program[program] = tuple(flat)
        found += _marks_by_program[program]
    return tuple(dict.fromkeys(found))


def _evaluate(
    jaxpr: core.Jaxpr, consts: Sequence[Any], changes: Changes, values: Sequence[Any]
) -> tuple[list[Any], Found]:
    """Outputs of a program and what its marks saw; what holds no mark runs as it is."""
    environment = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *values], strict=True))
    found: Found = {}

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else environment[atom]

    for equation in jaxpr.eqns:
        xs = [read(atom) for atom in equation.invars]
        inside = _marks_in(equation)
        if (mark := _mark_of(equation)) is not None:
            found.setdefault(mark, xs[0])
            change = changes.get(mark, {})
            results: Sequence[Any] = [_changed(xs[0], change)]
            if "everywhere" in change and not isinstance(equation.invars[0], core.Literal):
                fed = jnp.where(change["everywhere"], change["fed"], xs[0])
                environment[equation.invars[0]] = _with_gradient_of(xs[0], fed)
        elif inside and equation.primitive.name in _OPENED:
            below = {mark: changes[mark] for mark in inside if mark in changes}
            results, more = _OPENED[equation.primitive.name](equation, below, xs)
            found = more | found
        else:
            results = bind(equation, xs, equation.params)
        environment.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars], found


def _changed(x: jax.Array, change: Mapping[str, Any]) -> jax.Array:
    """What the program goes on with at a mark; "everywhere": whoever else reads its operand is told as well."""
    for scope in ("here", "everywhere"):
        if scope in change:
            x = jnp.where(change[scope], change["fed"], x)
    return x + change["added"] if "added" in change else x


@jax.custom_jvp
def _with_gradient_of(x: jax.Array, value: jax.Array) -> jax.Array:
    """`value` for whoever reads it; the backward pass goes on to `x`."""
    del x
    return value


@_with_gradient_of.defjvp
def _(primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    return primals[1], tangents[0]


def _inline(equation: core.JaxprEqn, changes: Changes, xs: list[Any]) -> tuple[Sequence[Any], Found]:
    ((program, consts),) = subprograms(equation)
    return _evaluate(program, consts, changes, xs)


def _remat(equation: core.JaxprEqn, changes: Changes, xs: list[Any]) -> tuple[Sequence[Any], Found]:
    """Recomputed in the backward pass as before; what is seen is kept besides."""
    ((program, consts),) = subprograms(equation)
    run = functools.partial(_evaluate, program, consts)
    options = {key: equation.params[key] for key in ("prevent_cse", "policy")}
    return jax.checkpoint(run, **options)(changes, xs)


def _scan(equation: core.JaxprEqn, changes: Changes, xs: list[Any]) -> tuple[Sequence[Any], Found]:
    """What each iteration saw is stacked, and the changes of each go in one by one."""
    params = equation.params
    body, num_consts, num_carry = params["jaxpr"], params["num_consts"], params["num_carry"]
    num_fixed = num_consts + num_carry

    def step(carry: list[Any], given: tuple[list[Any], Changes]) -> tuple[list[Any], tuple[list[Any], Found]]:
        operands, change = given
        results, found = _evaluate(body.jaxpr, body.consts, change, [*xs[:num_consts], *carry, *operands])
        return results[:num_carry], (results[num_carry:], found)

    options = {key: params[key] for key in ("length", "reverse", "unroll")}
    carry, (stacked, found) = jax.lax.scan(step, xs[num_consts:num_fixed], (xs[num_fixed:], changes), **options)
    return [*carry, *stacked], found


def _custom(equation: core.JaxprEqn, changes: Changes, xs: list[Any]) -> tuple[Sequence[Any], Found]:
    """The call stays whole, with the user's rule; its values are computed a second time, cut off from the gradient."""
    _, found = _inline(equation, changes, [jax.lax.stop_gradient(x) for x in xs])
    return bind(equation, xs, equation.params), found


_CUSTOM = ("custom_jvp_call", "custom_vjp_call")
_OPENED: dict[str, Callable[..., tuple[Sequence[Any], Found]]] = {
    **dict.fromkeys(("jit", "pjit", "closed_call", "core_call"), _inline),
    **dict.fromkeys(("remat", "remat2", "checkpoint"), _remat),
    **dict.fromkeys(_CUSTOM, _custom),
    "scan": _scan,
}
