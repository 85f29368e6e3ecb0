"""Where values of lower precision come into a float64 JAX program."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.extend import core

from ...frames import is_user_code
from ...islands import Island, Told, holds_float32
from .lifting import dtype_of, is_low, lift, subprograms
from .versions import x64

__all__ = ["find_islands", "lift"]

#: what JAX itself writes into a name stack
_TRANSFORMATIONS = ("", "jvp", "transpose", "vmap", "checkpoint", "rematted_computation")


def find_islands(function: Callable[..., Any], *args: Any, side: str = "jaxcore") -> list[Island]:
    """Where the float64 program `function(*args)` drops to a lower precision, in data order, one entry per module
    or, outside modules, per line; what depends on no argument (a table of sines) stands where it meets one first.

    The program is traced, not run, so that a gradient program (`jax.value_and_grad(loss)`) shows its backward half too.
    Arrays that the function closes over are constants, so give parameters as arguments. JAX's caches are dropped first:
    a trace of the same function or of the same NumPy constant at another precision would be found again.

    Differs: a module that `nnx.merge` rebuilt is a new object; it takes the name of its caller's next child of that
    class, and under `jax.checkpoint` all equal layers share the trace, and so the name, of the first.
    """

    def fresh(*given: Any) -> Any:
        return function(*given)

    jax.clear_caches()
    with x64(True), _named_modules():
        closed = jax.make_jaxpr(fresh)(*args)
    sightings = _Sightings(side)
    for (path, _), variable in zip(jax.tree_util.tree_leaves_with_path(args), closed.jaxpr.invars, strict=True):
        if is_low(variable.aval):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            sightings.add("input", str(dtype_of(variable)), _Origin(f"input {name}"))
    _walk(closed.jaxpr, closed.consts, _Origin(), sightings, set(closed.jaxpr.invars))
    return sightings.found


@dataclass(frozen=True)
class _Origin:
    """Who asked for an equation: the module's path or the function, its file and line."""

    place: str = ""
    file: str = ""
    function: str = ""
    line: int = 0
    backward: bool = False

    def inside(self, equation: core.JaxprEqn) -> _Origin:
        """The origin of an equation of a program that this origin called."""
        traceback: Any = equation.source_info.traceback  # ends at the function that jit traced, not at its caller
        frames = traceback.frames if traceback else ()
        user = next((frame for frame in frames if is_user_code(frame.file_name)), None)
        place = _scope(str(equation.source_info.name_stack)) or self.place
        backward = self.backward or "transpose(" in str(equation.source_info.name_stack)
        if user is None:
            return _Origin(place, self.file, self.function, self.line, backward)
        return _Origin(place, user.file_name, user.function_name, user.line_num, backward)


def _scope(stack: str) -> str:
    """The module's path in a name stack such as "transpose(jvp(@layers.0@))", else the user's own named scopes."""
    modules = re.findall(r"@([^@]*)@", stack)
    if modules:
        return modules[-1]
    parts = re.split(r"[/()]+", re.sub(r"jit\([^)]*\)", "", stack))
    return "/".join(part for part in parts if part not in _TRANSFORMATIONS)


@dataclass
class _Sightings:
    """Islands in the order in which they were seen; what follows in the same module or function is the same island."""

    side: str
    found: list[Island] = field(default_factory=list)
    _told: Told = field(default_factory=Told)

    def add(self, operation: str, dtype: str, origin: _Origin) -> None:
        """Record one island; constants count apart, because they cannot be lifted."""
        place = origin.place or origin.function or "?"
        source = f"{Path(origin.file).name}:{origin.line}" if origin.file else ""
        constant = operation == "constant"
        function = (origin.file, origin.function) if origin.file else None
        by_line = function and not (origin.place or constant or origin.backward)
        if self._told.is_new(constant, place, function, (function, origin.line) if by_line else None):
            self.found.append(Island(self.side, place, operation, dtype, source))

    def merge(self, islands: Sequence[Island], place: str) -> None:
        """Take over what was found in an equation, each once; constants meet the data at `place`, if nowhere before."""
        for found in dict.fromkeys(islands):
            meets = found.meets or (place if found.operation == "constant" else "")
            island = replace(found, meets=meets)
            if not any(replace(island, meets=known.meets) == known for known in self.found):
                self.found.append(island)


