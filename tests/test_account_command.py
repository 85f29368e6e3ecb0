"""`parity account`: the worked examples of the lecture, what fits, sweeps, MFU, words that are wrong, and its cost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from importlib import resources

import pytest
from click.testing import CliRunner

from jaxcore.presets import PRESETS
from parity.account.hardware import find_device
from parity.account.memory import step_memory
from parity.account.plan import SECONDS_PER_DAY, fits, largest_model, training_plan
from parity.account.policies import POLICIES
from parity.cli import main
from parity.planning.numbers import in_bytes, swept, whole


def call(*words):
    return CliRunner().invoke(main, ["account", *words], catch_exceptions=False)


def figures(*words):
    done = call(*words, "--json", "-")
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_the_lectures_training_takes_144_days():
    """6 x 70e9 x 15e12 FLOPs on 1024 H100s at half of 989.5 TFLOP/s (CS336, lecture 2): 143.9 days."""
    peak = find_device("h100").peak("bf16")
    assert 6 * 70e9 * 15e12 / (1024 * 0.5 * peak) / SECONDS_PER_DAY == pytest.approx(143.9, abs=0.1)
    found = figures("llama3-70b", "--tokens", "15T", "--gpus", "1024", "--mfu", "0.5", "--seq", "8k", "--price", "2.5")
    plan = found["plan"]
    # that model has 70.55e9 parameters; with its attention over 8,192 tokens it is 14% more
    by_rule = plan["rule_of_thumb"] / (1024 * 0.5 * peak) / SECONDS_PER_DAY
    assert by_rule == pytest.approx(143.9 * 70.553706496 / 70, abs=0.1)
    assert plan["days"] == pytest.approx(by_rule * plan["flops"] / plan["rule_of_thumb"])
    assert plan["days"] == pytest.approx(165.0, abs=0.1)
    assert plan["cost"] == pytest.approx(2.5 * 24 * 1024 * plan["days"])


def test_the_lectures_largest_model_on_8_h100s_has_40_billion_parameters():
    """8 x 80 GB over 16 bytes per parameter (CS336, lecture 2), whether all is float32 or bfloat16 with a master."""
    for policy in ("fp32", "bf16-mixed"):
        assert largest_model(find_device("h100"), POLICIES[policy], gpus=8) == 40_000_000_000


def test_what_would_make_it_fit_does():
    found = figures("llama3-8b", "--gpus", "1024", "--seq", "8192", "--batch", "4")
    assert not found["fits"]
    assert found["ways_to_fit"]
    for way in found["ways_to_fit"]:
        again = figures("llama3-8b", "--gpus", "1024", "--seq", "8192", "--batch", "4", *way["change"].split())
        assert again["fits"], way
        assert again["memory"]["peak"] == way["peak"]
    assert "would fit with --zero" in call("llama3-8b", "--gpus", "1024", "--seq", "8192", "--batch", "4").output


def test_a_plan_is_the_flops_of_its_sequences():
    config, device, policy = PRESETS["gpt2"], find_device("a100"), POLICIES["bf16-mixed"]
    plan = training_plan(config, 124_439_808, 10 * 1024, device, policy, seq=1024, mfu=0.4)
    from parity.account.formula import step_flops

    assert plan.flops == 10 * sum(step_flops(config, 1, 1024).values())
    assert plan.days * SECONDS_PER_DAY == pytest.approx(plan.flops / (0.4 * 312e12))
    half = training_plan(config, 124_439_808, 10 * 1024, device, policy, seq=1024, mfu=0.4, gpus=2)
    assert half.days == pytest.approx(plan.days / 2)
    assert half.gpu_hours == pytest.approx(plan.gpu_hours)


def test_memory_grows_with_batch_and_with_the_square_of_the_sequence_without_a_kernel():
    for kernel, power in (("fused", 1), ("einsum", 2)):
        found = figures("llama3-8b", "--kernel", kernel, "--sweep", "batch=1..64", "--sweep", "seq=16k..128k")
        batches = [each for each in found["sweep"] if "batch" in each]
        seqs = [each for each in found["sweep"] if "seq" in each]
        assert [each["batch"] for each in batches] == [1, 2, 4, 8, 16, 32, 64]
        assert [each["seq"] for each in seqs] == [16384, 32768, 65536, 131072]
        kept = [sum(each["memory"]["dynamic"].values()) for each in batches]
        assert kept[-1] == pytest.approx(64 * kept[0], rel=1e-6)
        attention = [each["memory"]["dynamic"]["attention"] for each in seqs]
        assert attention[-1] / attention[0] == pytest.approx(8**power, rel=0.1)


def test_each_convention_has_its_utilisation():
    found = figures("llama3-8b", "--seq", "8192", "--gpus", "8", "--rate", "46096")  # torchtitan: 5,762 per device
    assert found["utilisation"]["torchtitan"] == pytest.approx(0.337, abs=0.001)
    assert set(found["utilisation"]) >= {"6N", "PaLM", "torchtitan", "MaxText", "exact", "HFU full recompute"}
    assert "torchtitan" in call("llama3-8b", "--seq", "8192", "--gpus", "8", "--rate", "46096").output


def test_zero_shards_the_optimizers_update_too():
    one, many = figures("gpt2"), figures("gpt2", "--gpus", "8", "--zero", "1")
    updates = [next(each for each in found["roofline"] if each["kind"] == "optimizer") for found in (one, many)]
    assert updates[0]["bytes"] == pytest.approx(8 * updates[1]["bytes"], rel=1e-6)
    gathered = figures("gpt2", "--gpus", "8", "--zero", "3")["memory"]["dynamic"]["one block gathered"]
    assert gathered == 2 * 7_087_872  # a block of GPT-2: 12 H^2 + 13 H parameters


def test_recomputation_is_in_the_time_and_out_of_the_models_flops():
    plain, again = figures("gpt2", "--batch", "16"), figures("gpt2", "--batch", "16", "--recompute", "full")
    assert plain["flops"] == again["flops"]
    time_of = [sum(each["seconds"] for each in found["roofline"]) for found in (plain, again)]
    assert time_of[1] > 1.15 * time_of[0]
    assert again["memory"]["peak"] < plain["memory"]["peak"]


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_longer_than_the_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    words = (
        "llama3-405b",
        "--tokens",
        "15T",
        "--gpus",
        "16k",
        "--zero",
        "3",
        "--sweep",
        "seq=1k..128k",
        "--rate",
        "1e6",
    )
    lines = call(*words).output.splitlines()
    assert max(map(len, lines)) <= width
    assert "does not fit" in "\n".join(lines)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("llama3-9b",), "did you mean llama3-8b"),
        (("tiny", "--device", "h1000"), "device: a key or an alias in parity/account/hardware.toml, got 'h1000'"),
        (("tiny", "--device", "mi300x", "--precision", "fp8"), "--precision: one of fp32"),
        (("tiny", "--device", "tpu-v4", "--precision", "tf32"), "tpu-v4 has a dense peak, got 'tf32'"),
        (("tiny", "--batch", "0"), "--batch: a whole number, at least 1, such as 8192, 8k or 1e9, got '0'"),
        (("tiny", "--tokens", "-3"), "--tokens: a whole number, at least 1"),
        (("tiny", "--tokens", "1.5"), "--tokens: a whole number, at least 1"),
        (("tiny", "--gpus", "3", "--global-batch", "8"), "--global-batch: a multiple of --gpus 3, got 8; give 9"),
        (("tiny", "--batch", "1", "--global-batch", "8"), "--batch: of each device, or --global-batch"),
        (("tiny", "--mfu", "1.5"), "--mfu: above 0 and at most 1, got 1.5"),
        (("tiny", "--sweep", "seq=8..1"), "--sweep seq: the last no less than the first"),
        (("tiny", "--sweep", "heads=1..8"), "--sweep: batch=FIRST..LAST or seq=FIRST..LAST, got 'heads=1..8'"),
        (("tiny", "--recompute", "half"), "recompute: one of none, selective, full, got 'half'"),
        (("tiny", "--optimizer", "lion"), "optimizer: one of sgd, momentum, adam, adamw, got 'lion'"),
        (("gpt2", "--seq", "4k"), "--seq: at most the 1024 positions that gpt2 has learned, got 4096"),
        (("tiny", "--rate", "0"), "--rate: tokens per second, above 0, got 0"),
        (("tiny", "--zero", "4"), "zero: 0 to 3, got 4"),
        (("tiny", "--json", "/nowhere/at/all.json"), "--json: a file that can be written"),
    ],
)
def test_words_that_are_wrong_get_one_line(words, message):
    done = subprocess.run(
        [sys.executable, "-m", "parity", "account", *words], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_sizes_as_people_type_them():
    assert [whole("x", each) for each in ("15T", "8k", "1e9", "1_000", "2,048", "1.5B")] == [
        15 * 10**12,
        8000,
        10**9,
        1000,
        2048,
        1_500_000_000,
    ]
    assert whole("--seq", "8k", binary=True) == 8192
    assert swept("seq=1k..6k") == ("seq", [1024, 2048, 4096, 6144])
    assert [in_bytes(each) for each in (0, 999, 1e3, 80e9, 1.36e12, 999.6e9)] == [
        "0 B",
        "999 B",
        "1 kB",
        "80 GB",
        "1.36 TB",
        "1,000 GB",
    ]


def test_the_largest_preset_takes_half_a_second_and_no_framework():
    code = (
        "import sys\nfrom parity.cli import main\n"
        "try: main(['account', 'llama3-405b'])\nexcept SystemExit: pass\n"
        "print(sorted({'jax', 'torch', 'flax', 'numpy'} & set(sys.modules)), file=sys.stderr)"
    )
    seconds = []
    for _ in range(3):  # the quickest: another test may have the processor
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        seconds.append(time.perf_counter() - started)
    assert done.stderr.splitlines()[-1] == "[]"
    assert min(seconds) < 0.5


def test_a_device_is_full_before_its_last_byte():
    device, memory = find_device("h100"), step_memory(PRESETS["gpt2"], 124_439_808, 8, 1024, POLICIES["bf16-mixed"])
    assert fits(memory, replace(device, memory=memory.peak + 2e9))
    assert not fits(memory, replace(device, memory=memory.peak + 1.9e9))


SCHEMA = json.loads(resources.files("parity").joinpath("schema/account.schema.json").read_text())
EVERYTHING = (
    "llama3-70b --gpus 64 --seq 8k --batch 2 --tokens 15T --price 2 --rate 1e6 --recompute selective --kernel einsum "
    "--sweep batch=1..4 --sweep seq=1k..4k --set vocab_size=1000"
)


@pytest.mark.parametrize("words", ["tiny", "bert-base --zero 3 --precision fp32 --optimizer sgd", EVERYTHING])
def test_the_json_is_what_its_schema_says(words):
    validator = pytest.importorskip("jsonschema").Draft202012Validator(SCHEMA)
    validator.check_schema(SCHEMA)
    found = figures(*words.split())
    assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(found)] == []
    assert list(validator.iter_errors({**found, "more": 1}))
    assert list(validator.iter_errors({**found, "parameters": 0.5}))


def test_a_sweep_says_what_fits():
    found = figures("llama3-8b", "--gpus", "64", "--zero", "3", "--sweep", "batch=1..32")
    fitting = [each["fits"] for each in found["sweep"]]
    assert fitting == sorted(fitting, reverse=True)
    assert set(fitting) == {True, False}
    for each in found["sweep"]:
        assert each["fits"] == (each["peak"] <= 80e9 - 2e9)


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_sweeps_are_drawn(tmp_path, kind):
    path = tmp_path / f"plot.{kind}"
    done = call("tiny", "--sweep", "batch=1..4", "--sweep", "seq=16..64", "--plot", str(path))
    assert done.exit_code == 0, done.output
    assert path.read_bytes()[:4] == {"svg": b"<?xm", "png": b"\x89PNG", "pdf": b"%PDF"}[kind]


def test_a_plot_shows_the_figures_of_the_sweep():
    from parity.planning.command import accounted
    from parity.planning.plot import drawn

    account = accounted("gpt2", sweeps=["batch=1..8"])
    memory, flops = drawn(account).axes
    tops = {}
    for bar in memory.patches:
        tops[bar.get_x()] = max(tops.get(bar.get_x(), 0), bar.get_y() + bar.get_height())
    assert list(tops.values()) == pytest.approx([each.memory.backward / 1e9 for each in account.sweeps])
    assert list(flops.lines[0].get_ydata()) == [each.flops for each in account.sweeps]
    assert [label.get_text() for label in flops.get_xticklabels()] == ["1", "2", "4", "8"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--plot", "a.svg"), "--plot: of a --sweep, got none"),
        (("--sweep", "batch=1..2", "--plot", "a.txt"), "--plot: a file that ends in svg, png, pdf, got 'a.txt'"),
        (("--sweep", "batch=1..2", "--plot", "/nowhere/a.svg"), "/nowhere/a.svg: a place that can be used"),
    ],
)
def test_a_plot_that_cannot_be_gets_one_line(words, message):
    done = subprocess.run(
        [sys.executable, "-m", "parity", "account", "tiny", *words], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert message in done.stderr
