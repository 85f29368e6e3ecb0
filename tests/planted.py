"""A causal transformer of six layers, rotary and learned positions, written six times, with one fault or two in it.

The equations are written once, in einops and the few functions that the frameworks share. What is wrong with a layer
is said by its `Layer`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
from einops import einsum, rearrange, reduce
from flax import nnx

import parity
from parity import Jax, Linen, Pair, Torch
from parity.taps import tap

VOCABULARY, LENGTH, WIDTH, HEADS, HIDDEN, LAYERS, EPS = 17, 7, 12, 3, 20, 6, 1e-5
TOKENS = np.random.Generator(np.random.PCG64(7)).integers(0, VOCABULARY, (2, LENGTH))
DENSE = {
    **dict.fromkeys(("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out"), (WIDTH, WIDTH)),
    "mlp.up": (WIDTH, HIDDEN),
    "mlp.down": (HIDDEN, WIDTH),
}


@dataclass(frozen=True)
class Layer:
    """One layer's constants, which a scan may carry, and the fault by name."""

    fault: str = ""
    eps: Any = EPS
    scale: Any = (WIDTH // HEADS) ** -0.5
    value: Any = 1.0
    first: Any = 1.0
    second: Any = 1.0


#: faults that are another constant
CONSTANTS = {
    "norm eps": {"eps": 1e-6},
    "attention unscaled": {"scale": 1.0},
    "value scaled": {"value": 0.9},
    "residual doubled": {"first": 2.0},
    "residual missing": {"second": 0.0},
}


def layers(faults):
    """Layers by number; `faults` are names by number."""
    return [Layer(faults.get(i, ""), **CONSTANTS.get(faults.get(i, ""), {})) for i in range(LAYERS)]


def weights(faults=None):
    """float32 arrays by name; matrices are (in, out). Some faults are in the weights."""
    generator = np.random.Generator(np.random.PCG64(3))
    shapes = {"embed.weight": (VOCABULARY, WIDTH), "position.weight": (LENGTH, WIDTH)}
    for i in range(LAYERS):
        shapes |= {f"h.{i}.norm_1.weight": (WIDTH,), f"h.{i}.norm_2.weight": (WIDTH,), f"h.{i}.norm_2.bias": (WIDTH,)}
        for name, (inner, outer) in DENSE.items():
            shapes |= {f"h.{i}.{name}.weight": (inner, outer), f"h.{i}.{name}.bias": (outer,)}
    shapes |= {"norm_f.weight": (WIDTH,), "norm_f.bias": (WIDTH,)}
    drawn = {
        name: generator.normal(0.9 * ("norm" in name and "weight" in name), 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    for i, fault in (faults or {}).items():
        attn = f"h.{i}.attn"
        if fault == "q and k weights swapped":
            for kind in ("weight", "bias"):
                q, k = f"{attn}.q_proj.{kind}", f"{attn}.k_proj.{kind}"
                drawn[q], drawn[k] = drawn[k], drawn[q]
        if fault == "square weight not transposed":
            drawn[f"{attn}.out.weight"] = drawn[f"{attn}.out.weight"].T.copy()
        if fault == "one weight element":
            drawn[f"h.{i}.mlp.up.weight"][3, 5] += 1e-4
        if fault == "bias forgotten":
            del drawn[f"{attn}.out.bias"]
    return drawn


@jax.custom_vjp
def _less_slope(x):
    return x


_less_slope.defvjp(lambda x: (x, None), lambda _, g: (0.9 * g,))


class _TorchLessSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return 0.9 * g


#: what the frameworks spell differently
JAX = SimpleNamespace(
    softmax=jax.nn.softmax,
    gelu=lambda x, form: jax.nn.gelu(x, approximate=form == "tanh"),
    relu=jax.nn.relu,
    join=partial(jnp.concatenate, axis=-1),
    stack=partial(jnp.stack, axis=-1),
    where=jnp.where,
    sin=jnp.sin,
    cos=jnp.cos,
    arange=lambda count, x: jnp.arange(count, dtype=x.dtype),
    tril=lambda count, shift: jnp.tri(count, k=shift, dtype=bool),
    stop=jax.lax.stop_gradient,
    less_slope=_less_slope,
    mean=lambda x: x.mean(-1, keepdims=True),
)
TORCH = SimpleNamespace(
    softmax=torch.softmax,
    gelu=lambda x, form: torch.nn.functional.gelu(x, approximate=form),
    relu=torch.relu,
    join=partial(torch.cat, dim=-1),
    stack=partial(torch.stack, dim=-1),
    where=torch.where,
    sin=torch.sin,
    cos=torch.cos,
    arange=lambda count, x: torch.arange(count, dtype=x.dtype),
    tril=lambda count, shift: torch.ones(count, count, dtype=torch.bool).tril(shift),
    stop=lambda x: x.detach(),
    less_slope=_TorchLessSlope.apply,
    mean=lambda x: x.mean(-1, keepdim=True),
)


def rms_norm(o, x, gain, s):
    x = x * (o.mean(x * x) + s.eps) ** -0.5
    return x if s.fault == "gain forgotten" else x * gain


def layer_norm(o, x, gain, bias, s):
    centred = x - o.mean(x)
    count = x.shape[-1]
    variance = o.mean(centred * centred) * (count / (count - 1) if s.fault == "unbiased variance" else 1)
    if s.fault == "mean not subtracted":
        centred = x
    return centred * (variance + EPS) ** -0.5 * gain + bias


def rotate(o, x, s, name):
    """Rotary positions: halves by default."""
    half = x.shape[-1] // 2
    positions = o.arange(x.shape[-2], x) + (s.fault == "rope position shifted" and name == "q")
    base = 2e4 if s.fault == "rope base" else 1e4
    angles = einsum(positions, base ** (-o.arange(half, x) / half), "t, f -> t f")
    sin, cos = o.sin(angles), o.cos(angles)
    if s.fault == "rope interleaved":
        a, b = x[..., 0::2], x[..., 1::2]
        return tap(name, rearrange(o.stack([a * cos - b * sin, b * cos + a * sin]), "b n t f two -> b n t (f two)"))
    a, b = x[..., :half], x[..., half:]
    return tap(name, o.join([a * cos - b * sin, b * cos + a * sin]))


def attend(o, q, k, v, s):
    """The part of attention without weights."""
    q, k, v = (rearrange(each, "b t (n h) -> b n t h", n=HEADS) for each in (q, k, v * s.value))
    v = o.stop(v) if s.fault == "stop_gradient" else v
    q, k = rotate(o, q, s, "q"), rotate(o, k, s, "k")
    q, k = (k, q) if s.fault == "q and k swapped" else (q, k)
    scores = tap("scores", einsum(q, k, "b n t h, b n u h -> b n t u") * s.scale)
    mask = tap("mask", o.tril(scores.shape[-1], int(s.fault == "mask shifted")))
    masked = scores if s.fault == "mask dropped" else o.where(mask, scores, -1e30)
    attention = tap("attention", o.softmax(masked, -2 if s.fault == "softmax axis" else -1))
    mixed = einsum(attention, v, "b n t u, b n u h -> b n t h")
    return rearrange(mixed, "b n t h -> b t (h n)" if s.fault == "heads merged" else "b n t h -> b t (n h)")


def activate(o, x, s):
    if s.fault == "relu":
        return o.relu(x)
    x = o.less_slope(x) if s.fault == "custom gradient" else x
    return o.gelu(x, "none" if s.fault == "exact gelu" else "tanh")


def residual(x, norm_1, attn, norm_2, mlp, s):
    x = tap("stream", s.first * x + attn(norm_1(x)))
    return s.second * x + mlp(norm_2(x))


def embedded(table, positions, tokens):
    return table[tokens] + positions


def pooled(x):
    return reduce(x, "b t d -> b d", "mean")


# torch.nn ------------------------------------------------------------------------------------------------------------


class TorchNorm(torch.nn.Module):
    """Written out; what PyTorch has of its own stands where nothing is wrong."""

    def __init__(self, s, bias):
        super().__init__()
        self.s, self.weight = s, torch.nn.Parameter(torch.ones(WIDTH))
        self.bias = torch.nn.Parameter(torch.zeros(WIDTH)) if bias else None

    def forward(self, x):
        if self.bias is None:
            return rms_norm(TORCH, x, self.weight, self.s)
        return layer_norm(TORCH, x, self.weight, self.bias, self.s)


class TorchAttention(torch.nn.Module):
    def __init__(self, s):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = torch.nn.Linear(WIDTH, WIDTH, bias=s.fault != "bias forgotten")
        self.s = s

    def forward(self, x):
        return self.out(attend(TORCH, self.q_proj(x), self.k_proj(x), self.v_proj(x), self.s))


class TorchMlp(torch.nn.Module):
    def __init__(self, s):
        super().__init__()
        self.up, self.down, self.s = torch.nn.Linear(WIDTH, HIDDEN), torch.nn.Linear(HIDDEN, WIDTH), s

    def forward(self, x):
        return self.down(activate(TORCH, self.up(x), self.s))


class TorchBlock(torch.nn.Module):
    def __init__(self, s):
        super().__init__()
        right = s == Layer()
        self.norm_1 = torch.nn.RMSNorm(WIDTH, EPS) if right else TorchNorm(s, bias=False)
        self.norm_2 = torch.nn.LayerNorm(WIDTH, EPS) if right else TorchNorm(s, bias=True)
        self.attn, self.mlp, self.s = TorchAttention(s), TorchMlp(s), s

    def forward(self, x):
        return residual(x, self.norm_1, self.attn, self.norm_2, self.mlp, self.s)


class TorchModel(torch.nn.Module):
    def __init__(self, faults):
        super().__init__()
        self.embed, self.position = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Embedding(LENGTH, WIDTH)
        self.h = torch.nn.ModuleList(map(TorchBlock, layers(faults)))
        self.norm_f = torch.nn.LayerNorm(WIDTH, EPS)

    def forward(self, tokens):
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[-1]))
        for block in self.h:
            x = block(x)
        return pooled(self.norm_f(x))


def is_matrix(name, value):
    return value.ndim == 2 and not name.startswith(("embed", "position"))


def torch_model(faults=None):
    faults = faults or {}
    model = TorchModel(faults)
    state = {
        name: torch.as_tensor(value.T if is_matrix(name, value) else value) for name, value in weights(faults).items()
    }
    model.load_state_dict(state)
    return model


# flax.nnx ------------------------------------------------------------------------------------------------------------


class NnxNorm(nnx.Module):
    def __init__(self, s, bias):
        self.s, self.weight = s, nnx.Param(jnp.ones(WIDTH))
        self.bias = nnx.Param(jnp.zeros(WIDTH)) if bias else None

    def __call__(self, x):
        if self.bias is None:
            return rms_norm(JAX, x, self.weight[...], self.s)
        return layer_norm(JAX, x, self.weight[...], self.bias[...], self.s)


class NnxAttention(nnx.Module):
    def __init__(self, s, rngs):
        self.q_proj, self.k_proj, self.v_proj = (nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(3))
        self.out = nnx.Linear(WIDTH, WIDTH, use_bias=s.fault != "bias forgotten", rngs=rngs)
        self.s = s

    def __call__(self, x):
        return self.out(attend(JAX, self.q_proj(x), self.k_proj(x), self.v_proj(x), self.s))


class NnxMlp(nnx.Module):
    def __init__(self, s, rngs):
        self.up, self.down = nnx.Linear(WIDTH, HIDDEN, rngs=rngs), nnx.Linear(HIDDEN, WIDTH, rngs=rngs)
        self.s = s

    def __call__(self, x):
        return self.down(activate(JAX, self.up(x), self.s))


class NnxBlock(nnx.Module):
    def __init__(self, s, rngs):
        self.norm_1, self.norm_2 = NnxNorm(s, bias=False), NnxNorm(s, bias=True)
        self.attn, self.mlp, self.s = NnxAttention(s, rngs), NnxMlp(s, rngs), s

    def __call__(self, x):
        return residual(x, self.norm_1, self.attn, self.norm_2, self.mlp, self.s)


class NnxModel(nnx.Module):
    def __init__(self, faults, rngs):
        self.embed, self.position = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs), nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.h = nnx.List([NnxBlock(s, rngs) for s in layers(faults)])
        self.norm_f = NnxNorm(Layer(), bias=True)

    def __call__(self, tokens):
        x = self.embed(tokens) + self.position(jnp.arange(tokens.shape[-1]))
        for block in self.h:
            x = block(x)
        return pooled(self.norm_f(x))


