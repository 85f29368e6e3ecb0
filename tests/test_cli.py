"""The command line: every option, every kind of bad input, and what stands on which stream."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import stat
import subprocess
import sys

import pytest

from parity import Result, Row
from parity.cli import explain, main
from parity.commands import build_pair
from parity.errors import ParityUsageError
from parity.limits import activation_bytes, default_batches, estimated_bytes, free_bytes
from parity.models import change, count_parameters, find_preset
from parity.output import destination_of, showing, write_result, write_whole

ONE_LINE = re.compile(r"error: [^\n]+?: [^\n]+, got [^\n]*; [^\n]+\n")
SMALL = ["tiny-bert", "--batch", "2", "--seq", "8", "--batches", "1", "--steps", "1", "--dtype", "float32"]


def call(*arguments: str) -> int:
    """The exit status of a call in this process."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    return stopped.value.code


def parity(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    """A call in a process of its own."""
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 300, **options}
    return subprocess.run([sys.executable, "-m", "parity", *arguments], check=False, **options)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Calls run in an empty folder, so that a file they leave behind is seen."""
    monkeypatch.chdir(tmp_path)


BAD = {
    "command": (["chekc"], "command: one of check, flops, account, got 'chekc'; did you mean check?"),
    "option": (["check", "--bacth", "2"], "got --bacth; did you mean --batch or --batches?"),
    "option of parity": (["--nonsense"], "got --nonsense; see parity --help"),
    "option without its value": (["check", "--batch"], "--batch: needs a value, got none; see parity check --help"),
    "flag with a value": (["check", "--shrink=3"], "--shrink: takes no value, got one"),
    "a preset among others": (["check", "tiny", "gtp2"], "PRESET: one of tiny, "),
    "preset": (["check", "tinny"], "got 'tinny'; did you mean tiny"),
    "preset like no other": (["check", "zzz"], "got 'zzz'; choose one of them"),
    "empty preset": (["check", ""], "got ''; choose one of them"),
    "control characters": (["check", "a\x1b[31m\nb"], r"got 'a\x1b[31m\nb'"),
    "batch 0": (["check", "--batch", "0"], "--batch: a whole number, at least 1, got '0'"),
    "batch -1": (["check", "--batch", "-1"], "got '-1'"),
    "batch word": (["check", "--batch", "two"], "got 'two'"),
    "batch 1.5": (["check", "--batch", "1.5"], "got '1.5'"),
    "batch of 5000 digits": (["check", "--batch", "1" * 5000], "--batch: a whole number"),
    "batch beyond memory": (["check", "--batch", "1000000"], "tiny: at most the"),
    "budget 2h": (["check", "--budget", "2h"], "--budget: a time such as 120s or 2m, got '2h'"),
    "budget 0s": (["check", "--budget", "0s"], "--budget: a whole number, at least 1, got '0'"),
    "batches 0": (["check", "--batches", "0"], "--batches: a whole number, at least 1, got '0'"),
    "batches beyond memory": (["check", "gpt2", "--batches", "100000"], "gpt2: at most the"),
    "seq 1": (["check", "--seq", "1"], "--seq: a whole number, at least 4, got '1'"),
    "seq beyond the model": (["check", "--seq", "257"], "--seq: at most the model's 256, got 257"),
    "steps -1": (["check", "--steps", "-1"], "--steps: a whole number, at least 0, got '-1'"),
    "seed -1": (["check", "--seed", "-1"], "--seed: a whole number, at least 0, got '-1'"),
    "dtype": (["check", "--dtype", "bf16"], "bfloat16, float16, tensorfloat32, got 'bf16'; did you mean bfloat16?"),
    "device": (["check", "--device", "tpu"], "--device: one of cpu, cuda, got 'tpu'"),
    "kernel": (["check", "--kernel", "flash"], "--kernel: one of einsum, fused, got 'flash'"),
    "text missing": (["check", "--text", "nowhere"], "--text: a file that can be read, got nowhere"),
    "text a folder": (["check", "--text", "/"], "Is a directory"),
    "text empty": (["check", "--text", os.devnull], "of 0 bytes"),
    "tokens out of range": (["check", "--set", "vocab_size=50"], "below the vocabulary of 50"),
    "json in a missing folder": (["check", "--json", "no/such.json"], "--json: a file that can be written"),
    "json a folder": (["check", "--json", "/"], "--json: a file that can be written, got '/' (a directory)"),
    "json without a name": (["check", "--json", ""], "got '' (an empty name)"),
    "json in a place without files": (["check", "--json", "/proc/such.json"], "got '/proc/such.json'"),
    "json below a file": (["check", "--json", "/etc/passwd/x"], "--json: a file that can be written"),
    "json with a null": (["check", "--json", "a\0b"], "--json: a file that can be written"),
    "set without a value": (["check", "--set", "d_model"], "--set: FIELD=VALUE of the ModelConfig, got 'd_model'"),
    "set a new field": (["check", "--set", "d_modle=3"], "did you mean d_model=3?"),
    "set nothing": (["check", "--set", "="], "got '='"),
    "set a word for a size": (["check", "--set", "d_model=wide"], "--set: d_model: a whole number, at least 1"),
    "set an empty value": (["check", "--set", "d_model="], "got ''"),
    "set a size of 0": (["check", "--set", "num_layers=0"], "--set: num_layers: a whole number, at least 1, got 0"),
    "set heads that do not fit": (["check", "--set", "num_heads=5"], "must be a multiple of num_heads 5"),
    "set a number for a word": (["check", "--set", "norm=3"], "--set: norm: one of layer_norm"),
    "set a list for a word": (["check", "--set", "norm=[]"], "--set: norm: one of layer_norm"),
    "set a word for a number": (["check", "--set", "norm_eps=small"], "--set: norm_eps: a finite number, got 'small'"),
    "set NaN": (["check", "--set", "norm_eps=NaN"], "--set: norm_eps: a finite number, got 'NaN'"),
    "set infinity": (["check", "--set", "rope_theta=1e999"], "--set: rope_theta: a finite number"),
    "set a negative eps": (["check", "--set", "norm_eps=-1"], "--set: norm_eps: must not be negative, got -1"),
    "set a flag to 1": (["check", "--set", "causal=1"], "--set: causal: True or False, got 1"),
    "set window 0": (["check", "--set", "window=0"], "--set: window: a whole number, at least 1, got 0"),
    "set scaling to a number": (["check", "--set", "rope_scaling=8"], "--set: rope_scaling: None or a JSON object"),
    "set scaling to {}": (["check", "--set", "rope_scaling={}"], "got '{}'"),
    "set a deep nesting": (["check", "--set", "d_model=" + "[" * 100_000], "--set: d_model: a whole number"),
    "set a billion layers": (["check", "--set", "num_layers=1000000000"], "tiny: at most the"),
    "weights missing": (["check", "--weights", "nowhere"], "nowhere: a checkpoint folder, got no such folder"),
    "weights a file": (["check", "--weights", os.devnull], "a checkpoint folder, got a file"),
    "weights an empty folder": (["check", "--weights", "."], "got"),
    "weights and shrink": (["check", "--weights", ".", "--shrink"], "--shrink: only without --weights, got both"),
    "too large for any memory": (["check", "llama3-405b"], "llama3-405b: at most the"),
    "fault": (["check", "--plant", "norm_epz@jaxcore"], "got 'norm_epz'; did you mean norm_eps"),
    "fault without a side": (["check", "--plant", "norm_eps"], "got 'norm_eps'; for example norm_eps@jaxcore"),
    "side": (["check", "--plant", "norm_eps@keras"], "got 'norm_eps@keras'; for example norm_eps@jaxcore"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_nothing_else(name, capsys, tmp_path):
    arguments, expected = BAD[name]
    assert call(*arguments) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert ONE_LINE.fullmatch(streams.err), streams.err
    assert expected in streams.err
    assert list(tmp_path.iterdir()) == []


def test_cuda_without_a_gpu_is_refused(capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert call("check", "--device", "cuda") == 2
    assert "got cuda, unknown to jax and torch; use --device cpu" in capsys.readouterr().err


def test_a_model_of_another_preset_is_refused(tmp_path, capsys):
    from jaxcore.parameters import initial_parameters
    from parity.weights import save_checkpoint

    config = change(find_preset("gpt2"), ["vocab_size=256", "d_model=16", "num_heads=2", "num_layers=1", "d_ff=32"])
    save_checkpoint(tmp_path / "small", config, initial_parameters(config, 0), "gpt2")
    assert call("check", "gpt2", "--weights", str(tmp_path / "small")) == 2
    error = capsys.readouterr().err
    assert ONE_LINE.fullmatch(error)
    assert "the model of the preset gpt2 (vocab_size 50257)" in error
    assert "(vocab_size 256); leave the preset out" in error


@pytest.mark.parametrize(("package", "extra"), [("jax", "jax"), ("flax", "jax"), ("optax", "jax"), ("torch", "torch")])
def test_a_missing_framework_is_one_line(package, extra):
    code = f"import sys; sys.modules[{package!r}] = None; from parity.cli import main; main({['check', *SMALL]})"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert process.stdout == ""
    last = process.stderr.splitlines(keepends=True)[-1]
    assert ONE_LINE.fullmatch(last), process.stderr
    assert last.startswith(f"error: {package}: must be importable")
    assert last.endswith(f'python -m pip install -c constraints.txt -e ".[{extra}]"\n')
    assert "Traceback" not in process.stderr


def test_debug_shows_the_traceback_and_the_same_line(capsys):
    assert call("check", "tinny", "--debug") == 2
    error = capsys.readouterr().err
    assert error.startswith("Traceback (most recent call last):")
    assert ONE_LINE.fullmatch(error.splitlines(keepends=True)[-1])


def test_a_mistake_of_our_own_is_no_verdict():
    line, status = explain(KeyError("q_proj"), ["check"])
    assert (status, line) == (
        70,
        "parity: no error of its own, got KeyError: 'q_proj'; run again with --debug and report it",
    )


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            OSError(28, "No space left on device", "a.json"),
            "a.json: a place that can be used, got No space left on device",
        ),
        (MemoryError(), "memory: enough for both sides, got too little"),
    ],
)
def test_what_the_system_refuses_is_one_line(error, line):
    found, status = explain(error, [])
    assert status == 2
    assert found.startswith(line)


def test_parity_alone_is_its_help(capsys):
    assert call() == 0
    alone = capsys.readouterr().out
    assert call("--help") == 0
    assert alone == capsys.readouterr().out


def test_version(capsys):
    from importlib.metadata import version

    assert call("--version") == 0
    assert capsys.readouterr().out == f"parity, version {version('jax-torch-parity')}\n"


def test_help_fits_a_terminal(capsys):
    assert call("check", "--help") == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    options = set(re.findall(r"^  (--[a-z-]+)", out, re.MULTILINE))
    common = "--batch --seq --steps --seed --device --dtype --text --weights --json --debug --no-color"
    assert options >= set(common.split())


def test_lists(capsys):
    assert call("check", "list") == 0
    presets = capsys.readouterr().out
    assert re.search(r"^gpt2 +124,439,808 parameters$", presets, re.MULTILINE)
    assert call("check", "--plant", "list") == 0
    assert "norm_eps" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["check", "list"], ["check", "--plant", "list"]])
def test_a_closed_pipe_is_silent(arguments):
    process = subprocess.Popen(
        [sys.executable, "-m", "parity", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == ""


def test_interrupted_is_one_line_and_nothing_written(tmp_path):
    call = [sys.executable, "-m", "parity", "check", "--json", "result.json"]
    process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    progress = process.stderr.readline()
    assert "float64" in progress
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert out == ""
    lines = [line for line in error.splitlines(keepends=True) if not line.startswith("[")]
    assert len(lines) == 1
    assert ONE_LINE.fullmatch(lines[0])
    assert list(tmp_path.iterdir()) == []


def swallowed() -> None:
    """Ctrl-C inside a library that catches whatever comes."""
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("where", ["at the next stage", "at the end"])
def test_an_interrupt_that_a_library_swallows_counts_all_the_same(where):
    before = signal.getsignal(signal.SIGINT)
    told = []

    def check():
        with showing(plain=True) as progress:
            progress("first")
            swallowed()
            told.append("swallowed")
            if where == "at the next stage":
                progress("second")
                told.append("second")

    with pytest.raises(KeyboardInterrupt):
        check()
    assert told == ["swallowed"]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """A small check from the shell: its streams and its JSON file."""
    path = tmp_path_factory.mktemp("small") / "result.json"
    path.write_text("old")
    return parity("check", *SMALL, "--json", str(path)), path


@pytest.mark.xdist_group("small_run")
def test_a_check_reports_on_stdout_and_progress_on_stderr(small_run):
    process, _ = small_run
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[0] == "tiny-bert: jaxcore against torchref: PASS, same-function"
    assert re.search(r"^PASS, same-function  tiny-bert  \(\d+ s, seed 0\)", process.stdout, re.MULTILINE)
    assert max(map(len, process.stdout.splitlines())) <= 80
    assert all(re.match(r"\[ *\d+\.\d s\] ", line) for line in process.stderr.splitlines())
    assert len(process.stderr.splitlines()) >= 5
    assert "\x1b" not in process.stdout + process.stderr


@pytest.mark.xdist_group("small_run")
def test_json_to_a_file_is_the_same_check(small_run):
    process, path = small_run
    result = json.loads(path.read_text())
    assert (result["verdict"], result["rung"]) == ("PASS", "same-function")
    assert {row["group"] for row in result["rows"]} <= set(
        re.findall(r"^[a-z][\w.() -]*?(?=  )", process.stdout, re.MULTILINE)
    )
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    assert [each.name for each in path.parent.iterdir()] == ["result.json"]


def test_json_to_stdout_is_json_alone():
    process = parity("check", *SMALL[:-2], "--dtype", "float64", "--steps", "0", "--json", "-")
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    assert result["target"] == "tiny-bert"
    assert not [row for row in result["rows"] if row["name"].startswith("step")]


def test_a_planted_fault_has_exit_status_1():
    process = parity("check", *SMALL, "--steps", "0", "--plant", "norm_eps_e8@torchref")
    assert process.returncode == 1
    assert "FAIL, different" in process.stdout.splitlines()[0]


def a_result(measured: float = 1e-9) -> Result:
    """A failing result without any run."""
    row = Row("logits", "logits", ("a", "b"), (2, 3), "float64", "float64", measured, 1e-15, "because", "FAIL")
    return Result("pair", "FAIL", "different", "logits differs", 0, (row,))


def test_an_unwritten_json_leaves_the_old_file_and_the_report(tmp_path, monkeypatch, capsys):
    path = tmp_path / "result.json"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_result(a_result(), path, plain=True)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]
    assert "FAIL, different" in capsys.readouterr().out


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    assert destination_of(str(tmp_path / "pipe")) == tmp_path / "pipe"
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_whole(tmp_path / "pipe", "new")
    assert os.read(reader, 10) == b"new"
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_read_only_place_is_refused(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    if os.geteuid() == 0:
        pytest.skip("root writes everywhere")
    with pytest.raises(ParityUsageError, match=r"--json: a file that can be written, got .*Permission denied"):
        destination_of(str(tmp_path / "locked" / "result.json"))


SHOW = """
import sys
from tests.test_cli import a_result
from parity.output import showing, write_result
with showing({plain}) as progress:
    progress("working")
