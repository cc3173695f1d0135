"""The recurrent layers (the paper's PR-LSTM) and their cells: every weight of every gate is under the product."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from prproduct import functional
from prproduct.nn.layer import ProductLayer, runs_natively
from prproduct.ops import cells
from prproduct.ops.cells import State
from prproduct.ops.recurrence import Recurrence, Weights

PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")  # in the order of `Weights`


def _as_states(hx: Any, count: int) -> tuple[State, bool]:
    """Return the initial states of a call, none if hx is None, and whether hx is not what torch's layer takes.

    That is one tensor, or a pair of them for the two states of an LSTM.
    """
    if hx is None:
        return (), False
    states = tuple(hx) if count == 2 and isinstance(hx, (tuple, list)) else (hx,)
    wrong = len(states) != count or not all(isinstance(s, Tensor) for s in states)
    return () if wrong else states, wrong


class _Sequences(ProductLayer):
    """What LSTM, GRU and RNN share: padded and packed input, layers, directions, and dropout between layers."""

    def forward(self: Any, input: Any, hx: Any = None) -> Any:
        if torch.compiler.is_exporting() and self.product.has_native_forward:
            return super().forward(input, hx)  # one node of a program without gradients, instead of one for each step
        # torch.compile leaves RNNs out of its graphs, but would compile the functions that they call, step by step.
        # torch.compiler.disable imports Dynamo, which takes more than a second; without Dynamo nothing is compiled.
        if "torch._dynamo" in sys.modules:
            return torch.compiler.disable(_Sequences._forward)(self, input, hx)
        return self._forward(input, hx)

    def _forward(self: Any, input: Any, hx: Any) -> Any:
        packed = isinstance(input, PackedSequence)
        states, wrong = _as_states(hx, 2 if self.mode == "LSTM" else 1)
        wrong |= not packed and (input.dim() not in (2, 3) or any(s.dim() != input.dim() for s in states))
        if wrong or runs_natively(self):
            return super().forward(input, hx)  # torch computes it, or says what is wrong
        if packed:
            return self._forward_packed(input, states)
        batch_axis = 0 if self.batch_first else 1
        batched = input if input.dim() == 3 else input.unsqueeze(batch_axis)
        states = tuple(s if s.dim() == 3 else s.unsqueeze(1) for s in states)
        states = self._initial_states(batched, states, None)
        steps_first = batched.transpose(0, 1) if batch_axis == 0 else batched  # (time, batch, features)
        times, batch = steps_first.shape[:2]
        if times == 0:
            return super().forward(input, hx)  # torch says what is wrong
        data, states = self._run(steps_first.flatten(0, 1), [batch] * times, states)
        output = data.unflatten(0, (times, batch))
        output = output.transpose(0, 1) if batch_axis == 0 else output
        if input.dim() == 2:
            output, states = output.squeeze(batch_axis), tuple(s.squeeze(1) for s in states)
        return output, self._torch_states(states)

    def _forward_packed(self: Any, input: PackedSequence, states: State) -> tuple[PackedSequence, Any]:
        data, sizes, order, back = input
        if order is not None:
            states = tuple(s.index_select(1, order) for s in states)
        states = self._initial_states(data, states, sizes)
        data, states = self._run(data, sizes.tolist(), states)
        if back is not None:
            states = tuple(s.index_select(1, back) for s in states)
        return PackedSequence(data, sizes, order, back), self._torch_states(states)

    def _torch_states(self: Any, states: State) -> Any:
        """Return the states as torch's layer returns them: (h, c) of an LSTM, h of the others."""
        return states if self.mode == "LSTM" else states[0]

    def _initial_states(self: Any, input: Tensor, states: State, sizes: Tensor | None) -> State:
        """Return the states given, or zeros, after torch's own check of input and states."""
        if not states:
            shapes = [self.get_expected_hidden_size(input, sizes)]
            if self.mode == "LSTM":
                shapes.append(self.get_expected_cell_size(input, sizes))
            states = tuple(input.new_zeros(shape) for shape in shapes)
        self.check_forward_args(input, self._torch_states(states), sizes)
        return states

    def _run(self: Any, data: Tensor, batch_sizes: Sequence[int], states: State) -> tuple[Tensor, State]:
        """Return the output of the last layer and the final states.

        `data` and the output are (rows of all steps, features), one step after the other; states are (layers ·
        directions, batch, size).
        """
        endings = ("", "_reverse") if self.bidirectional else ("",)
        last: list[State] = []
        for depth in range(self.num_layers):
            outputs = []
            for ending in endings:
                weights: list[Any] = [getattr(self, f"{name}_l{depth}{ending}", None) for name in PARAMETERS]
                first = tuple(s[len(last)] for s in states)
                recurrence = Recurrence(self._cell(), self.product, tuple(batch_sizes), reverse=bool(ending))
                output, final = recurrence(data, first, Weights(*weights))
                outputs.append(output)
                last.append(final)
            data = torch.cat(outputs, dim=-1) if len(outputs) > 1 else outputs[0]
            if self.dropout and depth < self.num_layers - 1:
                data = F.dropout(data, self.dropout, self.training)
        return data, tuple(torch.stack(kind) for kind in zip(*last, strict=True))