def nnx_model(faults):
    model, given = NnxModel(faults, nnx.Rngs(0)), weights(faults)

    def filled(path, leaf):
        *parts, kind = map(str, path)
        return leaf.replace(jnp.asarray(given[".".join([*parts, "bias" if kind == "bias" else "weight"])]))

    nnx.update(model, nnx.map_state(filled, nnx.state(model, nnx.Param)))
    return model


# flax.linen ----------------------------------------------------------------------------------------------------------


class LinenNorm(nn.Module):
    s: Layer
    shifts: bool

    @nn.compact
    def __call__(self, x):
        gain = self.param("scale", nn.initializers.ones, (WIDTH,))
        if not self.shifts:
            return rms_norm(JAX, x, gain, self.s)
        return layer_norm(JAX, x, gain, self.param("bias", nn.initializers.zeros, (WIDTH,)), self.s)


class LinenAttention(nn.Module):
    s: Layer

    @nn.compact
    def __call__(self, x):
        parts = (nn.Dense(WIDTH, name=name)(x) for name in ("q_proj", "k_proj", "v_proj"))
        return nn.Dense(WIDTH, self.s.fault != "bias forgotten", name="out")(attend(JAX, *parts, self.s))


class LinenMlp(nn.Module):
    s: Layer

    @nn.compact
    def __call__(self, x):
        return nn.Dense(WIDTH, name="down")(activate(JAX, nn.Dense(HIDDEN, name="up")(x), self.s))