write_result(a_result(), None, {plain})
"""


@pytest.mark.parametrize(
    ("plain", "term", "escapes"),
    [(False, "xterm", True), (True, "xterm", False), (False, "dumb", False)],
)
def test_escape_codes_on_a_terminal_only_and_only_if_wanted(plain, term, escapes, request):
    terminal, end = pty.openpty()
    environment = {**os.environ, "TERM": term, "PYTHONPATH": str(request.config.rootpath)}
    environment = {name: value for name, value in environment.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    call = [sys.executable, "-c", SHOW.format(plain=plain)]
    process = subprocess.Popen(call, stdout=end, stderr=end, stdin=end, env=environment)
    os.close(end)
    seen = b""
    while chunk := _read(terminal):
        seen += chunk
    assert process.wait(60) == 0
    assert b"FAIL, different" in seen
    assert (b"\x1b" in seen) == escapes


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux's way to say that the other end is closed
        return b""


def test_no_color_makes_the_output_plain(monkeypatch):
    seen = {}

    def run_check(**options):
        seen.update(options)
        return 0

    monkeypatch.setattr("parity.commands.run_check", run_check)
    for value, arguments, plain in (("1", [], True), ("", [], False), ("", ["--no-color"], True)):
        monkeypatch.setenv("NO_COLOR", value)
        assert call("check", *arguments) == 0
        assert seen["plain"] is plain


def test_idle_threads_sleep_unless_told_otherwise(monkeypatch):
    monkeypatch.setattr("parity.commands.run_check", lambda **_: 0)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    call("check")
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    call("check")
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


WORDS = {
    "preset": "tiny-bert",
    "weights": None,
    "text": None,
    "batch": 2,
    "seq": None,
    "batches": None,
    "steps": 3,
    "seed": 0,
    "dtypes": (),
    "device": "cpu",
    "kernel": None,
    "settings": (),
    "shrink": False,
}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({}, {"precisions": ("float32", "bfloat16"), "batches": 8, "steps": 3, "seed": 0, "device": "cpu"}),
        ({"dtypes": ("float64",)}, {"precisions": ()}),
        ({"dtypes": ("bfloat16", "float16", "bfloat16")}, {"precisions": ("bfloat16", "float16")}),
        ({"batches": 2, "steps": 0, "seed": 10**30}, {"batches": 2, "steps": 0, "seed": 10**30}),
    ],
)
def test_words_become_options(words, expected):
    _, options = build_pair(**(WORDS | words))
    assert {name: getattr(options, name) for name in expected} == expected


def test_words_become_a_pair(tmp_path):
    import numpy as np

    (tmp_path / "text").write_bytes(b"abc")
    words = {"text": "text", "batch": 3, "seq": 7, "settings": ("vocab_size=100", "causal=true"), "kernel": "fused"}
    pair, _ = build_pair(**(WORDS | words))
    batch = pair.inputs(np.random.Generator(np.random.PCG64(0)))
    assert batch["tokens"].shape == (3, 7)
    assert set(batch["tokens"].ravel()) == {97, 98, 99}
    assert pair.weights["token_embedding.weight"].shape[0] == 100
    assert any("fused" in note for note in pair.notes)


def test_settings_are_read_as_python_json_or_words():
    config = find_preset("tiny")
    settings = ["window=5", "norm=rms_norm", "norm_eps=1e-6", "causal=False", "o_bias=false", "num_kv_heads=2"]
    changed = change(config, settings)
    assert (changed.window, changed.norm, changed.norm_eps, changed.causal) == (5, "rms_norm", 1e-6, False)
    assert (changed.o_bias, changed.num_kv_heads) == (False, 2)
    assert change(changed, ["window=None"]).window is None
    heads = change(config, ["num_heads=8"])
    assert (heads.d_head, heads.num_kv_heads) == (config.d_model // 8, 8)
    assert change(find_preset("qwen3-0.6b"), ["d_model=64"]).d_head == 128
    assert change(find_preset("llama3-8b"), ["num_heads=16"]).num_kv_heads == 8
    scaling = '{"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_seq_len": 64}'
    assert change(config, [f"rope_scaling={scaling}"]).rope_scaling.factor == 8
    assert change(config, []) is config


def test_parameters_are_counted_without_a_table_of_every_layer():
    from jaxcore.parameters import count_parameters as by_table

    for name in ("tiny", "gpt2", "llama3-70b", "bert-base"):
        assert count_parameters(find_preset(name)) == by_table(find_preset(name))


def test_large_models_pool_fewer_batches():
    assert default_batches(1_878_144) == 8
    assert default_batches(124_439_808) == 1
    assert [default_batches(10**n) for n in range(6, 12)] == sorted(
        (default_batches(10**n) for n in range(6, 12)), reverse=True
    )


def test_the_estimate_grows_with_everything():
    config = find_preset("tiny")
    sizes = {"batch": 2, "seq": 128, "batches": 8, "steps": 3}
    least = estimated_bytes(config, 1_878_144, **sizes)
    assert least < 3e9
    assert estimated_bytes(config, 1_878_144, **(sizes | {"steps": 0})) < least
    for name, size in sizes.items():
        assert estimated_bytes(config, 1_878_144, **(sizes | {name: 2 * size})) > least
    assert activation_bytes(config, 2, 256) > 2 * activation_bytes(config, 2, 128)
    assert 1e8 < free_bytes() < 1e14


MEASURED = {
    "base": ["tiny-bert", "--batch", "1", "--seq", "8", "--batches", "1", "--steps", "1"],
    "parameters": [
        "tiny",
        "--batch",
        "1",
        "--seq",
        "8",
        "--batches",
        "1",
        "--set",
        "d_model=768",
        "--set",
        "d_ff=3072",
    ],
    "batches": ["tiny", "--batch", "1", "--seq", "8", "--batches", "8", "--set", "d_model=384", "--set", "d_ff=1536"],
    "activations": ["tiny", "--batch", "16", "--seq", "256", "--batches", "1", "--steps", "1"],
    "vocabulary": ["tiny", "--batch", "2", "--seq", "64", "--batches", "1", "--set", "vocab_size=50000"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
def test_the_estimate_is_near_the_measured_peak(name):
    arguments = MEASURED[name]
    peak, _, _ = measured(arguments)
    values = {"--steps": "3"} | dict(zip(arguments[1::2], arguments[2::2], strict=True))
    settings = [value for option, value in zip(arguments[1::2], arguments[2::2], strict=True) if option == "--set"]
    config = change(find_preset(arguments[0]), settings)
    sizes = {size: int(values[f"--{size}"]) for size in ("batch", "seq", "batches", "steps")}
    estimate = estimated_bytes(config, count_parameters(config), **sizes)
    assert 0.8 * estimate <= peak or name == "base"
    assert peak <= 1.2 * estimate


@pytest.mark.slow
def test_the_default_run_fits_two_cores_a_minute_and_3_gb():
    peak, processor_seconds, output = measured([])
    assert "PASS, same-function  tiny" in output
    assert peak <= 3e9
    # wall time is at the mercy of whatever else runs: two cores for a minute are 120 s of processor time
    assert processor_seconds <= 120


def measured(arguments: list[str]) -> tuple[int, float, str]:
    """Peak memory in bytes, processor time in seconds and standard output of a check."""
    process = subprocess.Popen([sys.executable, "-m", "parity", "check", *arguments], stdout=subprocess.PIPE, text=True)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime, output