class LSTM(_Sequences, torch.nn.LSTM):
    """`torch.nn.LSTM` under a product.

    >>> output, (h, c) = LSTM(3, 4)(torch.randn(7, 2, 3))
    >>> output.shape
    torch.Size([7, 2, 4])
    """

    def _cell(self) -> cells.Cell:
        return cells.LSTM()


class GRU(_Sequences, torch.nn.GRU):
    """`torch.nn.GRU` under a product; the new gate's hidden product is taken before it is multiplied by r.

    >>> output, h = GRU(3, 4, num_layers=2, bidirectional=True)(torch.randn(7, 2, 3))
    >>> output.shape, h.shape
    (torch.Size([7, 2, 8]), torch.Size([4, 2, 4]))
    """

    def _cell(self) -> cells.Cell:
        return cells.GRU()


class RNN(_Sequences, torch.nn.RNN):
    """`torch.nn.RNN` under a product.

    >>> RNN(3, 4, nonlinearity="relu", batch_first=True)
    RNN(3, 4, batch_first=True, product=pr)
    """

    def _cell(self) -> cells.Cell:
        return cells.RNN(self.nonlinearity)


class _Cell(ProductLayer):
    """What the three cells share: one step, in operations that torch.func and torch.compile trace."""

    def forward(self: Any, input: Tensor, hx: Any = None) -> Any:
        count = 2 if isinstance(self, torch.nn.LSTMCell) else 1
        states, wrong = _as_states(hx, count)
        shape = (*input.shape[:-1], self.hidden_size)
        wrong |= (
            input.dim() not in (1, 2)
            or input.shape[-1] != self.input_size
            or any(s.shape != shape for s in states)
            or getattr(self, "nonlinearity", "tanh") not in ("tanh", "relu")
        )
        if wrong or runs_natively(self):
            return super().forward(input, hx)  # torch computes it, or says what is wrong
        states = states or (input.new_zeros(shape),) * count
        input_gates = functional.linear(
            input, self.weight_ih, self.bias_ih, product=self.product, memory=self.product_memory
        )
        hidden_gates = functional.linear(
            states[0], self.weight_hh, self.bias_hh, product=self.product, memory=self.product_memory
        )
        states = self._cell().step((input_gates, hidden_gates), states)
        return states if count == 2 else states[0]


class LSTMCell(_Cell, torch.nn.LSTMCell):
    """`torch.nn.LSTMCell` under a product.

    >>> h, c = LSTMCell(3, 4)(torch.randn(2, 3))
    >>> h.shape
    torch.Size([2, 4])
    """

    redundant_keys: ClassVar = {
        f"{part}_linear.{kind}": f"{kind}_{part}" for part in ("ih", "hh") for kind in ("weight", "bias")
    }

    def _cell(self) -> cells.Cell:
        return cells.LSTM()


class GRUCell(_Cell, torch.nn.GRUCell):
    """`torch.nn.GRUCell` under a product.

    >>> GRUCell(3, 4)(torch.randn(2, 3)).shape
    torch.Size([2, 4])
    """

    def _cell(self) -> cells.Cell:
        return cells.GRU()


class RNNCell(_Cell, torch.nn.RNNCell):
    """`torch.nn.RNNCell` under a product.

    >>> RNNCell(3, 4)(torch.randn(2, 3)).shape
    torch.Size([2, 4])
    """

    def _cell(self) -> cells.Cell:
        return cells.RNN(self.nonlinearity)
