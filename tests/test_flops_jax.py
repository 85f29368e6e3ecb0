"""What the walk over a traced JAX program counts, refuses and finds dead."""

from __future__ import annotations

from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas

from parity.account.convolution import convolution_taps
from parity.backends.jax.count import FREE, OPAQUE, RULES, traced_flops
from parity.backends.jax.lowered import lowered_flops

SQUARE = jax.ShapeDtypeStruct((64, 64), jnp.float32)
ONE = 2 * 64**3


def array(*shape, dtype="float32"):
    return jax.ShapeDtypeStruct(shape, dtype)


def ten_times(x):
    return jax.lax.scan(lambda carry, _: (carry @ carry, None), x, None, length=10)[0]


# products


@pytest.mark.parametrize(
    ("function", "shapes", "flops"),
    [
        (jnp.matmul, [(3, 5), (5, 7)], 2 * 3 * 5 * 7),
        (jnp.matmul, [(2, 3, 5), (2, 5, 7)], 2 * 2 * 3 * 5 * 7),
        (jnp.matmul, [(3, 5), (5,)], 2 * 3 * 5),
        (jnp.dot, [(5,), (5,)], 2 * 5),
        (jnp.outer, [(5,), (3,)], 0),
        (lambda x, y: jnp.einsum("abc,cbd->da", x, y), [(3, 5, 7), (7, 5, 2)], 2 * 3 * 5 * 7 * 2),
        (jax.vmap(jnp.dot), [(4, 3, 5), (4, 5, 7)], 2 * 4 * 3 * 5 * 7),
        (lambda x, y: (x[:, :, None] * y).sum(1), [(3, 5), (5, 7)], 0),
    ],
)
def test_a_dot_counts_two_per_product(function, shapes, flops):
    assert traced_flops(function, *(array(*shape) for shape in shapes)) == flops


def test_a_ragged_dot_counts_each_row_once_for_its_group():
    x, w, groups = array(12, 8), array(3, 8, 5), array(3, dtype="int32")
    forward = 2 * 12 * 8 * 5

    def loss(x, w, groups):
        return (jax.lax.ragged_dot(x, w, groups) ** 2).sum()

    assert traced_flops(jax.lax.ragged_dot, x, w, groups) == forward
    assert traced_flops(jax.grad(loss, argnums=(0, 1)), x, w, groups) == 3 * forward


