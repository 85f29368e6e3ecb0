"""Matmul FLOPs of a PyTorch program by PyTorch's own counter, with everything that it would pass over refused by name.

FlopCounterMode (torch 2.13) takes an operation without a formula for zero: mv, dot, the CPU's attention kernel, LSTM,
linalg ... Here that is an error. Its convolutions are counted by `convolution_taps` instead, since its own count takes
padding for elements and grouped convolutions for dense ones backward.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from parity.account.convolution import convolution_taps
from parity.errors import ParityUsageError

from .compiling import uncompiled

#: Names of ATen operations that form products inside, read with `search`; those of the counter's registry are counted.
PRODUCTS = re.compile(
    r"^(?!_?upsample).*(mm(?!a|in|ax|y)|mv(?!l)|dot|matmul|attention|transformer_encoder|rnn|lstm|gru|conv(?!ert)|linear"
    r"|cdist|pdist|euclidean_dist|linalg|cholesky|matrix_exp|(?<![a-z])lu_(solve|with)|triangular_solve|spsolve|lstsq"
    r"|(?<!s)qr|householder|eig(?!ht)|svd|(?<!slice_)inverse|fft)"
)
#: ... and those which that takes for more than they are.
FREE = {"linalg_vector_norm", "linalg_cross", "linalg_diagonal", "linalg__powsum"}

#: Namespaces that hold PyTorch's own operations; any other is somebody's kernel.
KNOWN = {"aten", "prim", "prims", "profiler", "c10d", "_c10d_functional"}


def counted_flops(function: Callable[..., Any], *args: Any) -> int:
    """Matmul FLOPs of `function(*args)`, run on the meta device: shapes only, no memory, backward passes included.

    Tensors and modules among `args`, also within dicts, lists and tuples, are taken to the meta device first; what the
    function holds itself stays where it is, and a compiled function runs uncompiled. What PyTorch works out without a
    matmul counts nothing: a sum of products by hand, an einsum whose contracted axis has size one (a sequence of one).

    Raises:
        ValueError: an operation that PyTorch's counter would take for zero, or miscount (torch.cond), with its name.
    """
    moved = tree_map(to_meta, args)
    counter = FlopCounterMode(display=False, custom_mapping=CONVOLUTIONS)
    with counting(counter):
        function(*moved)
    return counter.get_total_flops()


@contextmanager
def counting(counter: FlopCounterMode) -> Iterator[None]:
    """While it lasts the counter counts, and what it would take for zero, or miscount, is refused."""
    # the outer mode sees what the counter has left undecomposed, the inner one what the counter would take apart
    with uncompiled(), RefuseUncounted(), counter, RefuseHigherOrder():
        yield


def to_meta(value: Any) -> Any:
    """A tensor or module of the same shapes and types without storage; anything else as it is."""
    if isinstance(value, nn.Module):
        held = [*value.parameters(), *value.buffers()]
        return copy.deepcopy(value, {id(tensor): to_meta(tensor) for tensor in held})
    if isinstance(value, nn.Parameter):
        return nn.Parameter(torch.empty_like(value, device="meta"), value.requires_grad)
    if isinstance(value, torch.Tensor):
        return torch.empty_like(value, device="meta", requires_grad=value.requires_grad)
    return value


class RefuseUncounted(TorchDispatchMode):
    """Raises where an operation forms products and the counter has no formula for it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func._overloadpacket
        name = packet._qualified_op_name
        space, _, operation = name.partition("::")
        products = PRODUCTS.search(operation) and operation not in FREE
        if packet not in flop_registry and (products or space not in KNOWN):
            raise refusal(name)
        return func(*args, **(kwargs or {}))


class RefuseHigherOrder(TorchDispatchMode):
    """Raises at operations that run functions: the counter sees no while_loop and adds both branches of a cond."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, torch._ops.HigherOrderOperator):
            raise refusal(func.name())
        return func(*args, **(kwargs or {}))


def refusal(name: str) -> ParityUsageError:
    """The error for an operation that would be miscounted."""
    return ParityUsageError(
        f"counted_flops: an operation that PyTorch's counter has a formula for, got {name}; write it as a matmul, run "
        "it on the meta device, or register one with torch.utils.flop_counter.register_flop_formula"
    )


def convolution(
    x: Sequence[int],
    w: Sequence[int],
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    *rest: Any,
    out_shape: Sequence[int],
) -> int:
    """Two per pair of channels, image and tap that meets an element; a transposed one is the same walk, backward."""
    inside, outside = (out_shape, x) if transposed else (x, out_shape)
    pairs = x[0] * w[0] * w[1]
    for axis, kernel in enumerate(w[2:]):
        step, low, spread = (each[axis % len(each)] for each in (stride, padding, dilation))
        pairs *= convolution_taps(inside[2 + axis], outside[2 + axis], kernel, step, low, spread)
    return 2 * pairs


def convolution_backward(
    dy: Sequence[int], x: Sequence[int], w: Sequence[int], bias: Any, *walk: Any, out_shape: Any
) -> int:
    """Forward's count for each of dx and dw that is asked for."""
    needed = walk[-1]
    return sum(needed[:2]) * convolution(x, w, bias, *walk[:-1], out_shape=dy)


aten = torch.ops.aten
CONVOLUTIONS = {
    aten.convolution: convolution,
    aten._convolution: convolution,
    aten.convolution_backward: convolution_backward,
}
