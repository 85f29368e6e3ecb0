"""The matmul FLOPs of a JAX program by the module in which each matmul was written, forward or backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.extend.core import Jaxpr

from .count import RULES, Rule, jaxpr_flops, live, repeats, subjaxprs
from .marks import traced

#: Where a matmul stands that no module wrote.
OUTSIDE = ""


def placed_flops(function: Callable[..., Any], *args: Any, rules: Mapping[str, Rule] | None = None) -> dict[str, int]:
    """Matmul FLOPs of `function(*args)` by the path of the innermost module that wrote them (flax, equinox).

    Their sum is `traced_flops`. A backward matmul is its forward one's: transformations keep the name stack. What
    stands in a scan over stacked layers has no number of a layer, and counts for all of them.

    Raises:
        ValueError: as `traced_flops`.
    """
    program, marks = traced(lambda: live(jax.make_jaxpr(function)(*args).jaxpr))
    found: Counter[str] = Counter()
    _walk(program, {**RULES, **(rules or {})}, marks.scopes - {OUTSIDE}, OUTSIDE, 1, found)
    return dict(found)


def _walk(
    jaxpr: Jaxpr, rules: Mapping[str, Rule], known: set[str], outer: str, times: int, found: Counter[str]
) -> None:
    for equation in jaxpr.eqns:
        scopes = [each.name for each in equation.source_info.name_stack.stack if getattr(each, "name", "") in known]
        place = scopes[-1] if scopes else outer
        name, inner = equation.primitive.name, list(subjaxprs(equation))
        if not inner or name in rules or name in ("while", "cond"):
            count = jaxpr_flops(_alone(jaxpr, equation), rules)
            if count:
                found[place] += times * count
            continue
        for body in inner:
            _walk(body, rules, known, place, times * repeats(equation), found)


def _alone(jaxpr: Jaxpr, equation: Any) -> Jaxpr:
    """A program of one equation, which every rule of `jaxpr_flops` counts as it stands."""
    return jaxpr.replace(eqns=[equation])
