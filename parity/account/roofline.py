"""What bounds each operation of the transformer, arithmetic or memory: no framework, no NumPy.

An operation takes at least flops / peak and at least bytes / bandwidth seconds (Williams et al. 2009). Bytes are those
of one that reads each operand once from memory and writes each result once; biases, gains, masks and scales ride along.
A tanh, exp or erf counts one FLOP. With p bytes per element, t = B T tokens, D d_model, n heads, k key/value heads,
h head width, F d_ff, V vocabulary:

    operation            bytes forward             bytes backward          FLOPs forward
    (M, K) times (K, N)  p (M K + K N + M N)       twice that, dx and dw   2 M K N
    attention, fused     2 p t (n + k) h           4 p t (n + k) h         4 n h T t
    attention_logits     p t (n h + k h + n T)     twice that              2 n h T t
    softmax              2 p n T t                 3 p n T t               5 n T t
    attention_values     p t (n h + k h + n T)     twice that              2 n h T t
    norms                2 p t D                   3 p t D                 7 t D, RMSNorm 4 t D
    rotation             2 p t (n + k) h           2 p t (n + k) h         3 for each rotated element
    activation           2 p t F, gated 3 p t F    3 p t F, gated 5 p t F  ACTIVATION_FLOPS, gated 1 more, times t F
    residual sums        3 p t D                   3 p t D                 t D
    embedding            (tables + 1) p t D        (2 tables + 1) p t D    (tables - 1) t D
    cross_entropy        p t V                     2 p t V                 4 t V
    optimizer            Policy.update_bytes       -                       Optimizer.flops for each parameter

Written out, attention has its logits and weights in memory; fused, it has not, and forms the logits again backward:
five products for the model's four. Backward, what goes element by element takes twice its FLOPs, a sum or a loss once.
AdamW reads weight, gradient and two moments and writes all but the gradient: 28 bytes in float32, as in bfloat16 with
master weights and moments in float32; 14 where all is bfloat16.

`config` is jaxcore's ModelConfig or torchref's, or anything with the same attributes. Its `kernel` is not looked at:
`fused_attention` says which attention it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..errors import ParityUsageError
from .formula import matmul_flops
from .hardware import Device
from .laws import matmul_parameters
from .mfu import looked_up
from .policies import POLICIES, Policy, find_optimizer

Kind = Literal["matmul", "attention", "norm", "softmax", "elementwise", "gather", "loss", "optimizer"]
Bound = Literal["compute", "memory"]

#: FLOPs per element: those that XLA counts for each, the exact GELU's erf as one.
ACTIVATION_FLOPS = {"relu": 1, "gelu": 5, "gelu_tanh": 9, "swiglu": 5, "geglu": 5, "geglu_tanh": 9}
NORM_FLOPS = {"layer_norm": 7, "rms_norm": 4, "rms_norm_plus_one": 4}
SOFTMAX_FLOPS = 5  # maximum, difference, exp, sum, quotient
CROSS_ENTROPY_FLOPS = 4  # maximum, difference, exp, sum
ROTATION_FLOPS = 3  # two products and a sum


@dataclass(frozen=True)
class Operation:
    """FLOPs and bytes of one run of an operation, and how often it runs in the step."""

    name: str
    kind: Kind
    flops: int
    bytes: int
    count: int

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes


@dataclass(frozen=True)
class Share:
    """Parts of a whole step, each between 0 and 1."""

    flops: float
    seconds: float


#: An operation of the forward pass and what it asks for backward.
Pass = tuple[Operation, Operation]


def matmul(name: str, m: int, k: int, n: int, precision_bytes: int, count: int = 1) -> Operation:
    """(m, k) times (k, n): 2 m k n FLOPs; both of its products backward have the same FLOPs and bytes."""
    return Operation(name, "matmul", 2 * m * k * n, precision_bytes * (m * k + k * n + m * n), count)


def operations(
    config: Any,
    batch: int,
    seq: int,
    policy: Policy = POLICIES["bf16-mixed"],
    optimizer: str = "adamw",
    fused_attention: bool = True,
    step: Literal["forward", "forward_backward"] = "forward_backward",
) -> list[Operation]:
    """Every operation of a step: `forward` is one call of the model, `forward_backward` adds loss, gradients, update.

    Raises:
        ParityUsageError: a size is no whole number of at least 1; step or optimizer is unknown.
    """
    matmul_flops(config, batch, seq)  # refuses sizes that are none
    if step not in (known := ("forward", "forward_backward")):
        raise ParityUsageError(f"step: one of {', '.join(known)}, got {step!r}; choose one of them")
    precision_bytes = policy.compute
    block = _block(config, batch, seq, precision_bytes, fused_attention)
    layers = [(_times(forward, config.num_layers), _times(backward, config.num_layers)) for forward, backward in block]
    passes = [*_below(config, batch * seq, precision_bytes), *layers, *_above(config, batch, seq, precision_bytes)]
    if step == "forward":
        return [forward for forward, _ in passes]
    found = []
    again = _run_again(config, block)
    for forward, backward in passes:
        found += [_times(forward, 2) if forward.name in again else forward, backward]
    if config.head != "none":
        logits = batch * seq * config.vocab_size
        found += _each("cross_entropy", "loss", logits, CROSS_ENTROPY_FLOPS, precision_bytes, (1, 2), backward=1)
    parameters = parameter_count(config)
    flops = find_optimizer(optimizer).flops
    return [
        *found,
        Operation(optimizer, "optimizer", flops * parameters, policy.update_bytes(optimizer) * parameters, 1),
    ]


def judged(operation: Operation, device: Device, format: str) -> tuple[float, Bound]:
    """Seconds that all runs of an operation take at least, and what bounds them.

    The peak is that of the format for every operation. What goes element by element runs on slower units, but waits
    for memory there too: it has a few FLOPs per byte, and those units do nine or more in the time of one.
    """
    arithmetic = operation.flops / device.peak(format)
    traffic = operation.bytes / device.bandwidth
    return operation.count * max(arithmetic, traffic), "compute" if arithmetic > traffic else "memory"


def shares(found: Iterable[Operation], device: Device, format: str) -> dict[Kind, Share]:
    """Each kind's part of the FLOPs and of the seconds of a step, one operation after the other."""
    flops: dict[Kind, int] = {}
    seconds: dict[Kind, float] = {}
    for each in found:
        flops[each.kind] = flops.get(each.kind, 0) + each.count * each.flops
        seconds[each.kind] = seconds.get(each.kind, 0.0) + judged(each, device, format)[0]
    whole, total = sum(flops.values()), sum(seconds.values())
    return {kind: Share(flops[kind] / whole, seconds[kind] / total) for kind in flops}


