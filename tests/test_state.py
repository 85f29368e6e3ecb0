"""What a module holds besides its parameters: every run starts from the same, and what a run changes is compared."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from parity import Jax, Pair, ParityUsageError, Torch, check

QUICK = {"precisions": (), "steps": 0, "flops": False, "batches": 2}


def rows_of(generator):
    return {"x": generator.standard_normal((8, 5)).astype(np.float32)}


def linear(weights):
    """An nnx.Linear with a torch.nn.Linear's numbers."""
    made = nnx.Linear(weights.in_features, weights.out_features, rngs=nnx.Rngs(0))
    made.kernel[...], made.bias[...] = weights.weight.detach().numpy().T, weights.bias.detach().numpy()
    return made


class Holder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(5, 5)


class Warming(Holder):
    """A counter that the output depends on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("step", torch.tensor(0))

    def forward(self, x):
        self.step += 1
        return self.linear(x) * torch.clamp(self.step / 10, max=1).to(x.dtype)


class Counting(Warming):
    def forward(self, x):
        self.step += 1
        return self.linear(x)


class Averaging(Holder):
    """A moving average, saved with the model or not."""

    def __init__(self, saved):
        super().__init__()
        self.register_buffer("mean", torch.zeros(5), persistent=saved)

    def forward(self, x):
        hidden = self.linear(x)
        self.mean.mul_(0.875).add_(0.125 * hidden.detach().mean(0))
        return hidden - self.mean


class Caching(Holder):
    """Keys by position, where the next one goes in a buffer or in an attribute."""

    def __init__(self, in_buffer):
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, 6, 5))
        if in_buffer:
            self.register_buffer("index", torch.tensor(2))
        else:
            self.index = 2

    def forward(self, x):
        hidden = self.linear(x)
        self.cache[:, int(self.index)] = hidden.detach()
        self.index = self.index + 1
        return hidden + self.cache.sum(1)


class NnxHolder(nnx.Module):
    def __init__(self, like, fault=False):
        self.linear, self.fault = linear(like.linear), fault


class NnxCounting(NnxHolder):
    def __init__(self, like, fault=False):
        super().__init__(like, fault)
        self.step, self.warms = nnx.Variable(jnp.array(0)), type(like) is Warming

    def __call__(self, x):
        self.step[...] = self.step[...] + (7 if self.fault else 1)
        hidden = self.linear(x)
        return hidden * jnp.minimum(self.step[...] / 10, 1).astype(x.dtype) if self.warms else hidden


class NnxAveraging(NnxHolder):
    def __init__(self, like, fault=False):
        super().__init__(like, fault)
        self.mean = nnx.Variable(jnp.zeros(5))

    def __call__(self, x):
        hidden, keep = self.linear(x), 0.75 if self.fault else 0.875
        self.mean[...] = keep * self.mean[...] + (1 - keep) * jax.lax.stop_gradient(hidden).mean(0)
        return hidden - self.mean[...]


class NnxCaching(NnxHolder):
    def __init__(self, like, fault=False):
        super().__init__(like, fault)
        self.cache, self.index = nnx.Variable(jnp.zeros((8, 6, 5))), nnx.Variable(jnp.array(2))

    def __call__(self, x):
        hidden = self.linear(x)
        new, at = jax.lax.stop_gradient(hidden)[:, None], (0, self.index[...] + self.fault, 0)
        self.cache[...] = jax.lax.dynamic_update_slice(self.cache[...], new.astype(self.cache[...].dtype), at)
        self.index[...] = self.index[...] + 1
        return hidden + self.cache[...].sum(1)


STATES = {
    "a counter that counts": (Warming(), NnxCounting, "output"),
    "a counter alone": (Counting(), NnxCounting, "state step"),
    "an average that is saved": (Averaging(True), NnxAveraging, "output"),
    "an average that is not": (Averaging(False), NnxAveraging, "output"),
    "a cache with its index in a buffer": (Caching(True), NnxCaching, "state cache"),
    "a cache with its index in an attribute": (Caching(False), NnxCaching, "state cache"),
}


@pytest.mark.parametrize("state", STATES)
def test_every_run_starts_from_the_first_state_and_what_it_leaves_is_compared(state):
    module, candidate, _ = STATES[state]
    before = {name: value.clone() for name, value in module.state_dict().items()}
    result = check(Pair("state", module, candidate(module), inputs=rows_of), **QUICK)
    assert result.passed, result.reason
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("state", STATES)
def test_state_that_is_another_one_fails(state):
    module, candidate, name = STATES[state]
    result = check(Pair("state", module, candidate(module, fault=True), inputs=rows_of), **QUICK)
    assert result.verdict == "FAIL"
    assert name in [row.name for row in result.rows if row.verdict == "FAIL"]


def test_statistics_of_all_batches_start_anew_in_every_run():
    norm = torch.nn.BatchNorm1d(5, momentum=None)
    pair = Pair("norm", norm, norm, inputs=lambda generator: (rows_of(generator)["x"],))
    assert check(pair, **QUICK).rung == "same-function"


class Tabled(Holder):
    """Adds a table that it worked out in float32: a buffer that is saved or not, or an attribute."""

    def __init__(self, how, table):
        super().__init__()
        if how == "attribute":
            self.table = table
        else:
            self.register_buffer("table", table, persistent=how == "saved")

    def forward(self, x):
        return self.linear(x) + self.table.to(x.dtype)


class Turned(Tabled):
    """The same for complex numbers."""

    def forward(self, x):
        pairs = torch.view_as_complex(torch.nn.functional.pad(self.linear(x), (0, 1)).reshape(8, 3, 2))
        return torch.view_as_real(pairs * self.table).reshape(8, 6).to(x.dtype)


def parameters_of(module):
    return {"kernel": module.linear.weight.detach().numpy().T, "bias": module.linear.bias.detach().numpy()}


def jax_tabled(base):
    def function(p, x):
        return x @ p["kernel"] + p["bias"] + jnp.sin(jnp.arange(5, dtype=x.dtype) * base)

    return function


def jax_turned(base):
    def function(p, x):
        pairs = jnp.pad(x @ p["kernel"] + p["bias"], ((0, 0), (0, 1))).reshape(8, 3, 2)
        angle = jnp.arange(3, dtype=x.dtype) * base
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * jnp.exp(1j * angle)
        return jnp.stack([turned.real, turned.imag], -1).reshape(8, 6)

    return function


SINES, TURNS = torch.sin(torch.arange(5.0) * 0.7), torch.exp(1j * torch.arange(3.0) * 0.7).to(torch.complex64)


@pytest.mark.parametrize("how", ["saved", "not saved", "attribute"])
@pytest.mark.parametrize(("kind", "table", "port"), [(Tabled, SINES, jax_tabled), (Turned, TURNS, jax_turned)])
def test_a_table_is_an_island_wherever_it_is_held_and_a_wrong_one_is_not(how, kind, table, port):
    module = kind(how, table)
    right = check(Pair("table", module, Jax(port(0.7), parameters_of(module)), inputs=rows_of), **QUICK)
    assert (right.verdict, right.rung) == ("PASS", "float32-island"), right.reason
    assert "below which nothing is seen" in right.reason
    wrong = check(Pair("table", module, Jax(port(0.70001), parameters_of(module)), inputs=rows_of), **QUICK)
    assert (wrong.verdict, wrong.rung) == ("FAIL", "different")


class NnxTabled(nnx.Module):
    """Holds the table that it has worked out itself, in a variable or as an array."""

    def __init__(self, like, base, in_variable):
        self.linear = linear(like.linear)
        table = jnp.sin(jnp.arange(5, dtype=jnp.float32) * base)
        self.table = nnx.Variable(table) if in_variable else np.asarray(table)

    def __call__(self, x):
        return self.linear(x) + jnp.asarray(self.table[...], x.dtype)


@pytest.mark.parametrize("in_variable", [True, False])
@pytest.mark.parametrize("saved", [True, False])
def test_tables_of_both_sides_that_were_rounded_otherwise_are_islands(in_variable, saved):
    rounded = torch.from_numpy(np.nextafter(np.asarray(jnp.sin(jnp.arange(5, dtype=jnp.float32) * 0.7)), np.float32(2)))
    module = Tabled("saved" if saved else "not saved", rounded)
    for base, verdict in ((0.7, ("PASS", "float32-island")), (0.70001, ("FAIL", "different"))):
        result = check(Pair("tables", module, NnxTabled(module, base, in_variable), inputs=rows_of), **QUICK)
        assert (result.verdict, result.rung) == verdict, result.reason


def test_a_table_of_one_number_is_an_island_too():
    class Scaled(Holder):
        def __init__(self):
            super().__init__()
            self.scale = torch.tensor(7.0) ** -0.5

        def forward(self, x):
            return self.linear(x) * self.scale.to(x.dtype)

    module = Scaled()
    for power, rung in ((-0.5, "float32-island"), (-0.500001, "different")):
        port = Jax(lambda p, x, power=power: (x @ p["kernel"] + p["bias"]) * 7**power, parameters_of(module))
        assert check(Pair("scale", module, port, inputs=rows_of), **QUICK).rung == rung


class Rotating(torch.nn.Module):
    """A norm, and sines and cosines by position that are float32."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.query = torch.nn.Linear(8, 8, bias=False)
        angles = torch.outer(torch.arange(6.0), 1 / 10000 ** (torch.arange(0, 8, 2) / 8))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x):
        q = self.query(x)
        a, b = (q * torch.rsqrt((q * q).mean(-1, keepdim=True) + 1e-8)).chunk(2, -1)
        return torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], -1)


