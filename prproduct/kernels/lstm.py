"""The elementwise part of an LSTM's step, forward and backward, in one pass each; `recurrence.LSTM` has it in torch.

In float32. The exponential is computed here, by range reduction and a polynomial, in loops that LLVM vectorizes: a call
of the system's for every element would take longer than the step's matrix product. Sigmoid and tanh are within 2e-7 of
the true ones (tests/kernels/test_lstm.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.np.numpy_support import carray

from prproduct.kernels.pointers import at, integers, part_of_pass, range_pass

F = np.float32
LOG2_E = F(1.4426950408889634)
# ln 2 in two parts, the first of which is exact in few bits, so that n·ln 2 is subtracted without rounding.
LN_2_HIGH, LN_2_LOW = F(0.693359375), F(-2.12194440e-4)
ROUNDING = F(1.5 * 2**23)  # added to a float, it leaves the nearest integer in the last bits
EXPONENT_BIAS = 127 - 0x4B400000  # less the bits of ROUNDING itself
LARGEST, SMALLEST = F(88.0), F(-87.0)  # where exp stays a normal number
SERIES_BELOW = F(0.625)  # here 1 − 2/(exp 2x + 1) would cancel


@part_of_pass
def _exp(x: Any, powers: Any, result: Any) -> None:
    """exp x = 2ⁿ·exp r with |r| ≤ ½ ln 2; in the strip `powers`, 2ⁿ is built from n as the last bits of a float."""
    bits = powers.view(np.int32)
    for k in range(len(x)):
        powers[k] = min(max(x[k], SMALLEST), LARGEST) * LOG2_E + ROUNDING
    for k in range(len(x)):
        n = powers[k] - ROUNDING
        r = min(max(x[k], SMALLEST), LARGEST) - n * LN_2_HIGH - n * LN_2_LOW
        series = F(1.9875691500e-4) * r + F(1.3981999507e-3)
        series = series * r + F(8.3334519073e-3)
        series = series * r + F(4.1665795894e-2)
        series = series * r + F(1.6666665459e-1)
        series = series * r + F(5.0000001201e-1)
        result[k] = series * r * r + r + F(1.0)
    for k in range(len(x)):
        bits[k] = (bits[k] + EXPONENT_BIAS) << 23
    for k in range(len(x)):
        result[k] *= powers[k]


@part_of_pass
def sigmoid(x: Any, work: Any, powers: Any, result: Any) -> None:
    """1/(1 + exp −x)"""
    for k in range(len(x)):
        work[k] = -x[k]
    _exp(work, powers, result)  # into another strip: loops that write where they read are not vectorized
    for k in range(len(x)):
        result[k] = F(1.0) / (F(1.0) + result[k])


@part_of_pass
def tanh(x: Any, work: Any, powers: Any, result: Any) -> None:
    """1 − 2/(exp 2|x| + 1) with the sign of x, and a series near zero."""
    for k in range(len(x)):
        work[k] = F(2.0) * abs(x[k])
    _exp(work, powers, result)
    for k in range(len(x)):
        t = x[k]
        far = F(1.0) - F(2.0) / (result[k] + F(1.0))
        far = -far if t < F(0.0) else far
        z = t * t
        near = F(-5.70498872745e-3) * z + F(2.06390887954e-2)
        near = near * z + F(-5.37397155531e-2)
        near = near * z + F(1.33314422036e-1)
        near = near * z + F(-3.33332819422e-1)
        near = near * z * t + t
        far = near if abs(t) < SERIES_BELOW else far
        result[k] = far if t == t else t  # NaN stays


@part_of_pass
def _add(a: Any, b: Any, result: Any) -> None:
    for k in range(len(a)):
        result[k] = a[k] + b[k]


@part_of_pass
def _next_cell(i: Any, f: Any, g: Any, cell: Any, result: Any) -> None:
    for k in range(len(result)):
        result[k] = f[k] * cell[k] + i[k] * g[k]


@part_of_pass
def _product(a: Any, b: Any, result: Any) -> None:
    for k in range(len(result)):
        result[k] = a[k] * b[k]


@part_of_pass
def _step_back_row(
    i: Any, f: Any, g: Any, o: Any, cell: Any, tanh_cell: Any, of_hidden: Any, of_cell: Any, gates: Any, before: Any
) -> None:
    one, size = F(1.0), len(i)
    of_i, of_f, of_g, of_o = gates[:size], gates[size : 2 * size], gates[2 * size : 3 * size], gates[3 * size :]
    for k in range(size):
        of_o[k] = of_hidden[k] * tanh_cell[k] * o[k] * (one - o[k])
        c = of_cell[k] + of_hidden[k] * o[k] * (one - tanh_cell[k] * tanh_cell[k])
        of_i[k] = c * g[k] * i[k] * (one - i[k])
        of_f[k] = c * cell[k] * f[k] * (one - f[k])
        of_g[k] = c * i[k] * (one - g[k] * g[k])
        before[k] = c * f[k]


@part_of_pass
def _row(address: int, stride: int, n: int, size: int) -> Any:
    return carray(at(address, n * stride, F(1.0)), size)


@range_pass(9)
def step(first: int, last: int, share: int, given: Any) -> None:
    """i, f, g, o, tanh c', h', c', each (rows, hidden), one behind the other; gates and cell have their strides."""
    rows, size, of_input, input_stride, of_hidden, hidden_stride, cell, cell_stride, results = integers(given)
    gates, work, powers = np.empty(4 * size, np.float32), np.empty(size, np.float32), np.empty(size, np.float32)
    for n in range(first, last):
        _add(_row(of_input, input_stride, n, 4 * size), _row(of_hidden, hidden_stride, n, 4 * size), gates)
        i, f = _row(results, size, n, size), _row(results, size, rows + n, size)
        g, o = _row(results, size, 2 * rows + n, size), _row(results, size, 3 * rows + n, size)
        tanh_cell, hidden = _row(results, size, 4 * rows + n, size), _row(results, size, 5 * rows + n, size)
        next_cell = _row(results, size, 6 * rows + n, size)
        sigmoid(gates[:size], work, powers, i)
        sigmoid(gates[size : 2 * size], work, powers, f)
        tanh(gates[2 * size : 3 * size], work, powers, g)
        sigmoid(gates[3 * size :], work, powers, o)
        _next_cell(i, f, g, _row(cell, cell_stride, n, size), next_cell)
        tanh(next_cell, work, powers, tanh_cell)
        _product(o, tanh_cell, hidden)


@range_pass(21)
def step_back(first: int, last: int, share: int, given: Any) -> None:
    """The gradients of the gates, (rows, 4·hidden), and of the cell before; behind each address stands its stride.

    The addresses are those of i, f, g, o, the cell, its tanh, and of the gradients of hidden state, cell, gates and the
    cell before.
    """
    where = integers(given)
    size = where[0]
    for n in range(first, last):
        _step_back_row(
            _row(where[1], where[2], n, size),
            _row(where[3], where[4], n, size),
            _row(where[5], where[6], n, size),
            _row(where[7], where[8], n, size),
            _row(where[9], where[10], n, size),
            _row(where[11], where[12], n, size),
            _row(where[13], where[14], n, size),
            _row(where[15], where[16], n, size),
            _row(where[17], where[18], n, 4 * size),
            _row(where[19], where[20], n, size),
        )