class LinenBlock(nn.Module):
    s: Layer

    @nn.compact
    def __call__(self, x):
        norms = LinenNorm(self.s, False, name="norm_1"), LinenNorm(self.s, True, name="norm_2")
        return residual(
            x, norms[0], LinenAttention(self.s, name="attn"), norms[1], LinenMlp(self.s, name="mlp"), self.s
        )


class LinenModel(nn.Module):
    layers: tuple[Layer, ...]

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(VOCABULARY, WIDTH, name="embed")(tokens)
        x = x + nn.Embed(LENGTH, WIDTH, name="position")(jnp.arange(tokens.shape[-1]))
        for i, s in enumerate(self.layers):
            x = LinenBlock(s, name=f"h_{i}")(x)
        return pooled(LinenNorm(Layer(), True, name="norm_f")(x))


def linen_model(faults):
    tree: dict = {}
    for name, value in weights(faults).items():
        *path, kind = name.replace("h.", "h_").split(".")
        node = tree
        for key in path:
            node = node.setdefault(key, {})
        leaf = {1: "scale", 2: "embedding" if path[0] in ("embed", "position") else "kernel"}[value.ndim]
        node["bias" if kind == "bias" else leaf] = value
    return Linen(LinenModel(tuple(layers(faults))), {"params": tree})


