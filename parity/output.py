"""Where a command's words go: progress to standard error, the report to standard output, JSON to a file or there."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from rich.console import Console

from .errors import ParityUsageError
from .report import is_accepted, print_report, style_of
from .result import Result

STDOUT = "-"


@contextmanager
def showing(plain: bool) -> Iterator[Callable[[str], None]]:
    """Progress on standard error: a live line on a terminal, a line per stage elsewhere."""
    console = Console(stderr=True, color_system=None if plain else "auto", highlight=False)
    started = time.perf_counter()
    by_line = plain or not console.is_terminal or console.is_dumb_terminal
    with heeding_interrupts() as heed, nullcontext() if by_line else console.status("starting") as status:

        def tell(message: str) -> None:
            heed()
            seconds = time.perf_counter() - started
            if status is None:
                print(f"[{seconds:5.1f} s] {message}", file=sys.stderr, flush=True)
            else:
                status.update(f"[{seconds:.0f} s] {message}")

        yield tell


@contextmanager
def heeding_interrupts() -> Iterator[Callable[[], None]]:
    """Ctrl-C counts even where a library swallows it (a bare `except:` during an import, a finaliser).

    Yields a function that raises KeyboardInterrupt if there has been one; so does the end of the block.
    """
    seen: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    def heed() -> None:
        if seen:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield heed
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield heed
        heed()
    finally:
        signal.signal(signal.SIGINT, before)


def aside(destination: Path | str | None) -> AbstractContextManager[Any]:
    """While it lasts what the caller's own code prints does not stand beside JSON on standard output."""
    return redirect_stdout(sys.stderr) if destination == STDOUT else nullcontext()


def write_document(document: str, destination: Path | str | None, report: Callable[[], None]) -> None:
    """JSON to where it was asked for, whole or not at all; then the report, unless standard output has the JSON."""
    if destination == STDOUT:
        print(document)
        return
    try:
        if destination is not None:
            write_whole(Path(destination), document + "\n")
    finally:  # a disk that is full does not cost the report as well
        report()


def write_result(result: Result, destination: Path | str | None, plain: bool, quiet: bool = False) -> None:
    """JSON to where it was asked for, whole or not at all; the report to standard output unless JSON goes there."""

    def report() -> None:
        if not quiet:
            print_report(Console(color_system=None if plain else "auto", highlight=False), result)

    write_document(result.to_json(), destination, report)


def write_results(results: Sequence[Result], destination: Path | str | None, plain: bool) -> None:
    """Several targets at once: a line each after their reports, and one JSON array."""
    document = f"[{', '.join(result.to_json() for result in results)}]"
    if destination == STDOUT:
        print(document)
        return
    console = Console(color_system=None if plain else "auto", highlight=False)
    console.print()
    for result in results:
        accepted = "  accepted" if is_accepted(result) else ""
        line = f"{result.verdict:8}{result.rung or '':16}{result.target}{accepted}"
        console.print(line, style=style_of(result), markup=False)
    if destination is not None:
        write_whole(Path(destination), document + "\n")


def destination_of(path: str | None, option: str = "--json") -> Path | str | None:
    """The place that `option` names, tried out before a minute of work is done for it.

    Raises:
        ParityUsageError: no file can be written there.
    """
    if path is None or path == STDOUT:
        return path
    place = Path(path)
    try:
        if place.is_dir() or not path:
            raise IsADirectoryError(0, "a directory" if path else "an empty name")
        if _is_ordinary(place):
            probe = _beside(place)
            probe.touch(exist_ok=False)
            probe.unlink()
        elif not os.access(place, os.W_OK):
            raise PermissionError(0, "no right to write")
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise ParityUsageError(
            f"{option}: a file that can be written, got {path!r} ({why}); choose another place"
        ) from error
    return place


def write_whole(path: Path, text: str) -> None:
    """Written beside its place and moved there, so that no reader ever sees half a file; a pipe or device as it is."""
    if not _is_ordinary(path):
        path.write_text(text)
        return
    part = _beside(path)
    try:
        part.write_text(text)
        os.replace(part, path.resolve())  # a link stays a link
    finally:
        part.unlink(missing_ok=True)


def _is_ordinary(path: Path) -> bool:
    """A file, or nothing yet: what may be replaced. /dev/null and the shell's >(command) may not."""
    return path.is_file() or not path.exists()


def _beside(path: Path) -> Path:
    place = path.resolve()
    return place.with_name(f".{place.name}.{os.getpid()}.part")
