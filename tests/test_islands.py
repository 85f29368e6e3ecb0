"""Islands: what is seen of lower precision in a float64 run, where, and that lifting it closes the gap."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from einops import rearrange
from flax import nnx
from transformers import LlamaConfig, LlamaForCausalLM

import jaxcore
import jaxcore.attention
import jaxcore.norm
import jaxcore.rope
import jaxcore.transformer
import parity
import torchref
import torchref.attention
import torchref.norm
import torchref.rope
import torchref.transformer
from parity.backends.jax.islands import find_islands
from parity.backends.jax.islands import lift as jax_lift
from parity.backends.jax.lifting import sharpen
from parity.backends.torch.islands import lift as torch_lift
from parity.backends.torch.islands import trace_islands
from parity.frames import is_user_code
from parity.islands import holds_float32

#: relative, per tensor; clean float64 runs differ by 1e-15, a float32 island by 1e-9 at least
ROUNDING = 1e-12
TOKENS = np.random.Generator(np.random.PCG64(7)).integers(0, 29, (2, 7))
TINY = [name for name in jaxcore.PRESETS if name.startswith("tiny")]


def tiny(preset="tiny-llama", num_layers=1, **changes):
    return replace(jaxcore.shrink(jaxcore.PRESETS[preset]), vocab_size=29, num_layers=num_layers, **changes)


def weights(config):
    return jaxcore.initial_parameters(config, 3, randomise_constants=True, dtype=np.float64)


def jax_loss(config):
    """A fresh function each time: no two precisions share a trace."""

    def loss(parameters, tokens):
        outputs = jaxcore.Transformer(config, parameters)(tokens)
        if "logits" in outputs:
            return jaxcore.cross_entropy(outputs["logits"], tokens)
        return (outputs["hidden"] ** 2).sum()

    return loss


def jax_run(config, lifted=False):
    function = jax.value_and_grad(jax_loss(config))
    with jax.enable_x64(True):
        lowered = jax.jit(jax_lift(function) if lifted else function).lower(weights(config), TOKENS)
        program = lowered.compile({"xla_backend_optimization_level": 0})  # compiles in half the time
        loss, gradients = program(weights(config), TOKENS)
        return {"loss": np.asarray(loss)} | {name: np.asarray(value) for name, value in gradients.items()}


def mirrored(config):
    """The same configuration as torchref's own class."""
    scaling = config.rope_scaling and torchref.RopeScaling(**vars(config.rope_scaling))
    return torchref.ModelConfig(**vars(config) | {"rope_scaling": scaling})


def torch_module(config):
    return torchref.Transformer(
        mirrored(config), {name: torch.as_tensor(value) for name, value in weights(config).items()}
    )


def torch_loss(module):
    tokens = torch.as_tensor(TOKENS)
    outputs = module(tokens)
    if "logits" in outputs:
        return torchref.cross_entropy(outputs["logits"], tokens)
    return (outputs["hidden"] ** 2).sum()


def torch_run(config, lifted=False):
    module = torch_module(config)
    if lifted:
        with torch_lift():
            loss = torch_loss(module)
            loss.backward()
    else:
        loss = torch_loss(module)
        loss.backward()
    gradients = {
        name: (torch.zeros_like(value) if value.grad is None else value.grad).numpy()
        for name, value in module.named_parameters()
    }
    return {"loss": loss.detach().numpy()} | gradients


def torch_islands(config):
    module = torch_module(config)
    with trace_islands(module) as found:
        torch_loss(module).backward()
    return found


def jax_islands(config):
    return find_islands(jax.value_and_grad(jax_loss(config)), weights(config), TOKENS)


ISLANDS = {"jaxcore": jax_islands, "torchref": torch_islands}
RUN = {"jaxcore": jax_run, "torchref": torch_run}


@cache
def clean(side, config):
    """The unplanted run."""
    return RUN[side](config)


def gap(run, other):
    """The largest relative difference of a tensor; one that is zero in theory is measured by the largest tensor."""
    assert run.keys() == other.keys()
    floor = 1e-6 * max(np.linalg.norm(value) for value in other.values())
    return max(np.linalg.norm(run[name] - other[name]) / max(np.linalg.norm(other[name]), floor) for name in run)


