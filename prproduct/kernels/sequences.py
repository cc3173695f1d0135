"""All steps of a recurrent layer over sequences, by the compiled passes.

A step is a matrix product and passes: forward the elementwise part, back this and the split of the hidden product. All
steps are one call of compiled code, in which threads share out the columns of each product, by torch's own BLAS; where
that is not to be had, torch multiplies, and each step is a call. Steps on their own, in torch, take 0.2 ms each way in
Python: more than all else that a small layer does. What steps need lies in one piece for all of them, and passes find
it by counting rows.

The rows of all steps lie behind each other; a state has as many as the step that has most. Sequences that begin or end
at a step are the last rows of it: their first or last state stays where it is while others go on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from prproduct.kernels.blas import gemm
from prproduct.kernels.compiled import gru, lstm, serves
from prproduct.kernels.compiled import passes as kernels
from prproduct.kernels.linear_rule import DX, FIRST, FOR_INPUT, GRAD, LAST, LinearRule, Passes, W, X
from prproduct.kernels.rules import Part
from prproduct.kernels.scores import Phase, Score, share_out, stand_in
from prproduct.kernels.threads import openmp, threads_for

# What a step back is played with, behind what the linear rule's passes are. These know already where the hidden states
# before are (X), the gradients of the hidden state's gates (GRAD), and those of the state (DX).
OF_CELL, OF_OUTPUT, INPUT_GATES, HIDDEN_GATES, OF_INPUT, WORK, ACTIVATED, CELLS, TANH_CELLS = map(
    stand_in, range(13, 22)
)
_CHANGES_BACK = 8  # from DX to OF_CELL, every step has its own


class Forward(NamedTuple):
    """Where the numbers of all steps are; those of states as if the step's rows were the first of all."""

    states: tuple[int, ...]  # the hidden ones first
    kept: tuple[int, ...]
    input_gates: int
    hidden_gates: int
    before: int  # the hidden states from which steps are taken
    output: int
    work: int


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

    def __hash__(self) -> int: ...


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
        return [Phase(lstm().step_back[4], FIRST, LAST, (passes.vectors.length, *kept, *grads, WORK), waits=True)]


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
        return [Phase(gru().gru_step_back[4], FIRST, LAST, integers, waits=True)]


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
        return [Phase(gru().rnn_step_back[4], FIRST, LAST, integers, waits=True)]


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
    rows, size, gates = len(input_gates), states[0].shape[1], input_gates.shape[1]
    input_gates, weight = input_gates.contiguous(), weight.contiguous()
    hidden_gates = torch.empty_like(input_gates)
    output, before = (states[0].new_empty(rows, size) for _ in range(2))
    kept = kind.kept(output)
    states = [t.clone(memory_format=torch.contiguous_format) for t in states]
    multiplies = passes_multiply()
    threads = threads_for((rows if multiplies else len(states[0])) * gates, len(states[0]))
    work = output.new_empty(threads * kind.work() * size)
    fixed = (input_gates.data_ptr(), hidden_gates.data_ptr(), before.data_ptr(), output.data_ptr(), work.data_ptr())
    addresses_of_kept = tuple(t.data_ptr() for t in kept)
    if multiplies:
        if bias is not None:
            hidden_gates.copy_(bias.expand_as(hidden_gates))
        score = _forth(kind, size, gates, len(kept), len(states), bias is not None)
        given = (weight.data_ptr(), *fixed, *addresses_of_kept)
        score.play_rounds(threads, 0, _changing(steps, size, states), *(0,) * (2 + len(states)), *given)
        return Unrolled(hidden_gates, before, kept), (output, *states)
    multiply = _product_of_steps(weight, bias, states[0])
    for step, gates_of_step in zip(steps, _parts(hidden_gates, steps), strict=True):
        multiply(gates_of_step)
        skipped = step.start * size * output.element_size()  # as passes count from the first of all rows
        of_states = tuple(t.data_ptr() - skipped for t in states)
        kernel, integers = kind.forth(size, Forward(of_states, addresses_of_kept, *fixed))
        share_out(kernel, threads, step.start, step.stop, *integers)
    return Unrolled(hidden_gates, before, kept), (output, *states)