@pytest.mark.parametrize(
    ("padding", "stride", "groups", "forward"),
    [
        ("VALID", 1, 1, 2 * 8 * 8 * 26 * 26 * 9),
        ("SAME", 1, 1, 860_672),  # XLA's figure too: taps on the padding are no products
        ("SAME", 1, 8, 860_672 // 8),
        ("VALID", 3, 2, 2 * 8 * 4 * 9 * 9 * 9),
    ],
)
def test_a_convolution_and_its_gradients_count_the_taps_that_meet_an_element(padding, stride, groups, forward):
    x, w = array(1, 8, 28, 28), array(8, 8 // groups, 3, 3)

    def convolve(x, w):
        return jax.lax.conv_general_dilated(x, w, (stride, stride), padding, feature_group_count=groups)

    assert traced_flops(convolve, x, w) == forward
    gradient = jax.value_and_grad(lambda x, w: (convolve(x, w) ** 2).sum(), argnums=(0, 1))
    assert traced_flops(gradient, x, w) == 3 * forward


def test_convolution_taps_are_those_of_a_loop_over_outputs_and_taps():
    for seed in range(500):
        size, outputs, kernel, stride, dilation, holes = np.random.default_rng(seed).integers(1, 6, 6).tolist()
        low = seed % 6 - 2
        places = [o * stride - low + k * dilation for o in range(outputs) for k in range(kernel)]
        met = sum(place % holes == 0 and 0 <= place < size * holes for place in places)
        assert convolution_taps(size, outputs, kernel, stride, low, dilation, holes) == met


# loops and branches


def test_a_scan_counts_its_body_times_its_length():
    assert traced_flops(ten_times, SQUARE) == 5_242_880
    assert traced_flops(lambda x: jax.lax.fori_loop(0, 10, lambda i, carry: carry @ carry, x), SQUARE) == 10 * ONE
    assert traced_flops(lambda x: jax.lax.map(ten_times, x), array(3, 64, 64)) == 30 * ONE


@pytest.mark.parametrize(
    ("start", "limit", "step", "trips"), [(0, 10, 1, 10), (2, 10, 1, 8), (0, 10, 3, 4), (5, 5, 1, 0), (-4, 3, 2, 4)]
)
def test_a_while_loop_that_states_its_trip_count_is_multiplied(start, limit, step, trips):
    def loop(x):
        return jax.lax.while_loop(lambda c: c[0] < limit, lambda c: (c[0] + step, c[1] @ x), (start, x))[1]

    def carried(x):
        return jax.lax.while_loop(lambda c: c[0] < c[1], lambda c: (c[0] + step, c[1], c[2] @ x), (start, limit, x))[2]

    assert traced_flops(loop, SQUARE) == traced_flops(carried, SQUARE) == trips * ONE


@pytest.mark.parametrize(
    "loop",
    [
        lambda n, x: jax.lax.fori_loop(0, n, lambda i, c: c @ c, x),
        lambda n, x: jax.vmap(lambda n, x: jax.lax.fori_loop(0, n, lambda i, c: c @ c, x))(n[None], x[None]),
        lambda n, x: jax.lax.while_loop(lambda c: c.sum() < 10, lambda c: c @ c, x),
        lambda n, x: jax.lax.while_loop(lambda c: c[0] < c[1], lambda c: (c[0] + 1, c[1] - 1, c[2] @ x), (0, 9, x)),
        lambda n, x: jax.lax.while_loop(lambda c: c[0] < 9, lambda c: (c[0] * 2, c[1] @ x), (1, x)),
        lambda n, x: jax.lax.while_loop(lambda c: c[0] < 9, lambda c: (c[0] + n, c[1] @ x), (1, x)),
    ],
)
def test_any_other_while_loop_is_refused_by_name(loop):
    with pytest.raises(
        ValueError, match=r"^traced_flops: a while loop that writes out .*, got while with another .*; "
    ):
        traced_flops(loop, array(dtype="int32"), SQUARE)


def test_a_while_loop_without_products_is_free_however_long():
    assert traced_flops(lambda x: jax.lax.while_loop(lambda c: c.sum() < 10, lambda c: c + c, x), SQUARE) == 0


def test_a_branch_counts_as_its_larger_side():
    def branch(p, x):
        return jax.lax.cond(p, lambda x: x @ x, lambda x: x @ x @ x, x)

    assert traced_flops(branch, True, SQUARE) == 2 * ONE
    assert traced_flops(lambda p, x: branch(p, x) + branch(p, x @ x), True, SQUARE) == 5 * ONE


def test_a_shard_map_counts_on_every_device():
    mesh, spec = jax.sharding.AbstractMesh((4,), ("i",)), jax.sharding.PartitionSpec("i")
    split = jax.shard_map(lambda x: x @ x.T, mesh=mesh, in_specs=spec, out_specs=spec)
    assert traced_flops(split, SQUARE) == 4 * 2 * 16 * 16 * 64


def with_own_gradient(function):
    wrapped = jax.custom_jvp(function)
    wrapped.defjvps(lambda tangent, value, x: tangent)
    return wrapped


def inside_a_branch_in_a_loop(function):
    def step(x, _):
        return jax.lax.cond(x.sum() > 0, function, lambda x: x, x), None

    return lambda x: jax.lax.scan(step, x, None, length=1)[0]


def inside_a_linear_solve(function):
    """The solver alone runs; the product with the matrix serves the derivatives."""
    return lambda x: jax.lax.custom_linear_solve(lambda v: (x + x) @ v, x, lambda _, b: function(b))


@pytest.mark.parametrize(
    "wrap", [jax.jit, jax.checkpoint, with_own_gradient, inside_a_branch_in_a_loop, inside_a_linear_solve]
)
def test_programs_inside_programs_are_found(wrap):
    assert traced_flops(wrap(lambda x: jnp.tanh(x) @ x), SQUARE) == ONE


# what is dead, and what recomputation adds


def test_dead_matmuls_are_not_counted():
    assert traced_flops(lambda x: (x @ x, x + x)[1], SQUARE) == 0

    def carries_a_dead_product(x):
        return jax.lax.scan(lambda c, _: ((c[0] @ c[0], c[1] + 1), None), (x, x), None, length=9)[0][1]

    assert traced_flops(carries_a_dead_product, SQUARE) == 0


def test_a_gradient_without_its_value_drops_the_last_forward_matmul_here_and_in_the_lowering():
    """Two matmuls forward, four backward: `grad` never uses the second product itself."""

    def loss(w):
        return (jnp.tanh(w @ w) @ jnp.ones((64, 64))).sum()

    assert traced_flops(jax.value_and_grad(loss), SQUARE) == traced_flops(jax.grad(loss), SQUARE) + ONE
    difference = lowered_flops(jax.value_and_grad(loss), SQUARE).flops - lowered_flops(jax.grad(loss), SQUARE).flops
    assert difference == ONE + 64 * 64 - 1  # the product, and the sum over it


def test_recomputation_is_counted_but_for_its_last_matmul():
    def run(w, x):
        return jnp.tanh(jnp.tanh(x @ w) @ w) @ w

    def flops(function):
        return traced_flops(jax.value_and_grad(lambda w, x: function(w, x).sum(), argnums=(0, 1)), SQUARE, SQUARE)

    assert flops(run) == 9 * ONE
    assert flops(jax.checkpoint(run)) == 11 * ONE


# never a silent zero


def multiply(x_ref, out_ref):
    out_ref[...] = x_ref[...] @ x_ref[...]


def kernel(x):
    return pallas.pallas_call(multiply, out_shape=x)(x)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (jnp.linalg.cholesky, "cholesky"),
        (jnp.linalg.inv, "lu"),
        (jnp.linalg.qr, "qr"),
        (jnp.linalg.svd, "svd"),
        (jnp.linalg.eigh, "eigh"),
        (jnp.fft.fft, "fft"),
        (lambda x: jax.lax.linalg.triangular_solve(x, x), "triangular_solve"),
        (lambda x: jax.pure_callback(lambda y: y @ y, SQUARE, x), "pure_callback"),
        (jax.ffi.ffi_call("somebody_elses_matmul", SQUARE), "ffi_call"),
        (kernel, "pallas_call"),
        (lambda x: jax.jit(jnp.linalg.inv)(x @ x), "lu"),
    ],
)
def test_what_the_trace_does_not_show_is_refused_by_name(function, name):
    with pytest.raises(ValueError, match=rf"^traced_flops: .*, got {name}; declare its FLOPs with rules={{'{name}'"):
        traced_flops(function, SQUARE)