def cast(x, side, wide=False):
    if side == "jaxcore":
        return x.astype(jnp.float64 if wide else jnp.float32)
    return x.to(torch.float64 if wide else torch.float32)


def plant_norm(monkeypatch, side):
    """Both norms of one side in float32."""
    package = {"jaxcore": jaxcore, "torchref": torchref}[side]
    for name in ("layer_norm", "rms_norm"):
        original = getattr(package.norm, name)

        def planted(x, *tensors, original=original):
            return cast(original(cast(x, side), *tensors), side, wide=True)

        monkeypatch.setattr(package.norm, name, planted)


@pytest.mark.parametrize("side", ISLANDS)
@pytest.mark.parametrize("preset", TINY)
def test_clean_pair_has_no_island(preset, side):
    assert ISLANDS[side](tiny(preset)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"num_layers": 2, "scan_layers": True},
        {"recompute": True, "num_layers": 2},
        {"kernel": "fused", "qk_norm": True},
    ],
)
@pytest.mark.parametrize("side", ISLANDS)
def test_clean_variants_have_no_island(side, changes):
    assert ISLANDS[side](tiny(**changes)) == []


@pytest.mark.parametrize("side", ISLANDS)
@pytest.mark.parametrize(
    ("preset", "changes", "place"),
    [
        ("tiny", {}, "layers.0.attention_norm"),
        ("tiny-llama", {}, "layers.0.attention_norm"),
        ("tiny-llama", {"num_layers": 2, "scan_layers": True, "recompute": True}, "layers.attention_norm"),
    ],
)
def test_float32_norm_is_found_by_name_and_closes_under_lift(monkeypatch, preset, changes, place, side):
    config = tiny(preset, **changes)
    want = clean(side, config)
    plant_norm(monkeypatch, side)
    found = ISLANDS[side](config)
    assert [(island.side, island.place, island.dtype) for island in found] == [(side, place, "float32")]
    assert found[0].source.startswith("test_islands.py:")
    assert found[0].operation == {"jaxcore": "convert_element_type", "torchref": "_to_copy.default"}[side]
    assert gap(RUN[side](config), want) > 1e-9
    assert gap(RUN[side](config, lifted=True), want) < ROUNDING


@pytest.mark.parametrize("side", ISLANDS)
@pytest.mark.parametrize(
    ("preset", "changes", "place"),
    [
        ("tiny-bert", {}, "embedding_norm"),
        ("tiny-qwen3", {"norm_position": "post"}, "layers.0.attention.q_norm"),
        ("tiny-llama", {"num_layers": 2, "recompute": True}, "layers.0.attention_norm"),
        ("tiny-llama", {"num_layers": 2, "scan_layers": True}, "layers.attention_norm"),
    ],
)
def test_island_bears_the_name_of_its_module(monkeypatch, preset, changes, place, side):
    plant_norm(monkeypatch, side)
    assert [island.place for island in ISLANDS[side](tiny(preset, **changes))] == [place]


@pytest.mark.parametrize("side", ISLANDS)
def test_float32_scores_and_softmax_are_found_and_close_under_lift(monkeypatch, side):
    config, want = tiny(), clean(side, tiny())
    module, float32 = {
        "jaxcore": (jaxcore.attention, jnp.dtype("float32")),
        "torchref": (torchref.attention, torch.float32),
    }[side]
    monkeypatch.setattr(module, "at_least_float32", lambda dtype: float32)
    found = ISLANDS[side](config)
    assert found[0].place == "layers.0.attention"
    assert found[0].operation == {"jaxcore": "dot_general", "torchref": "_to_copy.default"}[side]
    assert found[0].source.startswith("precision.py:")
    assert gap(RUN[side](config), want) > 1e-9
    assert gap(RUN[side](config, lifted=True), want) < ROUNDING


