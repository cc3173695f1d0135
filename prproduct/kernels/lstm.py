"""The elementwise part of an LSTM's step, forward and backward, in one pass each; `recurrence.LSTM` has it in torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from prproduct.kernels.activations import add, sigmoid, tanh
from prproduct.kernels.compiler.entries import range_pass
from prproduct.kernels.compiler.words import at, integers, one_of, part_of_pass
from prproduct.kernels.strips import copy

WORK, WORK_BACK = 6, 2  # numbers that `step` and `step_back` need for each of the cell's


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
        add(4 * size, at(of_input, n * input_stride, one), at(of_hidden, n * hidden_stride, one), gates)
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
    cell before. In a sequence there is another of the hidden state, from the output, to be added to the first, which is
    set to zero, and that of the cell before takes the place of the cell's; a share works on twice as many numbers as a
    row of the cell has.
    """
    one, where = one_of(given), integers(given)
    size, of_output, memory = where[0], where[21], at(where[23], share * WORK_BACK * where[0], one)
    for n in range(first, last):
        of_hidden, of_cell = at(where[13], n * where[14], one), at(where[15], n * where[16], one)
        if of_output:
            add(size, of_hidden, at(of_output, n * where[22], one), memory)
            copy(size, of_cell, at(memory, size, one))
            for k in range(size):
                of_hidden[k] = one - one
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