def parameter_count(config: Any) -> int:
    """Every parameter of the model, shared ones once: tables, weights, biases, norms."""
    d, h = config.d_model, config.head_width
    norm = 2 if config.norm == "layer_norm" else 1
    biases = 0
    if config.qkv_bias:
        biases += (config.num_heads + 2 * config.kv_heads) * h
    if config.o_bias:
        biases += d
    if config.mlp_bias:
        biases += (2 if config.gated else 1) * config.d_ff + d
    norms = config.num_layers * (2 * norm * d + (2 * norm * h if config.qk_norm else 0))
    norms += norm * d * (config.embedding_norm + config.final_norm)
    shared = d * config.vocab_size if config.head == "tied" else 0
    pooler = d * d + d if config.pooler else 0
    weights = looked_up(config) + matmul_parameters(config) - shared
    return int(weights + config.num_layers * biases + norms + pooler)


def _below(config: Any, tokens: int, p: int) -> list[Pass]:
    """What comes before the first block."""
    tables = 1 + (config.position == "learned") + (config.token_types > 0)
    elements = tokens * config.d_model
    forward = Operation("embedding", "gather", (tables - 1) * elements, p * (tables + 1) * elements, 1)
    backward = Operation("embedding backward", "gather", tables * elements, p * (1 + 2 * tables) * elements, 1)
    return [(forward, backward), *([_norm("embedding_norm", config, elements, p)] if config.embedding_norm else [])]


