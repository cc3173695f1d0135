"""All steps of a recurrent layer over sequences, by the compiled passes.

A step is a matrix product and one call of compiled code: forward the elementwise part, back this and the split of the
hidden product. What steps need lies in one piece for all of them, and passes find it by counting rows. Steps on their
own, in torch, take 0.2 ms each way in Python: more than all else that a small layer does.

The rows of all steps lie behind each other; a state has as many as the step that has most. Sequences that begin or end
at a step are the last rows of it: their first or last state stays where it is while others go on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from prproduct.kernels.compiled import gru, lstm, serves
from prproduct.kernels.linear_rule import DX, FIRST, GRAD, LAST, LinearRule, Passes, X
from prproduct.kernels.scores import Phase, share_out, stand_in
from prproduct.kernels.threads import threads_for

# What a step back is played with, behind what the linear rule's passes are. These know already where the hidden states
# before are (X), the gradients of the hidden state's gates (GRAD), and those of the state (DX).
OF_CELL, OF_OUTPUT, INPUT_GATES, HIDDEN_GATES, OF_INPUT, WORK, ACTIVATED, CELLS, TANH_CELLS = map(
    stand_in, range(13, 22)
)


class Forward(NamedTuple):
    """Where the numbers of all steps are; those of states as if the step's rows were the first of all."""

    input_gates: int
    hidden_gates: int
    before: int  # the hidden states from which steps are taken
    output: int
    work: int
    kept: tuple[int, ...]
    states: tuple[int, ...]


class Kind(Protocol):
    """The compiled steps of one kind of recurrent layer."""

    def work(self) -> int:
        """How many numbers its passes need for each of the state's."""

    def kept(self, like: Tensor) -> tuple[Tensor, ...]:
        """Memory for what backward needs beside gates and hidden states; `like` is an output."""

    def forth(self, size: int, where: Forward) -> tuple[Any, tuple[int, ...]]:
        """The pass of a step, and its integers."""

    def back(self, passes: Passes) -> list[Phase]:
        """That of a step back, for the rows that the hidden product's split is for."""


@dataclass(frozen=True)
class LstmSteps:
    """`kernels/lstm.py`; kept are i, f, g and o, the cells, and the tanh of the next ones."""

    def work(self) -> int:
        return lstm().WORK

    def kept(self, like: Tensor) -> tuple[Tensor, ...]:
        return like.new_empty(len(like), 4 * like.shape[1]), torch.empty_like(like), torch.empty_like(like)

    def forth(self, size: int, where: Forward) -> tuple[Any, tuple[int, ...]]:
        gates = (where.input_gates, where.hidden_gates)
        return lstm().step[4], (size, *gates, *where.kept, where.output, *where.states, where.before, where.work)

    def back(self, passes: Passes) -> list[Phase]:
        kept, grads = (ACTIVATED, CELLS, TANH_CELLS), (DX, OF_CELL, OF_OUTPUT, GRAD)
        return [Phase(lstm().step_back[4], FIRST, LAST, (passes.vectors.length, *kept, *grads, WORK))]


@dataclass(frozen=True)
class GruSteps:
    """`kernels/gru.py`."""

    def work(self) -> int:
        return gru().WORK

    def kept(self, like: Tensor) -> tuple[Tensor, ...]:
        return ()

    def forth(self, size: int, where: Forward) -> tuple[Any, tuple[int, ...]]:
        gates = (where.input_gates, where.hidden_gates)
        return gru().gru_step[4], (size, *gates, where.output, *where.states, where.before, where.work)

    def back(self, passes: Passes) -> list[Phase]:
        integers = (passes.vectors.length, INPUT_GATES, HIDDEN_GATES, X, DX, OF_OUTPUT, OF_INPUT, GRAD, WORK)
        return [Phase(gru().gru_step_back[4], FIRST, LAST, integers)]


@dataclass(frozen=True)
class RnnSteps:
    """`kernels/gru.py`."""

    relu: bool

    def work(self) -> int:
        return gru().WORK

    def kept(self, like: Tensor) -> tuple[Tensor, ...]:
        return ()

    def forth(self, size: int, where: Forward) -> tuple[Any, tuple[int, ...]]:
        gates = (where.input_gates, where.hidden_gates)
        integers = (size, int(self.relu), *gates, where.output, *where.states, where.before, where.work)
        return gru().rnn_step[4], integers

    def back(self, passes: Passes) -> list[Phase]:
        gates = (INPUT_GATES, HIDDEN_GATES)
        integers = (passes.vectors.length, int(self.relu), *gates, DX, OF_OUTPUT, GRAD, WORK)
        return [Phase(gru().rnn_step_back[4], FIRST, LAST, integers)]


class Unrolled(NamedTuple):
    """What backward needs of all steps."""

    hidden_gates: Tensor
    before: Tensor  # the hidden states from which steps were taken
    kept: tuple[Tensor, ...]  # of this kind of layer


