"""How many products a convolution really forms: a tap on the padding or on a hole of the dilation forms none."""

from __future__ import annotations


def convolution_taps(
    size: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0, dilation: int = 1, holes: int = 1
) -> int:
    """Pairs (output, tap) along one axis that meet an element: output o and tap k read o stride - padding + k dilation.

    `size` elements stand `holes` apart (1: densely; a transposed convolution spreads its input by its stride);
    `padding` is that before the first element, negative where it crops. XLA's HloCostAnalysis counts the same pairs.
    Forward, dx and dw of one convolution walk over the same pairs, so that all three cost the same.
    """
    end = (size - 1) * holes + 1
    taps = 0
    for tap in range(kernel):
        for first in range(min(holes, outputs)):  # the outputs first, first + holes, ... meet the same kind of place
            start = tap * dilation - padding + first * stride
            step = stride * holes
            count = len(range(first, outputs, holes))
            if start % holes == 0:
                skipped = max(0, -(start // step))  # outputs that read before the first element
                taps += len(range(start + skipped * step, min(end, start + count * step), step))
    return taps