# equinox -------------------------------------------------------------------------------------------------------------


def every(module):
    """Over batch and time."""
    return jax.vmap(jax.vmap(module))


class EquinoxNorm(eqx.Module):
    weight: jax.Array
    bias: jax.Array | None
    s: Layer = eqx.field(static=True)

    def __call__(self, x):
        if self.bias is None:
            return rms_norm(JAX, x, self.weight, self.s)
        return layer_norm(JAX, x, self.weight, self.bias, self.s)


def equinox_norm(s, bias):
    return EquinoxNorm(jnp.ones(WIDTH), jnp.zeros(WIDTH) if bias else None, s)


class EquinoxAttention(eqx.Module):
    q_proj: eqx.nn.Linear
    k_proj: eqx.nn.Linear
    v_proj: eqx.nn.Linear
    out: eqx.nn.Linear
    s: Layer = eqx.field(static=True)

    def __init__(self, s, key):
        self.q_proj, self.k_proj, self.v_proj = (eqx.nn.Linear(WIDTH, WIDTH, key=key) for _ in range(3))
        self.out = eqx.nn.Linear(WIDTH, WIDTH, use_bias=s.fault != "bias forgotten", key=key)
        self.s = s

    def __call__(self, x):
        parts = (every(each)(x) for each in (self.q_proj, self.k_proj, self.v_proj))
        return every(self.out)(attend(JAX, *parts, self.s))


class EquinoxMlp(eqx.Module):
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    s: Layer = eqx.field(static=True)

    def __call__(self, x):
        return every(self.down)(activate(JAX, every(self.up)(x), self.s))


class EquinoxBlock(eqx.Module):
    norm_1: EquinoxNorm
    attn: EquinoxAttention
    norm_2: EquinoxNorm
    mlp: EquinoxMlp
    s: Layer = eqx.field(static=True)

    def __call__(self, x):
        return residual(x, self.norm_1, self.attn, self.norm_2, self.mlp, self.s)


