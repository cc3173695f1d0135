"""The compiled step of an LSTM: its functions against double precision, its passes against torch's operations."""

import numba
import numpy as np
import pytest
import torch
from compare import relative_error

import prproduct as pr
from prproduct.kernels import compiled, lstm
from prproduct.recurrence import LSTM

X = np.concatenate([np.linspace(-100, 100, 400_001), np.logspace(-38, 2, 1000), -np.logspace(-38, 2, 1000)])


def apply(function, x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float32)
    result = np.empty_like(x)
    numba.njit(function.py_func)(x, np.empty_like(x), np.empty_like(x), result)
    return result


def test_tanh_is_exact_to_rounding():
    x = X.astype(np.float32)
    expected = np.tanh(x.astype(np.float64))
    assert np.max(np.abs(apply(lstm.tanh, x) - expected) / np.abs(expected).clip(1e-38)) <= 2e-7


def test_sigmoid_is_exact_to_rounding():
    x = X[np.abs(X) < 85].astype(np.float32)
    expected = 1 / (1 + np.exp(-x.astype(np.float64)))
    assert np.max(np.abs(apply(lstm.sigmoid, x) - expected) / expected) <= 2e-7


@pytest.mark.parametrize(("function", "limits"), [(lstm.tanh, (-1, 1)), (lstm.sigmoid, (0, 1))])
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
