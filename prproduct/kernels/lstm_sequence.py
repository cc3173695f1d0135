"""All steps of an LSTM by the compiled passes, for sequences of one length.

A step is a matrix product and one call of compiled code: forward the elementwise part, back this and the split of the
hidden product. What steps need lies in one piece for all of them, and passes find it by counting rows. Steps on their
own, by `lstm_rule.py`, take 0.2 ms each way in Python: more than all else that a small layer does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from prproduct.kernels.compiled import lstm
from prproduct.kernels.linear_rule import FIRST, LAST, LinearRule, Passes, with_product
from prproduct.kernels.scores import Phase, share_out, stand_in
from prproduct.kernels.threads import threads_for


class Unrolled(NamedTuple):
    """What all steps leave behind, in the order of time: the rows of a step, then those of the next."""

    hidden_gates: Tensor  # (steps · rows, 4 · size)
    gates: Tensor  # the same, activated: i, f, g and o
    tanh_cells: Tensor  # (steps · rows, size)
    hidden: Tensor  # (steps + 1, rows, size): the first state has its place before the first step
    cells: Tensor

    def before(self, reverse: bool) -> Tensor:
        """The hidden states from which steps were taken, as one matrix."""
        return (self.hidden[1:] if reverse else self.hidden[:-1]).flatten(0, 1)

    def results(self, reverse: bool) -> tuple[Tensor, Tensor, Tensor]:
        """The hidden states to which they led, the last of them, and the last cell."""
        behind, last = (self.hidden[:-1], 0) if reverse else (self.hidden[1:], -1)
        return behind.flatten(0, 1), self.hidden[last], self.cells[last]

    def step_by_step(self, reverse: bool) -> list[Tensor]:
        """i, f, g, o, the cell before and the tanh of that behind, in the order in which steps were taken."""
        steps, rows, size = len(self.cells) - 1, *self.cells.shape[1:]
        gates, tanh_cells = self.gates.view(steps, rows, 4 * size), self.tanh_cells.view(steps, rows, size)
        kept: list[Tensor] = []
        for t in _in_turn(steps, reverse):
            kept += (*gates[t].chunk(4, dim=1), self.cells[t + reverse], tanh_cells[t])
        return kept


def unroll(input_gates: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor, reverse: bool) -> Unrolled:
    """All steps, from the input's gates, the hidden state's weight, and the first state."""
    rows, size = hidden.shape
    steps, step = len(input_gates) // rows, rows * size * hidden.element_size()
    input_gates, weight = input_gates.contiguous(), weight.contiguous()
    hidden_gates, gates = torch.empty_like(input_gates), torch.empty_like(input_gates)
    tanh_cells = hidden.new_empty(steps * rows, size)
    all_hidden, cells = hidden.new_empty(2, steps + 1, rows, size).unbind()
    first = steps if reverse else 0
    all_hidden[first], cells[first] = hidden, cell
    threads = threads_for(rows * 4 * size, rows)
    work = hidden.new_empty(threads * lstm().WORK * size)
    before, behind = reverse * step, (not reverse) * step
    where = (
        *(input_gates.data_ptr(), 4 * size),
        *(hidden_gates.data_ptr(), 4 * size),
        *(cells.data_ptr() + before, size),
        *(gates.data_ptr(), tanh_cells.data_ptr(), all_hidden.data_ptr() + behind, cells.data_ptr() + behind),
        work.data_ptr(),
    )
    multiply = _product_of_steps(weight, all_hidden, hidden_gates.view(steps, rows, 4 * size))
    for t in _in_turn(steps, reverse):
        multiply(t + reverse, t)
        share_out(lstm().step[4], threads, t * rows, (t + 1) * rows, size, *where)
    return Unrolled(hidden_gates, gates, tanh_cells, all_hidden, cells)


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
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The way back: the gradients of weight, first hidden state and first cell; those of the gates are written.

    The rule is that of the hidden product of all steps; the gradients given are those of the output, of the last hidden
    state and of the last cell.
    """
    rows, size = grad_hidden.shape
    steps, step = len(kept.cells) - 1, rows * size * grad_hidden.element_size()
    kept, grad_output = Unrolled(*(t.contiguous() for t in kept)), grad_output.contiguous()
    hidden, passes = rule.stepwise(grad_gates), rule.passes
    through = torch.empty_like(grad_hidden, memory_format=torch.contiguous_format).copy_(grad_hidden)
    of_cell, of_next = grad_cell.new_empty(2, rows, size).unbind()
    of_cell.copy_(grad_cell)
    turned = hidden.for_input.view(steps, rows, 4 * size).unbind()
    threads = min(passes.threads, threads_for(rows * 4 * size, rows))
    work = grad_hidden.new_empty(threads * size)
    score = passes.score(_step_back, Passes.split, Passes.along_input)
    cells = kept.cells.data_ptr() + reverse * step
    for t in reversed(_in_turn(steps, reverse)):
        start = t * step  # passes count from the first of all rows
        score.play(
            threads,
            *hidden.where,
            *(through.data_ptr() - start, 0, t * rows, (t + 1) * rows, 0),
            *(kept.gates.data_ptr(), cells, kept.tanh_cells.data_ptr()),
            *(through.data_ptr() - start, of_cell.data_ptr() - start),
            *(grad_gates.data_ptr(), of_next.data_ptr() - start, grad_output.data_ptr(), work.data_ptr()),
        )
        with_product(through, rule.program.input, turned[t], rule.w)
        of_cell, of_next = of_next, of_cell
    return hidden.weight_gradient(), through, of_cell


def _in_turn(steps: int, reverse: bool) -> range:
    """The steps, as they are taken."""
    return range(steps)[::-1] if reverse else range(steps)


_LARGE = 2**20  # numbers of a weight


def _product_of_steps(weight: Tensor, hidden: Tensor, into: Tensor) -> Callable[[int, int], object]:
    """What multiplies the weight and one of the hidden states, into the gates of a step.

    Large weights come first, and the result is copied: W·hᵀ takes MKL on two cores 1.0 to 1.2 ms for 64×512→2048, h·Wᵀ
    1.4 to 1.7. Below, it is the other way round.
    """
    gates = into.unbind()
    if weight.numel() < _LARGE:
        states, across = hidden.unbind(), weight.t()
        return lambda state, step: torch.mm(states[state], across, out=gates[step])
    states, result = hidden.mT.unbind(), weight.new_empty(len(weight), hidden.shape[1])
    across = result.t()

    def multiply(state: int, step: int) -> None:
        torch.mm(weight, states[state], out=result)
        gates[step].copy_(across)

    return multiply
