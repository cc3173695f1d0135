"""The elementwise parts of a GRU's and an RNN's step in a sequence, forward and backward, in one pass each.

In float32; `recurrence.GRU` and `recurrence.RNN` have them in torch. Gates and gradients of all steps lie row behind
row; the state is the last hidden state, which is written down as `before`, before it changes. Backward computes the
gates again. The gradient of the state, to which that of the output is added, gives way to what goes past the product.
"""

from __future__ import annotations

from typing import Any

from prproduct.kernels.activations import add, sigmoid, tanh
from prproduct.kernels.compiler.entries import range_pass
from prproduct.kernels.compiler.words import at, integers, one_of, part_of_pass
from prproduct.kernels.strips import copy

WORK = 7  # numbers that passes need for each of the state's


@part_of_pass()
def _plus_product(count: int, a: Any, b: Any, c: Any, result: Any) -> None:
    for k in range(count):
        result[k] = a[k] + b[k] * c[k]


@part_of_pass()
def _activate(size: int, of_input: Any, of_hidden: Any, memory: Any, one: Any) -> None:
    """r, z and n at the beginning of the memory, of which six times as many numbers are used as a state has."""
    new = at(memory, 2 * size, one)
    sums, work, powers = at(memory, 3 * size, one), at(memory, 4 * size, one), at(memory, 5 * size, one)
    for gate in range(2):
        add(size, at(of_input, gate * size, one), at(of_hidden, gate * size, one), sums)
        sigmoid(size, sums, work, powers, at(memory, gate * size, one))
    _plus_product(size, at(of_input, 2 * size, one), memory, at(of_hidden, 2 * size, one), sums)
    tanh(size, sums, work, powers, new)


@part_of_pass()
def _between(size: int, before: Any, z: Any, new: Any, result: Any) -> None:
    """n + z∘(h − n)"""
    for k in range(size):
        result[k] = new[k] + z[k] * (before[k] - new[k])


@range_pass(7)
def gru_step(first: int, last: int, share: int, given: Any) -> None:
    """h' from the gates of the input and of the hidden state."""
    one = one_of(given)
    size, input_gates, hidden_gates, output, state, befores, work = integers(given)
    memory = at(work, share * WORK * size, one)
    for n in range(first, last):
        hidden, before = at(state, n * size, one), at(befores, n * size, one)
        copy(size, hidden, before)
        _activate(size, at(input_gates, n * 3 * size, one), at(hidden_gates, n * 3 * size, one), memory, one)
        _between(size, before, at(memory, size, one), at(memory, 2 * size, one), hidden)
        copy(size, hidden, at(output, n * size, one))


@part_of_pass()
def _gru_row_back(
    size: int, r: Any, z: Any, new: Any, h_new: Any, before: Any, grad: Any, of_input: Any, of_hidden: Any, own: Any,
    one: Any,
) -> None:  # fmt: skip
    of_input_z, of_input_new = at(of_input, size, one), at(of_input, 2 * size, one)
    of_hidden_z, of_hidden_new = at(of_hidden, size, one), at(of_hidden, 2 * size, one)
    for k in range(size):
        of_z = grad[k] * (before[k] - new[k]) * z[k] * (one - z[k])
        of_new = (grad[k] - grad[k] * z[k]) * (one - new[k] * new[k])
        of_r = of_new * h_new[k] * r[k] * (one - r[k])
        of_input[k] = of_r
        of_hidden[k] = of_r
        of_input_z[k] = of_z
        of_hidden_z[k] = of_z
        of_input_new[k] = of_new
        of_hidden_new[k] = of_new * r[k]
        own[k] = grad[k] * z[k]


@range_pass(9)
def gru_step_back(first: int, last: int, share: int, given: Any) -> None:
    """The gradients of both kinds of gates."""
    one = one_of(given)
    size, input_gates, hidden_gates, befores, of_state, of_output, of_input, of_hidden, work = integers(given)
    memory = at(work, share * WORK * size, one)
    r, z, new, grad = memory, at(memory, size, one), at(memory, 2 * size, one), at(memory, 6 * size, one)
    for n in range(first, last):
        place, gates = n * size, n * 3 * size
        _activate(size, at(input_gates, gates, one), at(hidden_gates, gates, one), memory, one)
        add(size, at(of_state, place, one), at(of_output, place, one), grad)
        _gru_row_back(
            size,
            r,
            z,
            new,
            at(hidden_gates, gates + 2 * size, one),
            at(befores, place, one),
            grad,
            at(of_input, gates, one),
            at(of_hidden, gates, one),
            at(of_state, place, one),
            one,
        )


@part_of_pass()
def _rnn_row(size: int, relu: int, of_input: Any, of_hidden: Any, memory: Any, one: Any) -> None:
    """h', at the beginning of the memory."""
    sums, work, powers = at(memory, size, one), at(memory, 2 * size, one), at(memory, 3 * size, one)
    add(size, of_input, of_hidden, sums)
    if relu:
        for k in range(size):
            memory[k] = sums[k] if sums[k] > 0.0 or sums[k] != sums[k] else one - one  # NaN stays
    else:
        tanh(size, sums, work, powers, memory)


@range_pass(8)
def rnn_step(first: int, last: int, share: int, given: Any) -> None:
    """h', by tanh or relu."""
    one = one_of(given)
    size, relu, input_gates, hidden_gates, output, state, befores, work = integers(given)
    memory = at(work, share * WORK * size, one)
    for n in range(first, last):
        hidden = at(state, n * size, one)
        copy(size, hidden, at(befores, n * size, one))
        _rnn_row(size, relu, at(input_gates, n * size, one), at(hidden_gates, n * size, one), memory, one)
        copy(size, memory, hidden)
        copy(size, memory, at(output, n * size, one))


@range_pass(8)
def rnn_step_back(first: int, last: int, share: int, given: Any) -> None:
    """The gradients of the gates; nothing goes past the product."""
    one = one_of(given)
    size, relu, input_gates, hidden_gates, of_state, of_output, of_gates, work = integers(given)
    memory = at(work, share * WORK * size, one)
    for n in range(first, last):
        place = n * size
        _rnn_row(size, relu, at(input_gates, place, one), at(hidden_gates, place, one), memory, one)
        of_hidden, of_gate, grad = at(of_state, place, one), at(of_gates, place, one), at(memory, size, one)
        add(size, of_hidden, at(of_output, place, one), grad)
        for k in range(size):
            of_hidden[k] = one - one
        if relu:
            for k in range(size):
                of_gate[k] = grad[k] if memory[k] > 0.0 else grad[k] * (one - one)
        else:
            for k in range(size):
                of_gate[k] = grad[k] * (one - memory[k] * memory[k])
