"""Sums over a convolution's windows, and their adjoint, one spatial axis at a time.

    gather:  out[o] = Σ_k  t[o·stride − padding + k·dilation]        what every window of the input adds up to
    scatter: out[i] = Σ_k  Σ_{o: o·stride − padding + k·dilation = i}  t[o]     back to the input: the transpose

Both take (batch, groups, *spatial), smaller than a layer's activations by its channels. They add shifted slices:
running sums would let one outlier ruin the rest of its row, torch's pooling refuses dilation and wide padding, and a
convolution with ones may run in TF32 and lose the angle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

FIRST_SPATIAL = 2


class Windows(NamedTuple):
    """Where a convolution's windows lie; one number per spatial axis."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]


def gather(t: Tensor, size: Sequence[int], windows: Windows) -> Tensor:
    """The sum of t over every window; `size` is the number of windows along each axis."""
    for axis, count in enumerate(size):
        kernel, stride, padding, dilation = (setting[axis] for setting in windows)
        padded = _pad(t.movedim(FIRST_SPATIAL + axis, -1), padding, padding)
        t = _sum_slices(padded, kernel, stride, dilation, count).movedim(-1, FIRST_SPATIAL + axis)
    return t


def scatter(t: Tensor, size: Sequence[int], windows: Windows) -> Tensor:
    """The transpose of `gather`: each position gets the sum of t over the windows that cover it."""
    for axis, length in enumerate(size):
        kernel, stride, padding, dilation = (setting[axis] for setting in windows)
        reach = dilation * (kernel - 1)
        stuffed = _stuff(t.movedim(FIRST_SPATIAL + axis, -1), stride)
        extent = stuffed.shape[-1] + reach
        spread = _sum_slices(_pad(stuffed, reach, reach), kernel, 1, dilation, extent)
        after = padding + length - extent
        # Widen before cutting: what is cut off in front may be longer than all that is there.
        t = _pad(_pad(spread, 0, max(after, 0)), -padding, min(after, 0)).movedim(-1, FIRST_SPATIAL + axis)
    return t


def _sum_slices(t: Tensor, kernel: int, stride: int, dilation: int, count: int) -> Tensor:
    span = stride * (count - 1) + 1
    total = t[..., :span:stride]
    for k in range(1, kernel):
        total = total + t[..., k * dilation : k * dilation + span : stride]
    return total


def _stuff(t: Tensor, stride: int) -> Tensor:
    """t with stride − 1 zeros between its elements along the last axis."""
    if stride == 1:
        return t
    stuffed = F.pad(t.unsqueeze(-1), (0, stride - 1))
    return stuffed.reshape(*t.shape[:-1], t.shape[-1] * stride)[..., : 1 - stride]


def _pad(t: Tensor, before: int, after: int) -> Tensor:
    """Zeros added at both ends of the last axis; a negative width cuts."""
    return F.pad(t, (before, after)) if before or after else t