@pytest.mark.parametrize("by_type", [True, False])
@pytest.mark.parametrize("side", ISLANDS)
def test_float32_rope_table_is_a_constant_that_no_lift_closes(monkeypatch, side, by_type):
    config, want = tiny(), clean(side, tiny())
    module = {"jaxcore": jaxcore.rope, "torchref": torchref.rope}[side]
    original = module.rope_frequencies

    def planted(*args):
        table = original(*args).astype(np.float32)
        return table if by_type else table.astype(np.float64)

    monkeypatch.setattr(module, "rope_frequencies", planted)
    found = ISLANDS[side](config)
    assert [(island.operation, island.place) for island in found] == [("constant", "rope_table")]
    assert found[0].source.startswith("rope.py:")
    assert gap(RUN[side](config, lifted=True), want) > 1e-11


@pytest.mark.parametrize("side", ISLANDS)
def test_islands_come_in_data_order_and_tables_where_they_meet_it(monkeypatch, side):
    plant_norm(monkeypatch, side)
    module = {"jaxcore": jaxcore.rope, "torchref": torchref.rope}[side]
    original = module.rope_table
    float32 = {"jaxcore": jnp.dtype("float32"), "torchref": torch.float32}[side]
    monkeypatch.setattr(
        {"jaxcore": jaxcore.transformer, "torchref": torchref.transformer}[side],
        "rope_table",
        lambda config, positions, dtype: original(config, positions, float32),
    )
    places = [island.place for island in ISLANDS[side](tiny())]
    assert list(dict.fromkeys(places))[:3] == ["layers.0.attention_norm", "layers.0.attention", "rope_table"]


@pytest.mark.parametrize("side", ISLANDS)
def test_capture_leaves_every_bit_and_every_hook_as_it_was(side):
    before = clean(side, tiny())
    call = jaxcore.Transformer.__call__
    ISLANDS[side](tiny())
    after = RUN[side](tiny())
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert jaxcore.Transformer.__call__ is call
    module = torch.nn.Linear(2, 2)
    assert not module._forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert torch.get_default_dtype() == torch.float32


def test_traced_torch_run_gives_the_same_bits():
    module, config = torch_module(tiny()), tiny()
    with trace_islands(module):
        traced = torch_loss(module)
    assert torch.equal(traced, torch_loss(torch_module(config)))


@pytest.mark.parametrize("side", ISLANDS)
def test_lift_changes_no_bit_of_a_clean_run(side):
    plain, lifted = clean(side, tiny()), RUN[side](tiny(), lifted=True)
    assert all(np.array_equal(plain[name], lifted[name]) for name in plain)


def low(x):
    return x.astype(jnp.float32)


def wrapped_in(kind):
    """A float32 sine inside one kind of program; x is a float64 vector."""
    if kind == "jit":
        return jax.jit(lambda x: jnp.sin(low(x) * 0.1).astype(x.dtype))
    if kind == "remat":
        return jax.checkpoint(lambda x: jnp.sin(low(x) * 0.1).astype(x.dtype))
    if kind == "scan":
        return lambda x: jax.lax.scan(lambda c, y: (jnp.sin(c * low(y)), c), low(x[0]), x)[0].astype(x.dtype)
    if kind == "while":
        return lambda x: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, low(x)))[1]
    if kind == "cond":
        return lambda x: jax.lax.cond(x[0] > 0, lambda y: jnp.sin(low(y)), low, x).astype(x.dtype)
    if kind == "preferred":
        return lambda x: jnp.einsum("a,a->", x, x, preferred_element_type=jnp.float32)
    if kind == "integers":
        return lambda x: x * jnp.sqrt(jnp.arange(1, 6).astype(jnp.float32))
    if kind == "iota":
        return lambda x: x / jnp.log(jnp.arange(3, 8, dtype=jnp.float32))
    if kind == "reduce_precision":
        return lambda x: jnp.sin(jax.lax.reduce_precision(x, 8, 23))
    if kind == "bfloat16":
        return lambda x: jnp.sin(x.astype(jnp.bfloat16)).astype(x.dtype)
    if kind == "vmap":
        return jax.vmap(lambda x: jnp.sin(low(x)).astype(x.dtype))
    if kind == "gather":
        return lambda x: jnp.take(low(x), jnp.array([1, 1, 3]), axis=0) * 0.3
    if kind == "custom_jvp":
        rule = jax.custom_jvp(jnp.sin)
        rule.defjvp(lambda primals, tangents: (rule(*primals), 3 * tangents[0] * jnp.cos(primals[0])))
        return lambda x: rule(low(x)).astype(x.dtype)
    rule = jax.custom_vjp(jnp.sin)
    rule.defvjp(lambda y: (rule(y), y), lambda y, ct: (3 * ct * jnp.cos(y),))
    return lambda x: rule(low(x)).astype(x.dtype)