def test_an_unknown_primitive_is_refused_by_name():
    unknown = jax.extend.core.Primitive("mystery")
    unknown.def_abstract_eval(lambda x: x)
    with pytest.raises(ValueError, match=r"^traced_flops: .*known to multiply no matrices, got mystery; declare"):
        traced_flops(unknown.bind, SQUARE)


def test_a_declared_rule_counts_a_kernel():
    def flops(equation):
        return 2 * prod(equation.invars[0].aval.shape) * equation.invars[0].aval.shape[1]

    assert traced_flops(lambda x: kernel(x) @ x, SQUARE, rules={"pallas_call": flops}) == 2 * ONE


def test_ordinary_work_is_free_and_nothing_with_products_is():
    def ordinary(x, key):
        noise = jax.random.normal(key, x.shape) + jax.random.permutation(key, x)
        pieces = jnp.stack(jnp.split(jnp.tile(jnp.sort(x), (2, 1)), 2))
        jax.debug.print("{}", x[0, 0])
        return jax.nn.softmax(pieces + noise), jax.lax.top_k(x, 3), jnp.unique(x, size=3), jnp.cumsum(x), jax.nn.gelu(x)

    assert traced_flops(ordinary, SQUARE, jax.random.key(0)) == 0
    assert not FREE & set(OPAQUE.split())
    assert {"dot_general", "conv_general_dilated"} <= RULES.keys()


def test_cudnn_attention_counts_like_the_einsum_it_replaces(monkeypatch):
    """Traced as on a GPU: the library's checks for one are the only thing replaced."""
    library = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(library, "check_cudnn_version", lambda: 91_000)
    monkeypatch.setattr(library, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(library, "is_cuda_compute_capability_equal", lambda capability: False)
    q, kv = array(2, 128, 4, 64, dtype="bfloat16"), array(2, 128, 2, 64, dtype="bfloat16")

    def attention(implementation):
        def attend(q, k, v):
            return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=implementation)

        def loss(q, k, v):
            return attend(q, k, v).astype(jnp.float32).sum()

        return attend, jax.value_and_grad(loss, argnums=(0, 1, 2))

    for times, by_kernel, by_einsum in zip((1, 3), attention("cudnn"), attention("xla"), strict=True):
        assert "dot_product_attention_fwd_wrapper" in str(jax.make_jaxpr(by_kernel)(q, kv, kv))
        expected = times * 4 * 2 * 4 * 128 * 128 * 64
        assert traced_flops(by_kernel, q, kv, kv) == traced_flops(by_einsum, q, kv, kv) == expected
