"""What a check costs over the runs that it needs: seconds, processor seconds and peak memory.

The runs that it needs are one forward and backward of each side at each precision, as a user would write them: jaxcore
as one jitted value_and_grad, torchref eager, on the weights and inputs of the check. The weights are there in that
precision before the clock starts, and JAX's compilation is a figure of its own. The check is
`parity.check(pair, precisions=("float32",), batches=1, steps=0, points=True, flops=False)`: float64 and float32,
gradients, and module and einops captures although the outputs agree. Everything that it does after the frameworks have
been imported and the pair has been made is in its time, compilation as well.

float64 is needed twice: that a side gives the same bits twice is part of the question. The check is divided by that
sum, and by that of each run once. What else it runs (the reference's float32 points) is counted, shown, its own cost.

Each measurement is a process of its own; they take turns, and what is shown is the least of the repeats. Processor
seconds are those of all threads, user and system. Memory is what the system could not take back without the process: on
Linux the resident pages that are of no file, looked at every few milliseconds; elsewhere the peak of all.

    python -m benchmarks.check_cost tiny                     seconds
    python -m benchmarks.check_cost gpt2 --repeat 3          minutes, and 12 GB
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

# as the command line does, and before torch is imported: waiting threads must not take the other side's cores
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

PRECISIONS = ("float64", "float32")
BARE = tuple(f"{side} {precision}" for precision in PRECISIONS for side in ("torchref", "jaxcore"))
CHECK = "check"
#: What a check is divided by: in words, with compilation or without, float64 twice or once.
RATIOS = (
    ("bare runs, float64 twice, and their compilation", True, True),
    ("bare runs, each once, and their compilation", True, False),
    ("bare runs, each once, compiled before", False, False),
)
#: The stage of a check before it says what it does.
FIRST = "making ready"
#: Seconds between two looks at the memory.
EVERY = 0.005


@dataclass
class Cost:
    """Seconds and processor seconds of one piece of work, those of compiling it apart, and the process's peak memory.

    `loaded` is the peak before the work began: frameworks, weights and inputs. `stages` are those of a check, in
    (seconds, processor seconds), and `runs` counts what it had the sides do.
    """

    wall: float
    cpu: float
    peak: int
    loaded: int
    compile_wall: float = 0.0
    compile_cpu: float = 0.0
    stages: dict[str, tuple[float, float]] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    verdict: str = ""


@dataclass(frozen=True)
class Costs:
    """The least of each measurement over its repeats, by the name of the work."""

    works: Mapping[str, Cost]

    @property
    def check(self) -> Cost:
        return self.works[CHECK]

    def ratio(self, clock: str, compiled: bool = True, twice: bool = True) -> float:
        """Check over the sum of the bare runs, by "wall" or "cpu".

        `compiled` counts their compilation too, `twice` the float64 runs two times.
        """
        times = {name: 2 if twice and name.endswith("float64") else 1 for name in BARE}
        bare = sum(times[name] * getattr(self.works[name], clock) for name in BARE)
        if compiled:
            bare += sum(getattr(self.works[name], f"compile_{clock}") for name in BARE)
        return getattr(self.check, clock) / bare

    @property
    def memory_ratio(self) -> float:
        """Peak of the check over that of the largest bare run."""
        return self.check.peak / max(self.works[name].peak for name in BARE)

    def __str__(self) -> str:
        lines = [f"{'':38}{'wall s':>9}{'CPU s':>9}{'compile':>9}{'CPU s':>9}{'peak GB':>9}"]
        for name in (*BARE, CHECK):
            cost = self.works[name]
            compiling = f"{cost.compile_wall:9.2f}{cost.compile_cpu:9.2f}" if name != CHECK else f"{'within':>18}"
            lines.append(f"{name:38}{cost.wall:9.2f}{cost.cpu:9.2f}{compiling}{cost.peak / 1e9:9.2f}")
        for name, (wall, cpu) in self.check.stages.items():
            lines.append(f"  {name[:34]:36}{wall:9.2f}{cpu:9.2f}")
        lines.append(f"runs of the check: {', '.join(f'{count} {name}' for name, count in self.check.runs.items())}")
        for words, compiled, twice in RATIOS:
            wall, cpu = (self.ratio(clock, compiled, twice) for clock in ("wall", "cpu"))
            lines.append(f"check / {words}: {wall:.2f} by the clock, {cpu:.2f} by processor time")
        lines.append(f"peak of the check / largest bare run: {self.memory_ratio:.2f}; verdict {self.check.verdict}")
        return "\n".join(lines)


@contextmanager
def counted_runs(counts: Counter[str]) -> Iterator[None]:
    """Counts every run and capture of a side, by "LABEL PRECISION" and "LABEL PRECISION captured", while it lasts."""
    from parity import sides
    from parity.runners import Around

    class Counted(Around):
        def run(self, weights: Any, batch: Any, precision: str, **options: Any) -> Any:
            counts[f"{self.label} {precision}"] += 1
            return super().run(weights, batch, precision, **options)

        def capture(self, weights: Any, batch: Any, precision: str, **options: Any) -> Any:
            counts[f"{self.label} {precision} captured"] += 1
            return super().capture(weights, batch, precision, **options)

    make = sides.make_runner
    sides.make_runner = lambda *arguments: Counted(make(*arguments))
    try:
        yield
    finally:
        sides.make_runner = make


def made_pair(preset: str, batch: int, seq: int) -> Any:
    """The pair of a preset, as the command line makes it."""
    from parity.models import find_preset, read_source
    from parity.pairs.transformer import transformer_pair

    config = find_preset(preset)
    return transformer_pair(preset, config, read_source(None, None, config), batch=batch, seq=seq)


class Watched:
    """The most memory that this process has had since it was first looked at."""

    def __init__(self) -> None:
        self.peak = 0
        self._over = threading.Event()

    def __enter__(self) -> Watched:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def look(self) -> int:
        """The peak so far, in bytes."""
        self.peak = max(self.peak, used_bytes())
        return self.peak

    def _watch(self) -> None:
        while not self._over.wait(EVERY):
            self.look()


def used_bytes() -> int:
    """Memory of this process that is of no file; where the system does not tell, the most that it has had so far."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        resident, of_files = map(int, statm.read_text().split()[1:3])
        return (resident - of_files) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def clocked(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds and processor seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def scalar(outputs: Any) -> Any:
    """The loss, or without a head the mean of the hidden states, as something to differentiate."""
    return outputs["loss"] if "loss" in outputs else outputs["hidden"].mean()


def bare_jax(pair: Any, inputs: Mapping[str, Any], precision: str, watched: Watched) -> Cost:
    """Outputs and gradients of jaxcore, compiled as one program."""
    import jax
    import jax.numpy as jnp

    def loss(parameters: Any, inputs: Any) -> Any:
        outputs = pair.candidate.function(parameters, **inputs)
        return scalar(outputs), outputs

    with jax.enable_x64(precision == "float64"), jax.default_matmul_precision("highest"):
        parameters = {name: jnp.asarray(value, precision) for name, value in pair.weights.items()}
        arrays = {name: jnp.asarray(value) for name, value in inputs.items()}
        loaded, made = watched.look(), []
        step = jax.jit(jax.value_and_grad(loss, has_aux=True))
        compiling = clocked(lambda: made.append(step.lower(parameters, arrays).compile()))
        running = clocked(lambda: jax.block_until_ready(made[0](parameters, arrays)))
    return Cost(*running, watched.look(), loaded, *compiling)


def bare_torch(pair: Any, inputs: Mapping[str, Any], precision: str, watched: Watched) -> Cost:
    """Outputs and gradients of torchref, eager."""
    import numpy as np
    import torch

    side = pair.reference.make(np.dtype(precision))
    module, dtype = side.function, getattr(torch, precision)
    parameters = {name: torch.tensor(value, dtype=dtype) for name, value in pair.weights.items()}
    module.load_state_dict(parameters, assign=True)
    tensors = {name: torch.tensor(value) for name, value in inputs.items()}
    loaded = watched.look()
    running = clocked(lambda: scalar(side.call(module, **tensors)).backward())
    return Cost(*running, watched.look(), loaded)


def checked(pair: Any, points: bool, watched: Watched) -> Cost:
    """The check itself, stage by stage."""
    import jax  # noqa: F401 - imported before the clock starts, as for the bare runs
    import torch  # noqa: F401

    import parity
    from parity.memory import return_freed_memory

    return_freed_memory()
    counts: Counter[str] = Counter()
    loaded = watched.look()
    said = [(FIRST, time.perf_counter(), time.process_time())]
    with counted_runs(counts):
        result = parity.check(
            pair,
            progress=lambda stage: said.append((stage, time.perf_counter(), time.process_time())),
            precisions=("float32",),
            batches=1,
            steps=0,
            points=points,
            flops=False,
        )
    said.append(("", time.perf_counter(), time.process_time()))
    stages: dict[str, tuple[float, float]] = {}
    for (stage, *start), (_, *end) in pairwise(said):
        before = stages.get(stage, (0.0, 0.0))
        stages[stage] = before[0] + end[0] - start[0], before[1] + end[1] - start[1]
    wall, cpu = (said[-1][clock] - said[0][clock] for clock in (1, 2))
    return Cost(wall, cpu, watched.look(), loaded, stages=stages, runs=dict(counts), verdict=result.verdict)


def measure(name: str, preset: str, batch: int, seq: int, points: bool) -> Cost:
    """One piece of work, in this process."""
    import numpy as np

    pair = made_pair(preset, batch, seq)
    with Watched() as watched:
        if name == CHECK:
            return checked(pair, points, watched)
        side, precision = name.split()
        inputs = pair.inputs(np.random.Generator(np.random.PCG64(0)))
        return {"torchref": bare_torch, "jaxcore": bare_jax}[side](pair, inputs, precision, watched)


def least(costs: Sequence[Cost]) -> Cost:
    """The cheapest of some measurements of one work; seconds and processor seconds each by themselves."""
    best = min(costs, key=lambda cost: cost.wall)
    figures = {
        name: min(getattr(cost, name) for cost in costs) for name in ("cpu", "peak", "compile_wall", "compile_cpu")
    }
    return Cost(best.wall, loaded=best.loaded, stages=best.stages, runs=best.runs, verdict=best.verdict, **figures)


def measure_apart(name: str, preset: str, batch: int, seq: int, points: bool) -> Cost:
    """One piece of work, in a process of its own."""
    words = [preset, "--batch", str(batch), "--seq", str(seq), "--points" if points else "--no-points"]
    command = [sys.executable, "-m", "benchmarks.check_cost", *words, "--only", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def costs_of(
    preset: str,
    batch: int,
    seq: int,
    repeat: int,
    points: bool = True,
    measure: Callable[[str, str, int, int, bool], Cost] = measure_apart,
) -> Costs:
    """Every piece of work in turn, `repeat` times over."""
    found: dict[str, list[Cost]] = {name: [] for name in (*BARE, CHECK)}
    for _ in range(repeat):
        for name, costs in found.items():
            costs.append(measure(name, preset, batch, seq, points))
    return Costs({name: least(costs) for name, costs in found.items()})


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m benchmarks.check_cost`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.check_cost", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("preset", nargs="?", default="gpt2")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--points", action=argparse.BooleanOptionalAction, default=True, help="see inside as well")
    parser.add_argument("--only", choices=(*BARE, CHECK), help="one measurement in this process, as JSON")
    options = parser.parse_args(arguments)
    sizes = options.preset, options.batch, options.seq
    try:
        if options.only:
            print(json.dumps(vars(measure(options.only, *sizes, options.points))))
            return 0
        costs = costs_of(*sizes, options.repeat, options.points)
    except (ValueError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.preset}, batch {options.batch} x {options.seq}, the least of {options.repeat}")
    print(costs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
