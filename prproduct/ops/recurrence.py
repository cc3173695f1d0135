r"""Recurrent layers under a product.

Every gate has two products, of its weight vectors with the input and with the hidden state (the paper's PR-LSTM,
Equation 14): the *input gates* and the *hidden gates*. Input gates are one GEMM over all steps, forward and backward;
hidden gates need the state, step by step. `Recurrence.unrolled` computes both as linear layers (`autograd.py`).

In float32 and float64 on a CPU, C++ kernels compute all steps (`csrc/recurrent.cpp`), and the backward through time in
closed form, from the last step t to the first:

    grad of the gates (t)   = the cell's backward, elementwise, of the grad of the state (t)
    grad of the state (t−1) = the cell's part of it + dX of the rule for the hidden gates (t)

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
from torch.compiler import is_compiling

from prproduct.ops import autograd, kernels
from prproduct.ops.autograd import NO_JVP, cast_for_autocast, gradients, without_autocast
from prproduct.ops.cells import Cell, State
from prproduct.ops.contractions import Linear
from prproduct.ops.rule import Operands
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

    def __call__(self, data: Tensor, state: State, weights: Weights) -> tuple[Tensor, State]:
        """The hidden states of all steps, (rows, features) as `data`, and the last state of each sequence."""
        self._check(data, state, weights)
        data = cast_for_autocast(data)
        state = tuple(cast_for_autocast(s) for s in state)
        weights = Weights(*(cast_for_autocast(w) for w in weights))
        if not (torch.is_grad_enabled() and self._has_kernels(data, state, weights)):
            return self.unrolled(data, state, weights)
        output, *last = RecurrenceFn.apply(self, data, *weights[:4], *state)
        return output, tuple(last)

    def unrolled(self, data: Tensor, state: State, weights: Weights) -> tuple[Tensor, State]:
        """The same in operations that autograd, torch.func and torch.compile can trace."""
        linear = Linear()
        input_gates = autograd.apply(linear, data, weights.input, weights.input_bias, self.product)
        steps = input_gates.split(list(self.batch_sizes))
        steps = steps[::-1] if self.reverse else steps
        state, waiting = tuple(s[: len(steps[0])] for s in state), state
        outputs = []
        for gates in steps:
            state, waiting = _resize(state, len(gates), waiting)
            hidden_gates = autograd.apply(linear, state[0], weights.hidden, weights.hidden_bias, self.product)
            state = self.cell.step((gates, hidden_gates), state)
            if weights.projection is not None:
                projected = autograd.apply(linear, state[0], weights.projection, None, self.product)
                state = (projected, *state[1:])
            outputs.append(state[0])
        return torch.cat(outputs[::-1] if self.reverse else outputs), _finish(state, waiting)

    def _has_kernels(self, data: Tensor, state: State, weights: Weights) -> bool:
        """True if `RecurrenceFn` has kernels for these tensors."""
        if not self.product.has_native_forward or weights.projection is not None or not all(self.batch_sizes):
            return False
        with torch.no_grad():  # `serves` is False while gradients are recorded; a backward records none by default
            return _serves(self.product, data, *weights, *state)

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


class RecurrenceFn(torch.autograd.Function):
    """`Recurrence` by C++ kernels, with the closed-form backward of the module's docstring."""

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
        cell = recurrence.cell
        first_bias, second_bias = _biases(cell, input_bias, hidden_bias)
        input_gates = F.linear(data, input_weight, first_bias)  # (rows of all steps, gates)
        arguments = (input_gates, hidden_weight, second_bias, list(state), recurrence.batch_sizes, recurrence.reverse)
        output, *others = torch.ops.prproduct.recurrent_forward(cell.name, *arguments)
        last, saved = others[: len(state)], others[len(state) :]  # saved: hidden gates, and the states before each step
        ctx.recurrence, ctx.states = recurrence, len(state)
        given = (data, input_weight, hidden_weight, input_bias, hidden_bias, *state)
        ctx.save_for_backward(*given, input_gates, *saved)
        return output, *last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if is_compiling():  # compiled autograd: its trace of `_unrolled_backward` would find no gradient
            return torch.compiler.disable(RecurrenceFn.backward)(ctx, *grads)
        saved = ctx.saved_tensors  # read once: checkpointing does not give it twice
        recurrence, count = ctx.recurrence, 5 + ctx.states
        given, (input_gates, hidden_gates, *before) = saved[:count], saved[count:]
        data, input_weight, hidden_weight, *biases = given[:5]
        with without_autocast(data):
            if not _serves(recurrence.product, *given, *grads):
                return None, *_unrolled_backward(ctx, given, grads)
            cell = recurrence.cell
            first_bias, second_bias = _biases(cell, *biases)
            tensors = (input_gates, hidden_gates, before, hidden_weight, second_bias, grads[0], list(grads[1:]))
            product = kernels.product_arguments(recurrence.product, hidden_weight, convolution=False)
            grad_input_gates, *others = torch.ops.prproduct.recurrent_backward(
                cell.name, *tensors, recurrence.batch_sizes, recurrence.reverse, *product
            )
            grad_hidden_gates = others.pop(0) if cell.gates_apart else grad_input_gates
            grad_hidden_weight, *grad_state = others
            grad_biases = [  # each with its own memory: users scale gradients in place
                None if bias is None else grad.sum(0)
                for bias, grad in zip(biases, (grad_input_gates, grad_hidden_gates), strict=True)
            ]
            operands = Operands(data, input_weight, first_bias, input_gates)
            grad_data, grad_input_weight = gradients(
                Linear(), recurrence.product, operands, grad_input_gates, *ctx.needs_input_grad[1:3]
            )
        return None, grad_data, grad_input_weight, grad_hidden_weight, *grad_biases, *grad_state

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        raise RuntimeError(NO_JVP)


def _serves(product: Product, *tensors: Tensor | None) -> bool:
    """True if the C++ kernels compute the steps of these tensors: in float32 and float64, on CPUs."""
    dtypes = (torch.float32, torch.float64)
    return all(t is None or (t.is_cpu and t.dtype in dtypes) for t in tensors) and kernels.serves(product, *tensors)


def _unrolled_backward(ctx: Any, given: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradients of `given` step by step; under create_graph=True with a graph of their own."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # One tensor may depend on another, as a state on the weights of an earlier call. That path is the outer
        # backward's to follow: from views, this one ends at the views.
        given = [None if t is None else t.view_as(t) for t in given]
        (data, *weights), state = given[:5], given[5:]
        output, last = ctx.recurrence.unrolled(data, tuple(state), Weights(*weights))
    wanted = [t for t, needed in zip(given, ctx.needs_input_grad[1:], strict=True) if needed]
    found = iter(torch.autograd.grad((output, *last), wanted, grads, create_graph=create_graph))
    return [next(found) if needed else None for needed in ctx.needs_input_grad[1:]]


def _biases(cell: Cell, input_bias: Tensor | None, hidden_bias: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """The biases that are added to the input gates and to the hidden gates.

    Where only the sum of the gates matters, both are added to the input gates.
    """
    if cell.gates_apart or input_bias is None or hidden_bias is None:
        return input_bias, hidden_bias
    return input_bias + hidden_bias, None


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
