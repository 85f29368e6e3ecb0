"""The command line. Only click is loaded before a command runs."""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from .errors import USAGE_ERROR, ParityUsageError

INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h: Python's own 1 would say FAIL
INTERRUPTED = 130  # 128 + SIGINT
BROKEN_PIPE = 141  # 128 + SIGPIPE

COMPLETION = "_PARITY_COMPLETE"  # set by the shell while it completes a word

#: The extra that brings a package, for the message when it is missing.
EXTRAS = {"matplotlib": "plots", "torch": "torch", "jax": "jax", "jaxlib": "jax", "flax": "jax", "optax": "jax"}


class Whole(click.ParamType):
    """A whole number of at least `least`."""

    name = "integer"

    def __init__(self, least: int):
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number, or ParityUsageError."""
        try:
            number = int(value)
        except ValueError:
            number = self.least - 1
        if number < self.least:
            rule = f"a whole number, at least {self.least}"
            raise ParityUsageError(f"{_flag(param)}: {rule}, got {str(value)!r}; give another")
        return number


class Duration(Whole):
    """A time in seconds: 120, 120s or 2m."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Seconds, or ParityUsageError."""
        number, unit = str(value).rstrip("sm"), str(value).lstrip("0123456789")
        if unit not in ("", "s", "m"):
            raise ParityUsageError(f"{_flag(param)}: a time such as 120s or 2m, got {str(value)!r}; give another")
        return super().convert(number, param, ctx) * (60 if unit == "m" else 1)


class OneOf(click.Choice):
    """A word of a list."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The word, or ParityUsageError with the list."""
        if value not in self.choices:
            raise ParityUsageError(
                f"{_flag(param)}: one of {', '.join(self.choices)}, got {value!r}; {_nearest(value, self.choices)}"
            )
        return value


class Commands(click.Group):
    """Commands in the order of the README; whatever goes wrong is one line and an exit status of its own."""

    def main(self, args: Sequence[str] | None = None, **kwargs: Any) -> NoReturn:  # type: ignore[override]
        """Runs a command and exits."""
        if COMPLETION in os.environ:
            super().main(args, **kwargs)
        arguments = list(sys.argv[1:] if args is None else args)
        try:
            # not click's own main: that turns a closed pipe into status 1, which is FAIL here
            with self.make_context("parity", list(arguments)) as context:
                status = self.invoke(context)
            sys.stdout.flush()
        except click.exceptions.Exit as stopped:  # after --help and --version
            status = stopped.exit_code
        except BrokenPipeError:
            # whoever read this has gone (`| head`): the flush at exit must not complain about it again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(BROKEN_PIPE)
        except (click.Abort, KeyboardInterrupt):
            line = "interrupted: a check runs to its end, got Ctrl-C; nothing was written, run it again"
            if args is not None:
                _stop(line, INTERRUPTED)
            # the shell's own call: the frameworks' threads are still at work, and would crash in the teardown
            click.echo(f"error: {line}", err=True)
            os._exit(INTERRUPTED)
        except Exception as error:
            if "--debug" in arguments:
                traceback.print_exc()
            _stop(*explain(error, arguments))
        sys.exit(status if isinstance(status, int) else 0)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The order in which they were added."""
        return list(self.commands)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """The command of the first word, or ParityUsageError with the nearest one."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            known = ", ".join(self.commands)
            raise ParityUsageError(f"command: one of {known}, got {args[0]!r}; {_nearest(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


def explain(error: Exception, arguments: Sequence[str]) -> tuple[str, int]:
    """One line `<what>: <rule>, got <value>; <what to do>` and the exit status for whatever stopped a command."""
    if isinstance(error, ValueError):
        return str(error), USAGE_ERROR
    if isinstance(error, click.ClickException):
        return _explain_click(error, arguments), USAGE_ERROR
    if isinstance(error, ImportError):
        name = (error.name or "").partition(".")[0] or "a package"
        install = f'python -m pip install -c constraints.txt -e ".[{EXTRAS.get(name, "all")}]"'
        return f"{name}: must be importable for this command, got {error}; {install}", USAGE_ERROR
    if isinstance(error, OSError):
        place = error.filename or "file"
        return f"{place}: a place that can be used, got {error.strerror or error}; choose another", USAGE_ERROR
    if isinstance(error, MemoryError):
        return "memory: enough for both sides, got too little; use --shrink, --batch or --seq", USAGE_ERROR
    what = f"{type(error).__name__}: {error}"
    return f"parity: no error of its own, got {what}; run again with --debug and report it", INTERNAL_ERROR


def _explain_click(error: click.ClickException, arguments: Sequence[str]) -> str:
    command = f"parity {arguments[0]}" if arguments[0] in main.commands else "parity"
    see = f"see {command} --help"
    if isinstance(error, click.NoSuchOption):
        near = f"did you mean {' or '.join(error.possibilities)}?" if error.possibilities else see
        return f"option: one of {command}, got {error.option_name}; {near}"
    if isinstance(error, click.BadOptionUsage):
        needs_value = "requires an argument" in error.format_message()
        rule, got = ("needs a value", "none") if needs_value else ("takes no value", "one")
        return f"{error.option_name}: {rule}, got {got}; {see}"
    return f"{command}: a call as --help describes it, got {error.format_message().rstrip('.')!r}; {see}"


def _stop(line: str, status: int) -> NoReturn:
    # names of files and values come from anywhere: they cannot break the line or drive the terminal
    printable = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in " ".join(line.split()))
    click.echo(f"error: {printable}", err=True)
    sys.exit(status)


