"""The elementwise step of LSTM, GRU and RNN in plain torch; `csrc/cells.h` has the same in C++, with its backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

State = tuple[Tensor, ...]
Gates = tuple[Tensor, Tensor]  # the input's and the hidden state's


class Cell(Protocol):
    """One step of a recurrent layer, elementwise: gates and state in, next state out. The hidden state comes first."""

    gates: ClassVar[int]  # for each feature of the state
    gates_apart: ClassVar[bool]  # True if input gates and hidden gates have different gradients; else their sum matters

    @property
    def name(self) -> str:
        """The name in the C++ kernels (`csrc/recurrent.cpp`)."""

    def step(self, gates: Gates, state: State) -> State:
        """The next state."""


@dataclass(frozen=True)
class LSTM:
    """c' = σ(f)∘c + σ(i)∘tanh(g); h' = σ(o)∘tanh(c'); i, f, g, o are the sums of the gates."""

    gates: ClassVar[int] = 4
    gates_apart: ClassVar[bool] = False
    name: ClassVar[str] = "lstm"

    def step(self, gates: Gates, state: State) -> State:
        i, f, g, o = (gates[0] + gates[1]).chunk(4, dim=-1)
        cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell


@dataclass(frozen=True)
class GRU:
    """r, z = σ of the gates; n = tanh(input's + r∘hidden's), r after the matrix product; h' = (1 − z)∘n + z∘h."""

    gates: ClassVar[int] = 3
    gates_apart: ClassVar[bool] = True
    name: ClassVar[str] = "gru"

    def step(self, gates: Gates, state: State) -> State:
        (ir, iz, i_new), (hr, hz, h_new) = gates[0].chunk(3, dim=-1), gates[1].chunk(3, dim=-1)
        r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
        new = (i_new + r * h_new).tanh()
        return (new + z * (state[0] - new),)


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
