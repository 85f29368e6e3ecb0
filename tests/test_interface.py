"""Whatever an owner has is a side: modules of every library, functions, containers, modes, state, weights."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import equinox
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx

import parity
from parity import Jax, Options, Pair, ParityUsageError, Torch, check

LOW = Options(precisions=("float32",), batches=2, steps=2, flops=False)
SHORT = replace(LOW, precisions=())
VOCABULARY, WIDTH, HIDDEN, EPS = 17, 12, 20, 1e-5


def array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy()


class Reference(torch.nn.Module):
    """Embedding, linear, LayerNorm, GELU, linear; gains and biases are those of a new module: ones and zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.up = torch.nn.Linear(WIDTH, HIDDEN)
        self.norm = torch.nn.LayerNorm(HIDDEN, eps=EPS)
        self.down = torch.nn.Linear(HIDDEN, WIDTH)

    def forward(self, tokens: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.up(self.embed(tokens) + extra))
        return self.down(torch.nn.functional.gelu(hidden, approximate="tanh"))


torch.manual_seed(0)
MODEL = Reference()


def inputs(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return generator.integers(0, VOCABULARY, (3, 5)), generator.standard_normal((3, 5, WIDTH))


def an_nnx_module(eps: float, dtype: Any = None) -> Any:
    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs, dtype=dtype)
            self.up = nnx.Linear(WIDTH, HIDDEN, rngs=rngs, dtype=dtype)
            self.norm = nnx.LayerNorm(HIDDEN, epsilon=eps, rngs=rngs, dtype=dtype)
            self.down = nnx.Linear(HIDDEN, WIDTH, rngs=rngs, dtype=dtype)

        def __call__(self, tokens: jax.Array, extra: jax.Array) -> jax.Array:
            return self.down(nnx.gelu(self.norm(self.up(self.embed(tokens) + extra))))

    model = Model(nnx.Rngs(0))
    model.embed.embedding[...] = array(MODEL.embed.weight)
    for mine, theirs in ((model.up, MODEL.up), (model.down, MODEL.down)):
        mine.kernel[...], mine.bias[...] = array(theirs.weight).T, array(theirs.bias)
    return model


def a_linen_module(eps: float, dtype: Any = None) -> parity.Linen:
    class Model(flax.linen.Module):
        dtype: Any = None

        @flax.linen.compact
        def __call__(self, tokens: jax.Array, extra: jax.Array) -> jax.Array:
            hidden = flax.linen.Embed(VOCABULARY, WIDTH, name="embed", dtype=self.dtype)(tokens) + extra
            hidden = flax.linen.Dense(HIDDEN, name="up", dtype=self.dtype)(hidden)
            hidden = flax.linen.gelu(flax.linen.LayerNorm(epsilon=eps, name="norm", dtype=self.dtype)(hidden))
            return flax.linen.Dense(WIDTH, name="down", dtype=self.dtype)(hidden)

    dense = {
        name: {"kernel": array(each.weight).T, "bias": array(each.bias)}
        for name, each in (("up", MODEL.up), ("down", MODEL.down))
    }
    norm = {"scale": np.ones(HIDDEN, np.float32), "bias": np.zeros(HIDDEN, np.float32)}
    return parity.Linen(
        Model(dtype), {"params": {"embed": {"embedding": array(MODEL.embed.weight)}, "norm": norm, **dense}}
    )