def rotating(eps):
    def function(p, x):
        q = x @ p["query"]
        a, b = jnp.split(q * jax.lax.rsqrt((q * q).mean(-1, keepdims=True) + eps), 2, -1)
        angles = jnp.outer(jnp.arange(6, dtype=x.dtype), 1 / 10000 ** (jnp.arange(0, 8, 2, dtype=x.dtype) / 8))
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    return function


def test_a_table_excuses_nothing_in_what_it_does_not_move():
    """An eps of 1e-12 for 1e-8 is less than the rounding of the table, but not at the first position, nor inside it."""
    module = Rotating()
    parameters = {"query": module.query.weight.detach().numpy().T}

    def inputs(generator):
        return {"x": generator.standard_normal((2, 6, 8)).astype(np.float32)}

    right = check(Pair("rotating", Torch(module), Jax(rotating(1e-8), parameters), inputs=inputs), **QUICK)
    assert (right.verdict, right.rung) == ("PASS", "float32-island"), right.reason
    wrong = check(Pair("rotating", Torch(module), Jax(rotating(1e-12), parameters), inputs=inputs), **QUICK)
    assert (wrong.verdict, wrong.rung) == ("FAIL", "different")


class Lazy(Holder):
    """Makes its table in the first run, beside indices that share memory and numbers that are infinite."""

    def __init__(self):
        super().__init__()
        self.register_buffer("indices", torch.arange(1).expand(5))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf, 0.0, 0.0, 0.0]), persistent=False)
        self.register_buffer("table", torch.sin(torch.arange(5.0) * 0.7), persistent=False)

    def forward(self, x):
        if not hasattr(self, "zeros"):
            self.zeros = torch.zeros(5, dtype=x.dtype)
            self.register_buffer("late", torch.zeros(5))
        return self.linear(x) + self.table.to(x.dtype) + self.zeros + self.mask.to(x.dtype) + self.indices