def _walk(jaxpr: core.Jaxpr, consts: Sequence[Any], outer: _Origin, sightings: _Sightings, data: set[core.Var]) -> None:
    """Visit every equation in data order; what is found in one that reads no `data` waits for one that does."""
    constants = dict(zip(jaxpr.constvars, consts, strict=True))
    waiting: dict[core.Var, list[Island]] = {}
    for equation in jaxpr.eqns:
        variables = [atom for atom in equation.invars if not isinstance(atom, core.Literal)]
        joined = any(variable in data for variable in variables)
        outside, sightings.found = sightings.found, [each for atom in variables for each in waiting.get(atom, ())]
        _visit(equation, constants, outer.inside(equation), sightings, joined)
        found, sightings.found = sightings.found, outside
        if joined:
            place = outer.inside(equation)
            sightings.merge(found, place.place or place.function)
            data |= set(equation.outvars)
        else:
            waiting |= dict.fromkeys(equation.outvars, found)
    for found in waiting.values():
        sightings.merge(found, "")


def _visit(
    equation: core.JaxprEqn, constants: dict[core.Var, Any], origin: _Origin, sightings: _Sightings, joined: bool
) -> None:
    """One equation and what runs inside it; an entry is one whose result is low while no variable it reads is low."""
    for atom in equation.invars:
        value = atom.val if isinstance(atom, core.Literal) else constants.pop(atom, None)
        if value is not None and _is_low_constant(atom, value):
            sightings.add("constant", str(dtype_of(atom)), origin)
    inner = list(subprograms(equation))
    for program, values in inner:
        _walk(program, values, origin, sightings, set(program.invars) if joined else set())
    if inner or any(is_low(atom.aval) for atom in equation.invars if not isinstance(atom, core.Literal)):
        return
    if equation.primitive.name == "reduce_precision" and equation.params["mantissa_bits"] < 52:
        sightings.add("reduce_precision", f"{equation.params['mantissa_bits']} bits", origin)
    for variable in equation.outvars:
        if is_low(variable.aval):
            sightings.add(equation.primitive.name, str(dtype_of(variable)), origin)


def _is_low_constant(atom: Any, value: Any) -> bool:
    """An array of a low type, or float64 with float32 numbers; low literals belong to the operation they stand in."""
    if is_low(atom.aval):
        return not isinstance(atom, core.Literal)
    return dtype_of(atom) == np.float64 and holds_float32(np.asarray(value).reshape(-1))


@dataclass
class _Call:
    """A module that is running, and which of its children have run."""

    module: nnx.Module
    path: str
    entered: set[str] = field(default_factory=set)

    def child(self, module: nnx.Module) -> str:
        """The path of a module that this one calls: by identity, else the next child of its class, else by class."""
        children: dict[str, Any] = {
            ".".join(map(str, path)): node for path, node in nnx.iter_modules(self.module) if path
        }
        same = [name for name, node in children.items() if node is module]
        alike = [name for name, node in children.items() if type(node) is type(module) and name not in self.entered]
        name = next(iter(same + alike), type(module).__name__)
        self.entered.add(name)
        return f"{self.path}.{name}".lstrip(".")


@contextmanager
def _named_modules() -> Iterator[None]:
    """While it lasts every nnx module's call stands in a named scope that holds its path in the model."""
    running: list[_Call] = []

    def named(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def run(self: nnx.Module, *args: Any, **kwargs: Any) -> Any:
            if running and running[-1].module is self:  # super().__call__
                return call(self, *args, **kwargs)
            path = running[-1].child(self) if running else ""
            running.append(_Call(self, path))
            try:
                with jax.named_scope(f"@{path}@") if path else nullcontext():
                    return call(self, *args, **kwargs)
            finally:
                running.pop()

        return run

    originals = {kind: vars(kind)["__call__"] for kind in _subclasses(nnx.Module) if "__call__" in vars(kind)}
    for kind, call in originals.items():
        kind.__call__ = named(call)
    try:
        yield
    finally:
        for kind, call in originals.items():
            kind.__call__ = call


def _subclasses(kind: Any) -> set[Any]:
    return {kind}.union(*(_subclasses(child) for child in kind.__subclasses__()))
