"""Sums over a convolution's windows, and their adjoint, one spatial axis at a time.

    gather:  out[o] = Σ_k  t[o·stride − padding + k·dilation]                   the sum over each window of the input
    scatter: out[i] = Σ_k  Σ_{o: o·stride − padding + k·dilation = i}  t[o]     its transpose, back to the input

Both take (batch, groups, *spatial), which a layer's activations exceed by the factor of the channels of a group. They
add shifted slices. Running sums would let one outlier ruin the rest of its row by cancellation, torch's pooling refuses
dilation and wide padding, and a convolution with ones may run in TF32 and lose the angle.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from prproduct.ops.angles import materialized

FIRST_SPATIAL = 2


class Windows(NamedTuple):
    """Where a convolution's windows lie; one number per spatial axis."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]


def gather(t: Tensor, size: Sequence[int], windows: Windows) -> Tensor:
    """The sum of t over every window; `size` is the number of windows along each axis."""
    widths = [(padding, padding) for padding in windows.padding]
    return _sum_windows(_pad(t, widths), size, windows.kernel, windows.stride, windows.dilation)


def scatter(t: Tensor, size: Sequence[int], windows: Windows) -> Tensor:
    """The transpose of `gather`: each position gets the sum of t over the windows that cover it.

    That is the sum over a window again, of t with stride − 1 zeros between its elements.
    """
    widths = []
    for axis, length in enumerate(size):
        kernel, stride, padding, dilation = (setting[axis] for setting in windows)
        t = _stuff(t, FIRST_SPATIAL + axis, stride)
        reach = dilation * (kernel - 1)
        widths.append((reach - padding, length + padding - t.shape[FIRST_SPATIAL + axis]))
    return _sum_windows(_pad(t, widths), size, windows.kernel, (1,) * len(size), windows.dilation)


def _sum_windows(
    t: Tensor, size: Sequence[int], kernels: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Tensor:
    for axis, (count, kernel, stride, dilation) in enumerate(zip(size, kernels, strides, dilations, strict=True)):
        span = stride * (count - 1) + 1
        slices = (
            torch.ops.aten.slice(t, FIRST_SPATIAL + axis, start, start + span, stride)
            for start in range(0, kernel * dilation, dilation)
        )
        t = functools.reduce(torch.add, slices)
    return t


def _stuff(t: Tensor, axis: int, stride: int) -> Tensor:
    """t with stride − 1 zeros between its elements along an axis."""
    if stride == 1:
        return t
    last = t.movedim(axis, -1)
    stuffed = F.pad(last.unsqueeze(-1), (0, stride - 1))
    stuffed = stuffed.reshape(*last.shape[:-1], last.shape[-1] * stride)
    return stuffed.narrow(-1, 0, stuffed.shape[-1] - stride + 1).movedim(-1, axis)


def _pad(t: Tensor, widths: Sequence[tuple[int, int]]) -> Tensor:
    """t with zeros added at both ends of each spatial axis; a negative width removes elements.

    Materialized, as Inductor would otherwise test for each of the summands whether it lies inside.
    """
    flat = [width for pair in reversed(widths) for width in pair]  # F.pad begins with the last axis
    added, cut = [max(width, 0) for width in flat], [min(width, 0) for width in flat]
    # Add before removing: more may be removed at one end than t has.
    t = materialized(F.pad(t, added)) if any(added) else t
    return F.pad(t, cut) if any(cut) else t