def an_equinox_module(eps: float) -> Any:
    class Model(equinox.Module):
        embed: equinox.nn.Embedding
        up: equinox.nn.Linear
        norm: equinox.nn.LayerNorm
        down: equinox.nn.Linear

        def __call__(self, tokens: jax.Array, extra: jax.Array) -> jax.Array:
            def one(token: jax.Array, more: jax.Array) -> jax.Array:
                return self.down(jax.nn.gelu(self.norm(self.up(self.embed(token) + more))))

            return jax.vmap(jax.vmap(one))(tokens, extra)

    def linear(given: torch.nn.Linear) -> equinox.nn.Linear:
        made = equinox.nn.Linear(given.in_features, given.out_features, key=jax.random.key(0))
        parts = jnp.asarray(array(given.weight)), jnp.asarray(array(given.bias))
        return equinox.tree_at(lambda each: (each.weight, each.bias), made, parts)

    embedding = equinox.nn.Embedding(weight=jnp.asarray(array(MODEL.embed.weight)))
    return Model(embedding, linear(MODEL.up), equinox.nn.LayerNorm(HIDDEN, eps=eps), linear(MODEL.down))


def parameters(convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Nested, and under names of its own."""
    dense = [{"w": convert(array(each.weight).T), "b": convert(array(each.bias))} for each in (MODEL.up, MODEL.down)]
    norm = (convert(np.ones(HIDDEN, np.float32)), convert(np.zeros(HIDDEN, np.float32)))
    return {"table": convert(array(MODEL.embed.weight)), "dense": dense, "norm": norm}


def a_jax_function(eps: float) -> Jax:
    def function(p: Any, tokens: jax.Array, extra: jax.Array) -> jax.Array:
        hidden = (p["table"][tokens] + extra) @ p["dense"][0]["w"] + p["dense"][0]["b"]
        centred = hidden - hidden.mean(-1, keepdims=True)
        hidden = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + eps) * p["norm"][0] + p["norm"][1]
        return jax.nn.gelu(hidden) @ p["dense"][1]["w"] + p["dense"][1]["b"]

    return Jax(function, parameters(jnp.asarray))


def a_torch_function(eps: float) -> Torch:
    def function(p: Any, tokens: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
        hidden = (p["table"][tokens] + extra) @ p["dense"][0]["w"] + p["dense"][0]["b"]
        hidden = torch.nn.functional.layer_norm(hidden, (HIDDEN,), *p["norm"], eps)
        return torch.nn.functional.gelu(hidden, approximate="tanh") @ p["dense"][1]["w"] + p["dense"][1]["b"]

    return Torch(function, parameters(torch.tensor), label="function")


SIDES: dict[str, Callable[[float], Any]] = {
    "nnx": an_nnx_module,
    "nnx of a dtype": lambda eps: an_nnx_module(eps, jnp.float32),
    "linen": a_linen_module,
    "linen of a dtype": lambda eps: a_linen_module(eps, jnp.float32),
    "equinox": an_equinox_module,
    "a JAX function": a_jax_function,
    "a torch function": a_torch_function,
    "a factory": lambda eps: parity.Factory(lambda dtype: an_nnx_module(eps, dtype)),
}


@pytest.mark.parametrize("name", SIDES)
def test_any_side_is_the_same_function_until_its_eps_is_another(name: str) -> None:
    pair = Pair(name, MODEL, SIDES[name](EPS), inputs=inputs)
    result = check(pair, LOW)
    assert (result.verdict, result.rung) == ("PASS", "bitwise" if "torch" in name else "same-function"), result.reason
    compared = {row.name for row in result.rows if row.stage == "float64"}
    assert compared == {"output", "gradient input 1", *(f"gradient {each}" for each, _ in MODEL.named_parameters())}
    wrong = check(replace(pair, candidate=SIDES[name](1e-6)), SHORT)
    # a function shows nothing inside, here; of torch's function nothing but the whole
    first = {"a JAX function": "output", "a torch function": "point model"}.get(name, "point norm")
    assert (wrong.verdict, wrong.rung, wrong.first_difference.name) == ("FAIL", "different", first)


@pytest.mark.parametrize("name", ["nnx", "linen", "equinox", "a JAX function"])
def test_optimizers_know_the_parameters_as_the_side_holds_them(name: str) -> None:
    """optax sees the side's own containers, here by a mask that is a function of their paths."""

    def is_matrix(tree: Any) -> Any:
        return jax.tree.map(lambda each: each.ndim > 1, tree)

    def adamw(groups: Any) -> torch.optim.Optimizer:
        groups = list(groups)
        decayed = {"params": [each for each in groups if each.ndim > 1], "weight_decay": 0.1}
        return torch.optim.AdamW(
            [decayed, {"params": [each for each in groups if each.ndim < 2]}], 1e-3, weight_decay=0.0
        )

    side = SIDES[name](EPS)
    side = side if isinstance(side, Jax | parity.Linen) else (Jax(side) if name == "nnx" else parity.Equinox(side))
    masked = replace(side, optimizer=optax.adamw(1e-3, weight_decay=0.1, mask=is_matrix))
    pair = Pair(name, Torch(MODEL, optimizer=adamw), masked, inputs=inputs)
    result = check(pair, SHORT)
    assert result.verdict == "PASS", result.reason
    assert "step parameters down.weight" in {row.name for row in result.rows}
    everywhere = replace(side, optimizer=optax.adamw(1e-3, weight_decay=0.1))
    wrong = check(replace(pair, candidate=everywhere), SHORT)
    assert wrong.verdict == "FAIL"
    assert wrong.first_difference.name.startswith("step parameters")


def test_weights_that_are_not_the_same_numbers_are_named() -> None:
    side = a_jax_function(EPS)
    moved = parameters(jnp.asarray)
    moved["dense"][0]["b"] = moved["dense"][0]["b"].at[3].add(1e-6)
    result = check(Pair("one element", MODEL, replace(side, params=moved), inputs=inputs), SHORT)
    assert result.verdict == "FAIL"
    named = "weights that only one side has, by value: torch's up.bias and jax's dense.0.b; output differs "
    assert result.reason.startswith(named)
    # all that is compared agrees, and yet one of them would train otherwise
    folded = Jax(lambda p, x: x * p["a"] * p["b"], {"a": np.float32([2, 3]), "b": np.float32([0.5, 4])})
    result = check(Pair("folded", Torch(lambda p, x: x * p, torch.tensor([1.0, 12.0])), folded, inputs=rows), SHORT)
    assert (result.verdict, result.rung, result.exit_status) == ("ABSTAIN", None, 3)
    assert "all that can be compared agrees" in result.reason


def rows(generator: np.random.Generator) -> tuple[np.ndarray]:
    return (generator.standard_normal((5, 2)),)


def test_a_weight_map_makes_the_candidates_weights_out_of_the_references() -> None:
    weight_map = parity.WeightMap.parse(
        """
        table <- embed.weight : v d -> v d
        dense.0.w <- up.weight : f d -> d f
        dense.0.b <- up.bias : f -> f
        dense.1.w <- down.weight : d f -> f d
        dense.1.b <- down.bias : d -> d
        norm.0 <- norm.weight : f -> f
        norm.1 <- norm.bias : f -> f
        """
    )
    zeros = jax.tree.map(jnp.zeros_like, parameters(jnp.asarray))
    pair = Pair("mapped", MODEL, replace(a_jax_function(EPS), params=zeros), weight_map, inputs)
    assert check(pair, SHORT).verdict == "PASS"
    assert check(replace(pair, weights="loaded"), SHORT).verdict == "FAIL", "zeros are not the reference's weights"


@pytest.mark.parametrize("given", ["infer", "guess", 3])
def test_other_words_for_weights_are_refused(given: Any) -> None:
    with pytest.raises(ParityUsageError, match="weights: 'loaded', a WeightMap or a dict of arrays, got"):
        check(Pair("words", MODEL, MODEL, given, inputs), SHORT)


def test_either_side_may_be_either_framework() -> None:
    function = a_jax_function(EPS)
    for pair in (
        Pair("JAX first", function, MODEL, inputs=inputs),
        Pair("JAX twice", function, an_equinox_module(EPS), inputs=inputs),
        Pair("torch twice", MODEL, MODEL, inputs=inputs),
    ):
        result = check(pair, LOW)
        assert result.verdict == "PASS", result.reason
    assert result.rung == "bitwise"
    assert result.rows[0].side_names == ("torch (reference)", "torch (candidate)")


@dataclass
class State:
    """A container of one's own."""

    position: Any
    velocity: Any


Both = namedtuple("Both", ["energy", "momentum"])


def test_containers_of_every_kind_are_inputs_and_outputs() -> None:
    def move(state: Any, options: dict[str, Any], *, steps: int, mask: Any) -> Any:
        position = state.position + steps * options["dt"][0] * state.velocity * mask
        return Both(energy=(position**2).sum(-1), momentum={"last": [state.velocity * 3, None]})

    def draw(generator: np.random.Generator) -> dict[str, Any]:
        state = State(generator.standard_normal((4, 3)), generator.standard_normal((4, 3)))
        options = {"dt": (np.float32(0.25), "unused"), "nothing": None}
        return {"state": state, "options": options, "steps": 3, "mask": generator.random((4, 3)) > 0.5}

    result = check(Pair("containers", Torch(move), Jax(move), inputs=draw), SHORT)
    assert (result.verdict, result.rung) in (("PASS", "same-function"), ("PASS", "bitwise")), result.reason
    names = [row.name for row in result.rows if row.stage == "float64"]
    assert names[:2] == ["energy", "momentum.last.0"]
    assert {"gradient input state.position", "gradient input options.dt.0"} <= set(names)

    def otherwise(state: Any, options: Any, *, steps: int, mask: Any) -> Any:
        return move(state, options, steps=steps, mask=~mask)

    assert check(Pair("other mask", Torch(move), Jax(otherwise), inputs=draw), SHORT).verdict == "FAIL"


def test_outputs_without_names_are_paired_by_position() -> None:
    pair = Pair("named", Torch(lambda x: {"a": x + 1, "b": x * 2}), Jax(lambda x: (x + 1, x * 2)), inputs=rows)
    result = check(pair, SHORT)
    assert result.verdict == "PASS", result.reason
    assert {"a", "b"} <= {row.name for row in result.rows}
    assert check(replace(pair, candidate=Jax(lambda x: (x * 2, x + 1))), SHORT).verdict == "FAIL"
    assert check(replace(pair, candidate=Jax(lambda x: {"b": x * 2, "a": x + 1})), SHORT).verdict == "PASS"
    alone = Pair("alone", Torch(lambda x: [x * 3]), Jax(lambda x: x * 3), inputs=rows)
    assert check(alone, SHORT).verdict == "PASS"


def test_a_loss_is_a_function_of_the_outputs_given_once_or_twice() -> None:
    pair = Pair("loss", MODEL, an_nnx_module(EPS), inputs=inputs, loss=lambda outputs: (outputs**2).mean())
    assert check(pair, SHORT).verdict == "PASS"
    twice = (lambda y: torch.logsumexp(y, -1).mean(), lambda y: jax.nn.logsumexp(y, -1).mean())
    assert check(replace(pair, loss=twice), SHORT).verdict == "PASS"
    wrong = (twice[0], lambda y: jax.nn.logsumexp(y, -1).mean() * 1.0001)
    result = check(replace(pair, loss=wrong), SHORT)
    assert result.first_difference.name.startswith("gradient")
    with pytest.raises(ParityUsageError, match=r"loss: a single number, got a function's result of shape \(3, 5, 12\)"):
        check(replace(pair, loss=lambda outputs: outputs), SHORT)


def test_gradients_in_inputs_are_compared_where_there_are_no_parameters() -> None:
    """jnp.linalg.norm differentiates sqrt at zero, torch defines the derivative there."""
    given = (np.array([[0.0, 0.0], [3.0, 4.0]]),)
    pair = Pair("norm", Torch(lambda x: x.norm(dim=-1)), Jax(lambda x: jnp.linalg.norm(x, axis=-1)), inputs=given)
    result = check(pair, SHORT)
    assert (result.verdict, result.first_difference.name) == ("FAIL", "gradient input 0")
    assert check(replace(pair, inputs=(given[0] + 1,)), SHORT).verdict == "PASS"


def batch_norms(momentum: float, training: bool = True) -> tuple[torch.nn.Module, Any]:
    torch_norm = torch.nn.BatchNorm1d(4, momentum=0.1).train(training)
    jax_norm = nnx.BatchNorm(4, momentum=momentum, epsilon=1e-5, rngs=nnx.Rngs(0), use_running_average=not training)
    return torch_norm, jax_norm


def test_running_statistics_are_compared_after_a_run_in_training_mode() -> None:
    def draw(generator: np.random.Generator) -> tuple[np.ndarray]:
        return (generator.standard_normal((32, 4)) * 2 + 3,)

    result = check(Pair("momentum", *batch_norms(0.1), inputs=draw), SHORT)
    assert (result.verdict, result.first_difference.name) == ("FAIL", "state running_mean")
    # with equal momenta the variance still differs: biased here, unbiased there, 32 / 31
    result = check(Pair("variance", *batch_norms(0.9), inputs=draw), SHORT)
    assert (result.verdict, result.first_difference.name) == ("FAIL", "state running_var")
    assert check(Pair("evaluation", *batch_norms(0.9, training=False), inputs=draw), SHORT).verdict == "PASS"


def test_modules_that_draw_are_refused_in_either_framework() -> None:
    quiet, loud = torch.nn.Dropout(0.5).eval(), torch.nn.Dropout(0.5)
    drawing = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    for pair in (
        Pair("torch draws", loud, Jax(lambda x: x), inputs=rows),
        Pair("nnx draws", quiet, drawing, inputs=rows),
    ):
        with pytest.raises(ParityUsageError, match="a function of its weights and inputs alone, got 'output' that"):
            check(pair, SHORT)
    drawing.deterministic = True
    assert check(Pair("neither", quiet, drawing, inputs=rows), SHORT).verdict == "PASS"


def test_the_callers_modules_are_left_as_they_were() -> None:
    torch_norm, jax_norm = batch_norms(0.9)
    before = {name: value.clone() for name, value in torch_norm.state_dict().items()}
    count = int(nnx.Dropout(0.5, rngs=nnx.Rngs(0)).rngs.count[...])
    check(Pair("left alone", torch_norm, jax_norm, inputs=lambda g: (g.standard_normal((7, 4)),)), SHORT)
    assert all(torch.equal(value, before[name]) for name, value in torch_norm.state_dict().items())
    assert torch_norm.weight.dtype == torch.float32
    assert torch_norm.weight.grad is None
    np.testing.assert_array_equal(jax_norm.mean[...], 0)
    assert count == 0


def test_recurrent_modules_and_tied_weights_run_at_every_precision() -> None:
    lstm = torch.nn.LSTM(3, 4, batch_first=True)
    again = torch.nn.LSTM(3, 4, batch_first=True)
    again.load_state_dict(lstm.state_dict())
    series = lambda generator: (generator.standard_normal((2, 5, 3)),)  # noqa: E731
    result = check(Pair("lstm", lstm, again, inputs=series), replace(SHORT, precisions=("float32", "bfloat16")))
    assert result.verdict == "PASS", result.reason

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(11, 6)
            self.head = torch.nn.Linear(6, 11, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(tokens))

    tied = Tied()
    table = {"table": array(tied.embed.weight)}
    tokens = lambda generator: (generator.integers(0, 11, (2, 5)),)  # noqa: E731
    side = Jax(lambda p, tokens: p["table"][tokens] @ p["table"].T, table)
    result = check(Pair("tied", tied, side, inputs=tokens), SHORT)
    assert result.verdict == "PASS", result.reason
    stopped = Jax(lambda p, tokens: p["table"][tokens] @ jax.lax.stop_gradient(p["table"]).T, table)
    assert check(Pair("stopped", tied, stopped, inputs=tokens), SHORT).first_difference.name == "gradient embed.weight"


@pytest.mark.parametrize(
    ("side", "message"),
    [
        (lambda x: x, "candidate: an nn.Module, .* got function; a function belongs into parity.Jax or Torch"),
        (flax.linen.Dense(3), "candidate: a linen module with its variables, got the module alone; give parity.Linen"),
        (
            parity.Factory(lambda dtype: 1 / 0),
            "candidate: a factory that makes a side of float32, got ZeroDivisionError",
        ),
        (parity.Factory(lambda dtype: 5), "candidate: an nn.Module, .* got int"),
        (Jax(lambda p, x: x @ p["w"]), "jax: a function that runs .* got TypeError"),
    ],
)
def test_what_is_no_side_is_refused_in_one_line(side: Any, message: str) -> None:
    with pytest.raises(ParityUsageError, match=message):
        check(Pair("none", torch.nn.Identity(), side, inputs=rows), SHORT)


def test_tensors_are_parameters_of_a_jax_function_too() -> None:
    linear = torch.nn.Linear(4, 4)
    port = Jax(lambda p, x: x @ p["weight"].T + p["bias"], dict(linear.named_parameters()))
    pair = Pair("tensors", linear, port, inputs=lambda rng: (rng.standard_normal((3, 4)),))
    assert check(pair, SHORT).verdict == "PASS"


@pytest.mark.parametrize("inputs", [([1, 2, 3],), {"x": [[0.5, 1], [2, 3]]}])
def test_numbers_in_a_list_are_no_array_and_refused(inputs: Any) -> None:
    with pytest.raises(ParityUsageError, match=r"inputs: arrays, got a list of numbers for '(0|x)'; write np.asarray"):
        check(Pair("lists", torch.nn.Identity(), torch.nn.Identity(), inputs=inputs), SHORT)


def test_without_gradients_a_model_that_has_none_is_compared():
    def loop(x):
        return jax.lax.while_loop(lambda state: state[0] < 3, lambda state: (state[0] + 1, jnp.tanh(state[1])), (0, x))[
            1
        ]

    def thrice(x):
        return torch.tanh(torch.tanh(torch.tanh(x)))

    x = np.random.Generator(np.random.PCG64(9)).normal(size=(4, 5)).astype(np.float32)
    pair = Pair("loop", Jax(loop), Torch(thrice), inputs=(x,))
    for points in (False, True):
        assert check(pair, grads=False, points=points).verdict == "PASS"
    wrong = Pair("loop", Jax(loop), Torch(lambda x: 1.001 * thrice(x)), inputs=(x,))
    assert check(wrong, grads=False).verdict == "FAIL"
    with pytest.raises(ParityUsageError, match=r"Reverse-mode differentiation .*; its outputs alone run: grads=False$"):
        check(pair)


def test_without_gradients_none_is_taken():
    """Of neither side, whatever holds the weights."""

    class Never(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x * 2.0

        @staticmethod
        def backward(context, gradient):
            raise AssertionError("a gradient was taken")

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(5, 3))

        def forward(self, x):
            return Never.apply(x @ self.w)

    x = np.random.Generator(np.random.PCG64(9)).normal(size=(4, 5)).astype(np.float32)
    weights = {"w": np.ones((5, 3), np.float32)}
    pair = Pair("never", Torch(Module()), Jax(lambda p, x: 2 * (x @ p["w"]), weights), inputs=(x,))
    assert check(pair, grads=False, steps=0, thorough=True, points=True, flops=False).verdict == "PASS"
