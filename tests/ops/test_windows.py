"""Window sums against a brute-force loop, and the adjoint against its definition."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prproduct.ops.windows import Windows, gather, scatter


@st.composite
def geometry(draw):
    dims = draw(st.integers(1, 3))
    windows = Windows(*(tuple(draw(st.integers(low, 4)) for _ in range(dims)) for low in (1, 1, 0, 1)))
    size, count = [], []
    for kernel, stride, padding, dilation in zip(*windows, strict=True):
        reach = dilation * (kernel - 1) + 1
        length = max(1, reach - 2 * padding) + draw(st.integers(0, 5))
        size.append(length)
        count.append((length + 2 * padding - reach) // stride + 1)
    return windows, size, count


def brute_force(t: torch.Tensor, count: list[int], windows: Windows) -> torch.Tensor:
    result = torch.zeros(*t.shape[:2], *count, dtype=t.dtype)
    for output in itertools.product(*map(range, count)):
        for offset in itertools.product(*map(range, windows.kernel)):
            place = [
                o * s - p + k * d
                for o, k, s, p, d in zip(output, offset, windows.stride, windows.padding, windows.dilation, strict=True)
            ]
            if all(0 <= i < length for i, length in zip(place, t.shape[2:], strict=True)):
                result[(..., *output)] += t[(..., *place)]
    return result


@given(case=geometry())
def test_gather_sums_every_window(case):
    windows, size, count = case
    t = torch.randn(2, 2, *size).double()
    torch.testing.assert_close(gather(t, count, windows), brute_force(t, count, windows))


@given(case=geometry())
def test_scatter_is_the_transpose_of_gather(case):
    windows, size, count = case
    inside, outside = torch.randn(2, 1, *size).double(), torch.randn(2, 1, *count).double()
    scattered = scatter(outside, size, windows)
    assert scattered.shape == inside.shape
    assert (gather(inside, count, windows) * outside).sum().item() == pytest.approx((inside * scattered).sum().item())


def test_an_outlier_leaves_the_windows_beside_it_exact():
    """What running sums would fail: 1e8 added and taken off again costs float32 everything below 8."""
    t = torch.ones(1, 1, 20)
    t[..., 3] = 1e8
    sums = gather(t, [18], Windows((3,), (1,), (0,), (1,)))
    assert torch.equal(sums[..., 4:], torch.full((1, 1, 14), 3.0))
