r"""Recurrent layers under a product: the steps forward, and the backward through time in closed form.

Every gate has two products, of its weight vectors with the input and with the hidden state (the paper's PR-LSTM,
Equation 14): the *input gates* and the *hidden gates*. Input gates are one GEMM over all steps, forward and backward;
hidden gates need the state, step by step. Backward, from the last step t to the first:

    grad of the gates (t)   = the cell's `step_back`, elementwise, of the grad of the state (t)
    grad of the state (t−1) = the part that `step_back` returns + dX of the rule for the hidden gates (t)

and the weight gradients of all steps are one GEMM at the end.

The rows of all steps are concatenated, as in a PackedSequence; `batch_sizes` has the number of rows of each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _are_functorch_transforms_active  # private: torch has no public one
from torch._C._functorch import is_legacy_batchedtensor  # private: no public test for the tensors of is_grads_batched

from prproduct.ops import autograd, kernels
from prproduct.ops.autograd import NO_JVP, cast_for_autocast, gradients, without_autocast
from prproduct.ops.cells import Cell, Gates, State
from prproduct.ops.contractions import Linear
from prproduct.ops.rule import GradientTerm, Operands, Rule
from prproduct.products import Product


class Weights(NamedTuple):
    """The parameters of one direction of one layer; `projection` is an LSTM's W_hr."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None = None
    hidden_bias: Tensor | None = None
    projection: Tensor | None = None


@dataclass(frozen=True)
class Recurrence:
    """All steps of one direction of one layer under a product."""

    cell: Cell
    product: Product
    batch_sizes: tuple[int, ...]
    reverse: bool = False

    def steps(self) -> list[slice]:
        """The rows of each step, in the order in which the steps are taken."""
        steps, start = [], 0
        for size in self.batch_sizes:
            steps.append(slice(start, start + size))
            start += size
        return steps[::-1] if self.reverse else steps

    def __call__(self, data: Tensor, state: State, weights: Weights) -> tuple[Tensor, State]:
        """The hidden states of all steps, (rows, features) as `data`, and the last state of each sequence."""
        self._check(data, state, weights)
        data = cast_for_autocast(data)
        state = tuple(cast_for_autocast(s) for s in state)
        weights = Weights(*(cast_for_autocast(w) for w in weights))
        closed_form = self.product.has_native_forward and weights.projection is None and torch.is_grad_enabled()
        if not closed_form or torch.compiler.is_compiling() or _are_functorch_transforms_active():
            return self.unrolled(data, state, weights)
        output, *last = RecurrenceFn.apply(self, data, *weights[:4], *state)
        return output, tuple(last)

    def unrolled(self, data: Tensor, state: State, weights: Weights) -> tuple[Tensor, State]:
        """The same in operations that autograd, torch.func and torch.compile can trace."""
        linear = Linear()
        input_gates = autograd.apply(linear, data, weights.input, weights.input_bias, self.product)
        steps = self.steps()
        state, waiting = tuple(s[: _count(steps[0])] for s in state), state
        outputs = []
        for rows in steps:
            state, waiting = _resize(state, _count(rows), waiting)
            hidden_gates = autograd.apply(linear, state[0], weights.hidden, weights.hidden_bias, self.product)
            state = self.cell.step((input_gates[rows], hidden_gates), state)
            if weights.projection is not None:
                projected = autograd.apply(linear, state[0], weights.projection, None, self.product)
                state = (projected, *state[1:])
            outputs.append(state[0])
        return torch.cat(outputs[::-1] if self.reverse else outputs), _finish(state, waiting)

    def _check(self, data: Tensor, state: State, weights: Weights) -> None:
        rows, counts = len(data), list(self.batch_sizes)
        if sum(counts) != rows or counts != sorted(counts, reverse=True) or min(len(s) for s in state) < max(counts):
            raise ValueError(
                f"batch sizes {counts[:5]}{'...' if len(counts) > 5 else ''} do not fit: they must not grow, add up to "
                f"the {rows} rows of the data, and begin with at most as many as there are states"
            )
        size, gates = state[0].shape[-1], self.cell.gates * state[-1].shape[-1]
        for name, tensor, shape in (
            ("input-hidden weight", weights.input, (gates, data.shape[-1])),
            ("hidden-hidden weight", weights.hidden, (gates, size)),
            ("input-hidden bias", weights.input_bias, (gates,)),
            ("hidden-hidden bias", weights.hidden_bias, (gates,)),
        ):
            if tensor is not None and tensor.shape != shape:
                raise ValueError(f"the {name} is {tuple(tensor.shape)}, where sizes of input and state ask for {shape}")


class Saved(NamedTuple):
    """What backward needs of all steps, (rows, …): hidden gates without their bias, and the states before each step."""

    hidden_gates: Tensor
    before: State


