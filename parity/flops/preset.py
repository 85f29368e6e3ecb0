"""The FLOPs of a preset by every method, from abstract arrays: nothing is allocated and nothing runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from jaxcore.config import ModelConfig
from jaxcore.parameters import parameter_table

from ..account.formula import matmul_flops, step_flops
from ..account.laws import ATTENTION, laws, model_flops
from ..errors import ParityUsageError
from ..work import FORWARD, FORWARD_BACKWARD, SHOWN_ONLY, Reconciliation, Work
from .counts import Flops, by_class, by_layer, evenly, merge_classes

Progress = Callable[[str], None]

#: Classes that stand in no layer.
OUTSIDE = ("head", "pooler")

#: Layers up to which XLA's program is lowered whole: it takes a second for ten, and 40 s for the 126 of llama3-405b.
MOST_LOWERED = 12


def preset_flops(name: str, config: ModelConfig, parameters: int, batch: int, seq: int, progress: Progress) -> Flops:
    """The five counts of one step: loss, and the gradient of every parameter.

    JAX's program scans over its layers, so that one is traced whatever their number; what is counted is the same.

    Raises:
        ParityUsageError: a size that the model cannot have.
    """
    if seq > config.max_seq_len:
        raise ParityUsageError(f"--seq: at most the model's {config.max_seq_len}, got {seq}; choose a shorter one")
    unreached = () if config.head == "none" else ("pooler",)
    forward, step = matmul_flops(config, batch, seq), step_flops(config, batch, seq, unreached)
    methods = {"formula": {FORWARD: folded(forward), FORWARD_BACKWARD: folded(step)}}
    progress("PyTorch on the meta device")
    placed = torch_flops(config, batch, seq)
    for method in ("einops", "torch"):
        methods[method] = by_class(placed[method])
    progress("JAX's traced program")
    methods["jaxpr"] = by_class(jax_flops(config, batch, seq))
    progress("XLA's analysis")
    lowered, notes = xla_flops(config, batch, seq)
    flops = {
        each: {
            **{method: sum(methods[method][each].values()) for method in ("formula", "einops", "jaxpr", "torch")},
            SHOWN_ONLY: lowered[each].figure if each in lowered else None,
        }
        for each in (FORWARD, FORWARD_BACKWARD)
    }
    written = {method: by_layer(placed[method]) for method in ("einops", "torch")}
    layers = {
        each: {
            # sizes are those of every layer, and so is the body of a scan
            **{method: evenly(methods[method][each], config.num_layers, OUTSIDE) for method in ("formula", "jaxpr")},
            **{method: found[each] for method, found in written.items()},
        }
        for each in (FORWARD, FORWARD_BACKWARD)
    }
    words = [f"batch {batch} x {seq} tokens", f"attention {config.kernel}"]
    words += ["every block recomputed"] if config.recompute else []
    model = model_flops(config, batch, seq, unreached)
    return Flops(
        target=name,
        about=", ".join(words),
        work=Work(flops, notes, {SHOWN_ONLY: lowered}),
        model=model,
        classes=merge_classes(methods),
        layers=layers,
        laws=laws(config, batch, seq, parameters, model[FORWARD_BACKWARD]),
        parameters=parameters,
    )


def folded(counts: dict[str, int]) -> dict[str, int]:
    """The formula's classes as modules are: logits and values are both written in `attention`."""
    kept = {("attention" if name in ATTENTION else name): count for name, count in counts.items()}
    return {**kept, "attention": sum(counts[name] for name in ATTENTION)}


def torch_flops(config: ModelConfig, batch: int, seq: int) -> dict[str, Any]:
    """torchref's FLOPs by place: PyTorch's counter, and the einops patterns."""
    import torch

    import torchref

    from ..backends.torch.placed import placed_flops

    mirror = torchref.config_from_dict(asdict(replace(config, scan_layers=False)))
    shapes = {name: parameter.shape for name, parameter in parameter_table(config).items()}
    module = torchref.Transformer(mirror, {name: torch.empty(shape, device="meta") for name, shape in shapes.items()})
    tokens = torch.empty((batch, seq), dtype=torch.int64, device="meta")

    def step(module: Any, tokens: Any) -> None:
        scalar(torchref, module(tokens), tokens).backward()

    return placed_flops(step, module, tokens, patterns=True)