KINDS = [
    "jit",
    "remat",
    "scan",
    "while",
    "cond",
    "preferred",
    "integers",
    "iota",
    "reduce_precision",
    "bfloat16",
    "vmap",
]
KINDS += ["gather", "custom_jvp", "custom_vjp"]


@pytest.mark.parametrize("kind", KINDS)
def test_jax_island_in_every_kind_of_program(monkeypatch, kind):
    x = np.random.Generator(np.random.PCG64(5)).uniform(1, 2, 5)

    def program():
        inner = wrapped_in(kind)
        if kind == "while":  # no reverse mode
            return inner
        return jax.value_and_grad(lambda x: (inner(x) ** 2).sum())

    found = find_islands(program(), x)
    assert [island.place.rpartition(".")[0].startswith("wrapped_in") or island.place == "low" for island in found]
    assert len(found) == len({island.place for island in found}) >= 1
    with jax.enable_x64(True):
        seen = jax.tree.leaves(program()(x))
        lifted = jax.tree.leaves(jax.jit(jax_lift(program()))(x))
        assert {leaf.dtype for leaf in lifted} == {np.dtype("float64")}
        assert max(float(jnp.abs(a - b).max()) for a, b in zip(seen, lifted, strict=True)) > 1e-10
    monkeypatch.setattr(__name__ + ".low", lambda x: x)
    monkeypatch.setattr(jnp, "float32", jnp.float64)
    monkeypatch.setattr(jnp, "bfloat16", jnp.float64)
    monkeypatch.setattr(jax.lax, "reduce_precision", lambda x, *_: x)
    with jax.enable_x64(True):
        want = jax.tree.leaves(program()(x))
        assert max(float(jnp.abs(a - b).max()) for a, b in zip(want, lifted, strict=True)) < ROUNDING


@pytest.mark.parametrize("kind", ["jit", "remat", "scan", "cond", "preferred", "custom_jvp", "gather"])
def test_gradient_of_the_lifted_is_the_lifted_gradient(kind):
    x = np.random.Generator(np.random.PCG64(5)).uniform(1, 2, 5)
    with jax.enable_x64(True):
        after = jax.grad(jax_lift(lambda x: (wrapped_in(kind)(x) ** 2).sum()))(x)
        before = jax_lift(jax.grad(lambda x: (wrapped_in(kind)(x) ** 2).sum()))(x)
        assert float(jnp.abs(after - before).max()) < ROUNDING


def test_custom_vjp_cannot_be_differentiated_after_the_lift():
    with (
        jax.enable_x64(True),
        pytest.raises(ValueError, match=r"lift: a custom_vjp rule .*; lift the gradient program"),
    ):
        jax.grad(jax_lift(lambda x: wrapped_in("custom_vjp")(x).sum()))(np.ones(5))


def test_opaque_kernels_run_in_their_own_type():
    def bits(x):
        return jax.lax.bitcast_convert_type(low(x), jnp.uint32)

    def called(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, np.float32), low(x))

    with jax.enable_x64(True):
        assert jax_lift(bits)(np.ones(3)).dtype == np.uint32
        assert jax_lift(called)(np.ones(3)).dtype == np.float64


def test_low_inputs_are_named():
    config = tiny()
    parameters = weights(config) | {"final_norm.weight": weights(config)["final_norm.weight"].astype(np.float32)}
    found = find_islands(jax_loss(config), parameters, TOKENS)
    assert found[0].place == "input 0.final_norm.weight"
    assert (found[0].operation, found[0].dtype) == ("input", "float32")
    module = torch_module(config)
    module.final_norm.weight.data = module.final_norm.weight.data.float()
    with trace_islands(module) as seen:
        torch_loss(module)
    assert [(island.place, island.operation) for island in seen] == [("input final_norm.weight", "input")]


