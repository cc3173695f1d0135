"""LSTM's step and its way back by the compiled passes of `lstm.py`: one for each, where plain torch makes ten."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from prproduct.kernels.compiled import lstm, serves
from prproduct.kernels.scores import share_out
from prproduct.kernels.threads import threads_for


def serves_steps(*tensors: Tensor) -> bool:
    """Whether the passes of recurrent layers take them."""
    return tensors[0].dtype == torch.float32 and tensors[0].dim() == 2 and serves(*tensors)


def lstm_step(input_gates: Tensor, hidden_gates: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
    """i, f, g, o, tanh c', h' and c'."""
    rows, hidden = cell.shape
    gates, results = cell.new_empty(rows, 4 * hidden), cell.new_empty(3, rows, hidden)
    tensors = [_by_rows(t) for t in (input_gates, hidden_gates, cell)]
    where = itertools.chain.from_iterable((t.data_ptr(), t.stride(0)) for t in tensors)
    tanh_cell, hidden_state, next_cell = results.unbind()
    into = (t.data_ptr() for t in (gates, tanh_cell, hidden_state, next_cell))
    threads = threads_for(input_gates.numel(), rows)
    work = cell.new_empty(threads * lstm().WORK * hidden)
    share_out(lstm().step[4], threads, 0, rows, hidden, *where, *into, work.data_ptr(), 0, 0)
    return *gates.chunk(4, dim=1), tanh_cell, hidden_state, next_cell


def lstm_step_back(kept: tuple[Tensor, ...], grad: tuple[Tensor, ...], into: Tensor) -> Tensor:
    """The gradient of the cell before; those of the gates are written."""
    before = torch.empty_like(grad[1], memory_format=torch.contiguous_format)
    rows, hidden = before.shape
    tensors = [*(_by_rows(t) for t in (*kept, *grad)), into, before]
    where = itertools.chain.from_iterable((t.data_ptr(), t.stride(0)) for t in tensors)
    share_out(lstm().step_back[4], threads_for(into.numel(), rows), 0, rows, hidden, *where, 0, 0, 0)
    return before


def _by_rows(t: Tensor) -> Tensor:
    """Each row in one piece."""
    return t if t.stride(1) == 1 else t.contiguous()
