r"""Recurrent layers under a product: the steps forward, and the backward through time in closed form.

Every gate has two products, of its weight vectors with the input and with the hidden state (the paper's PR-LSTM,
Equation 14). The input's are one GEMM over all steps, forward and backward; only the hidden state's must be taken step
by step. Backward, a step is linear in the gradients of its state, with factors that are known for all steps at once:

    grad of the gates (t)  = factors(t) ∘ grad of the state (t)
    grad of the state (t−1) = the cell's own part + dX of `autograd.GradientRule` for the hidden product (t)

and the weight gradients of all steps are one GEMM at the end.

Sequences lie flat, step after step, as in a PackedSequence: `batch_sizes` tells how many rows each step has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from prproduct import functional
from prproduct.autograd import GradientRule, cast_for_autocast, without_autocast
from prproduct.kernels.contractions import Linear
from prproduct.products import Product

State = tuple[Tensor, ...]


class Cell(Protocol):
    """One step of a recurrent layer, elementwise: gates and state in, next state out. The hidden state comes first."""

    def step(self, input_gates: Tensor, hidden_gates: Tensor, state: State) -> State: ...

    def factors(self, input_gates: Tensor, hidden_gates: Tensor, state: State) -> tuple[Tensor, ...]:
        """What `step_back` multiplies by; rows of all steps at once."""

    def step_back(self, factors: Sequence[Tensor], grad: State) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
        """The gradients of the input's gates, of the hidden state's, and of the state before, gates aside."""


@dataclass(frozen=True)
class LSTM:
    """i, f, g, o = σ, σ, tanh, σ of the gates; c' = f∘c + i∘g; h' = o∘tanh c'."""

    def step(self, input_gates: Tensor, hidden_gates: Tensor, state: State) -> State:
        i, f, g, o = (input_gates + hidden_gates).chunk(4, dim=-1)
        cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell

    def factors(self, input_gates: Tensor, hidden_gates: Tensor, state: State) -> tuple[Tensor, ...]:
        i, f, g, o = (input_gates + hidden_gates).chunk(4, dim=-1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        tanh_cell = (f * state[1] + i * g).tanh()
        of_gates = [g * i * (1 - i), state[1] * f * (1 - f), i * (1 - g * g), tanh_cell * o * (1 - o)]
        return torch.cat(of_gates, dim=-1), o * (1 - tanh_cell * tanh_cell), f

    def step_back(self, factors: Sequence[Tensor], grad: State) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
        of_gates, of_output, forget = factors
        grad_cell = grad[1] + grad[0] * of_output
        gates = of_gates * torch.cat([grad_cell, grad_cell, grad_cell, grad[0]], dim=-1)
        return gates, gates, (None, grad_cell * forget)


@dataclass(frozen=True)
class GRU:
    """r, z = σ of the gates; n = tanh(input's + r∘hidden's); h' = (1 − z)∘n + z∘h. PR comes before the r."""

    def step(self, input_gates: Tensor, hidden_gates: Tensor, state: State) -> State:
        (ir, iz, i_new), (hr, hz, h_new) = input_gates.chunk(3, dim=-1), hidden_gates.chunk(3, dim=-1)
        r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
        new = (i_new + r * h_new).tanh()
        return (new + z * (state[0] - new),)

    def factors(self, input_gates: Tensor, hidden_gates: Tensor, state: State) -> tuple[Tensor, ...]:
        (ir, iz, i_new), (hr, hz, h_new) = input_gates.chunk(3, dim=-1), hidden_gates.chunk(3, dim=-1)
        r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
        new = (i_new + r * h_new).tanh()
        of_new = (1 - z) * (1 - new * new)
        of_r, of_z = of_new * h_new * r * (1 - r), (state[0] - new) * z * (1 - z)
        return torch.cat([of_r, of_z, of_new], dim=-1), torch.cat([of_r, of_z, of_new * r], dim=-1), z

    def step_back(self, factors: Sequence[Tensor], grad: State) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
        of_input, of_hidden, keep = factors
        thrice = torch.cat([grad[0]] * 3, dim=-1)
        return of_input * thrice, of_hidden * thrice, (grad[0] * keep,)


@dataclass(frozen=True)
class RNN:
    """h' = tanh or relu of the gates."""

    nonlinearity: str = "tanh"

    def step(self, input_gates: Tensor, hidden_gates: Tensor, state: State) -> State:
        gates = input_gates + hidden_gates
        return (gates.tanh() if self.nonlinearity == "tanh" else gates.relu(),)

    def factors(self, input_gates: Tensor, hidden_gates: Tensor, state: State) -> tuple[Tensor, ...]:
        gates = input_gates + hidden_gates
        return (1 - gates.tanh().square() if self.nonlinearity == "tanh" else (gates > 0).to(gates.dtype),)

    def step_back(self, factors: Sequence[Tensor], grad: State) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
        gates = factors[0] * grad[0]
        return gates, gates, (None,)


class Weights(NamedTuple):
    """The parameters of one direction of one layer; `projection` is an LSTM's W_hr."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None = None
    hidden_bias: Tensor | None = None
    projection: Tensor | None = None


def recur(
    cell: Cell,
    product: Product,
    data: Tensor,
    batch_sizes: Sequence[int],
    state: State,
    weights: Weights,
    reverse: bool = False,
) -> tuple[Tensor, State]:
    """All steps of one direction of one layer: the hidden states, flat like `data`, and each sequence's last state."""
    data = cast_for_autocast(data)
    state = tuple(cast_for_autocast(s) for s in state)
    weights = Weights(*(cast_for_autocast(w) for w in weights))
    closed_form = product.has_native_forward and weights.projection is None and torch.is_grad_enabled()
    if not closed_form or torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return step_by_step(cell, product, data, batch_sizes, state, weights, reverse)
    tensors = (data, weights.input, weights.hidden, weights.input_bias, weights.hidden_bias, *state)
    output, *last = RecurrenceFn.apply(cell, product, tuple(batch_sizes), reverse, *tensors)
    return output, tuple(last)


def step_by_step(
    cell: Cell,
    product: Product,
    data: Tensor,
    batch_sizes: Sequence[int],
    state: State,
    weights: Weights,
    reverse: bool = False,
) -> tuple[Tensor, State]:
    """`recur` in operations that autograd, torch.func and torch.compile see through."""
    input_gates = functional.linear(data, weights.input, weights.input_bias, product=product)
    steps = _steps(batch_sizes, reverse)
    state, waiting = tuple(s[: _count(steps[0])] for s in state), state
    outputs = []
    for rows in steps:
        state, waiting = _resize(state, _count(rows), waiting)
        hidden_gates = functional.linear(state[0], weights.hidden, weights.hidden_bias, product=product)
        state = cell.step(input_gates[rows], hidden_gates, state)
        if weights.projection is not None:
            state = (functional.linear(state[0], weights.projection, product=product), *state[1:])
        outputs.append(state[0])
    return torch.cat(outputs[::-1] if reverse else outputs), _finish(state, waiting)


class RecurrenceFn(torch.autograd.Function):
    """`recur` with the closed-form backward of the module's docstring."""

    @staticmethod
    def forward(
        ctx: Any,
        cell: Cell,
        product: Product,
        batch_sizes: tuple[int, ...],
        reverse: bool,
        data: Tensor,
        input_weight: Tensor,
        hidden_weight: Tensor,
        input_bias: Tensor | None,
        hidden_bias: Tensor | None,
        *state: Tensor,
    ) -> tuple[Tensor, ...]:
        input_gates = F.linear(data, input_weight, input_bias)  # (rows of all steps, gates)
        hidden_gates = torch.empty_like(input_gates)
        output = input_gates.new_empty(len(data), state[0].shape[1])
        before = tuple(input_gates.new_empty(len(data), s.shape[1]) for s in state)
        steps = _steps(batch_sizes, reverse)
        current, waiting = tuple(s[: _count(steps[0])] for s in state), state
        for rows in steps:
            current, waiting = _resize(current, _count(rows), waiting)
            hidden_gates[rows] = F.linear(current[0], hidden_weight, hidden_bias)
            for kept, value in zip(before, current, strict=True):
                kept[rows] = value
            current = cell.step(input_gates[rows], hidden_gates[rows], current)
            output[rows] = current[0]
        ctx.cell, ctx.product, ctx.batch_sizes, ctx.reverse = cell, product, batch_sizes, reverse
        weights = (input_weight, hidden_weight, input_bias, hidden_bias)
        ctx.save_for_backward(data, *weights, *state, input_gates, hidden_gates, *before)
        return output, *_finish(current, waiting)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        states = len(grads) - 1
        data, *weights = ctx.saved_tensors[:5]
        state, before = ctx.saved_tensors[5 : 5 + states], ctx.saved_tensors[-states:]
        input_gates, hidden_gates = ctx.saved_tensors[5 + states : 7 + states]
        if torch.is_grad_enabled():
            of_tensors = _differentiable_backward(ctx, data, weights, state, grads)
        else:
            with without_autocast(data.device.type):
                of_tensors = _backward_through_time(ctx, data, weights, input_gates, hidden_gates, before, grads)
        return None, None, None, None, *of_tensors


def _backward_through_time(
    ctx: Any,
    data: Tensor,
    weights: Sequence[Tensor],
    input_gates: Tensor,
    hidden_gates: Tensor,
    before: State,
    grads: Sequence[Tensor],
) -> list[Tensor | None]:
    """The gradients of data, weights and first state, in closed form."""
    input_weight, hidden_weight, input_bias, hidden_bias = weights
    rule = GradientRule.at(Linear(), ctx.product, before[0], hidden_weight, hidden_bias, hidden_gates, hidden_gates)
    factors = ctx.cell.factors(input_gates, hidden_gates, before)
    grad_input_gates, grad_hidden_gates = torch.empty_like(input_gates), torch.empty_like(input_gates)
    steps = _steps(ctx.batch_sizes, ctx.reverse)[::-1]
    grad_output, waiting = grads[0], tuple(grads[1:])
    grad = tuple(w[: _count(steps[0])] for w in waiting)
    for rows in steps:
        grad, waiting = _resize(grad, _count(rows), waiting)
        grad = (grad[0] + grad_output[rows], *grad[1:])
        of_input, of_hidden, (own, *others) = ctx.cell.step_back([factor[rows] for factor in factors], grad)
        grad_input_gates[rows], grad_hidden_gates[rows] = of_input, of_hidden
        here = rule.rows(rows)
        through = here.input_gradient(here.split(of_hidden)[1], of_hidden)
        grad = (through if own is None else through + own, *others)
    grad_hidden_weight = rule.weight_gradient(rule.split(grad_hidden_gates)[0], grad_hidden_gates)
    rule = GradientRule.at(Linear(), ctx.product, data, input_weight, input_bias, input_gates, input_gates)
    weight_parts, input_parts = rule.split(grad_input_gates)
    return [
        rule.input_gradient(input_parts, grad_input_gates) if ctx.needs_input_grad[4] else None,
        rule.weight_gradient(weight_parts, grad_input_gates),
        grad_hidden_weight,
        None if input_bias is None else grad_input_gates.sum(0),
        None if hidden_bias is None else grad_hidden_gates.sum(0),
        *_finish(grad, waiting),
    ]


def _differentiable_backward(
    ctx: Any, data: Tensor, weights: Sequence[Tensor], state: State, grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """The same gradients with a graph of their own, for create_graph=True."""
    tensors = [data, *weights, *state]
    output, last = step_by_step(ctx.cell, ctx.product, data, ctx.batch_sizes, state, Weights(*weights), ctx.reverse)
    wanted = [t for t, needed in zip(tensors, ctx.needs_input_grad[4:], strict=True) if needed]
    found = iter(torch.autograd.grad((output, *last), wanted, grads, create_graph=True, allow_unused=True))
    return [next(found) if needed else None for needed in ctx.needs_input_grad[4:]]


def _steps(batch_sizes: Sequence[int], reverse: bool) -> list[slice]:
    """The rows of each step, in the order in which the steps are taken."""
    steps, start = [], 0
    for size in batch_sizes:
        steps.append(slice(start, start + size))
        start += size
    return steps[::-1] if reverse else steps


def _count(rows: slice) -> int:
    return rows.stop - rows.start


def _resize(state: State, count: int, waiting: State) -> tuple[State, State]:
    """The states of the sequences that take part in the next step.

    Sequences that begin there, as in the reverse direction, have their first state waiting; those that ended leave
    their last state with the waiting.
    """
    current = len(state[0])
    if count > current:
        state = tuple(torch.cat([s, w[current:count]]) for s, w in zip(state, waiting, strict=True))
    elif count < current:
        waiting = tuple(torch.cat([w[:count], s[count:], w[current:]]) for s, w in zip(state, waiting, strict=True))
        state = tuple(s[:count] for s in state)
    return state, waiting


def _finish(state: State, waiting: State) -> State:
    return tuple(torch.cat([s, w[len(s) :]]) if len(s) < len(w) else s for s, w in zip(state, waiting, strict=True))