class RecurrenceFn(torch.autograd.Function):
    """`Recurrence` with the closed-form backward of the module's docstring."""

    @staticmethod
    def forward(
        ctx: Any,
        recurrence: Recurrence,
        data: Tensor,
        input_weight: Tensor,
        hidden_weight: Tensor,
        input_bias: Tensor | None,
        hidden_bias: Tensor | None,
        *state: Tensor,
    ) -> tuple[Tensor, ...]:
        first_bias, second_bias = _biases(recurrence.cell, input_bias, hidden_bias)
        input_gates = F.linear(data, input_weight, first_bias)  # (rows of all steps, gates)
        steps = _kernel_steps if _serves(recurrence, input_gates, hidden_weight, second_bias, *state) else _steps
        output, last, saved = steps(recurrence, input_gates, hidden_weight, second_bias, state)
        ctx.recurrence, ctx.states = recurrence, len(state)
        given = (data, input_weight, hidden_weight, input_bias, hidden_bias)
        ctx.save_for_backward(*given, *state, input_gates, saved.hidden_gates, *saved.before)
        return output, *last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: checkpointing does not give it twice
        data, *weights = saved[:5]
        state, (input_gates, hidden_gates, *before) = saved[5 : 5 + ctx.states], saved[5 + ctx.states :]
        with without_autocast(data):
            if torch.is_grad_enabled() or any(is_legacy_batchedtensor(grad) for grad in grads):
                return None, *_differentiable_backward(ctx, data, weights, state, grads)
            saved_steps = Saved(hidden_gates, tuple(before))
            return None, *_backward_through_time(ctx, data, weights, input_gates, saved_steps, grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        raise RuntimeError(NO_JVP)


def _serves(recurrence: Recurrence, *tensors: Tensor | None) -> bool:
    """True if the C++ kernels compute the steps: on CPUs in float32 and float64; elsewhere plain torch does."""
    first = tensors[0]
    if first is None or not first.is_cpu or first.dtype not in (torch.float32, torch.float64):
        return False
    return all(recurrence.batch_sizes) and kernels.serves(recurrence.product, *tensors)


def _kernel_steps(
    recurrence: Recurrence, input_gates: Tensor, weight: Tensor, bias: Tensor | None, state: State
) -> tuple[Tensor, State, Saved]:
    """All steps by the C++ kernels."""
    arguments = (input_gates, weight, bias, list(state), recurrence.batch_sizes, recurrence.reverse)
    output, *others = torch.ops.prproduct.recurrent_forward(recurrence.cell.name, *arguments)
    count = len(state)
    return output, tuple(others[:count]), Saved(others[count], tuple(others[count + 1 :]))


def _steps(
    recurrence: Recurrence, input_gates: Tensor, weight: Tensor, bias: Tensor | None, state: State
) -> tuple[Tensor, State, Saved]:
    """All steps in plain torch."""
    steps = recurrence.steps()
    hidden_gates = torch.empty_like(input_gates)  # without the bias
    before = tuple(input_gates.new_empty(len(input_gates), s.shape[1]) for s in state)
    output = torch.empty_like(before[0])
    current, waiting = tuple(s[: _count(steps[0])] for s in state), state
    for rows in steps:
        current, waiting = _resize(current, _count(rows), waiting)
        for kept, now in zip(before, current, strict=True):
            kept[rows] = now
        hidden_gates[rows] = F.linear(current[0], weight)
        current = recurrence.cell.step((input_gates[rows], _plus(hidden_gates[rows], bias)), current)
        output[rows] = current[0]
    last = _finish(current, waiting)
    return output, tuple(s.clone() for s in last), Saved(hidden_gates, before)  # clones: users may write into them


def _backward_through_time(
    ctx: Any, data: Tensor, weights: Sequence[Tensor], input_gates: Tensor, saved: Saved, grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """The gradients of data, weights, biases and first state, in closed form."""
    recurrence, (input_weight, hidden_weight, *given_biases) = ctx.recurrence, weights
    first_bias, second_bias = _biases(recurrence.cell, *given_biases)
    tensors = (input_gates, hidden_weight, second_bias, *saved.before, saved.hidden_gates, *grads)
    back = _kernel_steps_back if _serves(recurrence, *tensors) else _steps_back
    (grad_input_gates, grad_hidden_gates), grad_hidden_weight, grad_state = back(
        recurrence, input_gates, hidden_weight, second_bias, saved, grads
    )
    grad_biases: list[Tensor | None] = [None, None]
    if given_biases[0] is not None:
        grad_bias = grad_input_gates.sum(0)
        # A clone: who scales all gradients in place must not scale one of them twice.
        grad_biases = [grad_bias, grad_hidden_gates.sum(0) if recurrence.cell.gates_apart else grad_bias.clone()]
    operands = Operands(data, input_weight, first_bias, input_gates)
    grad_data, grad_input_weight = gradients(
        Linear(), recurrence.product, operands, grad_input_gates, ctx.needs_input_grad[1], ctx.needs_input_grad[2]
    )
    return [grad_data, grad_input_weight, grad_hidden_weight, *grad_biases, *grad_state]


def _kernel_steps_back(
    recurrence: Recurrence,
    input_gates: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    saved: Saved,
    grads: Sequence[Tensor],
) -> tuple[Gates, Tensor, State]:
    """`_steps_back` by the C++ kernels."""
    tensors = (input_gates, saved.hidden_gates, list(saved.before), weight, bias, grads[0], list(grads[1:]))
    arguments = kernels.product_arguments(recurrence.product, weight, convolution=False)
    results = torch.ops.prproduct.recurrent_backward(
        recurrence.cell.name, *tensors, recurrence.batch_sizes, recurrence.reverse, *arguments
    )
    grad_gates = (results[0], results[1] if recurrence.cell.gates_apart else results[0])
    grad_weight, *grad_state = results[1 + recurrence.cell.gates_apart :]
    return grad_gates, grad_weight, tuple(grad_state)


def _steps_back(
    recurrence: Recurrence,
    input_gates: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    saved: Saved,
    grads: Sequence[Tensor],
) -> tuple[Gates, Tensor, State]:
    """The gradients of all gates, of the hidden state's weight and of the first state, in plain torch."""
    steps, (hidden_gates, before) = recurrence.steps(), saved
    rule = Rule.at(Linear(), recurrence.product, Operands(before[0], weight, None, hidden_gates), hidden_gates)
    grad_gates = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (input_gates, hidden_gates)]
    scaled_grad = torch.empty_like(grad_gates[1], dtype=rule.pairs.output.dtype)
    sums: Tensor | None = None
    grad_output, waiting = grads[0], tuple(grads[1:])
    grad = tuple(w[: _count(steps[-1])] for w in waiting)
    for rows in reversed(steps):
        grad, waiting = _resize(grad, _count(rows), waiting)
        grad = (grad[0] + grad_output[rows], *grad[1:])
        gates = (input_gates[rows], _plus(hidden_gates[rows], bias))
        (grad_gates[0][rows], grad_gates[1][rows]), own = recurrence.cell.step_back(
            gates, tuple(s[rows] for s in before), grad
        )
        here = rule.rows(rows)
        for_weight, for_input = here.split(grad_gates[1][rows])
        scaled_grad[rows] = 0.0 if for_weight.scaled_grad is None else for_weight.scaled_grad
        if for_weight.sums is not None:
            sums = for_weight.sums if sums is None else sums + for_weight.sums
        grad = (own[0] + here.input_gradient(for_input, grad_gates[1][rows]), *own[1:])
    grad_weight = rule.weight_gradient(GradientTerm(scaled_grad, sums), grad_gates[1])
    return (grad_gates[0], grad_gates[1]), grad_weight, _finish(grad, waiting)


def _differentiable_backward(
    ctx: Any, data: Tensor, weights: Sequence[Tensor], state: State, grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """The same gradients with a graph of their own, for create_graph=True."""
    tensors = [data, *weights, *state]
    with torch.enable_grad():
        output, last = ctx.recurrence.unrolled(data, state, Weights(*weights))
    wanted = [t for t, needed in zip(tensors, ctx.needs_input_grad[1:], strict=True) if needed]
    found = iter(torch.autograd.grad((output, *last), wanted, grads, create_graph=True, allow_unused=True))
    return [next(found) if needed else None for needed in ctx.needs_input_grad[1:]]


def _biases(cell: Cell, input_bias: Tensor | None, hidden_bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The biases that are added to the input gates and to the hidden gates.

    Where only the sum of the gates matters, both are added to the input gates.
    """
    if cell.gates_apart or input_bias is None or hidden_bias is None:
        return input_bias, hidden_bias
    return input_bias + hidden_bias, None


def _plus(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def _count(rows: slice) -> int:
    return rows.stop - rows.start


def _resize(state: State, count: int, waiting: State) -> tuple[State, State]:
    """The states of the `count` sequences of the next step, and `waiting`, with the states of all others.

    Sequences that begin with this step, as in the reverse direction, have their first state in `waiting`; of those that
    ended with the step before, `waiting` gets the last state.
    """
    current = len(state[0])
    if count > current:
        state = tuple(torch.cat([s, w[current:count]]) for s, w in zip(state, waiting, strict=True))
    elif count < current:
        waiting = tuple(torch.cat([w[:count], s[count:], w[current:]]) for s, w in zip(state, waiting, strict=True))
        state = tuple(s[:count] for s in state)
    return state, waiting


def _finish(state: State, waiting: State) -> State:
    """The states of all sequences after the last step."""
    return tuple(torch.cat([s, w[len(s) :]]) if len(s) < len(w) else s for s, w in zip(state, waiting, strict=True))
