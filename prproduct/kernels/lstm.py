"""The elementwise part of an LSTM's step, forward and backward, in one pass each; `recurrence.LSTM` has it in torch.

In float32. The exponential is computed here, by range reduction and a polynomial, in loops that LLVM vectorizes: a call
of the system's for every element would take longer than the step's matrix product. Sigmoid and tanh are within 2e-7 of
the true ones (tests/kernels/test_lstm.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prproduct.kernels.compiler.entries import range_pass
from prproduct.kernels.compiler.words import at, integers, one_of, part_of_pass
from prproduct.kernels.strips import copy

LOG2_E = 1.4426950408889634
# ln 2 in two parts, the first of which is exact in few bits, so that n·ln 2 is subtracted without rounding.
LN_2_HIGH, LN_2_LOW = 0.693359375, -2.12194440e-4
ROUNDING = 1.5 * 2**23  # added to a float, it leaves the nearest integer in the last bits
EXPONENT_BIAS = 127 - 0x4B400000  # less the bits of ROUNDING itself
LARGEST, SMALLEST = 88.0, -87.0  # where exp stays a normal number
SERIES_BELOW = 0.625  # here 1 − 2/(exp 2x + 1) would cancel
WORK, WORK_BACK = 6, 2  # numbers that `step` and `step_back` need for each of the cell's


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
def _add(count: int, a: Any, b: Any, result: Any) -> None:
    for k in range(count):
        result[k] = a[k] + b[k]


@part_of_pass()
def _next_cell(count: int, i: Any, f: Any, g: Any, cell: Any, result: Any) -> None:
    for k in range(count):
        result[k] = f[k] * cell[k] + i[k] * g[k]


@part_of_pass()
def _product(count: int, a: Any, b: Any, result: Any) -> None:
    for k in range(count):
        result[k] = a[k] * b[k]


@part_of_pass()
def _step_back_row(
    size: int, i: Any, f: Any, g: Any, o: Any, cell: Any, tanh_cell: Any, of_hidden: Any, of_cell: Any, gates: Any,
    before: Any,
) -> None:  # fmt: skip
    one = np.float32(1.0)
    of_f, of_g, of_o = at(gates, size, one), at(gates, 2 * size, one), at(gates, 3 * size, one)
    for k in range(size):
        of_o[k] = of_hidden[k] * tanh_cell[k] * o[k] * (one - o[k])
        c = of_cell[k] + of_hidden[k] * o[k] * (one - tanh_cell[k] * tanh_cell[k])
        gates[k] = c * g[k] * i[k] * (one - i[k])
        of_f[k] = c * cell[k] * f[k] * (one - f[k])
        of_g[k] = c * i[k] * (one - g[k] * g[k])
        before[k] = c * f[k]


@range_pass(14)
def step(first: int, last: int, share: int, given: Any) -> None:
    """i, f, g and o, (rows, 4·hidden), tanh c', h' and c', each (rows, hidden); gates and cell have their strides.

    A share works on six times as many numbers as a row of the cell has. In a sequence the state is the last h' and c':
    it is written down before it changes, as `before` and as the cell.
    """
    one = one_of(given)
    size, of_input, input_stride, of_hidden, hidden_stride, cells, cell_stride = integers(given)[:7]
    activated, tanh_cells, hidden, next_cells, memory, state, before = integers(given)[7:]
    gates = at(memory, share * WORK * size, one)
    work, powers = at(gates, 4 * size, one), at(gates, 5 * size, one)
    for n in range(first, last):
        cell, next_cell, next_hidden = (
            at(cells, n * cell_stride, one),
            at(next_cells, n * size, one),
            at(hidden, n * size, one),
        )
        if state:
            copy(size, next_cell, cell)
            copy(size, at(state, n * size, one), at(before, n * size, one))
        _add(4 * size, at(of_input, n * input_stride, one), at(of_hidden, n * hidden_stride, one), gates)
        i, tanh_cell = at(activated, n * 4 * size, one), at(tanh_cells, n * size, one)
        f, g, o = at(i, size, one), at(i, 2 * size, one), at(i, 3 * size, one)
        sigmoid(size, gates, work, powers, i)
        sigmoid(size, at(gates, size, one), work, powers, f)
        tanh(size, at(gates, 2 * size, one), work, powers, g)
        sigmoid(size, at(gates, 3 * size, one), work, powers, o)
        _next_cell(size, i, f, g, cell, next_cell)
        tanh(size, next_cell, work, powers, tanh_cell)
        _product(size, o, tanh_cell, next_hidden)
        if state:
            copy(size, next_hidden, at(state, n * size, one))


@range_pass(24)
def step_back(first: int, last: int, share: int, given: Any) -> None:
    """The gradients of the gates, (rows, 4·hidden), and of the cell before; behind each address stands its stride.

    The addresses are those of i, f, g, o, the cell, its tanh, and of the gradients of hidden state, cell, gates and the
    cell before. In a sequence there is another of the hidden state, from the output, to be added to the first, and that
    of the cell before takes the place of the cell's; a share works on twice as many numbers as a row of the cell has.
    """
    one, where = one_of(given), integers(given)
    size, of_output, memory = where[0], where[21], at(where[23], share * WORK_BACK * where[0], one)
    for n in range(first, last):
        of_hidden, of_cell = at(where[13], n * where[14], one), at(where[15], n * where[16], one)
        if of_output:
            _add(size, of_hidden, at(of_output, n * where[22], one), memory)
            copy(size, of_cell, at(memory, size, one))
        _step_back_row(
            size,
            at(where[1], n * where[2], one),
            at(where[3], n * where[4], one),
            at(where[5], n * where[6], one),
            at(where[7], n * where[8], one),
            at(where[9], n * where[10], one),
            at(where[11], n * where[12], one),
            memory if of_output else of_hidden,
            at(memory, size, one) if of_output else of_cell,
            at(where[17], n * where[18], one),
            at(where[19], n * where[20], one),
        )
