"""The elementwise step of LSTM, GRU and RNN, and its backward, in plain torch (`csrc/cells.h` has the same in C++)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

State = tuple[Tensor, ...]
Gates = tuple[Tensor, Tensor]  # the input's and the hidden state's

sigmoid_backward, tanh_backward = torch.ops.aten.sigmoid_backward, torch.ops.aten.tanh_backward


class Cell(Protocol):
    """One step of a recurrent layer, elementwise: gates and state in, next state out. The hidden state comes first."""

    gates: ClassVar[int]  # for each feature of the state
    gates_apart: ClassVar[bool]  # True if input gates and hidden gates have different gradients; else their sum matters

    @property
    def name(self) -> str:
        """The name in the C++ kernels (`csrc/recurrent.cpp`)."""

    def step(self, gates: Gates, state: State) -> State:
        """The next state."""

    def step_back(self, gates: Gates, state: State, grad: State) -> tuple[Gates, State]:
        """The gradients of the gates, and of the state before apart from what goes through the gates.

        `grad` has the gradients of the next state.
        """


@dataclass(frozen=True)
class LSTM:
    """i, f, g, o = σ, σ, tanh, σ of the gates' sums; c' = f∘c + i∘g; h' = o∘tanh c'."""

    gates: ClassVar[int] = 4
    gates_apart: ClassVar[bool] = False
    name: ClassVar[str] = "lstm"

    def step(self, gates: Gates, state: State) -> State:
        i, f, g, o = self._activate(gates)
        cell = f * state[1] + i * g
        return o * cell.tanh(), cell

    def step_back(self, gates: Gates, state: State, grad: State) -> tuple[Gates, State]:
        i, f, g, o = self._activate(gates)  # recomputed: saved, they would be a third of all memory
        tanh_cell = (f * state[1] + i * g).tanh()
        grad_cell = grad[1] + tanh_backward(grad[0] * o, tanh_cell)
        grad_gates = [
            sigmoid_backward(grad_cell * g, i),
            sigmoid_backward(grad_cell * state[1], f),
            tanh_backward(grad_cell * i, g),
            sigmoid_backward(grad[0] * tanh_cell, o),
        ]
        both = torch.cat(grad_gates, dim=-1)
        return (both, both), (torch.zeros_like(grad[0]), grad_cell * f)

    def _activate(self, gates: Gates) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        i, f, g, o = (gates[0] + gates[1]).chunk(4, dim=-1)
        return i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()


@dataclass(frozen=True)
class GRU:
    """r, z = σ of the gates; n = tanh(input's + r∘hidden's), r after the matrix product; h' = (1 − z)∘n + z∘h."""

    gates: ClassVar[int] = 3
    gates_apart: ClassVar[bool] = True
    name: ClassVar[str] = "gru"

    def step(self, gates: Gates, state: State) -> State:
        _, z, new, _ = self._activate(gates)
        return (new + z * (state[0] - new),)

    def step_back(self, gates: Gates, state: State, grad: State) -> tuple[Gates, State]:
        r, z, new, h_new = self._activate(gates)
        grad_z = sigmoid_backward(grad[0] * (state[0] - new), z)
        grad_new = tanh_backward(grad[0] - grad[0] * z, new)
        grad_r = sigmoid_backward(grad_new * h_new, r)
        grad_input_gates = torch.cat([grad_r, grad_z, grad_new], dim=-1)
        grad_hidden_gates = torch.cat([grad_r, grad_z, grad_new * r], dim=-1)
        return (grad_input_gates, grad_hidden_gates), (grad[0] * z,)

    def _activate(self, gates: Gates) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        (ir, iz, i_new), (hr, hz, h_new) = gates[0].chunk(3, dim=-1), gates[1].chunk(3, dim=-1)
        r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
        return r, z, (i_new + r * h_new).tanh(), h_new


@dataclass(frozen=True)
class RNN:
    """h' = tanh or relu of the gates' sum."""

    gates: ClassVar[int] = 1
    gates_apart: ClassVar[bool] = False
    nonlinearity: str = "tanh"

    @property
    def name(self) -> str:
        return f"rnn_{self.nonlinearity}"

    def step(self, gates: Gates, state: State) -> State:
        total = gates[0] + gates[1]
        return (total.tanh() if self.nonlinearity == "tanh" else total.relu(),)

    def step_back(self, gates: Gates, state: State, grad: State) -> tuple[Gates, State]:
        (after,) = self.step(gates, state)
        both = tanh_backward(grad[0], after) if self.nonlinearity == "tanh" else grad[0] * (after > 0)
        return (both, both), (torch.zeros_like(grad[0]),)
