"""Sigmoid and tanh of the passes against double precision."""

import numpy as np
import pytest

from prproduct.kernels import activations
from prproduct.kernels.compiler.entries import range_pass
from prproduct.kernels.compiler.words import at, integers, one_of

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