def jax_flops(config: ModelConfig, batch: int, seq: int) -> dict[str, dict[str, int]]:
    """jaxcore's FLOPs by place, of its traced program."""
    from ..backends.jax.places import placed_flops

    programs, arguments = jax_programs(replace(config, scan_layers=True), batch, seq)
    return {each: placed_flops(program, *arguments) for each, program in programs.items()}


def xla_flops(config: ModelConfig, batch: int, seq: int) -> tuple[dict[str, Reconciliation], tuple[str, ...]]:
    """XLA's own analysis of jaxcore's lowered program, its layers written out; deep ones from one layer and two.

    A pass for which XLA has no figure is left out.
    """
    from ..backends.jax.lowered import lowered_flops

    layers = config.num_layers
    depths = (layers,) if layers <= MOST_LOWERED else (1, 2)
    counts: dict[str, list[Reconciliation | None]] = {}
    notes: dict[str, None] = {}
    for depth in depths:
        programs, arguments = jax_programs(replace(config, num_layers=depth, scan_layers=False), batch, seq)
        for each, program in programs.items():
            cost = lowered_flops(program, *arguments)
            counts.setdefault(each, []).append(cost.reconciliation)
            notes[f"XLA's count, made before it optimises, is shown and not compared: {cost.note}"] = None
    found = {each: extended(by_depth[0], by_depth[-1], layers) for each, by_depth in counts.items()}
    if len(depths) > 1:
        notes[f"XLA's count of {layers} layers is that of one, and {layers - 1} times what a second one adds"] = None
    return {each: whole for each, whole in found.items() if whole is not None}, tuple(notes)


def extended(one: Reconciliation | None, two: Reconciliation | None, layers: int) -> Reconciliation | None:
    """The count of a whole model, which is the one that is given twice, or from that of one layer and of two."""
    if one is None or two is None or one is two:
        return one and two

    def whole(first: int, second: int) -> int:
        return first + (layers - 1) * (second - first)

    return Reconciliation(
        {kind: whole(one.parts.get(kind, 0), two.parts[kind]) for kind in two.parts},
        whole(one.transcendentals, two.transcendentals),
        whole(one.figure, two.figure),
        one.rounding + (layers - 1) * (one.rounding + two.rounding),
        two.unread,
    )


def jax_programs(config: ModelConfig, batch: int, seq: int) -> tuple[dict[str, Any], tuple[Any, Any]]:
    """(parameters, tokens) -> outputs, the same -> loss with its gradients, and abstract arguments for both."""
    import jax
    import jax.numpy as jnp

    import jaxcore

    def forward(parameters: Any, tokens: Any) -> Any:
        return jaxcore.Transformer(config, parameters)(tokens)

    def step(parameters: Any, tokens: Any) -> Any:
        return scalar(jaxcore, forward(parameters, tokens), tokens)

    shapes: dict[str, tuple[int, ...]] = {}
    for name, parameter in parameter_table(config).items():
        first, _, rest = name.partition(".")
        if config.scan_layers and first == "layers":  # stacked, as `jaxcore.stack_layers` does with arrays
            shapes[f"layers.{rest.partition('.')[2]}"] = (config.num_layers, *parameter.shape)
        else:
            shapes[name] = parameter.shape
    parameters = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    programs = {FORWARD: forward, FORWARD_BACKWARD: jax.value_and_grad(step)}
    return programs, (parameters, jax.ShapeDtypeStruct((batch, seq), jnp.int32))


def scalar(package: Any, outputs: Any, tokens: Any) -> Any:
    """The loss of the logits where there is a head, else the sum of what there is, which a pooler reaches too."""
    if "logits" in outputs:
        return package.cross_entropy(outputs["logits"], tokens)
    return sum(value.sum() for value in outputs.values())
