"""Peaks and bandwidths against the makers' figures, hand arithmetic on the chips, and tables that others keep."""

from __future__ import annotations

import importlib

import pytest
import torch

from parity.account.hardware import device_named, devices, find_device
from parity.errors import ParityUsageError

#: the spelling of formats in PyTorch's own table
TORCH_FORMATS = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": "torch.tf32",
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
}


def test_every_device_has_figures_and_names_their_source():
    assert len(devices()) == 15
    for device in devices().values():
        assert all((device.source, device.name, device.descriptions)), device.key
        assert set(device.dense) <= {"fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"}, device.key
        assert "bf16" in device.dense, device.key
        assert 1e10 <= device.memory <= 1e12, device.key
        assert 1e11 <= device.bandwidth <= 1e13, device.key
        assert all(1e13 <= flops <= 1e16 for flops in (*device.dense.values(), *device.sparse.values())), device.key


def test_sparse_is_twice_dense():
    """A datasheet rounds to whole TFLOP/s or to four digits: 104.8 and 209.5 are 0.05% apart from it, no pair more."""
    for device in devices().values():
        assert set(device.sparse) <= set(device.dense)
        for name, flops in device.sparse.items():
            assert flops == pytest.approx(2 * device.dense[name], rel=6e-4), (device.key, name)


@pytest.mark.parametrize(
    ("key", "units", "multiply_adds", "clock"),
    [
        # units and clocks from the makers' architecture whitepapers, multiply-adds per unit and clock in bf16
        ("h100-sxm", 132 * 4, 512, 1.830e9),
        ("h200", 132 * 4, 512, 1.830e9),
        ("a100", 108 * 4, 256, 1.410e9),
        ("rtx-4090", 128 * 4, 64, 2.520e9),
        ("rtx-5090", 170 * 4, 64, 2.407e9),
        ("mi300x", 304 * 4, 256, 2.100e9),
    ],
)
def test_bf16_is_what_the_chip_s_units_can_do(key, units, multiply_adds, clock):
    assert find_device(key).peak("bf16") == pytest.approx(units * multiply_adds * 2 * clock, rel=1e-3)


@pytest.mark.parametrize(("key", "ridge"), [("h100", 295), ("h200", 206), ("a100", 153), ("h100-pcie", 378)])
def test_ridge_points(key, ridge):
    """FLOPs per byte where arithmetic takes over, from the published peak and bandwidth."""
    assert round(find_device(key).ridge("bf16")) == ridge


@pytest.mark.parametrize(
    ("key", "name", "sparse"),
    [("h100-sxm", "NVIDIA H100", True), ("a100", "NVIDIA A100", False), ("mi300x", "AMD MI300X", False)],
)
def test_figures_are_those_of_pytorch_s_own_table(key, name, sparse):
    """Its H100 is the datasheet's, sparse where that is, its A100 and MI300X are dense; A100's 312 stands as 312.5."""
    theirs = importlib.import_module("torch._inductor.analysis.device_info")._device_mapping[name.upper()]
    ours = find_device(key)
    compared = set(ours.dense) & set(TORCH_FORMATS)
    assert {"fp64", "fp32", "tf32", "bf16", "fp16", "int8"} == compared
    for each in compared:
        expected = ours.sparse[each] if sparse and each in ours.sparse else ours.dense[each]
        assert expected == pytest.approx(1e12 * theirs.tops[TORCH_FORMATS[each]], rel=2e-3), each
    assert ours.bandwidth == pytest.approx(1e9 * theirs.dram_bw_gbs)
    assert ours.memory == pytest.approx(1e9 * theirs.dram_gb)


@pytest.mark.parametrize("key", ["tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e"])
def test_figures_are_those_of_jax_s_own_table(key):
    """JAX rounds to three digits, and gives v5p 2.46 TB/s where Google's page has 2.765."""
    table = importlib.import_module("jax._src.pallas.mosaic.tpu_info")
    ours = find_device(key)
    for description in ours.descriptions:
        version = table.chip_version_from_device_kind(description)
        assert version.value == key.removeprefix("tpu-")
        cores = version.num_physical_tensor_cores_per_chip
        theirs = table._get_tpu_info_impl(version, cores)
        assert ours.peak("bf16") == pytest.approx(cores * theirs.bf16_ops_per_second, rel=5e-3)
        if theirs.int8_ops_per_second:
            assert ours.peak("int8") == pytest.approx(cores * theirs.int8_ops_per_second, rel=5e-3)
        assert ours.bandwidth == pytest.approx(cores * theirs.mem_bw_bytes_per_second, rel=0.13 if cores == 2 else 5e-3)


def test_a_device_is_found_by_key_and_alias_in_capitals_or_not():
    assert find_device("H100") is find_device("h100-sxm") is devices()["h100-sxm"]
    assert find_device(" A100-SXM ").key == "a100"
    assert find_device("Trillium").key == "tpu-v6e"


def test_no_name_means_two_devices():
    names = [name.lower() for device in devices().values() for name in (device.key, *device.aliases)]
    descriptions = [each.lower() for device in devices().values() for each in device.descriptions]
    assert len(set(names)) == len(names)
    assert len(set(descriptions)) == len(descriptions)


def test_an_unknown_device_is_refused_with_those_nearest():
    with pytest.raises(ParityUsageError) as caught:
        find_device("h100-sxn")
    assert str(caught.value) == (
        "device: a key or an alias in parity/account/hardware.toml, got 'h100-sxn'; "
        "nearest are h100-sxm, h100-sxm5, h200-sxm"
    )
    with pytest.raises(ParityUsageError, match=r"got 'abacus'; choose one of h100-sxm, h100-nvl, .*, tpu-v6e$"):
        find_device("abacus")


def test_a_format_without_a_figure_is_refused_with_those_that_have_one():
    with pytest.raises(ParityUsageError) as caught:
        find_device("a100").peak("fp8")
    assert str(caught.value) == (
        "format: one of fp64, fp32, tf32, bf16, fp16, int8, for which a100 has a dense peak, got 'fp8'; "
        "choose one of them"
    )
    with pytest.raises(ParityUsageError, match="one of tf32, bf16, fp16, int8, for which a100 has a sparse peak"):
        find_device("a100").peak("fp32", sparse=True)
    with pytest.raises(ParityUsageError, match="tpu-v4 has no sparse peak, got 'bf16'; ask for the dense one"):
        find_device("tpu-v4").peak("bf16", sparse=True)


@pytest.mark.parametrize(
    ("description", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("A100-SXM4-80GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("nvidia geforce rtx 5090", "rtx-5090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("TPU v4", "tpu-v4"),
        ("TPU v5 lite", "tpu-v5e"),
        ("TPU v5", "tpu-v5p"),
        ("TPU v6 lite", "tpu-v6e"),
    ],
)
def test_a_driver_s_description_names_a_device(description, key):
    found = device_named(description)
    assert found is not None
    assert found.key == key


@pytest.mark.parametrize(
    "description",
    [
        "",
        "cpu",
        "NVIDIA",
        "NVIDIA L40S",
        "NVIDIA L40",
        "NVIDIA H100",
        "NVIDIA H200 NVL",
        "NVIDIA H20",
        "NVIDIA GH200 480GB",
        "NVIDIA GB200",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA A10",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "AMD Instinct MI300A",
        "TPU v4 lite",
        "TPU7x",
    ],
)
def test_another_part_is_not_taken_for_a_known_one(description):
    assert device_named(description) is None
