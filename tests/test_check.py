"""`parity.check` on small pairs made by hand: every rung and every verdict, and what leads to them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from parity import Jax, Options, Pair, ParityError, ParityUsageError, Result, Torch, check

ROWS, WIDTH, OUT = 13, 11, 7
#: float64 by type and by value: in float32 both sides have to round it
CONSTANT = np.linspace(0.1, 0.9, OUT) / 3
SHORT = Options(precisions=("float32",), batches=2, steps=2, flops=False)
WEIGHTS = {
    "w": np.random.default_rng(1).standard_normal((WIDTH, OUT)).astype(np.float32),
    "b": np.random.default_rng(2).standard_normal(OUT).astype(np.float32),
}


def inputs(generator: np.random.Generator) -> Mapping[str, np.ndarray]:
    return {"x": generator.standard_normal((ROWS, WIDTH)).astype(np.float32)}


def jax_function(parameters: Mapping[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
    hidden = jnp.tanh(jnp.matmul(x, parameters["w"]) + parameters["b"]) * jnp.asarray(CONSTANT, x.dtype)
    return {"hidden": hidden, "loss": jnp.mean(hidden * hidden)}


class Module(torch.nn.Module):
    """The same function with its parameters under the same names."""

    def __init__(self, parameters: Mapping[str, torch.Tensor]):
        super().__init__()
        for name, value in parameters.items():
            self.register_parameter(name, torch.nn.Parameter(value.clone()))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.tanh(x @ self.w + self.b) * torch.tensor(CONSTANT, dtype=x.dtype)
        return {"hidden": hidden, "loss": torch.mean(hidden * hidden)}


class Linear(Module):
    """Nothing but a product and a bias: it runs on the meta device too."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"hidden": x @ self.w + self.b}


def tensors(weights: Mapping[str, np.ndarray] = WEIGHTS) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value) for name, value in weights.items()}


def built(module: Callable[..., torch.nn.Module], label: str = "torch", optimizer: Any = None, **weights: Any) -> Torch:
    """A side of a module class that takes its parameters by name."""
    return Torch(module(tensors(weights or WEIGHTS)), label=label, optimizer=optimizer)


REFERENCE = built(Module, "torch", lambda parameters: torch.optim.Adam(parameters, lr=1e-3))
CANDIDATE = Jax(jax_function, optimizer=lambda: optax.adam(1e-3))
PAIR = Pair("by hand", REFERENCE, CANDIDATE, WEIGHTS, inputs, loss="loss", roundings=WIDTH)


def changed(change: Callable[[dict[str, jax.Array], Any], dict[str, Any]], **fields: Any) -> Pair:
    """The pair with the candidate's outputs put through `change(outputs, parameters)`."""

    def function(parameters: Mapping[str, jax.Array], **inputs: jax.Array) -> dict[str, Any]:
        return change(jax_function(parameters, **inputs), parameters)

    return replace(PAIR, candidate=replace(CANDIDATE, function=function), **fields)


def row(result: Result, name: str, stage: str = "float64") -> Any:
    return next(row for row in result.rows if row.name == name and row.stage == stage)


def test_the_same_function_passes() -> None:
    result = check(PAIR, SHORT)
    assert (result.verdict, result.rung, result.islands, result.first_difference) == ("PASS", "same-function", (), None)
    names = {(row.name, row.stage) for row in result.rows}
    for stage in ("float64", "float32"):
        assert {("hidden", stage), ("loss", stage), ("gradient w", stage), ("step mu b", stage)} <= names
    assert result.seed == SHORT.seed
    result.raise_if_different()


def test_the_same_seed_gives_the_same_numbers_and_another_seed_does_not() -> None:
    options = replace(SHORT, steps=0)
    first, second = check(PAIR, options), check(PAIR, options)
    assert first.rows == second.rows
    assert check(PAIR, replace(options, seed=1)).rows != first.rows