def test_what_a_run_makes_shares_or_masks_is_no_difference():
    module = Lazy()

    def port(p, x):
        mask = jnp.array([0.0, -jnp.inf, 0.0, 0.0, 0.0], x.dtype)
        return x @ p["kernel"] + p["bias"] + jnp.sin(jnp.arange(5, dtype=x.dtype) * 0.7) + mask

    result = check(Pair("lazy", module, Jax(port, parameters_of(module)), inputs=rows_of), **QUICK)
    assert (result.verdict, result.rung) == ("PASS", "float32-island"), result.reason
    assert not hasattr(module, "zeros")


def test_one_side_in_evaluation_mode_is_told():
    norm = torch.nn.BatchNorm1d(5)
    other = torch.nn.BatchNorm1d(5).eval()
    result = check(Pair("mode", norm, Torch(other), inputs=lambda generator: (rows_of(generator)["x"],)), **QUICK)
    rows = {row.name: row.derivation for row in result.rows if row.verdict == "FAIL"}
    assert result.reason.endswith("both sides need the same names, shapes and types")
    assert rows["output state running_mean"] == "only the reference changes it: is the other one in evaluation mode?"


def test_complex_parameters_are_refused_in_one_line():
    class Filter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))

        def forward(self, x):
            return torch.fft.irfft(torch.fft.rfft(x) * self.gain, n=5)

    with pytest.raises(ParityUsageError, match=r"real parameters, got gain of torch.complex64; hold its two parts"):
        check(Pair("filter", Filter(), Filter(), inputs=rows_of), **QUICK)
