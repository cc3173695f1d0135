"""The compiled step of an LSTM: its functions against double precision, its passes against torch's operations."""

import numpy as np
import pytest
import torch
from compare import relative_error

import prproduct as pr
from prproduct.kernels import activations, compiled
from prproduct.kernels.compiler.entries import range_pass
from prproduct.kernels.compiler.words import at, integers, one_of
from prproduct.recurrence import LSTM

X = np.concatenate([np.linspace(-100, 100, 400_001), np.logspace(-38, 2, 1000), -np.logspace(-38, 2, 1000)])


@range_pass(4)
def tanh_of_range(first, last, share, given):
    x, work, powers, result = integers(given)
    one = one_of(given)
    activations.tanh(last, at(x, 0, one), at(work, 0, one), at(powers, 0, one), at(result, 0, one))


@range_pass(4)
def sigmoid_of_range(first, last, share, given):
    x, work, powers, result = integers(given)
    one = one_of(given)
    activations.sigmoid(last, at(x, 0, one), at(work, 0, one), at(powers, 0, one), at(result, 0, one))


def apply(function, x: np.ndarray) -> np.ndarray:
    arrays = [x.astype(np.float32), *(np.empty(len(x), np.float32) for _ in range(3))]
    function[4].call(0, len(x), 0, function[4].pack(*(array.ctypes.data for array in arrays)))
    return arrays[-1]


def test_tanh_is_exact_to_rounding():
    x = X.astype(np.float32)
    expected = np.tanh(x.astype(np.float64))
    assert np.max(np.abs(apply(tanh_of_range, x) - expected) / np.abs(expected).clip(1e-38)) <= 2e-7


def test_sigmoid_is_exact_to_rounding():
    x = X[np.abs(X) < 85].astype(np.float32)
    expected = 1 / (1 + np.exp(-x.astype(np.float64)))
    assert np.max(np.abs(apply(sigmoid_of_range, x) - expected) / expected) <= 2e-7


@pytest.mark.parametrize(("function", "limits"), [(tanh_of_range, (-1, 1)), (sigmoid_of_range, (0, 1))])
def test_limits_zero_and_nan(function, limits):
    low, high, nan, zero = apply(function, np.array([-np.inf, np.inf, np.nan, 0.0]))
    assert (low, high) == pytest.approx(limits, abs=1e-37)
    assert np.isnan(nan)
    assert zero == sum(limits) / 2


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (7, 130)])
def test_both_passes_equal_torchs_operations(shape):
    rows, hidden = shape
    gates = torch.randn(2, rows, 4 * hidden)
    state, grad = (tuple(torch.randn(2, rows, hidden)) for _ in range(2))
    into, expected_into = torch.empty(rows, 4 * hidden), torch.empty(rows, 4 * hidden)
    with torch.no_grad():
        got, kept = LSTM().step(*gates, state)
        _, got_cell = LSTM().step_back((*gates,), state[0], kept, grad, (into, into))
        with compiled.switched_off():
            expected, expected_kept = LSTM().step(*gates, state)
            into_both = (expected_into, expected_into)
            _, expected_cell = LSTM().step_back((*gates,), state[0], expected_kept, grad, into_both)
    pairs = [*zip(got, expected, strict=True), *zip(kept, expected_kept, strict=True)]
    for one, other in [*pairs, (into, expected_into), (got_cell, expected_cell)]:
        assert relative_error(one, other) <= 1e-6


def test_the_last_state_may_be_written_into():
    layer = pr.nn.LSTM(3, 4)
    output, (h, c) = layer(torch.randn(5, 2, 3))
    h.mul_(2.0)
    c.add_(1.0)
    output.sum().backward()
    assert layer.weight_hh_l0.grad.isfinite().all()