def _flag(param: click.Parameter | None) -> str:
    return "value" if param is None else max(param.opts, key=len)


def _nearest(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word, list(known), n=2)
    return f"did you mean {' or '.join(near)}?" if near else "choose one of them"


CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=Commands, context_settings=CONTEXT, invoke_without_command=True)
@click.version_option(package_name="jax-torch-parity", prog_name="parity")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Prove that a JAX and a PyTorch implementation are the same function.

    Exit status: 0 the same; 1 different or a check that could not fail; 2 a mistake in the call or a file; 3 undecided.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@main.command()
@click.argument("targets", nargs=-1, metavar="[TARGET...]")
@click.option("--weights", metavar="DIR", help="A Hugging Face checkpoint folder in place of a preset.")
@click.option("--text", metavar="FILE", help="Text to read.  [default: Python's own sources]")
@click.option("--batch", type=Whole(1), help="Sequences per batch; the last one is padded.  [default: 2]")
@click.option("--seq", type=Whole(4), help="Tokens per sequence.  [default: 128, or the model's maximum]")
@click.option("--batches", type=Whole(1), help="Batches whose errors are pooled.  [default: 8, fewer for large models]")
@click.option("--steps", type=Whole(0), help="AdamW steps.  [default: 3]")
@click.option("--seed", type=Whole(0), help="Of weights, text and gradients.  [default: 0]")
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=OneOf(["float64", "float32", "bfloat16", "float16", "tensorfloat32"]),
    help="Judge this precision after float64; may be repeated.  [default: float32, bfloat16]",
)
@click.option(
    "--thorough", is_flag=True, default=None, help="Float64 on other inputs too: scaled, shifted, zero, tied, longer."
)
@click.option("--curve", type=Whole(0), help="Train each side on its own for so many steps, and compare.  [default: 0]")
@click.option(
    "--seeds", type=Whole(0), help="Do so on the batches of so many seeds, and compare the final losses.  [default: 0]"
)
@click.option("--mutate", is_flag=True, default=None, help="Plant faults into the check, and count those it notices.")
@click.option(
    "--budget", type=Duration(1), metavar="TIME", help="Begin no stage after 120s or 2m; what is left out is said."
)
@click.option("--device", type=OneOf(["cpu", "cuda"]), help="Where both sides run.  [default: cpu]")
@click.option("--kernel", type=OneOf(["einsum", "fused"]), help="Attention: written out, or the framework's own.")
@click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="Change one field of the ModelConfig.")
@click.option("--shrink", is_flag=True, help="The same architecture at a size that runs anywhere.")
@click.option("--plant", metavar="FAULT@SIDE", help="Plant a known fault, to see the check fail; 'list' names them.")
@click.option("--json", "json_path", metavar="PATH", help="Write every figure as JSON; - is standard output.")
@click.option("--no-color", is_flag=True, help="Plain text (so does the variable NO_COLOR).")
@click.option("--debug", is_flag=True, help="A traceback before the line of an error.")
def check(targets: tuple[str, ...], json_path: str | None, no_color: bool, debug: bool, **options: Any) -> int:
    """Prove two implementations the same function.

    TARGET is a preset of the pair that ships, on real text: tiny (the default), tiny-llama, tiny-qwen3, tiny-bert,
    gpt2, llama3-8b, bert-base ... (`parity check list` names them all); or a parity.Pair of your own: file.py,
    file.py:NAME or module:NAME, where NAME is a Pair, a list of Pairs or a function that returns one.

    Other defaults, and failing rows that are accepted for a while, stand in [tool.parity] of pyproject.toml.
    """
    del debug  # read by Commands.main
    # OpenMP threads that wait actively take the cores from XLA's: three times the processor time on two cores
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from .commands import run_check

    return run_check(
        targets=targets,
        json_path=json_path,
        plain=no_color or bool(os.environ.get("NO_COLOR")),
        **options,
    )