def passes_multiply() -> bool:
    """Whether products are done by passes; not in a forked child, where MKL must not be called by several threads."""
    return gemm(4) != 0 and openmp() is not None


@functools.lru_cache(1024)
def _forth(kind: Kind, size: int, gates: int, kept: int, states: int, adds: bool) -> Score:
    """The passes of a step, played with its rows and states, and with where all else is; `adds`, if to a bias."""
    first, last, *changing = map(stand_in, range(2 + states))
    fixed = map(stand_in, range(2 + states, 8 + states + kept))
    weight, input_gates, hidden_gates, before, output, work, *of_kept = fixed
    where = Forward(tuple(changing), tuple(of_kept), input_gates, hidden_gates, before, output, work)
    product = (gemm(4), first, last, size, changing[0], weight, size, 1, hidden_gates, gates, adds)
    multiply = Phase(kernels().multiply_rows[4], 0, gates, product, waits=True)
    kernel, integers = kind.forth(size, where)
    return Score(multiply, Phase(kernel, first, last, integers, waits=True))


def _changing(steps: Sequence[slice], size: int, states: Sequence[Tensor]) -> np.ndarray[Any, Any]:
    """The rows of each step, and where its states would begin if its rows were the first of all."""
    table = np.empty((len(steps), 2 + len(states)), dtype=np.int64)
    table[:, 0], table[:, 1] = zip(*((step.start, step.stop) for step in steps), strict=True)
    for k, state in enumerate(states):
        table[:, 2 + k] = state.data_ptr() - table[:, 0] * size * state.element_size()
    return table


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
    multiplies = passes_multiply()
    threads = threads_for((len(input_gates) if multiplies else rows) * input_gates.shape[1], rows)
    threads = min(passes.threads, threads)
    work = grads[0].new_empty(threads * kind.work() * size)
    fixed = [t.data_ptr() for t in (grad_output, input_gates, hidden_gates, of_input, work, *kept)]
    back: list[Part] = [kind.back, Passes.split, Passes.also_along_input]
    if multiplies:
        product = [_state_product] if half.turn != 0.0 else []
        changing = np.zeros((len(steps), 6), dtype=np.int64)  # DX, DW, FIRST, LAST, DBIAS, OF_CELL
        changing[:, [2, 3, 0, 5]] = _changing(steps[::-1], size, [grads[0], grads[-1]])
        score = passes.score(*back, *product)
        score.play_rounds(threads, _CHANGES_BACK, changing, *hidden.where, *(0,) * 6, *fixed)
        return hidden.weight_gradient(), tuple(grads)
    score = passes.score(*back)
    states, turned = _beginnings(grads[0]), _parts(hidden.for_input, steps)
    for step, turned_of_step in zip(reversed(steps), reversed(turned), strict=True):
        skipped = step.start * size * passes.size  # as passes count from the first of all rows
        of_cell = grads[-1].data_ptr() - skipped
        score.play(threads, *hidden.where, grads[0].data_ptr() - skipped, 0, step.start, step.stop, 0, of_cell, *fixed)
        if half.turn != 0.0:
            states(step.stop - step.start).addmm_(turned_of_step, rule.w)
    return hidden.weight_gradient(), tuple(grads)


def _state_product(passes: Passes) -> list[Phase]:
    """What goes back to the state through the hidden product: D∘g of a step's rows with the weight."""
    size = passes.vectors.length
    integers = (gemm(4), FIRST, LAST, passes.count, FOR_INPUT, W, size, 0, DX, size, 1)
    return [Phase(kernels().multiply_rows[4], 0, size, integers, waits=True)]


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
