"""The elementwise part of an LSTM's step in a sequence, forward and backward, in one pass each.

In float32; `recurrence.LSTM` has it in torch. Gates and gradients of all steps lie row behind row; the state is the
last hidden state and cell, which are written down, as `before` and among the cells, before they change.
"""

from __future__ import annotations

from typing import Any

from prproduct.kernels.activations import add, sigmoid, tanh
from prproduct.kernels.compiler.entries import range_pass
from prproduct.kernels.compiler.words import at, integers, one_of, part_of_pass
from prproduct.kernels.strips import copy

WORK = 6  # numbers that passes need for each of the state's


@part_of_pass()
def _next_cell(count: int, i: Any, f: Any, g: Any, cell: Any, result: Any) -> None:
    for k in range(count):
        result[k] = f[k] * cell[k] + i[k] * g[k]


@part_of_pass()
def _product(count: int, a: Any, b: Any, result: Any) -> None:
    for k in range(count):
        result[k] = a[k] * b[k]


@range_pass(11)
def step(first: int, last: int, share: int, given: Any) -> None:
    """i, f, g and o, tanh c' and h', from the gates of the input and of the hidden state."""
    one = one_of(given)
    size, input_gates, hidden_gates, activated, cells, tanh_cells, output, state, cell_state, before, work = integers(
        given
    )
    sums = at(work, share * WORK * size, one)
    memory, powers = at(sums, 4 * size, one), at(sums, 5 * size, one)
    for n in range(first, last):
        hidden, next_cell = at(state, n * size, one), at(cell_state, n * size, one)
        cell, tanh_cell = at(cells, n * size, one), at(tanh_cells, n * size, one)
        copy(size, hidden, at(before, n * size, one))
        copy(size, next_cell, cell)
        add(4 * size, at(input_gates, n * 4 * size, one), at(hidden_gates, n * 4 * size, one), sums)
        i = at(activated, n * 4 * size, one)
        f, g, o = at(i, size, one), at(i, 2 * size, one), at(i, 3 * size, one)
        sigmoid(size, sums, memory, powers, i)
        sigmoid(size, at(sums, size, one), memory, powers, f)
        tanh(size, at(sums, 2 * size, one), memory, powers, g)
        sigmoid(size, at(sums, 3 * size, one), memory, powers, o)
        _next_cell(size, i, f, g, cell, next_cell)
        tanh(size, next_cell, memory, powers, tanh_cell)
        _product(size, o, tanh_cell, hidden)
        copy(size, hidden, at(output, n * size, one))


@part_of_pass()
def _row_back(
    size: int, i: Any, cell: Any, tanh_cell: Any, of_hidden: Any, of_cell: Any, of_gates: Any, before: Any, one: Any
) -> None:
    f, g, o = at(i, size, one), at(i, 2 * size, one), at(i, 3 * size, one)
    of_f, of_g, of_o = at(of_gates, size, one), at(of_gates, 2 * size, one), at(of_gates, 3 * size, one)
    for k in range(size):
        of_o[k] = of_hidden[k] * tanh_cell[k] * o[k] * (one - o[k])
        c = of_cell[k] + of_hidden[k] * o[k] * (one - tanh_cell[k] * tanh_cell[k])
        of_gates[k] = c * g[k] * i[k] * (one - i[k])
        of_f[k] = c * cell[k] * f[k] * (one - f[k])
        of_g[k] = c * i[k] * (one - g[k] * g[k])
        before[k] = c * f[k]


@range_pass(9)
def step_back(first: int, last: int, share: int, given: Any) -> None:
    """The gradients of the gates; those of hidden state and cell give way to zero and to that of the cell before."""
    one = one_of(given)
    size, activated, cells, tanh_cells, of_state, of_cell_state, of_output, of_gates, work = integers(given)
    of_hidden, of_cell = at(work, share * WORK * size, one), at(work, (share * WORK + 1) * size, one)
    for n in range(first, last):
        through, of_next = at(of_state, n * size, one), at(of_cell_state, n * size, one)
        add(size, through, at(of_output, n * size, one), of_hidden)
        copy(size, of_next, of_cell)
        for k in range(size):
            through[k] = one - one
        _row_back(
            size,
            at(activated, n * 4 * size, one),
            at(cells, n * size, one),
            at(tanh_cells, n * size, one),
            of_hidden,
            of_cell,
            at(of_gates, n * 4 * size, one),
            of_next,
            one,
        )
