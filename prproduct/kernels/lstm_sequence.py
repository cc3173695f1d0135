"""All steps of an LSTM over sequences, by the compiled passes.

A step is a matrix product and one call of compiled code: forward the elementwise part, back this and the split of the
hidden product. What steps need lies in one piece for all of them, and passes find it by counting rows. Steps on their
own, by `lstm_rule.py`, take 0.2 ms each way in Python: more than all else that a small layer does.

The rows of all steps lie behind each other; a state has as many as the step that has most. Sequences that begin or end
at a step are the last rows of it: their first or last state stays where it is while others go on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from prproduct.kernels.compiled import lstm
from prproduct.kernels.linear_rule import FIRST, LAST, LinearRule, Passes, with_product
from prproduct.kernels.scores import Phase, share_out, stand_in
from prproduct.kernels.threads import threads_for


class Unrolled(NamedTuple):
    """What backward needs of all steps, (rows, size) each."""

    hidden_gates: Tensor  # four times as wide
    gates: Tensor  # as wide, activated: i, f, g and o
    before: Tensor  # the hidden states from which steps were taken
    cells: Tensor  # and the cells
    tanh_cells: Tensor  # of the next ones

    def step_by_step(self, steps: Sequence[slice]) -> list[Tensor]:
        """i, f, g, o, the cell before and the tanh of the next, for each of the steps."""
        kept: list[Tensor] = []
        for rows in steps:
            kept += (*self.gates[rows].chunk(4, dim=1), self.cells[rows], self.tanh_cells[rows])
        return kept


def unroll(
    input_gates: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor, steps: Sequence[slice]
) -> tuple[Unrolled, tuple[Tensor, Tensor, Tensor]]:
    """All steps, in this order, from the input's gates, the hidden state's weight, and the first state.

    What backward needs; and all hidden states, the last of each sequence, and its last cell.
    """
    rows, size = len(input_gates), hidden.shape[1]
    input_gates, weight = input_gates.contiguous(), weight.contiguous()
    hidden_gates, gates = torch.empty_like(input_gates), torch.empty_like(input_gates)
    output, before, cells, tanh_cells = (hidden.new_empty(rows, size) for _ in range(4))
    state, cell = (t.clone(memory_format=torch.contiguous_format) for t in (hidden, cell))
    threads = threads_for(len(state) * 4 * size, len(state))
    work = hidden.new_empty(threads * lstm().WORK * size)
    read = (input_gates.data_ptr(), 4 * size, hidden_gates.data_ptr(), 4 * size, cells.data_ptr(), size)
    written = (gates.data_ptr(), tanh_cells.data_ptr(), output.data_ptr())
    multiply = _product_of_steps(weight, state)
    for step, gates_of_step in zip(steps, _parts(hidden_gates, steps), strict=True):
        multiply(gates_of_step)
        first, last = step.start, step.stop
        skipped = first * size * state.element_size()  # as passes count from the first of all rows
        states = (cell.data_ptr() - skipped, work.data_ptr(), state.data_ptr() - skipped, before.data_ptr())
        share_out(lstm().step[4], threads, first, last, size, *read, *written, *states)
    return Unrolled(hidden_gates, gates, before, cells, tanh_cells), (output, state, cell)


# What a step back is played with, behind what the linear rule's passes are.
GATES, CELLS, TANH_CELLS, OF_HIDDEN, OF_CELL, OF_GATES, BEFORE, OF_OUTPUT, WORK = map(stand_in, range(13, 22))


def _step_back(passes: Passes) -> list[Phase]:
    """The elementwise part, for the rows that the hidden product's split is for."""
    size, place = passes.vectors.length, passes.vectors.length * passes.size
    gates = ((GATES + k * place, 4 * size) for k in range(4))
    vectors = ((CELLS, size), (TANH_CELLS, size), (OF_HIDDEN, size), (OF_CELL, size), (OF_GATES, 4 * size))
    where = (number for pair in (*gates, *vectors, (BEFORE, size), (OF_OUTPUT, size)) for number in pair)
    return [Phase(lstm().step_back[passes.size], FIRST, LAST, (size, *where, WORK))]


def roll_up(
    rule: LinearRule,
    kept: Unrolled,
    grad_output: Tensor,
    grad_hidden: Tensor,
    grad_cell: Tensor,
    grad_gates: Tensor,
    steps: Sequence[slice],
) -> tuple[Tensor, Tensor, Tensor]:
    """The way back: the gradients of weight, first hidden state and first cell; those of the gates are written.

    The rule is that of the hidden product of all steps; the gradients given are those of all hidden states, of the last
    ones, and of the last cells.
    """
    rows, size = grad_hidden.shape
    kept, grad_output = Unrolled(*(t.contiguous() for t in kept)), grad_output.contiguous()
    hidden, passes = rule.stepwise(grad_gates), rule.passes
    of_hidden, of_cell = (t.clone(memory_format=torch.contiguous_format) for t in (grad_hidden, grad_cell))
    threads = min(passes.threads, threads_for(rows * 4 * size, rows))
    work = of_hidden.new_empty(threads * lstm().WORK_BACK * size)
    read = (kept.gates.data_ptr(), kept.cells.data_ptr(), kept.tanh_cells.data_ptr())
    score = passes.score(_step_back, Passes.split, Passes.along_input)
    states, turned = _beginnings(of_hidden), _parts(hidden.for_input, steps)
    for step, turned_of_step in zip(reversed(steps), reversed(turned), strict=True):
        first, last = step.start, step.stop
        skipped = first * size * passes.size  # as passes count from the first of all rows
        through, cell = of_hidden.data_ptr() - skipped, of_cell.data_ptr() - skipped
        grads = (through, cell, grad_gates.data_ptr(), cell, grad_output.data_ptr(), work.data_ptr())
        score.play(threads, *hidden.where, through, 0, first, last, 0, *read, *grads)
        with_product(states(last - first), rule.program.input, turned_of_step, rule.w)
    return hidden.weight_gradient(), of_hidden, of_cell


def _parts(t: Tensor, steps: Sequence[slice]) -> Sequence[Tensor]:
    """The rows of each step."""
    in_order = steps[0].start == 0
    counts = [step.stop - step.start for step in steps]
    parts = t.split(counts if in_order else counts[::-1])
    return parts if in_order else parts[::-1]


def _beginnings(state: Tensor) -> Callable[[int], Tensor]:
    """The first rows of a state: sequences are mostly of few lengths."""
    return functools.cache(lambda count: state[:count])


_LARGE = 2**20  # numbers of a weight


def _product_of_steps(weight: Tensor, state: Tensor) -> Callable[[Tensor], object]:
    """What multiplies the weight and as many hidden states as a step has, into its gates.

    Large weights come first, and the result is copied: W·hᵀ takes MKL on two cores 1.0 to 1.2 ms for 64×512→2048, h·Wᵀ
    1.4 to 1.7. Below, it is the other way round.
    """
    across, states = weight.t(), _beginnings(state)
    if weight.numel() < _LARGE:
        return lambda gates: torch.mm(states(len(gates)), across, out=gates)

    @functools.cache
    def places(count: int) -> tuple[Tensor, Tensor, Tensor]:
        result = weight.new_empty(len(weight), count)
        return states(count).t(), result, result.t()

    def multiply(gates: Tensor) -> None:
        states_across, result, result_across = places(len(gates))
        torch.mm(weight, states_across, out=result)
        gates.copy_(result_across)

    return multiply
