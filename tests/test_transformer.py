"""The whole model: ways to compute it that change nothing, its dtypes, a walk through both programs in float64."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import cache
from importlib import import_module
from typing import get_args

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from sides import (
    JAX,
    TORCH,
    ModelRun,
    assert_rounds_like,
    assert_same_model,
    both_sides,
    projection_of_outputs,
    rms,
    rounded,
    run_model,
    run_outputs,
)
from torch.utils._python_dispatch import TorchDispatchMode

SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_seq_len": 8}
B, T = 2, 7
TOKENS = np.random.default_rng(1).integers(0, 37, (B, T))
PADDING = np.arange(T) >= np.array([[0], [3]])  # on the left: two rows of queries that see nothing
INPUTS = {"tokens": TOKENS, "padding": PADDING}

# every choice of the config stands in at least one
COVER = {
    "gpt": {"window": 3},
    "llama": {
        "norm": "rms_norm",
        "position": "rope",
        "num_kv_heads": 2,
        "activation": "swiglu",
        "head": "untied",
        "qkv_bias": False,
        "o_bias": False,
        "mlp_bias": False,
    },
    "gemma": {
        "norm": "rms_norm_plus_one",
        "position": "rope",
        "rope_layout": "interleaved",
        "rope_fraction": 0.67,
        "num_kv_heads": 1,
        "activation": "geglu_tanh",
        "embedding_scale": True,
        "qk_norm": True,
        "kernel": "fused",
    },
    "bert": {
        "norm_position": "post",
        "causal": False,
        "activation": "gelu",
        "token_types": 2,
        "embedding_norm": True,
        "final_norm": False,
        "head": "none",
        "pooler": True,
    },
    "other": {"position": "none", "activation": "relu", "causal": False, "window": 2, "d_head": 5, "kernel": "fused"},
    "geglu": {"position": "rope", "activation": "geglu", "norm_position": "post", "qk_norm": True, "scan_layers": True},
}
covered = pytest.mark.parametrize("name", COVER)


def cover(name, side=JAX, **changes):
    choices = dict(COVER[name])
    if name == "llama":
        choices["rope_scaling"] = side.package.RopeScaling(**SCALING)
    return side.config(**{**choices, **changes})


def parameters_of(side, config):
    config = side.package.config_from_dict(asdict(config))
    return side.package.initial_parameters(config, 0, randomise_constants=True)


def test_the_cover_has_every_choice():
    config = import_module("jaxcore.config")
    built = [cover(name) for name in COVER]
    for field, kind in config._CHOICES.items():
        assert {getattr(c, field) for c in built} == set(get_args(kind)), field


@covered
def test_both_packages_are_one_function_in_float64(name):
    config = cover(name)
    inputs = {**INPUTS, "types": TOKENS % 2} if config.token_types else INPUTS
    first, second = (
        run_model(side, config, parameters_of(side, config), inputs, projection_of_outputs) for side in (JAX, TORCH)
    )
    assert_same_model(first, second)


@cache
def run_by(side, config, dtype, scan, recompute):
    """The model run scanned or recomputed or neither, its gradients with one name per layer."""
    parameters = parameters_of(side, config)
    config = replace(config, scan_layers=scan, recompute=recompute)
    chosen = side.package.stack_layers(parameters) if scan else parameters
    run = run_model(side, config, chosen, INPUTS, projection_of_outputs, dtype)
    gradients = side.package.unstack_layers(run.gradients) if scan else run.gradients
    return ModelRun(run.outputs, run.loss, gradients)


@both_sides
def test_scan_and_recompute_change_neither_value_nor_gradient_in_float64(side):
    plain = run_by(side, cover("gemma", side), "float64", False, False)
    for scan, recompute in ((False, True), (True, False), (True, True)):
        assert_same_model(run_by(side, cover("gemma", side), "float64", scan, recompute), plain, 1e-13)


@both_sides
def test_scan_with_recompute_rounds_as_the_plain_loop_does_in_float32(side):
    """XLA fuses a scanned body otherwise, so the bits may differ: each is judged against float64."""
    config = cover("gemma", side)
    other, plain, truth = (
        run_by(side, config, dtype, deep, deep)
        for dtype, deep in (("float32", True), ("float32", False), ("float64", False))
    )
    names = [name for name, value in truth.gradients.items() if value.size >= 64]
    tensors = [[*run.outputs.values(), *(run.gradients[n] for n in names)] for run in (other, plain, truth)]
    assert_rounds_like(*tensors)


def test_recomputation_is_in_both_programs():
    """Equal results alone would not show that anything is recomputed."""
    config = cover("gpt", JAX, recompute=True)
    assert "remat" in str(jax_program(config)) or "checkpoint" in str(jax_program(config))
    assert "remat" not in str(jax_program(cover("gpt", JAX)))
    calls = {}
    for recompute in (False, True):
        with CountOperations() as counter:
            run_model(TORCH, cover("gpt", TORCH, recompute=recompute), *torch_model_arguments())
        calls[recompute] = counter.softmax
    assert calls == {False: 2, True: 4}, "two layers, each softmax once more in the backward pass"


def torch_model_arguments():
    return parameters_of(TORCH, cover("gpt")), INPUTS, projection_of_outputs


class CountOperations(TorchDispatchMode):
    """How often a softmax runs."""

    softmax = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.softmax += function is torch.ops.aten._softmax.default
        return function(*args, **(kwargs or {}))


def test_a_scan_is_one_body_in_the_jax_program():
    assert str(jax_program(cover("gpt", scan_layers=True))).count(" scan[") >= 1
    assert str(jax_program(cover("gpt"))).count(" scan[") == 0


@both_sides
@covered
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_outputs_and_gradients_are_finite_and_keep_the_type_of_the_parameters(side, name, dtype):
    config = cover(name, side)
    with side.mode(dtype):
        arrays = {n: side.array(v, dtype) for n, v in parameters_of(side, config).items()}
        inputs = {n: side.array(v, dtype) for n, v in INPUTS.items()}
        if side is JAX:

            def program(arrays):
                outputs = side.package.Transformer(config, arrays)(**inputs)
                return projection_of_outputs(side, outputs), outputs

            outputs = jax.eval_shape(lambda a: program(a)[1], arrays)
            gradients = jax.eval_shape(jax.grad(lambda a: program(a)[0].astype("float32")), arrays)
            tensors = [*outputs.values(), *gradients.values()]
        else:
            model = side.package.Transformer(config, arrays)
            outputs = model(**inputs)
            projection_of_outputs(side, outputs).backward()
            tensors = [*outputs.values(), *(parameter.grad for parameter in model.parameters())]
            assert all(tensor.isfinite().all() for tensor in tensors)
        assert {tensor.dtype for tensor in tensors} == {side.dtype(dtype)}


@both_sides
def test_bfloat16_model_is_finite_and_near_float64(side):
    """A whole-model bound in bfloat16 is blunt: 2^-8 for each of the some 8 roundings per layer, in units of rms."""
    config = cover("llama", side)
    parameters = {n: rounded(v, "bfloat16") for n, v in parameters_of(side, config).items()}
    narrow, wide = (run_outputs(side, config, parameters, dtype, **INPUTS) for dtype in ("bfloat16", "float64"))
    for name, value in wide.items():
        assert rms(narrow[name] - value) <= 16 * 2.0**-8 * rms(value), name


@both_sides
def test_embedding_scale_multiplies_by_the_root_of_d(side):
    """The residual stream of a post-norm model with one layer starts from token vectors times sqrt(24)."""
    config = side.config(position="none", embedding_scale=True)
    parameters = parameters_of(side, config)
    with side.mode("float64"):
        model = side.package.Transformer(config, {n: side.array(v, "float64") for n, v in parameters.items()})
        x = model.embed(side.array(TOKENS, "int"), None, side.array(TOKENS, "int"))
    expected = np.sqrt(24) * parameters["token_embedding.weight"].astype(np.float64)[TOKENS]
    np.testing.assert_allclose(side.numpy(x), expected, rtol=1e-15)


@both_sides
def test_token_types_default_to_zero_and_count(side):
    config = cover("bert", side, num_layers=1)
    parameters = parameters_of(side, config)
    default = run_outputs(side, config, parameters, tokens=TOKENS)["hidden"]
    zero, one = (
        run_outputs(side, config, parameters, tokens=TOKENS, types=np.full_like(TOKENS, kind))["hidden"]
        for kind in (0, 1)
    )
    np.testing.assert_array_equal(default, zero)
    assert np.abs(one - zero).max() > 0.01


@both_sides
@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_positions_default_to_counting_and_shift_what_is_seen(side, name):
    """Learned positions move the output; rotary ones, which see distances only, do not."""
    config = cover(name, side, num_layers=1)
    counting, parameters = np.tile(np.arange(T), (B, 1)), parameters_of(side, config)
    default, explicit, shifted = (
        run_outputs(side, config, parameters, tokens=TOKENS, **positions)
        for positions in ({}, {"positions": counting}, {"positions": counting + 5})
    )
    np.testing.assert_array_equal(default["hidden"], explicit["hidden"])
    gap = np.abs(shifted["hidden"] - default["hidden"]).max()
    assert gap < 1e-12 if name == "llama" else gap > 0.01


@both_sides
def test_a_token_does_not_see_later_tokens(side):
    config = cover("llama", side, num_layers=1)
    later = TOKENS.copy()
    later[:, 4:] = (later[:, 4:] + 1) % 37
    parameters = parameters_of(side, config)
    first, second = (run_outputs(side, config, parameters, tokens=tokens)["logits"] for tokens in (TOKENS, later))
    np.testing.assert_array_equal(first[:, :4], second[:, :4])
    assert (first[:, 4:] != second[:, 4:]).any(-1).all()


def test_jax_model_works_under_nnx_jit_and_grad():
    config = cover("gpt", num_layers=1)
    model = JAX.package.Transformer(config, parameters_of(JAX, config))

    @nnx.jit
    def loss_and_gradients(model, tokens):
        def loss(model):
            return JAX.package.cross_entropy(model(tokens)["logits"], tokens)

        return nnx.value_and_grad(loss)(model)

    loss, gradients = loss_and_gradients(model, TOKENS)
    assert np.isfinite(loss)
    named = {".".join(map(str, path)) for path, _ in nnx.to_flat_state(gradients)}
    assert named == JAX.package.parameter_table(config).keys()


# the walk: a float64 run has no narrower number anywhere

NARROW = {"float32", "float16", "bfloat16"}


def jax_program(config, loss=projection_of_outputs, dtype="float64"):
    """The traced value and gradient of the loss by every parameter."""
    with jax.enable_x64(dtype == "float64"):
        arrays = {n: JAX.array(v, dtype) for n, v in parameters_of(JAX, config).items()}
        inputs = {n: JAX.array(v, dtype) for n, v in INPUTS.items()}

        def of(arrays):
            return loss(JAX, JAX.package.Transformer(config, arrays)(**inputs))

        return jax.make_jaxpr(jax.value_and_grad(of))(arrays)


def narrow_in_jax(program):
    """(primitive, dtype) of every equation with a narrow output, in every program inside the program."""
    found = []
    for equation in program.eqns:
        for variable in equation.outvars:
            dtype = getattr(variable.aval, "dtype", None)
            if str(dtype) in NARROW:
                found.append((equation.primitive.name, str(dtype)))
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=is_program):
            if is_program(value):
                found += narrow_in_jax(getattr(value, "jaxpr", value))
    return found


def is_program(value):
    return hasattr(getattr(value, "jaxpr", value), "eqns")


class NarrowInTorch(TorchDispatchMode):
    """(operation, dtype) of every operation with a narrow output, forward and backward."""

    def __init__(self):
        super().__init__()
        self.found = []
        self.operations = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.operations += 1
        for value in torch.utils._pytree.tree_leaves(result):
            if isinstance(value, torch.Tensor) and str(value.dtype).removeprefix("torch.") in NARROW:
                self.found.append((str(function), str(value.dtype)))
        return result


def next_token_loss(side, outputs):
    if "logits" not in outputs:
        return projection_of_outputs(side, outputs)
    return side.package.cross_entropy(outputs["logits"], side.array(np.where(PADDING, TOKENS, -100), "int"))


@covered
def test_float64_run_of_jaxcore_has_no_narrower_number(name):
    program = jax_program(cover(name), next_token_loss)
    assert narrow_in_jax(program.jaxpr) == []
    assert "f64" in str(program)


@covered
def test_float64_run_of_torchref_has_no_narrower_number(name):
    config = cover(name, TORCH)
    with torch_walk(config) as walk:
        pass
    assert walk.found == []
    assert walk.operations > 100


class torch_walk:
    """Everything PyTorch does for a value and its gradients, weights and inputs made beforehand."""

    def __init__(self, config, dtype="float64"):
        arrays = {n: TORCH.array(v, dtype) for n, v in parameters_of(TORCH, config).items()}
        self.model = TORCH.package.Transformer(config, arrays)
        self.inputs = {n: TORCH.array(v, dtype) for n, v in INPUTS.items()}

    def __enter__(self):
        with NarrowInTorch() as walk:
            next_token_loss(TORCH, self.model(**self.inputs)).backward()
        return walk

    def __exit__(self, *_):
        return None


@both_sides
@pytest.mark.parametrize("place", ["norm", "mlp"])
def test_one_cast_to_float32_is_found_by_the_walk(side, place, monkeypatch):
    """The planted fault, in a branch of its own on each side: to float32 and back."""
    home = import_module(f"{side.package.__name__}.{place}")
    name = {"norm": "rms_norm", "mlp": "activate"}[place]
    right = getattr(home, name)
    cast = (lambda x, d: x.astype(d)) if side is JAX else (lambda x, d: x.to(d))
    monkeypatch.setattr(
        home, name, lambda x, *a: cast(right(cast(cast(x, side.dtype("float32")), x.dtype), *a), x.dtype)
    )
    config = cover("llama", side, scan_layers=True)
    if side is JAX:
        found = narrow_in_jax(jax_program(config, next_token_loss).jaxpr)
    else:
        with torch_walk(config) as walk:
            found = walk.found
    assert {"convert_element_type" if side is JAX else "aten._to_copy.default"} <= {operation for operation, _ in found}