def test_named_scopes_and_functions_name_what_no_module_does():
    def helper(x):
        return x.astype(jnp.float32)

    def model(x):
        with jax.named_scope("encoder"):
            y = helper(x)
        return y

    (found,) = find_islands(model, np.ones(3))
    assert found.place == "encoder"
    (found,) = find_islands(helper, np.ones(3))
    assert found.place.endswith("helper")


def test_source_is_the_caller_even_where_jit_had_traced_the_library_for_another():
    narrow = jax.jit(partial(jnp.asarray, dtype=jnp.float32))

    def early(x):
        return narrow(x)

    def late(x):
        return narrow(x)

    found = find_islands(lambda x: (early(x), late(x)), np.ones(3))
    assert [island.place.rpartition(".")[2] for island in found] == ["early", "late"]


class Tower(nnx.Module):
    """Children in a list, a dict and an attribute; called in an order of its own."""

    def __init__(self, count=11):
        self.blocks = nnx.List([Leaf() for _ in range(count)])
        self.named = nnx.Dict({"x": Leaf()})

    def __call__(self, x, index):
        x = self.named["x"](x) if index is None else self.blocks[index](x)
        return x


class Leaf(nnx.Module):
    def __init__(self):
        self.weight = nnx.Param(np.float64(2))

    def __call__(self, x):
        return x.astype(jnp.float32) * self.weight[...]


@pytest.mark.parametrize(("index", "path"), [(0, "blocks.0"), (10, "blocks.10"), (None, "named.x")])
def test_nnx_path_by_identity(index, path):
    (found,) = find_islands(lambda x: Tower()(x, index), np.ones(3))
    assert found.place == path


def test_merged_layers_are_named_in_call_order():
    class Rebuilding(Tower):
        def __call__(self, x):
            for block in self.blocks:
                x = nnx.merge(*nnx.split(block))(x) if block is not self.blocks[0] else x
            return x

    (found,) = find_islands(Rebuilding(3), np.ones(3))
    assert (
        found.place == "blocks.0"
    )  # the limit: blocks.1 ran first, and nothing tells a rebuilt module from its equals


def test_one_numpy_constant_under_both_modes_is_poisoned_until_the_caches_are_dropped():
    """Pins jax 0.10.2: the canonical copy of a NumPy constant is cached by the array alone, without x64 in the key."""
    table = np.arange(1, 6) * 0.1

    def low_precision(x):
        return x * table

    def constant_of_a_fresh_trace():
        return jax.make_jaxpr(lambda x: x * table)(np.ones(5)).consts[0].dtype

    with jax.enable_x64(False):
        jax.jit(low_precision)(np.ones(5, np.float32))
    with jax.enable_x64(True):
        assert constant_of_a_fresh_trace() == np.float32
    assert find_islands(lambda x: x * table, np.ones(5)) == []
    with jax.enable_x64(True):
        assert constant_of_a_fresh_trace() == np.float64


class OwnBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.float().double() * 2


def test_torch_island_of_the_backward_pass_only():
    x = torch.linspace(0.1, 0.7, 5, dtype=torch.float64).requires_grad_()
    layer = torch.nn.Identity()
    with trace_islands(layer) as found:
        OwnBackward.apply(layer(x)).pow(3).sum().backward()
    assert [(island.place, island.dtype) for island in found] == [("OwnBackward.backward", "float32")]
    seen, x.grad = x.grad, None
    with torch_lift():
        OwnBackward.apply(layer(x)).pow(3).sum().backward()
    want = 24 * x.detach() ** 2
    assert (seen - want).abs().max() > 1e-9
    assert (x.grad - want).abs().max() < ROUNDING


def test_torch_backward_operation_bears_the_module_of_its_forward_one():
    double, triple = (lambda x: x * 2), (lambda x: x * 3)
    model = torch.nn.Sequential(Apply(double), Apply(torch.Tensor.double), Apply(triple))
    x = torch.linspace(0.1, 0.7, 5, dtype=torch.float32).requires_grad_()
    with trace_islands(model) as found:
        model(x).sum().backward()
    assert [(island.place, island.operation) for island in found] == [("input 0", "input"), ("1", "_to_copy.default")]


