"""One small pre-norm transformer written five times: torch.nn, flax.nnx, flax.linen, equinox, plain JAX functions."""

from __future__ import annotations

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch
from einops import einsum, rearrange, reduce
from flax import nnx

from parity.taps import tap

VOCABULARY, WIDTH, HEADS, HIDDEN, LAYERS, EPS = 29, 24, 3, 40, 2, 1e-5
TOKENS = np.random.Generator(np.random.PCG64(7)).integers(0, VOCABULARY, (2, 7))
SPLIT = "b t (s n h) -> s b n t h"
SCORES = "b n t h, b n u h -> b n t u"
MERGE = "b n t h -> b t (n h)"


def weights():
    """float64 arrays by name; matrices are (in, out), gains and biases random too."""
    generator = np.random.Generator(np.random.PCG64(3))
    shapes = {"embed.weight": (VOCABULARY, WIDTH)}
    for i in range(LAYERS):
        for norm in ("norm_1", "norm_2"):
            shapes |= {f"h.{i}.{norm}.weight": (WIDTH,), f"h.{i}.{norm}.bias": (WIDTH,)}
        for name, (inner, outer) in MATRICES.items():
            shapes |= {f"h.{i}.{name}.weight": (inner, outer), f"h.{i}.{name}.bias": (outer,)}
    shapes |= {"norm_f.weight": (WIDTH,), "norm_f.bias": (WIDTH,)}
    return {name: generator.normal(0.9 * name.endswith("m.weight"), 0.3, shape) for name, shape in shapes.items()}


MATRICES = {
    "attn.qkv": (WIDTH, 3 * WIDTH),
    "attn.out": (WIDTH, WIDTH),
    "mlp.up": (WIDTH, HIDDEN),
    "mlp.down": (HIDDEN, WIDTH),
}
#: which the loss multiplies the outputs with
READOUT = np.random.Generator(np.random.PCG64(11)).normal(size=(2, WIDTH))


def attend(qkv, softmax, swapped=False):
    """The part of attention without weights, in either framework: (b, t, 3 d) -> (b, t, d)."""
    q, k, v = rearrange(qkv, SPLIT, s=3, n=HEADS)
    q, k = (k, q) if swapped else (q, k)
    scores = tap("scores", einsum(q, k, SCORES) * q.shape[-1] ** -0.5)
    return rearrange(einsum(softmax(scores), v, "b n t u, b n u h -> b n t h"), MERGE)


class TorchAttention(torch.nn.Module):
    def __init__(self, swapped=False):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.swapped = swapped

    def forward(self, x):
        return self.out(attend(self.qkv(x), lambda s: torch.softmax(s, -1), self.swapped))


class TorchMlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, HIDDEN), torch.nn.Linear(HIDDEN, WIDTH)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.up(x), approximate="tanh"))