@main.command()
@click.argument("target")
@click.option("--batch", type=Whole(1), help="Sequences.  [default: 1]")
@click.option("--seq", type=Whole(1), help="Tokens per sequence.  [default: 1024, or the model's maximum]")
@click.option("--kernel", type=OneOf(["einsum", "fused"]), help="Attention: written out, or the framework's own.")
@click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="Change one field of the ModelConfig.")
@click.option("--shrink", is_flag=True, help="The same architecture at a size that runs anywhere.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="TYPE[SIZES]",
    help="An argument of your own module or function, such as int32[2,128] or tokens:int32[2,128].",
)
@click.option("--json", "json_path", metavar="PATH", help="Write every count as JSON; - is standard output.")
@click.option("--no-color", is_flag=True, help="Plain text (so does the variable NO_COLOR).")
@click.option("--debug", is_flag=True, help="A traceback before the line of an error.")
def flops(json_path: str | None, no_color: bool, debug: bool, **words: Any) -> int:
    """Count the matmul FLOPs of one step by every method, without running it.

    TARGET is a preset (`parity check list` names them), counted by formula, einops patterns, traced JAX program,
    PyTorch's counter and XLA's analysis; or your own: file.py:NAME or module:NAME of a Pair, of a module or of a JAX
    function with one --input for each argument. Exit status 1: counts differ that must be equal.
    """
    del debug  # read by Commands.main
    from .flops.command import run_flops

    return run_flops(json_path=json_path, plain=no_color or bool(os.environ.get("NO_COLOR")), **words)


@main.command()
@click.argument("target", metavar="PRESET")
@click.option("--batch", help="Sequences on each device.  [default: 1]")
@click.option("--global-batch", help="Sequences on all devices together.")
@click.option("--seq", help="Tokens per sequence, such as 8k.  [default: 1024, or the model's maximum]")
@click.option("--device", help="h100, h200, a100, b200, l4, tpu-v5p ..., or here: this machine.  [default: h100]")
@click.option("--measure", is_flag=True, help="This machine as it is: a few seconds of products and copies.")
@click.option("--precision", default="bf16-mixed", show_default=True, help="bf16-mixed, fp32, tf32, autocast, bf16 ...")
@click.option("--optimizer", default="adamw", show_default=True, help="sgd, momentum, adam or adamw.")
@click.option("--recompute", default="none", show_default=True, help="none, selective (attention) or full (blocks).")
@click.option("--zero", type=Whole(0), default=0, show_default=True, help="Stage of ZeRO; 3 is FSDP.")
@click.option("--gpus", default="1", show_default=True, help="Devices.")
@click.option("--tokens", help="Of a whole training, such as 15T: days, hours and cost.")
@click.option("--mfu", type=float, default=0.4, show_default=True, help="Share of the peak that a training reaches.")
@click.option("--price", type=float, help="Of a device for an hour.")
@click.option("--rate", type=float, metavar="TOKENS", help="Tokens per second that were measured: MFU by convention.")
@click.option("--kernel", type=OneOf(["einsum", "fused"]), default="fused", show_default=True, help="Attention.")
@click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="Change one field of the ModelConfig.")
@click.option(
    "--sweep", "sweeps", multiple=True, metavar="NAME=A..B", help="batch=1..64 or seq=1k..128k of one device."
)
@click.option("--plot", "plot_path", metavar="PATH", help="Draw the sweeps: a file.svg, .png or .pdf.")
@click.option("--json", "json_path", metavar="PATH", help="Write every figure as JSON; - is standard output.")
@click.option("--no-color", is_flag=True, help="Plain text (so does the variable NO_COLOR).")
@click.option("--debug", is_flag=True, help="A traceback before the line of an error.")
def account(json_path: str | None, plot_path: str | None, no_color: bool, debug: bool, **words: Any) -> int:
    """Say what a training step takes: memory, what bounds it, days and cost, from the sizes alone.

    PRESET is one of `parity check list`. Nothing runs, and no framework is loaded, unless the machine is measured.
    """
    del debug  # read by Commands.main
    from .planning.command import run_account

    plain = no_color or bool(os.environ.get("NO_COLOR"))
    return run_account(json_path=json_path, plot_path=plot_path, plain=plain, **words)
