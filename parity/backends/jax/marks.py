"""Marking points while a JAX function is traced: each becomes a `name` equation that any transformation keeps."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from ...capture import GIVEN, ROOT, call_label, map_arrays, map_inputs
from ...einops_calls import Call, hearing_einops
from ...frames import caller, definition
from ...taps import hearing_taps

Traced = TypeVar("Traced")

#: what the name of a marked equation starts with; the mark's index follows
PREFIX = "parity:"
#: part of the key of every trace cache: a function that was traced before is traced again under marking, and a layer
#: that is called twice is traced twice, each with its own marks
_epoch = jax.make_user_context(0)
_num_epochs = 0


@dataclass(frozen=True)
class Mark:
    """A point as the trace met it; an iteration of a scan stands between `path` and `label`."""

    path: str
    label: str
    source: str
    where: str


@dataclass(frozen=True)
class Alias:
    """What a module is given that is a point already: that one's mark, and how many marks there were then."""

    path: str
    label: str
    mark: int
    before: int


class Marks:
    """The marks of one trace, and what could not be marked.

    `forced` are inputs, by their names without numbers, that are marked although they are points already.
    """

    def __init__(self, undo: ExitStack, forced: Collection[str] = ()):
        self.marks: list[Mark] = []
        self.unseen: dict[str, None] = {}
        self.kinds = model_kinds()
        self._undo = undo
        self._paths: dict[int, str] = {}
        self._known: list[Any] = []  # kept alive, so that no id is used again
        self._running: list[_Call] = []
        self._points: dict[int, tuple[Any, int]] = {}  # by id, kept alive: an array that is one, and its mark
        self.aliases: list[Alias] = []
        self._forced = forced
        self.shared: set[int] = set()  # inputs that were no points: their callers may read them again, unmarked
        self.scopes: set[str] = set()  # paths of the modules that ran, in the name stack of their equations

    def naming(self, module: Any, prefix: str = "") -> None:
        """Learn the names of a module tree (flax.nnx, equinox): for a function that calls parts of it by themselves.

        Call it inside the traced function on the module that is used there; a tree that is entered at its root needs
        none. The first name of a shared module holds.
        """
        self._known.append(module)
        for path, child in _tree(module):
            self._paths.setdefault(id(child), f"{prefix}.{path}".strip("."))

    def path(self) -> str:
        """Of the module that runs."""
        return self._running[-1].path if self._running else ""

    def mark_output(self, path: str, output: Any, function: Any) -> Any:
        """The output of a module with its arrays marked; `function` is what computed it."""
        return self._mark(path or ROOT, "", "module", output, "" if path else definition(function))

    def mark_inputs(
        self, path: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments and keywords of a module's `function`, the float arrays among them marked that are no point yet.

        What the root is given is no value of the model's. What stands in containers is left alone: a module may write
        there.
        """

        def marked(label: str, given: Any) -> Any:
            # what is no tracer is a constant, and may be read as a Python number
            if not isinstance(given, jax.core.Tracer) or not jnp.issubdtype(given.dtype, jnp.inexact):
                return given
            if id(given) in seen:
                return seen[id(given)]
            if not path:
                self._points[id(given)] = given, -1
            known, mark = self._points.get(id(given), (None, -1))
            if known is given and label_name(path, label) not in self._forced:
                if mark >= 0:
                    self.aliases.append(Alias(path, label, mark, len(self.marks)))
                return given
            if known is not given:
                self.shared.add(len(self.marks))
            seen[id(given)] = self._mark(path, label, GIVEN, given)
            return seen[id(given)]

        seen: dict[int, Any] = {}  # one tensor that is given twice stays one
        return map_inputs(function, args, kwargs, marked)

    def hear_einops(self, call: Call, output: Any) -> Any:
        """One einops call, in whichever module is running."""
        return self._mark(self.path(), call_label("", call.kind, call.pattern), "einops", output)

    def hear_tap(self, name: str, x: Any) -> Any:
        """One tap."""
        return self._mark(name, "", "tap", x)

    @contextmanager
    def running(self, module: Any, path: str | None = None, is_call: bool = True) -> Iterator[str]:
        """While a module's call or another method runs; gives its path, by identity, else as its caller's child."""
        if path is None:
            if not self._known:
                self.naming(module)
            path = self._paths.get(id(module))
        if path is None:
            path = self._running[-1].child(module) if self._running else type(module).__name__
        self._running.append(_Call(module, path, is_call))
        try:
            self.scopes.add(path)
            with jax.named_scope(path) if path else nullcontext():
                yield path
        finally:
            self._running.pop()

    def is_super_call(self, module: Any) -> bool:
        """Whether the module that runs calls its parent class."""
        return bool(self._running) and self._running[-1].module is module and self._running[-1].is_call

    def is_inside_another(self, module: Any) -> bool:
        """Whether a module runs, and not this one."""
        return bool(self._running) and self._running[-1].module is not module

    def _mark(self, path: str, label: str, source: str, output: Any, defined: str = "") -> Any:
        where = caller() or defined

        def visit(slot: str, leaf: Any) -> Any:
            if isinstance(leaf, jax.Array) and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
                self.marks.append(Mark(path, label + slot, source, where))
                self._undo.enter_context(_next_epoch())
                point = checkpoint_name(leaf, f"{PREFIX}{len(self.marks) - 1}")
                self._points[id(point)] = point, len(self.marks) - 1
                return point
            if isinstance(leaf, np.ndarray):
                self._skip(path, label + slot, "a NumPy array, a constant of the program")
            elif leaf is not None and not isinstance(leaf, jax.Array | bool | int | float | str | _opaque()):
                self._skip(path, label + slot, f"an output of type {type(leaf).__name__} is not looked into")
            return leaf

        return map_arrays(output, visit, _opaque())

    def _skip(self, path: str, label: str, reason: str) -> None:
        self.unseen.setdefault(f"{label_name(path, label)}: {reason}")


def label_name(path: str, label: str, iteration: Sequence[int] = ()) -> str:
    """The name of a point: the path, the iteration, then a slot or, after a slash, the call."""
    path += "".join(f"[{i}]" for i in iteration)
    slash = "/" if path and label and not label.startswith(":") else ""
    return f"{path}{slash}{label}"


@contextmanager
def marking(forced: Collection[str] = ()) -> Iterator[Marks]:
    """While it lasts, tracing a function marks every module output, einops call and tap.

    Modules are those of flax.linen, flax.nnx and equinox, as far as these are loaded; a class that is defined while it
    lasts is not seen (`marks.kinds` are those that are). The marked values themselves are unchanged.
    """
    with ExitStack() as undo:
        undo.enter_context(_next_epoch())
        marks = Marks(undo, forced)
        undo.enter_context(hearing_einops(marks.hear_einops))
        undo.enter_context(hearing_taps(marks.hear_tap))
        if "flax.linen" in sys.modules:
            undo.enter_context(sys.modules["flax.linen"].intercept_methods(functools.partial(_intercept, marks)))
        for kind in marks.kinds:
            _wrap_call(kind, marks, undo)
        yield marks


def traced(trace: Callable[[], Traced], forced: Collection[str] = ()) -> tuple[Traced, Marks]:
    """What `trace()` gives under marking, and its marks; once more if it has imported the modules that it runs."""
    for _ in range(2):
        with marking(forced) as marks:
            found = trace()
        late = model_kinds() - marks.kinds
        if not late:
            break
    for kind in late:
        marks.unseen.setdefault(f"{kind.__qualname__}: a class that the function itself defines; define it outside")
    return found, marks


@dataclass
class _Call:
    """A module that is running, and which of its children have run."""

    module: Any
    path: str
    is_call: bool
    entered: set[str] = field(default_factory=set)

    @functools.cached_property
    def children(self) -> list[tuple[str, Any]]:
        return [(path, node) for path, node in _tree(self.module) if path]

    def child(self, module: Any) -> str:
        """The path of a module that was rebuilt on the way: by identity, else the next child of its class."""
        same = [path for path, node in self.children if node is module]
        alike = [path for path, node in self.children if type(node) is type(module)]
        fresh = [path for path in alike if path not in self.entered]
        name = next(iter(same + fresh + alike), type(module).__name__)
        self.entered.add(name)
        return f"{self.path}.{name}".lstrip(".")


def _next_epoch() -> Any:
    global _num_epochs  # noqa: PLW0603 # never the same twice in a process
    _num_epochs += 1
    return _epoch(_num_epochs)


def model_kinds() -> set[type]:
    """The classes of modules that have a call of their own; not equinox's filter_jit and the like, modules too."""
    kinds = {kind for base in _bases() for kind in _subclasses(base) if "__call__" in vars(kind)}
    return {kind for kind in kinds if not re.match(r"equinox\.(?!nn\.)", kind.__module__)}


def _bases() -> tuple[type, ...]:
    """The module classes of the libraries that are loaded and whose calls are wrapped."""
    loaded = (("flax.nnx", "Module"), ("equinox", "Module"))
    return tuple(getattr(sys.modules[library], name) for library, name in loaded if library in sys.modules)


def _opaque() -> tuple[type, ...]:
    """What an output is not searched for arrays in: a module is no value."""
    variables = (sys.modules["flax.nnx"].Variable,) if "flax.nnx" in sys.modules else ()
    return (*_bases(), *variables)


def _subclasses(kind: Any) -> set[Any]:
    return {kind}.union(*(_subclasses(child) for child in kind.__subclasses__()))


def _wrap_call(kind: type, marks: Marks, undo: ExitStack) -> None:
    original = vars(kind)["__call__"]

    @functools.wraps(original)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = original.__get__(self, type(self))
        if marks.is_super_call(self):
            return call(*args, **kwargs)
        with marks.running(self) as path:
            args, kwargs = marks.mark_inputs(path, original, args, kwargs)
            return marks.mark_output(path, call(*args, **kwargs), original)

    type.__setattr__(kind, "__call__", run)  # equinox's metaclass has a rule of its own
    undo.callback(type.__setattr__, kind, "__call__", original)


def _intercept(marks: Marks, call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    """One method of a flax.linen module."""
    path = ".".join(context.module.path) if context.module.scope is not None else ""
    if not path and marks.is_inside_another(context.module):
        # applied by itself there, as a head that shares the embedding's weights is
        path = f"{marks.path()}.{context.module.name or type(context.module).__name__}".lstrip(".")
    is_call = context.method_name == "__call__"
    if is_call and marks.is_super_call(context.module):
        return call(*args, **kwargs)
    with marks.running(context.module, path, is_call):
        if is_call:
            args, kwargs = marks.mark_inputs(path, type(context.module).__call__, args, kwargs)
        output = call(*args, **kwargs)
        return marks.mark_output(path, output, type(context.module).__call__) if is_call else output


def _tree(module: Any) -> list[tuple[str, Any]]:
    """Path and module of a tree, the root's path being ""; each object once."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(module, nnx.Module):
        return [(".".join(map(str, path)), child) for path, child in nnx.iter_modules(module)]
    found: dict[int, tuple[str, Any]] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, _bases()):
            if id(value) in found:
                return
            found[id(value)] = (path, value)
            children: Any = vars(value).items()
        elif isinstance(value, tuple | list):
            children = enumerate(value)
        else:
            children = value.items() if isinstance(value, dict) else ()
        for key, child in children:
            walk(child, f"{path}.{key}".lstrip("."))

    walk(module, "")
    return list(found.values())