class Apply(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    "act",
    [
        lambda x: torch.softmax(x, -1, dtype=torch.float32),
        lambda x: x.sum(0, dtype=torch.float32),
        lambda x: x.to(torch.bfloat16).sin(),
        lambda x: x.half() * 3,
        lambda x: x * torch.arange(1, 6).float().sqrt(),
        lambda x: x * torch.full((5,), 0.1),
        lambda x: x * torch.linspace(0.1, 1, 5, dtype=torch.float32),
        lambda x: x.float().mul_(0.3),
        lambda x: torch.zeros(5).copy_(x) * 0.7,
        lambda x: torch.polar(x.float(), x.float()).real,
    ],
)
def test_torch_dtypes_of_every_spelling_are_seen_and_lifted(act):
    x = torch.linspace(0.11, 0.77, 5, dtype=torch.float64)
    module = Apply(act)
    with trace_islands(module) as found:
        seen = module(x)
    assert len(found) == 1
    assert found[0].dtype in ("float32", "bfloat16", "float16")
    with trace_islands(module) as left, torch_lift():
        lifted = module(x)
    assert left == []
    assert lifted.dtype == torch.float64
    assert 0 < (seen.double() - lifted).abs().max() < 1e-2


@torch.library.custom_op("islands_test::narrow", mutates_args=())
def narrow(x: torch.Tensor) -> torch.Tensor:
    """A kernel that the lift cannot look into."""
    return x.float()


def test_opaque_torch_kernel_keeps_its_rounding_but_gives_float64():
    x = torch.linspace(0.11, 0.77, 5, dtype=torch.float64)
    with trace_islands(torch.nn.Identity()) as found:
        want = narrow(x)
    assert [island.operation for island in found] == ["islands_test.narrow.default"]
    with torch_lift():
        lifted = narrow(x)
    assert torch.equal(lifted, want.double())
    assert lifted.dtype == torch.float64


def llama():
    """transformers' Llama in float64 and the same weights for torchref."""
    config = LlamaConfig(
        vocab_size=29,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=64,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).double().eval()
    ours = jaxcore.ModelConfig(
        vocab_size=29,
        d_model=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        d_ff=48,
        max_seq_len=64,
        norm="rms_norm",
        norm_eps=config.rms_norm_eps,
        position="rope",
        activation="swiglu",
        qkv_bias=False,
        o_bias=False,
        mlp_bias=False,
        head="untied",
    )
    given = {name: value.detach() for name, value in model.named_parameters()}
    mapped = {
        "token_embedding.weight": given["model.embed_tokens.weight"],
        "final_norm.weight": given["model.norm.weight"],
    }
    mapped["head.weight"] = rearrange(given["lm_head.weight"], "v d -> d v")
    for layer in range(2):
        theirs, mine = f"model.layers.{layer}", f"layers.{layer}"
        mapped[f"{mine}.attention_norm.weight"] = given[f"{theirs}.input_layernorm.weight"]
        mapped[f"{mine}.mlp_norm.weight"] = given[f"{theirs}.post_attention_layernorm.weight"]
        for part in ("q_proj", "k_proj", "v_proj"):
            weight = given[f"{theirs}.self_attn.{part}.weight"]
            mapped[f"{mine}.attention.{part}.weight"] = rearrange(weight, "(n h) d -> d n h", h=8)
        weight = given[f"{theirs}.self_attn.o_proj.weight"]
        mapped[f"{mine}.attention.o_proj.weight"] = rearrange(weight, "d (n h) -> n h d", h=8)
        for part in ("gate_proj", "up_proj", "down_proj"):
            mapped[f"{mine}.mlp.{part}.weight"] = rearrange(given[f"{theirs}.mlp.{part}.weight"], "o i -> i o")
    return model, torchref.Transformer(mirrored(ours), mapped)


def llama_run(model, tokens):
    model.zero_grad()
    logits = model(tokens).logits
    torchref.cross_entropy(logits, tokens).backward()
    return {"logits": logits.detach().numpy(), "embedding": model.model.embed_tokens.weight.grad.numpy()}


