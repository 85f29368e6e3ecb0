"""What PyTorch's counter passes over, each refused by name, and what it miscounts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.flop_counter import FlopCounterMode

from parity.backends.torch.count import FREE, PRODUCTS, counted_flops

SQUARE = torch.eye(8) * 2
ONE = 2 * 8**3
BYTES = torch.ones(32, 32, dtype=torch.int8)


@torch.library.custom_op("flops_test::matmul", mutates_args=())
def custom_matmul(x: torch.Tensor) -> torch.Tensor:
    return x @ x


@custom_matmul.register_fake
def _(x):
    return torch.empty_like(x)


def attention(x):
    return F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])


def encoder():
    with torch.no_grad():
        return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()(torch.ones(2, 3, 8))


def three_times(x):
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y @ y), (x.new_zeros(()), x))


SILENT = {
    "mv": (lambda x: x @ x[0], "aten::mv"),
    "dot": (lambda x: torch.dot(x[0], x[0]), "aten::dot"),
    "vdot": (lambda x: torch.vdot(x[0], x[0]), "aten::vdot"),
    "addmv": (lambda x: torch.addmv(x[0], x, x[0]), "aten::addmv"),
    "addbmm": (lambda x: torch.addbmm(x, x[None], x[None]), "aten::addbmm"),
    "addmm_": (lambda x: x.clone().addmm_(x, x), "aten::addmm_"),
    "bilinear": (lambda x: F.bilinear(x, x, x[None]), "aten::_trilinear"),
    "cdist": (lambda x: torch.cdist(x, x), "aten::_cdist_forward"),
    "fft": (torch.fft.fft, "aten::_fft_r2c"),
    "inv": (torch.linalg.inv, "aten::linalg_inv_ex"),
    "cholesky": (torch.linalg.cholesky, "aten::linalg_cholesky_ex"),
    "qr": (torch.linalg.qr, "aten::linalg_qr"),
    "svd": (torch.linalg.svd, "aten::_linalg_svd"),
    "solve": (lambda x: torch.linalg.solve(x, x), "aten::_linalg_solve_ex"),
    "matrix_exp": (torch.matrix_exp, "aten::linalg_matrix_exp"),
    "custom operation": (torch.ops.flops_test.matmul, "flops_test::matmul"),
    "while_loop": (three_times, "while_loop"),
}


@pytest.mark.parametrize("case", SILENT)
def test_a_silent_zero_is_refused_by_name(case):
    function, name = SILENT[case]
    with FlopCounterMode(display=False) as counter:
        function(SQUARE)
    assert counter.get_total_flops() == 0
    with pytest.raises(ValueError, match=rf"^counted_flops: .*, got {name}; write it as a matmul, "):
        counted_flops(function, SQUARE)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda: attention(SQUARE), "aten::_scaled_dot_product_flash_attention_for_cpu"),
        (lambda: nn.LSTM(8, 3)(SQUARE), "aten::mkldnn_rnn_layer"),
        (lambda: torch._int_mm(BYTES, BYTES), "aten::_int_mm"),
        (lambda: torch.sparse.mm(SQUARE.to_sparse(), SQUARE), "aten::_sparse_addmm"),
        (encoder, "aten::_transformer_encoder_layer_fwd"),
    ],
    ids=["attention", "lstm", "int_mm", "sparse", "encoder fast path"],
)
def test_a_kernel_of_the_cpu_that_counts_zero_is_refused_by_name(function, name):
    with FlopCounterMode(display=False) as counter:
        function()
    assert counter.get_total_flops() == 0
    with pytest.raises(ValueError, match=f"got {name}; .*meta device"):
        counted_flops(function)


def test_what_the_cpu_hides_is_counted_on_the_meta_device():
    assert counted_flops(attention, SQUARE) == 2 * ONE
    x, lstm = torch.ones(5, 8), nn.LSTM(8, 3)
    assert counted_flops(lambda lstm, x: lstm(x), lstm, x) == 5 * 2 * (8 + 3) * 4 * 3
    assert counted_flops(lambda gru, x: gru(x), nn.GRU(8, 3), x) == 5 * 2 * (8 + 3) * 3 * 3
    assert lstm.weight_ih_l0.device.type == "cpu"  # the caller's module stays as it was


def test_attention_costs_three_times_with_its_gradients():
    shape = (2, 3, 5, 7)

    def step(q, k, v):
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

    tensors = [torch.empty(shape, device="meta", requires_grad=True) for _ in range(3)]
    assert counted_flops(step, *tensors) == 3 * 4 * 2 * 3 * 5 * 5 * 7


def test_branches_are_refused_since_the_counter_adds_them():
    def branch(x):
        y = x @ x
        return torch.cond(y.sum() > 0, lambda y: y @ y, lambda y: y @ y @ y, (y,))

    with FlopCounterMode(display=False) as counter:
        branch(SQUARE)
    assert counter.get_total_flops() == 4 * ONE  # 1 + max(1, 2) = 3
    with pytest.raises(ValueError, match="got cond; "):
        counted_flops(branch, SQUARE)
    with pytest.raises(ValueError, match="got scan; "):
        counted_flops(lambda x: scan(lambda c, y: (c @ c, y), x, torch.zeros(3, 1, device=x.device)), SQUARE)


def test_convolutions_count_the_taps_that_meet_an_element_in_every_group():
    layer, x = nn.Conv2d(4, 8, 3, groups=4), torch.ones(2, 4, 9, 9, requires_grad=True)
    truth = 3 * 2 * 2 * 8 * 7 * 7 * 9

    def step(layer, x):
        layer(x).sum().backward()

    with FlopCounterMode(display=False) as counter:
        step(layer, x)
    assert counter.get_total_flops() == 2 * truth  # dw taken for a dense one: 1 + 1 + 4 shares
    assert counted_flops(step, layer, x) == truth


@pytest.mark.parametrize(
    ("function", "x", "w", "flops"),
    [
        (lambda x, w: F.conv2d(x, w, padding=1), (1, 8, 28, 28), (8, 8, 3, 3), 860_672),
        (lambda x, w: F.conv2d(x, w, stride=3, groups=2), (1, 8, 28, 28), (8, 4, 3, 3), 2 * 8 * 4 * 9 * 9 * 9),
        (lambda x, w: F.conv_transpose2d(x, w, stride=2), (1, 8, 5, 5), (8, 6, 3, 3), 2 * 8 * 6 * 25 * 9),
        (lambda x, w: F.conv1d(x, w, padding="same"), (1, 8, 5), (6, 8, 3), 2 * 8 * 6 * 13),
    ],
)
def test_padding_is_no_element_to_a_convolution(function, x, w, flops):
    """The figures of tests/test_flops_jax.py, where JAX has the same convolution."""
    assert counted_flops(function, torch.ones(x), torch.ones(w)) == flops


def test_a_compiled_function_is_counted_uncompiled():
    compiled = torch.compile(lambda x: torch.relu(x @ x) @ x)
    assert counted_flops(compiled, SQUARE) == 2 * ONE


def test_inference_mode_is_taken_apart():
    def run(x):
        with torch.inference_mode():
            return F.linear(x, x, x[0])

    assert counted_flops(run, SQUARE) == ONE


def test_trees_of_tensors_go_to_the_meta_device():
    def run(tree, scale):
        assert tree["pair"][1].device.type == "meta"
        return tree["x"] @ tree["pair"][1] * scale

    assert counted_flops(run, {"x": SQUARE, "pair": (1, SQUARE)}, 0.5) == ONE


def test_names_with_products_and_names_without_are_told_apart():
    products = (
        "mv dot addbmm _grouped_mm _int_mm _foreach_mm gru _cudnn_rnn linalg_qr ormqr _lu_with_info mkldnn_linear"
    )
    others = (
        "relu_ celu_ add mul sum sqrt rsqrt cummax lgamma detach softmax native_layer_norm upsample_bilinear2d"
        " slice_inverse _convert_indices_from_coo_to_csr _weight_norm_interface renorm embedding hamming_window addcmul"
    )
    assert all(PRODUCTS.search(name) for name in products.split())
    assert not [name for name in others.split() if PRODUCTS.search(name)]
    assert all(PRODUCTS.search(name) for name in FREE)
    assert counted_flops(lambda x: torch.linalg.norm(x) + torch.linalg.cross(x[:, :3], x[:, :3]).sum(), SQUARE) == 0
