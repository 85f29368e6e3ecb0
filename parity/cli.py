"""The command line. Only click is loaded before a command runs."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import click

USAGE_ERROR = 2


class Commands(click.Group):
    """Commands in the order of the README; mistakes of the caller as one line and exit status 2."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a command; `--debug` lets tracebacks through."""
        kwargs["standalone_mode"] = False
        arguments = kwargs.get("args") or (args[0] if args else None) or sys.argv[1:]
        try:
            status = super().main(*args, **kwargs)
        except click.ClickException as error:
            _stop(_one_line(error.format_message()), arguments)
        except (click.Abort, KeyboardInterrupt):
            click.echo("error: interrupted: nothing was written", err=True)
            sys.exit(130)
        except ValueError as error:
            _stop(_one_line(str(error)), arguments)
        except ImportError as error:
            extra = {"torch": "torch", "jax": "jax", "flax": "jax", "optax": "jax"}.get(error.name or "", "all")
            _stop(
                f"{error.name}: must be installed for this command, got no such module; "
                f'pip install -c constraints.txt -e ".[{extra}]"',
                arguments,
            )
        sys.exit(status if isinstance(status, int) else 0)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The order in which they were added."""
        return list(self.commands)


def _stop(line: str, arguments: Any) -> NoReturn:
    if "--debug" in arguments:
        raise  # noqa: PLE0704  (called from an except block only)
    click.echo(f"error: {line}", err=True)
    sys.exit(USAGE_ERROR)


def _one_line(message: str) -> str:
    return " ".join(message.split())


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="jax-torch-parity", prog_name="parity")
def main() -> None:
    """Prove that a JAX and a PyTorch implementation are the same function.

    Exit status: 0 the same, 1 different (or a check that could not fail), 2 a mistake in the call or a file, 3 undecided.
    """


@main.command()
@click.argument("preset", default="tiny")
@click.option("--weights", type=click.Path(path_type=str), metavar="DIR", help="A Hugging Face checkpoint folder.")
@click.option("--text", type=click.Path(path_type=str), metavar="FILE", help="Text to read instead of Python's sources.")
@click.option("--batch", type=int, default=2, show_default=True, help="Sequences per batch; the last one is padded.")
@click.option("--seq", type=int, help="Tokens per sequence.  [default: 128, or the model's maximum]")
@click.option("--batches", type=int, help="Batches whose errors are pooled.  [default: 8, fewer for large models]")
@click.option("--steps", type=int, default=3, show_default=True, help="AdamW steps.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights, text and gradients.")
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=click.Choice(["float64", "float32", "bfloat16", "float16"]),
    help="Judge this precision after float64; may be repeated.  [default: float32, bfloat16]",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--kernel", type=click.Choice(["einsum", "fused"]), help="Attention: written out, or the framework's own.")
@click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="Change one field of the ModelConfig.")
@click.option("--shrink", is_flag=True, help="The same architecture at a size that runs anywhere.")
@click.option("--plant", metavar="FAULT@SIDE", help="Plant a known fault, to see the check fail; 'list' names them.")
@click.option("--json", "json_path", metavar="PATH", help="Write every figure as JSON; - is standard output.")
@click.option("--no-color", is_flag=True, help="Plain text (so does the variable NO_COLOR).")
@click.option("--debug", is_flag=True, help="Tracebacks instead of one-line errors.")
def check(json_path: str | None, no_color: bool, debug: bool, **options: Any) -> int:
    """Prove jaxcore and torchref the same function, on real text.

    PRESET is tiny (the default), tiny-llama, tiny-qwen3, tiny-bert, gpt2, llama3-8b, bert-base ...: `parity check list`
    names them all.
    """
    del debug  # read by Commands.main
    from .commands import run_check

    return run_check(json_path=json_path, plain=no_color or bool(os.environ.get("NO_COLOR")), **options)


if __name__ == "__main__":
    main()
