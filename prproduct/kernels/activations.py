"""Sigmoid and tanh of strips of numbers, for passes of recurrent layers.

In float32. The exponential is computed here, by range reduction and a polynomial, in loops that LLVM vectorizes: a call
of the system's for every element would take longer than the step's matrix product. Sigmoid and tanh are within 2e-7 of
the true ones (tests/kernels/test_activations.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prproduct.kernels.compiler.words import at, part_of_pass

LOG2_E = 1.4426950408889634
# ln 2 in two parts, the first of which is exact in few bits, so that n·ln 2 is subtracted without rounding.
LN_2_HIGH, LN_2_LOW = 0.693359375, -2.12194440e-4
ROUNDING = 1.5 * 2**23  # added to a float, it leaves the nearest integer in the last bits
EXPONENT_BIAS = 127 - 0x4B400000  # less the bits of ROUNDING itself
LARGEST, SMALLEST = 88.0, -87.0  # where exp stays a normal number
SERIES_BELOW = 0.625  # here 1 − 2/(exp 2x + 1) would cancel


@part_of_pass()
def _exp(count: int, x: Any, powers: Any, result: Any) -> None:
    """exp x = 2ⁿ·exp r with |r| ≤ ½ ln 2; in the strip `powers`, 2ⁿ is built from n as the last bits of a float."""
    bits = at(powers, 0, np.int32(0))
    for k in range(count):
        powers[k] = min(max(x[k], SMALLEST), LARGEST) * LOG2_E + ROUNDING
    for k in range(count):
        n = powers[k] - ROUNDING
        r = min(max(x[k], SMALLEST), LARGEST) - n * LN_2_HIGH - n * LN_2_LOW
        series = 1.9875691500e-4 * r + 1.3981999507e-3
        series = series * r + 8.3334519073e-3
        series = series * r + 4.1665795894e-2
        series = series * r + 1.6666665459e-1
        series = series * r + 5.0000001201e-1
        result[k] = series * r * r + r + 1.0
    for k in range(count):
        bits[k] = (bits[k] + EXPONENT_BIAS) << 23
    for k in range(count):
        result[k] *= powers[k]


@part_of_pass()
def sigmoid(count: int, x: Any, work: Any, powers: Any, result: Any) -> None:
    """1/(1 + exp −x)"""
    for k in range(count):
        work[k] = -x[k]
    _exp(count, work, powers, result)  # into another strip: loops that write where they read are not vectorized
    for k in range(count):
        result[k] = 1.0 / (1.0 + result[k])


@part_of_pass()
def tanh(count: int, x: Any, work: Any, powers: Any, result: Any) -> None:
    """1 − 2/(exp 2|x| + 1) with the sign of x, and a series near zero."""
    for k in range(count):
        work[k] = 2.0 * abs(x[k])
    _exp(count, work, powers, result)
    for k in range(count):
        t = x[k]
        far = 1.0 - 2.0 / (result[k] + 1.0)
        far = -far if t < 0.0 else far
        z = t * t
        near = -5.70498872745e-3 * z + 2.06390887954e-2
        near = near * z - 5.37397155531e-2
        near = near * z + 1.33314422036e-1
        near = near * z - 3.33332819422e-1
        near = near * z * t + t
        far = near if abs(t) < SERIES_BELOW else far
        result[k] = far if t == t else t  # NaN stays


@part_of_pass()
def add(count: int, a: Any, b: Any, result: Any) -> None:
    """a + b"""
    for k in range(count):
        result[k] = a[k] + b[k]