def test_a_float64_constant_serves_both_precisions_in_any_order() -> None:
    # a function traced with x64 and without must not share a trace: jax 0.10 to 0.12 raise or promote silently
    traced: list[str] = []

    @jax.jit
    def scaled(x: jax.Array) -> jax.Array:
        traced.append(str(x.dtype))
        return x * CONSTANT

    def function(parameters: Mapping[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        hidden = scaled(jnp.tanh(jnp.matmul(x, parameters["w"]) + parameters["b"]))
        return {"hidden": hidden, "loss": jnp.mean(hidden * hidden)}

    result = check(replace(PAIR, candidate=replace(CANDIDATE, function=function)), SHORT)
    assert (result.verdict, result.rung) == ("PASS", "same-function")
    assert {"float64", "float32"} <= set(traced)
    assert row(result, "hidden", "float64").dtype == "float64"
    assert row(result, "hidden", "float32").dtype == "float32"


@pytest.mark.parametrize("factor", [1 + 1e-9, 1 + 1e-4, 2.0])
def test_another_function_is_different_and_the_first_difference_is_named(factor: float) -> None:
    result = check(changed(lambda outputs, _: {**outputs, "hidden": outputs["hidden"] * factor}), SHORT)
    assert (result.verdict, result.rung, result.islands) == ("FAIL", "different", ())
    assert result.first_difference is row(result, "hidden")
    assert "no lower precision was seen" in result.reason
    assert result.exit_status == 1
    with pytest.raises(ParityError, match="hidden"):
        result.raise_if_different()


def test_a_difference_in_the_gradient_alone_is_seen() -> None:
    def detached(parameters: Mapping[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        return jax_function({**parameters, "b": jax.lax.stop_gradient(parameters["b"])}, x)

    result = check(replace(PAIR, candidate=replace(CANDIDATE, function=detached)), SHORT)
    assert (result.verdict, result.rung) == ("FAIL", "different")
    assert result.first_difference is not None
    assert result.first_difference.name == "gradient b"


@pytest.mark.parametrize("name", ["learning rate", "eps"])
def test_a_difference_in_the_optimizer_alone_is_seen(name: str) -> None:
    optimizer = {"learning rate": lambda: optax.adam(1.001e-3), "eps": lambda: optax.adam(1e-3, eps=1e-7)}[name]
    result = check(replace(PAIR, candidate=replace(CANDIDATE, optimizer=optimizer)), SHORT)
    assert (result.verdict, result.rung) == ("FAIL", "different")
    assert result.first_difference is not None
    assert result.first_difference.name.startswith("step parameters")


def test_equal_bits_at_the_working_precision_are_the_rung_bitwise() -> None:
    # one product per output and powers of two: nothing is rounded, in whatever order
    def function(parameters: Mapping[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        return {"y": x[:, :OUT] * parameters["w"][:1]}

    class Product(Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"y": x[:, :OUT] * self.w[:1]}

    weights = {"w": np.exp2(np.arange(2 * OUT) % 5).reshape(2, OUT).astype(np.float32)}
    pair = Pair(
        "bits",
        built(Product, **weights),
        Jax(function),
        weights,
        lambda generator: {"x": np.ones((ROWS, WIDTH), np.float32)},
    )
    result = check(pair, replace(SHORT, steps=0))
    assert (result.verdict, result.rung) == ("PASS", "bitwise")
    assert check(PAIR, SHORT).rung == "same-function", "rounding differs there: not every pair is bitwise"


def test_without_a_loss_every_float_output_is_projected_and_none_is_added() -> None:
    result = check(replace(PAIR, loss=None), replace(SHORT, steps=0))
    assert result.verdict == "PASS"
    outputs = [row.name for row in result.rows if row.stage == "float64" and not row.name.startswith("gradient")]
    assert outputs == ["hidden", "loss"], "the pair's own loss is compared, the projection is no output"
    detached = changed(lambda outputs, _: {**outputs, "hidden": jax.lax.stop_gradient(outputs["hidden"])}, loss=None)
    assert check(detached, replace(SHORT, steps=0)).rung == "different", "hidden is part of the projection"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda outputs, _: {**outputs, "more": outputs["hidden"]}, "only the candidate has it"),
        (lambda outputs, _: {"loss": outputs["loss"]}, "only the reference has it"),
        (lambda outputs, _: {**outputs, "hidden": outputs["hidden"].T}, "shape (13, 7) against (7, 13)"),
        (lambda outputs, _: {**outputs, "hidden": outputs["hidden"] > 0}, "type float64 against bool"),
        (lambda outputs, _: {**outputs, "hidden": outputs["hidden"] + 0j}, "complex numbers are not judged"),
    ],
)
def test_names_shapes_and_types_have_to_be_equal(change: Any, problem: str) -> None:
    result = check(changed(change), SHORT)
    assert (result.verdict, result.rung) == ("FAIL", "different")
    assert result.first_difference is not None
    assert problem in result.first_difference.derivation


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_or_infinity_on_one_side_fails(bad: float) -> None:
    def poison(outputs: dict[str, jax.Array], _: Any) -> dict[str, jax.Array]:
        return {**outputs, "hidden": outputs["hidden"].at[2, 3].set(bad)}

    result = check(changed(poison), SHORT)
    assert (result.verdict, result.rung) == ("FAIL", "different")
    assert row(result, "hidden").measured == math.inf


def test_nan_everywhere_on_both_sides_is_vacuous() -> None:
    class Nothing(Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            outputs = super().forward(x)
            return {**outputs, "hidden": outputs["hidden"] * math.nan}

    pair = changed(lambda outputs, _: {**outputs, "hidden": outputs["hidden"] * math.nan})
    result = check(replace(pair, reference=replace(REFERENCE, function=Nothing(tensors()))), SHORT)
    assert (result.verdict, result.rung, result.exit_status) == ("VACUOUS", None, 1)
    assert "hidden" in result.reason


def test_a_loss_that_depends_on_no_parameter_is_vacuous() -> None:
    class Constant(Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            outputs = super().forward(x)
            return {**outputs, "loss": 0 * outputs["loss"]}

    pair = changed(lambda outputs, _: {**outputs, "loss": 0 * outputs["loss"]})
    result = check(replace(pair, reference=replace(REFERENCE, function=Constant(tensors()))), SHORT)
    assert result.verdict == "VACUOUS"
    assert "the loss depends on no parameter" in result.reason


def test_a_loss_that_counts_no_token_is_vacuous() -> None:
    from jaxcore.presets import PRESETS, shrink
    from parity.pairs.transformer import Source, transformer_pair

    config = replace(shrink(PRESETS["tiny"]), num_layers=1)
    pair = transformer_pair("ignored", config, Source(np.arange(50), "numbers"), batch=1, seq=8)
    drawn = pair.inputs

    def nothing_counts(generator: np.random.Generator) -> Mapping[str, np.ndarray]:
        batch = drawn(generator)
        return {**batch, "targets": np.full_like(batch["targets"], -100)}

    result = check(replace(pair, inputs=nothing_counts), Options(precisions=(), batches=1, steps=0, flops=False))
    assert result.verdict == "VACUOUS"
    assert "the loss depends on no parameter" in result.reason


def test_whole_numbers_are_compared() -> None:
    class Choosing(Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            outputs = super().forward(x)
            return {**outputs, "best": outputs["hidden"].argmax(-1)}

    reference = replace(REFERENCE, function=Choosing(tensors()))

    def choose(shift: int) -> Result:
        pair = changed(lambda outputs, _: {**outputs, "best": jnp.argmax(outputs["hidden"], -1) + shift})
        return check(replace(pair, reference=reference), SHORT)

    assert choose(0).verdict == "PASS"
    result = choose(1)
    assert (result.verdict, row(result, "best").measured) == ("FAIL", 1.0)


def cast_inside(dtype: str) -> Pair:
    """The pair whose candidate computes its tanh in another type."""

    def function(parameters: Mapping[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        hidden = jnp.tanh((jnp.matmul(x, parameters["w"]) + parameters["b"]).astype(dtype)).astype(x.dtype)
        hidden = hidden * jnp.asarray(CONSTANT, x.dtype)
        return {"hidden": hidden, "loss": jnp.mean(hidden * hidden)}

    return replace(PAIR, candidate=replace(CANDIDATE, function=function))


def test_a_cast_to_float32_is_an_island_with_its_place() -> None:
    result = check(cast_inside("float32"), SHORT)
    assert (result.verdict, result.rung, result.exit_status) == ("PASS", "float32-island", 0)
    assert {(island.side, island.dtype) for island in result.islands} == {("jax", "float32")}
    assert any(island.source.startswith("test_check.py:") for island in result.islands)
    assert next(row.name for row in result.rows if row.verdict == "ISLAND") == "hidden"


def table_pair(table: Callable[[Any], jax.Array]) -> Pair:
    """The candidate multiplies by sin(1), sin(2) ... as `table(dtype)` computes them, the reference in its own type."""

    def function(parameters: Mapping[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        return {"hidden": jnp.tanh(jnp.matmul(x, parameters["w"])) * table(x.dtype)}

    class Table(Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"hidden": torch.tanh(x @ self.w) * torch.sin(1 + torch.arange(OUT, dtype=x.dtype))}

    return Pair("table", built(Table, w=WEIGHTS["w"]), Jax(function), {"w": WEIGHTS["w"]}, inputs)


def test_a_table_computed_in_float32_is_an_island_too() -> None:
    result = check(table_pair(lambda dtype: jnp.sin(1 + jnp.arange(OUT, dtype="float32")).astype(dtype)), SHORT)
    assert (result.verdict, result.rung) == ("PASS", "float32-island")
    assert {(island.side, island.dtype) for island in result.islands} == {("jax", "float32")}
    assert check(table_pair(lambda dtype: jnp.sin(1 + jnp.arange(OUT, dtype=dtype))), SHORT).islands == ()


def test_a_table_whose_digits_are_lost_before_the_program_sees_it_is_excused_by_what_a_rounding_moves() -> None:
    # nothing can widen it; there is no place within either side, so that it is born where the table is
    narrow = np.sin(1 + np.arange(OUT)).astype(np.float32).astype(np.float64)
    result = check(table_pair(lambda dtype: jnp.asarray(narrow, dtype)), SHORT)
    assert (result.verdict, result.rung) == ("PASS", "float32-island")
    assert [(island.side, island.operation, island.dtype) for island in result.islands] == [
        ("jax", "constant", "float64")
    ]
    assert any("one unit in the last place of the float32 tables" in each.derivation for each in result.rows)
    short = (narrow * (1 + 1e-6)).astype(np.float32).astype(np.float64)
    result = check(table_pair(lambda dtype: jnp.asarray(short, dtype)), SHORT)
    assert (result.verdict, result.rung) == ("FAIL", "different")
    assert "does not close the gap" in result.reason


@pytest.mark.parametrize(("dtype", "rung"), [("float32", "float32-island"), ("bfloat16", "different")])
def test_an_output_that_is_narrow_in_float64_is_judged_by_what_was_seen_and_not_by_a_size(
    dtype: str, rung: str
) -> None:
    result = check(changed(lambda outputs, _: {**outputs, "hidden": outputs["hidden"].astype(dtype)}), SHORT)
    assert result.rung == rung
    first = next(row for row in result.rows if row.verdict != "PASS")
    assert first.derivation == f"type float64 against {dtype}"


def test_a_cast_to_bfloat16_is_no_island() -> None:
    result = check(cast_inside("bfloat16"), SHORT)
    assert (result.verdict, result.rung) == ("FAIL", "different")
    assert result.reason.endswith("bfloat16 was seen in jax, which is less than float32")


def test_a_fault_of_float32_size_beside_an_island_stays_different() -> None:
    def both(parameters: Mapping[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        hidden = jnp.tanh((jnp.matmul(x, parameters["w"]) + parameters["b"]).astype("float32")).astype(x.dtype)
        hidden = hidden * jnp.asarray(CONSTANT, x.dtype) * (1 + 1e-8)
        return {"hidden": hidden, "loss": jnp.mean(hidden * hidden)}

    result = check(replace(PAIR, candidate=replace(CANDIDATE, function=both)), SHORT)
    assert (result.verdict, result.rung) == ("FAIL", "different")
    assert result.islands
    assert "does not close the gap" in result.reason


def test_a_needlessly_inaccurate_side_fails_although_the_functions_agree() -> None:
    # float32 run through bfloat16, float64 untouched: what a library's fast mode does
    def fast(parameters: Mapping[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        if x.dtype == jnp.float32:
            x = x.astype("bfloat16").astype("float32")
        return jax_function(parameters, x)

    result = check(replace(PAIR, candidate=replace(CANDIDATE, function=fast)), SHORT)
    assert (result.verdict, result.rung) == ("FAIL", "same-function")
    assert "jax is further from its float64" in result.reason
    assert result.first_difference is not None
    assert result.first_difference.stage == "float32"


def test_a_step_that_leaves_the_range_of_float16_on_both_sides_fails_and_nothing_else_is_lost() -> None:
    # Adam's eps of 1e-8 is zero in float16, and so is the second moment: nothing is left but 0 / 0
    result = check(PAIR, replace(SHORT, precisions=("float16",)))
    assert (result.verdict, result.rung) == ("FAIL", "same-function"), result.reason
    step = row(result, "step parameters w", "float16")
    assert step.verdict == "FAIL"
    assert step.derivation.startswith("both sides are wrong alike: ")
    assert step.derivation.endswith("elements are NaN or infinite, their float64 is finite and in range")
    assert row(result, "near-eps stream parameters matrix", "float16").verdict == "FAIL"
    assert row(result, "hidden", "float16").verdict == "PASS"


def test_without_an_optimizer_or_steps_no_step_is_judged() -> None:
    for pair, options in (
        (
            replace(PAIR, reference=replace(REFERENCE, optimizer=None), candidate=replace(CANDIDATE, optimizer=None)),
            SHORT,
        ),
        (PAIR, replace(SHORT, steps=0)),
    ):
        result = check(pair, options)
        assert result.verdict == "PASS"
        assert not [row for row in result.rows if "step" in row.name or "stream" in row.name]


def test_a_parameter_that_the_loss_does_not_reach_is_zero_on_both_sides() -> None:
    # PyTorch leaves no gradient there, and an optimizer that skips it would skip its weight decay as well
    class Decayed(Module):
        pass

    weights = {**WEIGHTS, "unused": np.ones(3, np.float32)}
    pair = replace(
        PAIR,
        weights=weights,
        reference=built(Decayed, optimizer=lambda each: torch.optim.AdamW(each, lr=1e-3, weight_decay=0.1), **weights),
        candidate=Jax(jax_function, optimizer=lambda: optax.adamw(1e-3, weight_decay=0.1)),
    )
    result = check(pair, SHORT)
    assert result.verdict == "PASS", result.reason
    assert result.zero_gradients == ()
    assert row(result, "gradient unused").measured == 0, "an exact zero carries no noise, and is compared"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precisions": ("float64",)}, "precisions: of float32, float16, bfloat16, tensorfloat32, got 'float64'"),
        ({"precisions": ("tf32",)}, "precisions: of float32, float16, bfloat16, tensorfloat32, got 'tf32'"),
        (
            {"precisions": ("tensorfloat32",)},
            "precisions: tensorfloat32 on a GPU, which alone has it, got cpu; use device",
        ),
        ({"batches": 0}, "batches: at least 1, got 0"),
        ({"steps": -1}, "steps: at least 0, got -1"),
        ({"seed": -1}, "seed: at least 0, got -1"),
    ],
)
def test_options_that_no_check_can_have_are_the_callers_mistake(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParityUsageError, match=message):
        Options(**options)


def test_progress_names_every_stage() -> None:
    said: list[str] = []
    check(PAIR, SHORT, said.append)
    assert [line.split(":")[0] for line in said] == ["float64"] * 3 + ["float32"] * 2


def test_two_sides_of_one_framework_are_counted_apart() -> None:
    class Twice(Linear):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"hidden": super().forward(x)["hidden"] + 0 * (x @ self.w)}

    twice = replace(PAIR, reference=built(Linear, "once"), candidate=built(Twice, "twice"), loss=None)
    result = check(twice, precisions=(), batches=1, steps=0)
    assert (result.verdict, result.work.equal) == ("FAIL", False)
    forward = 2 * ROWS * WIDTH * OUT
    assert result.work.flops["forward"] == {"torch": forward, "torch twice": 2 * forward}
    same = check(replace(twice, candidate=built(Linear, "again")), precisions=(), batches=1, steps=0)
    assert (same.verdict, same.work.equal) == ("PASS", True)
    assert re.search(rf"torch \(on meta device\), twice +{2 * forward:,} ", str(result))


def test_work_that_cannot_be_counted_is_a_note_and_no_error() -> None:
    class Reads(Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            assert x.sum().item() < np.inf  # a value, and the meta device has none
            return {"hidden": x @ self.w + self.b}

    def solves(parameters: Mapping[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        same = jnp.linalg.qr(jnp.eye(ROWS, dtype=x.dtype))[0]  # products that the trace does not show
        return {"hidden": jnp.abs(same) @ x @ parameters["w"] + parameters["b"]}

    result = check(replace(PAIR, reference=built(Reads), candidate=Jax(solves), loss=None), precisions=(), steps=0)
    assert (result.verdict, result.work.equal) == ("PASS", None)
    assert result.work.flops["forward"]["torch"] is result.work.flops["forward_backward"]["jaxpr"] is None
    assert any(note.startswith("torch by torch: no count, ") for note in result.work.notes)
    assert any(note.startswith("jax by jaxpr: no count, ") and "got qr" in note for note in result.work.notes)
    assert "jaxpr, torch: not every count could be made, so that they are not compared" in str(result)


def test_work_is_counted_whatever_the_verdict() -> None:
    minus = Jax(lambda p, x: {"hidden": x @ p["w"] - p["b"]})
    wrong = replace(PAIR, reference=built(Linear), candidate=minus, loss=None)
    result = check(wrong, precisions=(), batches=1, steps=0)
    assert (result.verdict, result.rung, result.work.equal) == ("FAIL", "different", True)
    assert "are equal integers" in str(result)


def lazily(garbage: bool) -> optax.GradientTransformation:
    """Adam that does something else to every element that never had a gradient."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        steps, state = optax.adamw(1e-3, weight_decay=0.1).update(updates, state, params)
        nu = state[0].nu
        return jax.tree.map(lambda s, v: jnp.where(v == 0, 12345.0 if garbage else 0.0, s), steps, nu), state

    return optax.GradientTransformation(optax.adamw(1e-3, weight_decay=0.1).init, update)


@pytest.mark.parametrize("garbage", [False, True], ids=["no decay", "garbage"])
def test_elements_without_a_gradient_are_judged_too(garbage: bool) -> None:
    def sparse(generator: np.random.Generator) -> Mapping[str, np.ndarray]:
        return {"x": inputs(generator)["x"] * (np.arange(WIDTH) % 2)}  # half the rows of w are never reached

    decayed = replace(REFERENCE, optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1))
    right = replace(CANDIDATE, optimizer=optax.adamw(1e-3, weight_decay=0.1))
    pair = replace(PAIR, reference=decayed, candidate=right, inputs=sparse)
    assert check(pair, SHORT).verdict == "PASS"
    result = check(replace(pair, candidate=replace(CANDIDATE, optimizer=lazily(garbage))), SHORT)
    assert (result.verdict, result.rung) == ("FAIL", "different")
    assert result.first_difference.name == "step parameters w"


@pytest.mark.parametrize("seed", range(8))
def test_one_batch_given_eight_times_is_one_batch(seed: int) -> None:
    """Eight equal errors of one number are one error: chance must be counted over it alone."""
    weights = {"s": np.float32(0.7)}

    class Scalar(Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": torch.sum(torch.sin(x * self.s)) - torch.sum(torch.sin(x.flip(0) * self.s * 1.0000001))}

    def scalar(parameters: Mapping[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        s = parameters["s"]
        return {"loss": jnp.sum(jnp.sin(x * s)) - jnp.sum(jnp.sin(jnp.flip(x) * s * 1.0000001))}

    given = {"x": np.random.default_rng(seed).standard_normal(5).astype(np.float32)}
    result = check(Pair("scalar", built(Scalar, **weights), Jax(scalar), weights, given, loss="loss"), SHORT)
    assert result.verdict in ("PASS", "ABSTAIN"), result.reason


OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "groups": (
        lambda p: torch.optim.Adam([{"params": p[:1], "lr": 1e-3}, {"params": p[1:], "lr": 1e-2}]),
        optax.multi_transform({"a": optax.adam(1e-3), "b": optax.adam(1e-2)}, {"w": "a", "b": "b"}),
    ),
    "mask by name": (
        lambda p: torch.optim.AdamW([{"params": p[:1]}, {"params": p[1:], "weight_decay": 0.0}], weight_decay=0.1),
        optax.adamw(1e-3, weight_decay=0.1, mask={"w": True, "b": False}),
    ),
    "frozen": (
        lambda p: torch.optim.Adam(p[:1], lr=1e-3),
        optax.multi_transform({"a": optax.adam(1e-3), "b": optax.set_to_zero()}, {"w": "a", "b": "b"}),
    ),
    "rmsprop": (
        lambda p: torch.optim.RMSprop(p, lr=1e-3, alpha=0.9, eps=1e-8),
        optax.rmsprop(1e-3, decay=0.9, eps=1e-8, eps_in_sqrt=False, bias_correction=False),
    ),
    "momentum": (lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9), optax.sgd(1e-3, momentum=0.9)),
}


@pytest.mark.parametrize("name", ["groups", "mask by name", "frozen", "rmsprop", "momentum"])
@pytest.mark.parametrize("turned", [False, True], ids=["torch first", "jax first"])
def test_the_usual_optimizers_pass(name: str, turned: bool) -> None:
    in_torch, in_optax = OPTIMIZERS[name]
    sides = replace(REFERENCE, optimizer=in_torch), replace(CANDIDATE, optimizer=in_optax)
    reference, candidate = reversed(sides) if turned else sides
    result = check(replace(PAIR, reference=reference, candidate=candidate), SHORT)
    assert (result.verdict, result.rung) == ("PASS", "same-function"), result.reason


def test_a_moment_that_one_optimizer_alone_keeps_is_told() -> None:
    plain = replace(REFERENCE, optimizer=lambda p: torch.optim.SGD(p, lr=1e-3))
    kept = replace(CANDIDATE, optimizer=optax.sgd(1e-3, momentum=0.0))
    result = check(replace(PAIR, reference=plain, candidate=kept), SHORT)
    assert result.verdict == "PASS"
    assert "only jax's optimizer keeps mu: not compared" in result.notes


def test_batches_may_differ_in_length() -> None:
    def any_length(generator: np.random.Generator) -> Mapping[str, np.ndarray]:
        return {"x": generator.standard_normal((int(generator.integers(3, 9)), WIDTH)).astype(np.float32)}

    assert check(replace(PAIR, inputs=any_length), replace(SHORT, batches=4, steps=3)).verdict == "PASS"


def test_inputs_are_made_exact_in_the_precision_that_is_judged() -> None:
    """Near 1 in float64: x - 1 of an input that float32 cannot hold would drown a bfloat16 result."""

    def near_one(generator: np.random.Generator) -> Mapping[str, np.ndarray]:
        return {"x": 1 + 1e-6 * generator.standard_normal((ROWS, WIDTH))}

    class Minus(Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"hidden": (x - 1) @ self.w + 0 * self.b}

    def coarse(parameters: Mapping[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        y = (x - 1) @ parameters["w"] + 0 * parameters["b"]
        return {"hidden": y if y.dtype == jnp.float64 else y.astype(jnp.bfloat16).astype(y.dtype)}

    pair = Pair("near one", built(Minus), Jax(coarse), WEIGHTS, near_one)
    result = check(pair, SHORT)
    assert (result.verdict, result.first_difference.stage) == ("FAIL", "float32")


def test_where_float32_overflows_it_is_no_scale() -> None:
    weights = {"w": np.full((WIDTH, 211), 1e25, np.float32), "b": np.full((211, OUT), 1e25, np.float32)}

    class Twice(Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"hidden": (x @ self.w) @ self.b}

    candidate = Jax(lambda p, x: {"hidden": (x @ p["w"]) @ p["b"]})
    result = check(Pair("large", built(Twice, **weights), candidate, weights, inputs), replace(SHORT, precisions=()))
    assert (result.verdict, result.rung) == ("PASS", "same-function"), result.reason


def test_whole_numbers_alone_are_compared() -> None:
    class Ranks(Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"best": torch.argmax(x @ self.w, dim=-1)}

    for sign, verdict in ((1, "PASS"), (-1, "FAIL")):
        candidate = Jax(lambda p, x, sign=sign: {"best": jnp.argmax(sign * (x @ p["w"]), axis=-1)})
        result = check(Pair("ranks", built(Ranks), candidate, WEIGHTS, inputs), SHORT)
        assert (result.verdict, row(result, "best").verdict) == (verdict, verdict)


def test_long_sums_over_a_batch_are_no_alarm_in_float32() -> None:
    def long(generator: np.random.Generator) -> Mapping[str, np.ndarray]:
        return {"x": generator.standard_normal((8192, WIDTH)).astype(np.float32)}

    pair = replace(PAIR, reference=built(Linear), candidate=Jax(lambda p, x: {"hidden": x @ p["w"] + p["b"]}))
    assert check(replace(pair, inputs=long, loss=None, roundings=1), SHORT).verdict == "PASS"


def test_dropout_that_is_left_on_is_told_as_such() -> None:
    class Drops(Linear):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"hidden": torch.nn.functional.dropout(super().forward(x)["hidden"], 0.1, self.training)}

    class Evaluates(Drops):
        def __init__(self, parameters: Mapping[str, torch.Tensor]):
            super().__init__(parameters)
            self.eval()

    candidate = Jax(lambda p, x: {"hidden": x @ p["w"] + p["b"]})
    pair = replace(PAIR, reference=built(Drops), candidate=candidate, loss=None)
    message = (
        r"torch: a function of its weights and inputs alone, got 'hidden' that differs by \S+ between two runs; turn"
    )
    with pytest.raises(ParityUsageError, match=message):
        check(pair, SHORT)
    assert check(replace(pair, reference=built(Evaluates)), SHORT).verdict == "PASS"


def test_arrays_of_a_framework_are_inputs_too_and_others_are_told_so() -> None:
    weights = {name: torch.from_numpy(value) for name, value in WEIGHTS.items()}
    given = {"x": jnp.asarray(inputs(np.random.default_rng(5))["x"])}
    assert check(replace(PAIR, weights=weights, inputs=given), SHORT).verdict == "PASS"
    with pytest.raises(ParityUsageError, match=r"inputs: a tuple or dict of arrays, got ndarray; write"):
        check(replace(PAIR, inputs=np.zeros((4, 5))), SHORT)
    with pytest.raises(ParityUsageError, match="weights: arrays of numbers, got 'w' of type <U5; convert it"):
        check(replace(PAIR, weights={**WEIGHTS, "w": "words"}), SHORT)


def test_whole_numbers_beyond_32_bits_are_what_jax_without_x64_loses() -> None:
    ids = {"x": np.array([3, 2**32 + 5])}
    pair = Pair("ids", Torch(lambda x: x * 3), Jax(lambda x: x * 3), inputs=ids)
    result = check(pair, SHORT)
    assert (result.verdict, result.first_difference.stage) == ("FAIL", "float32"), result.reason
    assert "jax" in result.reason
    assert check(replace(pair, candidate=pair.reference), SHORT).verdict == "PASS"
    assert check(replace(pair, inputs={"x": np.array([3, 5])}), SHORT).verdict == "PASS"


def test_an_optax_transformation_will_do_and_an_optimizer_of_other_parameters_will_not() -> None:
    assert check(replace(PAIR, candidate=replace(CANDIDATE, optimizer=optax.adam(1e-3))), SHORT).verdict == "PASS"
    made = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))])
    with pytest.raises(ParityUsageError, match=r"give lambda parameters: Adam\(parameters, \.\.\.\)"):
        check(replace(PAIR, reference=replace(REFERENCE, optimizer=made)), SHORT)


def test_names_that_differ_are_told_as_names_and_no_island_is_looked_for() -> None:
    candidate = Jax(lambda p, x: {"concealed": jax_function(p, x)["hidden"], "loss": jax_function(p, x)["loss"]})
    result = check(replace(PAIR, reference=built(Module), candidate=candidate), SHORT)
    assert (result.verdict, result.rung) == ("FAIL", "different")
    assert result.reason == "output hidden: only the reference has it; both sides need the same names, shapes and types"
    assert "first difference: output hidden, torch against jax: only the reference has it" in str(result)


def test_weights_that_are_not_the_modules_own_are_refused_by_name() -> None:
    class Wrapped(torch.nn.Module):
        def __init__(self, parameters: Mapping[str, torch.Tensor]):
            super().__init__()
            self.inner = Module(parameters)

    with pytest.raises(ParityUsageError, match=r"parameters of torch, got missing: inner.b, inner.w, surplus: b, w;"):
        check(replace(PAIR, reference=built(Wrapped), candidate=Jax(jax_function)), SHORT)


def test_a_step_counter_is_no_island() -> None:
    """torch.optim counts its steps in float32: a whole number, exact in any type."""
    slower = check(replace(PAIR, candidate=replace(CANDIDATE, optimizer=optax.adam(2e-3))), SHORT)
    assert (slower.verdict, slower.islands) == ("FAIL", ())
    assert "no lower precision was seen in the float64 optimizer steps" in slower.reason


def narrowed(dtype: Any) -> optax.GradientTransformation:
    """Adam whose step passes through a narrower type."""
    return optax.chain(
        optax.adam(1e-3),
        optax.stateless(lambda updates, _: jax.tree.map(lambda x: x.astype(dtype).astype(x.dtype), updates)),
    )


class Narrowed(torch.optim.Adam):
    """The same in PyTorch."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        parameters = self.param_groups[0]["params"]
        before = [parameter.clone() for parameter in parameters]
        super().step()
        for parameter, old in zip(parameters, before, strict=True):
            parameter.copy_(old + (parameter - old).float())


@pytest.mark.parametrize("side", ["jax", "torch"])
def test_a_float32_cast_inside_an_optimizer_is_an_island(side: str) -> None:
    if side == "jax":
        pair = replace(PAIR, candidate=replace(CANDIDATE, optimizer=lambda: narrowed("float32")))
    else:
        pair = replace(PAIR, reference=replace(REFERENCE, optimizer=lambda parameters: Narrowed(parameters, lr=1e-3)))
    result = check(pair, SHORT)
    assert (result.verdict, result.rung) == ("PASS", "float32-island")
    seen = [island for island in result.islands if island.side == side and island.operation != "constant"]
    assert seen, result.islands
    assert {row.verdict for row in result.rows if row.stage == "float64"} == {"ISLAND", "PASS"}
    assert all("step" in row.name or "stream" in row.name for row in result.rows if row.verdict == "ISLAND")


def test_an_optimizer_that_is_another_one_is_no_island() -> None:
    bfloat16 = check(replace(PAIR, candidate=replace(CANDIDATE, optimizer=lambda: narrowed("bfloat16"))), SHORT)
    assert (bfloat16.verdict, bfloat16.rung) == ("FAIL", "different")
    assert "bfloat16 was seen in jax, which is less than float32" in bfloat16.reason
    slower = check(replace(PAIR, candidate=replace(CANDIDATE, optimizer=lambda: optax.adam(1e-3 * (1 + 1e-7)))), SHORT)
    assert (slower.verdict, slower.rung) == ("FAIL", "different")


@pytest.mark.parametrize("precisions", [("bfloat16", "float32"), ("bfloat16", "float16"), ("float32", "float16")])
def test_the_precisions_may_come_in_any_order(precisions: tuple[str, ...]) -> None:
    # an eps that float16 holds
    reference = replace(REFERENCE, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3, eps=1e-6))
    candidate = replace(CANDIDATE, optimizer=optax.adam(1e-3, eps=1e-6))
    result = check(replace(PAIR, reference=reference, candidate=candidate), replace(SHORT, precisions=precisions))
    assert (result.verdict, list(dict.fromkeys(row.stage for row in result.rows))) == ("PASS", ["float64", *precisions])


def test_training_amplifies_nothing_along_one_path() -> None:
    """A gradient near Adam's eps turns rounding into a visible step; the next gradient must not be taken there."""
    tiny = {"w": WEIGHTS["w"], "b": np.full(OUT, 1e-9, np.float32)}

    def small(generator: np.random.Generator) -> Mapping[str, np.ndarray]:
        return {"x": inputs(generator)["x"] * np.float32(1e-5)}

    result = check(replace(PAIR, weights=tiny, inputs=small), replace(SHORT, steps=20))
    steps = [row for row in result.rows if row.name.startswith("step") and row.stage == "float64"]
    assert result.verdict == "PASS"
    assert max(row.measured / row.bound for row in steps) < 0.5


def test_an_optimizer_on_one_side_only_is_refused() -> None:
    with pytest.raises(ParityUsageError, match="optimizer: on both sides or on neither"):
        check(replace(PAIR, candidate=Jax(jax_function)), SHORT)


def test_one_batch_and_options_by_name_will_do() -> None:
    one = replace(PAIR, inputs=inputs(np.random.default_rng(5)))
    result = check(one, grads=False, precisions=("float32",), batches=2, flops=False)
    assert (result.verdict, {row.name for row in result.rows}) == ("PASS", {"hidden", "loss"})
    with pytest.raises(ParityUsageError, match=r"check: options are .*, got tolerance; use one of them"):
        check(one, tolerance=1e-3)


@pytest.mark.parametrize(
    ("function", "loss", "message"),
    [
        (lambda parameters, x: {"loss": "words"}, "loss", "jax: must return arrays, got str for 'loss'"),
        (lambda parameters, x: (), "loss", "jax: must return arrays, got none in tuple"),
        (jax_function, "nope", "loss: one of the outputs hidden, loss, got 'nope'"),
        (jax_function, "hidden", r"loss: a single number, got 'hidden' of shape \(13, 7\) from torch"),
        (
            lambda parameters, x: {"loss": parameters["kernel"]},
            "loss",
            r"jax: a function that runs .* got KeyError at test_check\.py:\d+: 'ker",
        ),
        (
            lambda parameters: {},
            "loss",
            "jax: a function that runs on these weights and inputs in float64, got TypeError",
        ),
    ],
)
def test_outputs_that_are_none_are_refused_in_one_line(function: Any, loss: str, message: str) -> None:
    with pytest.raises(ParityUsageError, match=message):
        check(replace(PAIR, candidate=replace(CANDIDATE, function=function), loss=loss), SHORT)


def test_after_its_budget_a_check_begins_no_stage_and_says_what_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10**6, 40))  # every look at the clock is 40 seconds later
    monkeypatch.setattr("time.perf_counter", lambda: float(next(now)))
    result = check(PAIR, replace(SHORT, flops=True), budget=70)
    assert result.verdict == "PASS"
    assert {row.stage for row in result.rows} == {"float64"}
    left_out = [note for note in result.notes if note.startswith("left out, 70 s being over: ")]
    assert [note.rpartition(": ")[2] for note in left_out] == ["optimizer streams in float64", "float32", "FLOP counts"]
    said = (
        "what was compared agrees; left out, the budget being over: optimizer streams in float64, float32, FLOP counts"
    )
    assert result.reason == said
    with pytest.raises(ParityUsageError, match="budget: at least 1, got 0"):
        check(PAIR, SHORT, budget=0)


def test_complex_outputs_of_both_sides_are_refused() -> None:
    pair = Pair("fft", Torch(torch.fft.fft), Jax(jnp.fft.fft), inputs=lambda g: (g.standard_normal((3, 8)),))
    with pytest.raises(ParityUsageError, match=r"^outputs: real arrays, got complex128 for 'output'"):
        check(pair, SHORT)


def test_a_function_of_inputs_that_raises_is_told_as_such() -> None:
    pair = Pair("same", Torch(lambda x: x), Jax(lambda x: x), inputs=lambda generator: 1 / 0)
    with pytest.raises(
        ParityUsageError, match=r"^inputs: a function .* got ZeroDivisionError at test_check\.py:\d+: d"
    ):
        check(pair, SHORT)


def test_bits_of_input_gradients_count_too() -> None:
    @jax.custom_vjp
    def scaled(x: jax.Array) -> jax.Array:
        return x * 1.1

    scaled.defvjp(lambda x: (scaled(x), None), lambda _, g: ((g * 0.5 + g * 0.25) + g * 0.35,))
    pair = Pair("scaled", Torch(lambda x: x * 1.1), Jax(scaled), inputs=lambda g: (g.standard_normal((4, 64)),))
    result = check(pair, replace(SHORT, precisions=("float32",)))
    assert (result.verdict, result.rung) == ("PASS", "same-function")
    assert row(result, "gradient input 0", "float32").measured > 0


def test_nothing_is_bitwise_if_a_precision_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair("same", Torch(lambda x: x + 0), Jax(lambda x: x + 0), inputs=lambda g: (g.standard_normal((4, 8)),))
    assert check(pair, SHORT, precisions=("float32",)).rung == "bitwise"
    monkeypatch.setattr("parity.stages.Stages.in_time", lambda self, stage: stage != "float32")
    assert check(pair, SHORT, precisions=("float32",)).rung == "same-function"


@pytest.mark.parametrize("shape", [(32, 16), (8, 64)])
def test_what_is_zero_in_theory_or_exact_by_luck_is_no_alarm_in_16_bits(shape: tuple[int, int]) -> None:
    weights = {"b": np.arange(shape[1], dtype=np.float32) / 7}
    pairs = [
        Pair("mean", Torch(lambda p, x: (x + p["b"]).mean()), Jax(lambda p, x: (x + p["b"]).mean()), weights),
        Pair(
            "centred",
            Torch(lambda x: (x - x.mean(-1, keepdim=True)).sum(-1)),
            Jax(lambda x: jnp.sum(x - x.mean(-1, keepdims=True), -1)),
        ),
    ]
    for pair in pairs:
        given = replace(pair, inputs=lambda g: (g.standard_normal(shape).astype(np.float32),))
        result = check(given, batches=4, steps=0, flops=False)
        assert result.verdict == "PASS", result.reason


def test_a_layer_norm_that_is_summed_up_is_zero_in_theory() -> None:
    def layer_norm(p: Any, x: jax.Array) -> jax.Array:
        centred = x - x.mean(-1, keepdims=True)
        y = centred / jnp.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
        return (y * p["weight"] + p["bias"]).sum()

    module = torch.nn.LayerNorm(16)
    held = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    reference = Torch(module, call=lambda module, x: module(x).sum())
    pair = Pair("sum", reference, Jax(layer_norm, held), inputs=lambda g: (g.standard_normal((32, 16)),))
    assert check(pair, batches=4, steps=0, flops=False).verdict != "FAIL"


def test_a_gradient_that_is_no_number_on_both_sides_is_no_pass() -> None:
    """sqrt behind a `where`: the branch that is not taken has a derivative of infinity, times zero."""
    x = np.array([[-1.0, 2.0, 3.0], [4.0, -5.0, 6.0]], np.float32)
    sides = (
        Torch(lambda x: torch.where(x > 0, torch.sqrt(x), torch.zeros_like(x))),
        Jax(lambda x: jnp.where(x > 0, jnp.sqrt(x), 0)),
    )
    result = check(Pair("sqrt", *sides, inputs=(x,)), flops=False)
    assert (result.verdict, result.exit_status) == ("VACUOUS", 1)
    assert result.reason == "gradient input 0: 2 of 6 elements are NaN on both sides, where nothing compares"


def test_no_steps_are_said_where_there_are_no_optimizers() -> None:
    def scaled(params: Any, x: Any) -> Any:
        return x * params["w"]

    pair = Pair("scaled", Torch(scaled), Jax(scaled), {"w": np.ones(3)}, (np.ones((2, 3)),))
    note = "optimizer steps: none, for the sides have no optimizers"
    assert note in check(pair, flops=False).notes
    assert note not in check(pair, flops=False, steps=0).notes


def test_a_module_that_a_function_closes_over_keeps_its_gradients() -> None:
    module = torch.nn.Linear(7, 3)
    module.weight.grad = torch.full((3, 7), 2.0)
    weight, bias = (tensor.detach().numpy() for tensor in module.parameters())
    # no module of the pair's own: its parameters stay float32, and so does the side
    candidate = Jax(lambda x: x @ weight.T + bias)
    result = check(Pair("closing", Torch(lambda x: module(x + 0)), candidate, inputs=small_rows), SHORT)
    assert result.verdict == "PASS"
    assert "torch having no float64" in result.reason
    assert (module.weight.grad.tolist(), module.bias.grad) == ([[2.0] * 7] * 3, None)


def small_rows(generator: np.random.Generator) -> dict[str, np.ndarray]:
    return {"x": generator.standard_normal((5, 7)).astype(np.float32)}


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "PASS"), (1.001, "FAIL")])
def test_a_type_that_one_side_keeps_in_16_bits_is_told_and_not_failed(factor: float, verdict: str) -> None:
    # NumPy's float64 number makes float32 of a bfloat16 array, and nothing of a float32 one
    parameters = {"weight": np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)}
    reference = Torch(lambda p, x: x @ p["weight"] / math.sqrt(8), parameters)
    candidate = Jax(lambda p, x: x @ p["weight"] / np.sqrt(8) * factor, parameters)
    pair = Pair("promoted", reference, candidate, inputs=small_rows)
    result = check(pair, batches=2, flops=False)
    assert result.verdict == verdict
    if verdict == "PASS":
        (row,) = [row for row in result.rows if row.stage == "bfloat16" and row.name == "output output"]
        assert (row.verdict, row.derivation) == ("ABSTAIN", "type bfloat16 against float32")
        assert any(note.startswith("bfloat16: output output is not compared") for note in result.notes)
        # a model of 16 bits has to keep them
        narrow = {"weight": parameters["weight"].astype(jnp.bfloat16)}
        sides = replace(reference, params=narrow), replace(candidate, params=narrow)
        assert check(replace(pair, reference=sides[0], candidate=sides[1]), batches=2, flops=False).verdict == "FAIL"


def test_bfloat16_inside_both_sides_is_not_judged() -> None:
    generator, low = np.random.default_rng(0), jnp.bfloat16
    shapes = {"scale": 7, "shift": 7, "square": (7, 7)}
    parameters = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    kinds = {
        # rounded once or twice: the float64 runs differ; and in float32 alone, where XLA leaves a rounding out
        "twice": (
            lambda p, x: torch.addcmul(p["shift"].bfloat16(), x.bfloat16(), p["scale"].bfloat16()).to(x.dtype),
            lambda p, x: (x.astype(low) * p["scale"].astype(low) + p["shift"].astype(low)).astype(x.dtype),
        ),
        "once": (
            lambda p, x: (x.bfloat16() @ p["square"].bfloat16()).to(x.dtype),
            lambda p, x: (x.astype(low) @ p["square"].astype(low)).astype(x.dtype),
        ),
    }
    for name, (mine, theirs) in kinds.items():
        pair = Pair("mixed", Torch(mine, parameters), Jax(theirs, parameters), inputs=small_rows)
        result = check(pair, SHORT)
        assert (result.verdict, result.rung) == ("ABSTAIN", None), (name, result.reason)
        assert "bfloat16 was seen in both sides" in result.reason
        wrong = Jax(lambda p, x, theirs=theirs: theirs(p, x) * 1.001, parameters)
        assert check(replace(pair, candidate=wrong), SHORT).rung == "different"