def _block(config: Any, batch: int, seq: int, p: int, fused_attention: bool) -> list[Pass]:
    """One block, in the order of the computation of a pre-norm one."""
    t, d, f = batch * seq, config.d_model, config.d_ff
    q, k = config.num_heads * config.head_width, config.kv_heads * config.head_width
    found = [
        _norm("attention_norm", config, t * d, p),
        _matmul("q_proj", t, d, q, p),
        _matmul("k_proj", t, d, k, p),
        _matmul("v_proj", t, d, k, p),
    ]
    if config.qk_norm:
        found.append(_norm("qk_norm", config, t * (q + k), p))
    if config.position == "rope":
        rotated = t * (config.num_heads + config.kv_heads) * config.rotary_width
        moved = 2 * p * t * (q + k)
        turn = Operation("rotation", "elementwise", ROTATION_FLOPS * rotated, moved, 1)
        found.append((turn, replace(turn, name="rotation backward")))
    found += _fused(t, seq, q, k, p) if fused_attention else _written_out(config, t, seq, p)
    found += [
        _matmul("o_proj", t, q, d, p),
        _each("attention_residual", "elementwise", t * d, 1, p, (3, 3), backward=1),
        _norm("mlp_norm", config, t * d, p),
    ]
    if config.gated:
        found.append(_matmul("gate_proj", t, d, f, p))
    moved_times = (3, 5) if config.gated else (2, 3)
    flops = ACTIVATION_FLOPS[config.activation] + (1 if config.gated else 0)
    return [
        *found,
        _matmul("up_proj", t, d, f, p),
        _each("activation", "elementwise", t * f, flops, p, moved_times),
        _matmul("down_proj", t, f, d, p),
        _each("mlp_residual", "elementwise", t * d, 1, p, (3, 3), backward=1),
    ]


def _fused(t: int, seq: int, q: int, k: int, p: int) -> list[Pass]:
    """Attention as one kernel: q, k, v to the mixed values; backward forms the logits again, five products in all."""
    product = 2 * t * seq * q
    forward = Operation("attention", "attention", 2 * product, p * t * (2 * q + 2 * k), 1)
    return [(forward, Operation("attention backward", "attention", 5 * product, p * t * (4 * q + 4 * k), 1))]


def _written_out(config: Any, t: int, seq: int, p: int) -> list[Pass]:
    """Attention with logits and weights in memory; each product has three arrays, forward and backward."""
    h, square = config.head_width, config.num_heads * t * seq
    moved = p * (t * (config.num_heads + config.kv_heads) * h + square)
    logits = Operation("attention_logits", "attention", 2 * square * h, moved, 1)
    values = replace(logits, name="attention_values")
    return [
        (logits, replace(logits, name="attention_logits backward", count=2)),
        _each("softmax", "softmax", square, SOFTMAX_FLOPS, p, (2, 3)),
        (values, replace(values, name="attention_values backward", count=2)),
    ]


def _above(config: Any, batch: int, seq: int, p: int) -> list[Pass]:
    """What comes after the last block, up to the logits or the pooled state."""
    t, d = batch * seq, config.d_model
    found = [_norm("final_norm", config, t * d, p)] if config.final_norm else []
    if config.head != "none":
        found.append(_matmul("head", t, d, config.vocab_size, p))
    if config.pooler:
        found.append(_matmul("pooler", batch, d, d, p))
    return found


def _run_again(config: Any, block: Iterable[Pass]) -> frozenset[str]:
    """What `recompute` runs a second time: a block without its end, whose value no gradient asks for."""
    if not config.recompute:
        return frozenset()
    end = {"down_proj", "mlp_residual"} if config.norm_position == "pre" else {"mlp_norm"}
    return frozenset(forward.name for forward, _ in block) - end


def _matmul(name: str, m: int, k: int, n: int, p: int) -> Pass:
    return matmul(name, m, k, n, p), matmul(f"{name} backward", m, k, n, p, count=2)


def _norm(name: str, config: Any, elements: int, p: int) -> Pass:
    return _each(name, "norm", elements, NORM_FLOPS[config.norm], p, (2, 3))


def _each(name: str, kind: Kind, elements: int, flops: int, p: int, moved: tuple[int, int], backward: int = 2) -> Pass:
    """FLOPs per element forward and `backward` times as many, arrays `moved` forward and backward."""
    return (
        Operation(name, kind, flops * elements, p * moved[0] * elements, 1),
        Operation(f"{name} backward", kind, backward * flops * elements, p * moved[1] * elements, 1),
    )


def _times(operation: Operation, factor: int) -> Operation:
    return replace(operation, count=factor * operation.count)