class TorchBlock(torch.nn.Module):
    def __init__(self, eps=EPS, swapped=False):
        super().__init__()
        self.norm_1, self.attn = torch.nn.LayerNorm(WIDTH, EPS), TorchAttention(swapped)
        self.norm_2, self.mlp = torch.nn.LayerNorm(WIDTH, eps), TorchMlp()

    def forward(self, x):
        x = x + self.attn(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class TorchModel(torch.nn.Module):
    """With a fault in the second layer: another eps in its second norm, or q and k swapped."""

    def __init__(self, eps=EPS, swapped=False):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.h = torch.nn.ModuleList([TorchBlock(), TorchBlock(eps, swapped)])
        self.norm_f = torch.nn.LayerNorm(WIDTH, EPS)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.h:
            x = block(x)
        return reduce(self.norm_f(x), "b t d -> b d", "mean")


def torch_model(**faults):
    model = TorchModel(**faults).double()
    state = {
        name: torch.as_tensor(value.T if value.ndim == 2 and not name.startswith("embed") else value)
        for name, value in weights().items()
    }
    model.load_state_dict(state)
    return model


def torch_run(model):
    """(loss, outputs), the backward pass taken."""
    outputs = model(torch.as_tensor(TOKENS))
    loss = (outputs * torch.as_tensor(READOUT)).sum()
    loss.backward()
    return loss.detach().numpy(), outputs.detach().numpy()


def softmax(scores):
    return jax.nn.softmax(scores, axis=-1)


class NnxAttention(nnx.Module):
    def __init__(self, rngs):
        self.qkv = nnx.Linear(WIDTH, 3 * WIDTH, param_dtype=float, rngs=rngs)
        self.out = nnx.Linear(WIDTH, WIDTH, param_dtype=float, rngs=rngs)

    def __call__(self, x):
        return self.out(attend(self.qkv(x), softmax))


class NnxMlp(nnx.Module):
    def __init__(self, rngs):
        self.up, self.down = (
            nnx.Linear(WIDTH, HIDDEN, param_dtype=float, rngs=rngs),
            nnx.Linear(HIDDEN, WIDTH, param_dtype=float, rngs=rngs),
        )

    def __call__(self, x):
        return self.down(jax.nn.gelu(self.up(x)))


class NnxBlock(nnx.Module):
    def __init__(self, rngs):
        self.norm_1, self.attn = nnx.LayerNorm(WIDTH, epsilon=EPS, param_dtype=float, rngs=rngs), NnxAttention(rngs)
        self.norm_2, self.mlp = nnx.LayerNorm(WIDTH, epsilon=EPS, param_dtype=float, rngs=rngs), NnxMlp(rngs)

    def __call__(self, x):
        x = x + self.attn(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class NnxModel(nnx.Module):
    def __init__(self, rngs, wrap=lambda block: block):
        self.embed = nnx.Embed(VOCABULARY, WIDTH, param_dtype=float, rngs=rngs)
        self.h = nnx.List([NnxBlock(rngs) for _ in range(LAYERS)])
        self.norm_f = nnx.LayerNorm(WIDTH, epsilon=EPS, param_dtype=float, rngs=rngs)
        self.wrap = wrap

    def __call__(self, tokens):
        x = self.embed(tokens)
        for block in self.h:
            x = self.wrap(NnxBlock.__call__)(block, x)
        return reduce(self.norm_f(x), "b t d -> b d", "mean")


class LinenAttention(nn.Module):
    @nn.compact
    def __call__(self, x):
        qkv = nn.Dense(3 * WIDTH, name="qkv", param_dtype=float)(x)
        return nn.Dense(WIDTH, name="out", param_dtype=float)(attend(qkv, softmax))


class LinenMlp(nn.Module):
    @nn.compact
    def __call__(self, x):
        up = nn.Dense(HIDDEN, name="up", param_dtype=float)(x)
        return nn.Dense(WIDTH, name="down", param_dtype=float)(jax.nn.gelu(up))


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = x + LinenAttention(name="attn")(nn.LayerNorm(EPS, name="norm_1", param_dtype=float)(x))
        return x + LinenMlp(name="mlp")(nn.LayerNorm(EPS, name="norm_2", param_dtype=float)(x))


class LinenModel(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(VOCABULARY, WIDTH, name="embed", param_dtype=float)(tokens)
        for i in range(LAYERS):
            x = LinenBlock(name=f"h_{i}")(x)
        return reduce(nn.LayerNorm(EPS, name="norm_f", param_dtype=float)(x), "b t d -> b d", "mean")


def every(module):
    """Over batch and time."""
    return jax.vmap(jax.vmap(module))


class EquinoxAttention(eqx.Module):
    qkv: eqx.nn.Linear
    out: eqx.nn.Linear

    def __init__(self, key):
        self.qkv = eqx.nn.Linear(WIDTH, 3 * WIDTH, key=key)
        self.out = eqx.nn.Linear(WIDTH, WIDTH, key=key)

    def __call__(self, x):
        return every(self.out)(attend(every(self.qkv)(x), softmax))


class EquinoxMlp(eqx.Module):
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        self.up, self.down = eqx.nn.Linear(WIDTH, HIDDEN, key=key), eqx.nn.Linear(HIDDEN, WIDTH, key=key)

    def __call__(self, x):
        return every(self.down)(jax.nn.gelu(every(self.up)(x)))


class EquinoxBlock(eqx.Module):
    norm_1: eqx.nn.LayerNorm
    attn: EquinoxAttention
    norm_2: eqx.nn.LayerNorm
    mlp: EquinoxMlp

    def __init__(self, key):
        self.norm_1, self.attn = eqx.nn.LayerNorm(WIDTH, EPS), EquinoxAttention(key)
        self.norm_2, self.mlp = eqx.nn.LayerNorm(WIDTH, EPS), EquinoxMlp(key)

    def __call__(self, x):
        x = x + self.attn(every(self.norm_1)(x))
        return x + self.mlp(every(self.norm_2)(x))


class EquinoxModel(eqx.Module):
    embed: eqx.nn.Embedding
    h: list
    norm_f: eqx.nn.LayerNorm

    def __init__(self, key):
        self.embed = eqx.nn.Embedding(VOCABULARY, WIDTH, key=key)
        self.h = [EquinoxBlock(key) for _ in range(LAYERS)]
        self.norm_f = eqx.nn.LayerNorm(WIDTH, EPS)

    def __call__(self, tokens):
        x = every(self.embed)(tokens)
        for block in self.h:
            x = block(x)
        return reduce(every(self.norm_f)(x), "b t d -> b d", "mean")


def norm(w, name, x):
    x = x - x.mean(-1, keepdims=True)
    x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + EPS)
    return tap(name, x * w[f"{name}.weight"] + w[f"{name}.bias"])


def linear(w, name, x):
    return einsum(x, w[f"{name}.weight"], "b t i, i o -> b t o") + w[f"{name}.bias"]


def block(w, x):
    """One layer, of weights without the layer's prefix."""
    x = x + linear(w, "attn.out", attend(linear(w, "attn.qkv", norm(w, "norm_1", x)), softmax))
    return x + linear(w, "mlp.down", jax.nn.gelu(linear(w, "mlp.up", norm(w, "norm_2", x))))


def layer_weights(w, i):
    return {name.removeprefix(f"h.{i}."): value for name, value in w.items() if name.startswith(f"h.{i}.")}


def plain(w, tokens):
    x = w["embed.weight"][tokens]
    for i in range(LAYERS):
        x = block(layer_weights(w, i), x)
    return reduce(norm(w, "norm_f", x), "b t d -> b d", "mean")


def scanned(w, tokens, wrap=lambda function: function):
    layers = [layer_weights(w, i) for i in range(LAYERS)]
    stacked = {name: jnp.stack([layer[name] for layer in layers]) for name in layers[0]}
    x, _ = jax.lax.scan(lambda x, layer: (wrap(block)(layer, x), None), w["embed.weight"][tokens], stacked)
    return reduce(norm(w, "norm_f", x), "b t d -> b d", "mean")


def remat(w, tokens):
    x = w["embed.weight"][tokens]
    for i in range(LAYERS):
        x = jax.checkpoint(block)(layer_weights(w, i), x)
    return reduce(norm(w, "norm_f", x), "b t d -> b d", "mean")


def nnx_function(wrap=lambda call: call):
    rename = {"embed.weight": "embed.embedding"}

    def apply(w, tokens):
        definition, state = nnx.split(nnx.eval_shape(lambda: NnxModel(nnx.Rngs(0), wrap)))
        flat = {}
        for name, value in w.items():
            path, _, kind = name.rpartition(".")
            leaf = {"bias": "bias", "weight": "kernel" if value.ndim == 2 else "scale"}[kind]
            flat[rename.get(name, f"{path}.{leaf}")] = value
        filled = nnx.map_state(lambda path, leaf: leaf.replace(flat[".".join(map(str, path))]), state)
        return nnx.merge(definition, filled)(tokens)

    return apply


def linen(w, tokens):
    tree: dict = {}
    for name, value in w.items():
        *path, kind = name.replace("h.", "h_").split(".")
        node = tree
        for key in path:
            node = node.setdefault(key, {})
        node[
            "embedding" if path == ["embed"] else "bias" if kind == "bias" else "kernel" if value.ndim == 2 else "scale"
        ] = value
    return LinenModel().apply({"params": tree}, tokens)


def equinox_model(w):
    model = EquinoxModel(jax.random.key(0))
    leaves, structure = jax.tree_util.tree_flatten_with_path(model)
    filled = []
    for path, _ in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        value = w[name]
        filled.append(value.T if value.ndim == 2 and not name.startswith("embed") else value)
    return jax.tree.unflatten(structure, filled)


def equinox(w, tokens):
    return equinox_model(w)(tokens)


def equinox_parts(model, tokens):
    """An embedding and a layer called by themselves."""
    x = jax.vmap(model.embed)(tokens)[None]
    return model.h[1].attn(every(model.h[1].norm_1)(x))


FUNCTIONS = {
    "nnx": nnx_function(),
    "nnx remat": nnx_function(nnx.remat),
    "linen": linen,
    "equinox": equinox,
    "plain": plain,
    "scan": scanned,
    "scan remat": lambda w, tokens: scanned(w, tokens, jax.checkpoint),
    "remat": remat,
    "jit": jax.jit(plain),
    "vmap": lambda w, tokens: jax.vmap(lambda row: plain(w, row[None])[0])(tokens),
}


def with_loss(function):
    """(weights, tokens) -> (loss, outputs)."""

    def run(w, tokens):
        outputs = function(w, tokens)
        return (outputs * READOUT).sum(), outputs

    return run
