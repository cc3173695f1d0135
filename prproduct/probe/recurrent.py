"""The products of recurrent layers: with the input, with the hidden state, and in an LSTM's projection.

A hook sees the input and the output of an LSTM. The output holds the hidden states of its last layer only; those of the
layers below are recomputed layer by layer, without gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from prproduct import functional, nn
from prproduct.nn.recurrent import PARAMETERS
from prproduct.ops.cells import LSTM, Gates
from prproduct.ops.contractions import Linear
from prproduct.probe.pairings import Call, Pairing, product_of
from prproduct.products import Product


def read_cell(cell: Any, call: Call) -> Iterator[Pairing]:
    """The products of one step: with the input, and with the hidden state before it."""
    input, state = call.arguments("input", "hx")
    hidden = state[0] if isinstance(state, (tuple, list)) else state
    yield Pairing("input", cell, "weight_ih", Linear(), input)
    if hidden is None:
        hidden = input.new_zeros((*input.shape[:-1], cell.hidden_size))
    yield Pairing("hidden", cell, "weight_hh", Linear(), hidden)


def read_recurrent(layer: Any, call: Call) -> Iterator[Pairing]:
    """The products of every layer and direction: with the inputs of all steps, and the hidden states before them."""
    input, first_state = call.arguments("input", "hx")
    sizes, data, output = _flat(layer, input, call.output[0])
    if data.numel() == 0:
        return
    states = _first_states(layer, first_state, data, sizes[0], input)
    directions = 2 if layer.bidirectional else 1
    for depth in range(layer.num_layers):
        here = slice(depth * directions, (depth + 1) * directions)
        last = depth == layer.num_layers - 1
        hidden = output if last else _hidden_states(layer, call, depth, data, sizes, [s[here] for s in states])
        for direction, after in enumerate(hidden.chunk(directions, dim=-1)):
            ending = f"_l{depth}" + "_reverse" * direction
            first = [s[depth * directions + direction] for s in states]
            before = _states_before(after, first[0], sizes, reverse=bool(direction))
            yield Pairing(f"input{ending}", layer, f"weight_ih{ending}", Linear(), data)
            yield Pairing(f"hidden{ending}", layer, f"weight_hh{ending}", Linear(), before)
            if layer.proj_size:
                weights = [call.parameter(layer, f"{name}{ending}") for name in PARAMETERS]
                gates = _gates(weights, product_of(layer), data, before)
                projected = _projection_inputs(gates, first[1], sizes, reverse=bool(direction))
                yield Pairing(f"projection{ending}", layer, f"weight_hr{ending}", Linear(), projected)
        if not last:
            data = F.dropout(hidden, layer.dropout, layer.training)


def _flat(layer: Any, input: Any, output: Any) -> tuple[list[int], Tensor, Tensor]:
    """Return the number of rows of each step, and all rows of input and output in the order of steps."""
    if isinstance(input, PackedSequence):
        return input.batch_sizes.tolist(), input.data, output.data
    if input.dim() == 2:  # unbatched
        return [1] * len(input), input, output
    if layer.batch_first:
        input, output = input.transpose(0, 1), output.transpose(0, 1)
    return [input.shape[1]] * len(input), input.flatten(0, 1), output.flatten(0, 1)


def _first_states(layer: Any, given: Any, data: Tensor, batch: int, input: Any) -> list[Tensor]:
    """Return the initial hidden state, and an LSTM's cell state, of shape (layers · directions, batch, size)."""
    directions = 2 if layer.bidirectional else 1
    if given is None:
        sizes = [layer.proj_size or layer.hidden_size, layer.hidden_size][: 2 if layer.mode == "LSTM" else 1]
        return [data.new_zeros(layer.num_layers * directions, batch, size) for size in sizes]
    states = list(given) if isinstance(given, (tuple, list)) else [given]
    if isinstance(input, PackedSequence) and input.sorted_indices is not None:
        return [s.index_select(1, input.sorted_indices) for s in states]
    return [s if s.dim() == 3 else s.unsqueeze(1) for s in states]


def _hidden_states(
    layer: Any, call: Call, depth: int, data: Tensor, sizes: Sequence[int], states: Sequence[Tensor]
) -> Tensor:
    """Return the hidden states of layer `depth` for all steps, both directions concatenated.

    A recurrent layer of depth 1 computes them, with the parameters of this depth.
    """
    options: dict[str, Any] = {"bias": layer.bias, "bidirectional": layer.bidirectional, "product": product_of(layer)}
    kind = layer.mode.partition("_")[0]
    if kind == "LSTM":
        options["proj_size"] = layer.proj_size
    if kind == "RNN":
        options["nonlinearity"] = layer.nonlinearity
    single = getattr(nn, kind)(data.shape[-1], layer.hidden_size, device="meta", **options)
    for ending in ("", "_reverse")[: 2 if layer.bidirectional else 1]:
        for name in PARAMETERS:
            parameter = call.parameter(layer, f"{name}_l{depth}{ending}")
            if parameter is not None:
                setattr(single, f"{name}_l0{ending}", torch.nn.Parameter(parameter.detach()))
    sequences = PackedSequence(data, torch.tensor(sizes))
    output, _ = single(sequences, tuple(states) if kind == "LSTM" else states[0])
    return output.data


def _states_before(after: Tensor, first: Tensor, sizes: Sequence[int], reverse: bool) -> Tensor:
    """Return the hidden states before each step, given those after it and the initial ones; rows as in `after`."""
    steps = after.split(list(sizes))
    if not reverse:
        return torch.cat([first, *(step[:size] for step, size in zip(steps, sizes[1:], strict=False))])
    # Backwards in time, the longest sequences start first; shorter ones join with their initial state.
    following = [*zip(steps[1:], sizes[1:], strict=True), (first[:0], 0)]
    return torch.cat(
        [t for (step, joined), size in zip(following, sizes, strict=True) for t in (step, first[joined:size])]
    )


def _gates(weights: Sequence[Any], product: Product, data: Tensor, before: Tensor) -> Gates:
    """Return the input gates and the hidden gates of all steps of an LSTM, each (rows, 4 · hidden_size)."""
    weight_ih, weight_hh, bias_ih, bias_hh, _ = weights
    from_input = functional.linear(data, weight_ih, bias_ih, product=product)
    return from_input, functional.linear(before, weight_hh, bias_hh, product=product)


def _projection_inputs(gates: Gates, first: Tensor, sizes: Sequence[int], reverse: bool) -> Tensor:
    """Return o∘tanh c of every step, which an LSTM with proj_size multiplies with weight_hr."""
    steps = list(zip(sizes, *(gate.split(list(sizes)) for gate in gates), strict=True))
    cell, outputs = first[:0] if reverse else first, []
    for size, input_gates, hidden_gates in reversed(steps) if reverse else steps:
        cell = torch.cat([cell[:size], first[len(cell) : size]])
        output, cell = LSTM().step((input_gates, hidden_gates), (cell, cell))
        outputs.append(output)
    return torch.cat(outputs[::-1] if reverse else outputs)