def test_llama_of_transformers_is_float32_islands_and_nothing_else():
    model, ours = llama()
    tokens = torch.as_tensor(TOKENS)
    logits = ours(tokens)["logits"]
    torchref.cross_entropy(logits, tokens).backward()
    want = {"logits": logits.detach().numpy(), "embedding": ours.token_embedding.weight.grad.numpy()}
    with trace_islands(model) as found:
        seen = llama_run(model, tokens)
    assert [island.place for island in found] == [
        "model.layers.0.input_layernorm",
        "model.rotary_emb.inv_freq",  # a buffer that was computed in float32: a constant, which meets the data late
        "model.rotary_emb",
        "model.layers.0.self_attn",  # softmax
    ]
    assert [island.operation == "constant" for island in found] == [False, True, False, False]
    assert found[0].source.startswith("modeling_llama.py:")
    assert gap(seen, want) > 1e-8
    with torch_lift():
        assert ROUNDING < gap(llama_run(model, tokens), want) < 1e-9  # the constant is left
        model.model.rotary_emb.inv_freq = torch.as_tensor(torchref.rope_frequencies(8, 10_000.0, None))
        assert gap(llama_run(model, tokens), want) < 1e-14


def test_float32_numbers_in_float64_are_known_by_their_bits():
    random = np.random.Generator(np.random.PCG64(1)).standard_normal(50)
    assert holds_float32(random.astype(np.float32).astype(np.float64))
    assert not holds_float32(random)
    assert not holds_float32(np.arange(60_000.0))
    assert not holds_float32(np.array([-1e9, 9_999_999.0, 0.0009765625]))
    assert holds_float32(np.array([-1e9, float(np.float32(0.1))]))
    assert not holds_float32(np.array([0.5, -0.25, np.inf, np.nan, float(np.finfo(np.float32).min)]))
    assert not holds_float32(np.append(random.astype(np.float32).astype(np.float64), 0.1))


@pytest.mark.parametrize(
    "value", [1e-5, 0.1, -0.044715, 1 / 3, 2**-0.5, (2 / np.pi) ** 0.5, 1 / np.pi, 7**-0.5, 0.0, np.inf, 3.0]
)
def test_literal_is_read_as_it_was_written(value):
    assert sharpen(float(np.float32(value))) == pytest.approx(value, rel=4e-16)


def test_literal_that_nobody_would_write_stays_within_its_rounding():
    for value in np.random.Generator(np.random.PCG64(2)).standard_normal(200).astype(np.float32):
        assert np.float32(sharpen(float(value))) == value


def test_frames_of_frameworks_are_not_the_models():
    assert is_user_code(__file__)
    assert is_user_code(jaxcore.norm.__file__)
    assert not any(
        map(is_user_code, (jax.__file__, torch.__file__, nnx.__file__, "<string>", find_islands.__code__.co_filename))
    )


def test_two_casts_of_one_function_are_two_islands_and_their_backward_casts_none():
    def of_torch(x):
        wide = x.float()
        x = (wide / wide.norm(dim=-1, keepdim=True)).to(x.dtype)
        return torch.softmax((torch.tanh(x) * 3).float(), -1).to(x.dtype)

    def of_jax(x):
        wide = x.astype(jnp.float32)
        x = (wide / jnp.linalg.norm(wide, axis=-1, keepdims=True)).astype(x.dtype)
        return jax.nn.softmax((jnp.tanh(x) * 3).astype(jnp.float32), -1).astype(x.dtype)

    def plain(x):
        return jax.nn.softmax(jnp.tanh(x / jnp.linalg.norm(x, axis=-1, keepdims=True)) * 3, -1)

    x = np.random.Generator(np.random.PCG64(9)).normal(size=(4, 16)).astype(np.float32)
    for candidate in (parity.Torch(of_torch), parity.Jax(of_jax, label="candidate")):
        pair = parity.Pair("casts", parity.Jax(plain), candidate, inputs=(x,))
        result = parity.check(pair, precisions=())
        assert (result.verdict, result.rung) == ("PASS", "float32-island")
        lines = [int(island.source.partition(":")[2]) for island in result.islands]
        assert len(lines) == 2
        assert lines[1] == lines[0] + 2