def serves_steps(*tensors: Tensor) -> bool:
    """Whether these passes take them."""
    return tensors[0].dtype == torch.float32 and tensors[0].dim() == 2 and serves(*tensors)


def unroll(
    kind: Kind,
    input_gates: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    states: Sequence[Tensor],
    steps: Sequence[slice],
) -> tuple[Unrolled, tuple[Tensor, ...]]:
    """All steps, in this order, from the input's gates, the hidden state's weight and bias, and the first state.

    What backward needs; and all hidden states, and each sequence's last state.
    """
    rows, size = len(input_gates), states[0].shape[1]
    input_gates, weight = input_gates.contiguous(), weight.contiguous()
    hidden_gates = torch.empty_like(input_gates)
    output, before = (states[0].new_empty(rows, size) for _ in range(2))
    kept = kind.kept(output)
    states = [t.clone(memory_format=torch.contiguous_format) for t in states]
    threads = threads_for(len(states[0]) * input_gates.shape[1], len(states[0]))
    work = output.new_empty(threads * kind.work() * size)
    everywhere = Forward(
        input_gates.data_ptr(),
        hidden_gates.data_ptr(),
        before.data_ptr(),
        output.data_ptr(),
        work.data_ptr(),
        tuple(t.data_ptr() for t in kept),
        (),
    )
    multiply = _product_of_steps(weight, bias, states[0])
    for step, gates_of_step in zip(steps, _parts(hidden_gates, steps), strict=True):
        multiply(gates_of_step)
        skipped = step.start * size * output.element_size()  # as passes count from the first of all rows
        where = everywhere._replace(states=tuple(t.data_ptr() - skipped for t in states))
        kernel, integers = kind.forth(size, where)
        share_out(kernel, threads, step.start, step.stop, *integers)
    return Unrolled(hidden_gates, before, kept), (output, *states)


def roll_up(
    kind: Kind,
    rule: LinearRule,
    input_gates: Tensor,
    unrolled: Unrolled,
    grad_output: Tensor,
    grad_states: Sequence[Tensor],
    of_input: Tensor,
    of_hidden: Tensor,
    steps: Sequence[slice],
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The way back: the gradients of the weight and of the first state; those of the gates are written.

    The rule is that of the hidden product of all steps; the gradients given are those of all hidden states and of the
    last state. Both kinds of gates may have their gradients in one place.
    """
    rows, size = grad_states[0].shape
    input_gates, hidden_gates, grad_output = (t.contiguous() for t in (input_gates, unrolled.hidden_gates, grad_output))
    kept = [t.contiguous() for t in unrolled.kept]
    hidden, passes, half = rule.stepwise(of_hidden), rule.passes, rule.program.input
    grads = [t.clone(memory_format=torch.contiguous_format) for t in grad_states]
    threads = min(passes.threads, threads_for(rows * input_gates.shape[1], rows))
    work = grads[0].new_empty(threads * kind.work() * size)
    fixed = [t.data_ptr() for t in (grad_output, input_gates, hidden_gates, of_input, work, *kept)]
    score = passes.score(kind.back, Passes.split, Passes.also_along_input)
    states, turned = _beginnings(grads[0]), _parts(hidden.for_input, steps)
    for step, turned_of_step in zip(reversed(steps), reversed(turned), strict=True):
        skipped = step.start * size * passes.size  # as passes count from the first of all rows
        of_cell = grads[-1].data_ptr() - skipped
        score.play(threads, *hidden.where, grads[0].data_ptr() - skipped, 0, step.start, step.stop, 0, of_cell, *fixed)
        if half.turn != 0.0:
            states(step.stop - step.start).addmm_(turned_of_step, rule.w)
    return hidden.weight_gradient(), tuple(grads)


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


def _product_of_steps(weight: Tensor, bias: Tensor | None, state: Tensor) -> Callable[[Tensor], object]:
    """What multiplies the weight and as many hidden states as a step has, into its gates.

    Large weights come first, and the result is copied: W·hᵀ takes MKL on two cores 1.0 to 1.2 ms for 64×512→2048, h·Wᵀ
    1.4 to 1.7. Below, it is the other way round.
    """
    across, states = weight.t(), _beginnings(state)
    if weight.numel() < _LARGE:
        if bias is None:
            return lambda gates: torch.mm(states(len(gates)), across, out=gates)
        return lambda gates: torch.addmm(bias, states(len(gates)), across, out=gates)

    @functools.cache
    def places(count: int) -> tuple[Tensor, Tensor, Tensor]:
        result = weight.new_empty(len(weight), count)
        return states(count).t(), result, result.t()

    def multiply(gates: Tensor) -> None:
        states_across, result, result_across = places(len(gates))
        torch.mm(weight, states_across, out=result)
        if bias is None:
            gates.copy_(result_across)
        else:
            torch.add(result_across, bias, out=gates)

    return multiply