class EquinoxModel(eqx.Module):
    embed: eqx.nn.Embedding
    position: eqx.nn.Embedding
    h: list
    norm_f: EquinoxNorm

    def __call__(self, tokens):
        x = every(self.embed)(tokens) + jax.vmap(self.position)(jnp.arange(tokens.shape[-1]))
        for block in self.h:
            x = block(x)
        return pooled(self.norm_f(x))


def equinox_model(faults):
    key = jax.random.key(0)

    def block(s):
        up, down = eqx.nn.Linear(WIDTH, HIDDEN, key=key), eqx.nn.Linear(HIDDEN, WIDTH, key=key)
        norms = equinox_norm(s, False), equinox_norm(s, True)
        return EquinoxBlock(norms[0], EquinoxAttention(s, key), norms[1], EquinoxMlp(up, down, s), s)

    tables = (eqx.nn.Embedding(count, WIDTH, key=key) for count in (VOCABULARY, LENGTH))
    model, given = EquinoxModel(*tables, list(map(block, layers(faults))), equinox_norm(Layer(), True)), weights(faults)

    def filled(path, _):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        return jnp.asarray(given[name].T if is_matrix(name, given[name]) else given[name])

    return jax.tree_util.tree_map_with_path(filled, model)


# plain functions -----------------------------------------------------------------------------------------------------


def linear(w, name, x):
    x = einsum(x, w[f"{name}.weight"], "b t i, i o -> b t o")
    return x + w[f"{name}.bias"] if f"{name}.bias" in w else x


def plain_block(o, w, x, s, name):
    """One layer, of weights without the layer's prefix; its taps have the names of the modules elsewhere."""

    def attention(x):
        return linear(w, "attn.out", attend(o, *(linear(w, f"attn.{each}_proj", x) for each in "qkv"), s))

    x = residual(
        x,
        lambda x: tap(f"{name}.norm_1", rms_norm(o, x, w["norm_1.weight"], s)),
        attention,
        lambda x: tap(f"{name}.norm_2", layer_norm(o, x, w["norm_2.weight"], w["norm_2.bias"], s)),
        lambda x: tap(f"{name}.mlp", linear(w, "mlp.down", activate(o, linear(w, "mlp.up", x), s))),
        s,
    )
    return tap(name, x)


def layer_weights(w, i):
    return {name.removeprefix(f"h.{i}."): value for name, value in w.items() if name.startswith(f"h.{i}.")}


def plain(o, faults, w, tokens):
    x = embedded(w["embed.weight"], w["position.weight"], tokens)
    for i, s in enumerate(layers(faults)):
        x = plain_block(o, layer_weights(w, i), x, s, f"h.{i}")
    return pooled(layer_norm(o, x, w["norm_f.weight"], w["norm_f.bias"], Layer()))


def scanned(faults, w, tokens):
    """Constants differ from layer to layer, code cannot."""
    each = [layer_weights(w, i) for i in range(LAYERS)]
    stacked = {name: jnp.stack([layer[name] for layer in each]) for name in each[0]}
    fields = ("eps", "scale", "value", "first", "second")
    x = embedded(w["embed.weight"], w["position.weight"], tokens)
    constants = {name: jnp.asarray([getattr(s, name) for s in layers(faults)], x.dtype) for name in fields}

    def step(x, given):
        layer, constants = given
        return plain_block(JAX, layer, x, replace(Layer(), **constants), "h"), None

    x, _ = jax.lax.scan(step, x, (stacked, constants))
    return pooled(layer_norm(JAX, x, w["norm_f.weight"], w["norm_f.bias"], Layer()))


def tensors(arrays):
    return {name: torch.as_tensor(value) for name, value in arrays.items()}


CANDIDATES = {
    "nnx": nnx_model,
    "linen": linen_model,
    "equinox": equinox_model,
    "plain": lambda faults: Jax(partial(plain, JAX, faults), weights(faults)),
    "scan": lambda faults: Jax(partial(scanned, faults), weights(faults)),
    "torch": torch_model,
    "torch function": lambda faults: Torch(partial(plain, TORCH, faults), tensors(weights(faults)), label="function"),
}


def pair(candidate, reference=None, **faults):
    """The torch model, or another one, and one of the candidates with these faults by the number of the layer."""
    faults = {int(name.removeprefix("h")): fault for name, fault in faults.items()}
    return Pair(candidate, reference or torch_model(), CANDIDATES[candidate](faults), inputs=(TOKENS,))


def checked(pair, **options):
    return parity.check(pair, precisions=(), steps=0, flops=False, batches=1, **options)
