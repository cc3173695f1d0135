"""Modules whose layers compute by the paper's equations under autograd (`prproduct.reference`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from prproduct import reference

_MOST_WINDOWS = 2**29  # bytes of unfolded windows; autograd saves several tensors of this size


def make_literal(module: nn.Module, product: str) -> nn.Module:
    """Replace the forward of all linear layers, 2-d convolutions and LSTMs in place, and return the module.

    >>> layer = make_literal(nn.Linear(3, 2), "pr")
    >>> layer(torch.ones(4, 3)).shape
    torch.Size([4, 2])
    """
    for layer in module.modules():
        if type(layer) in _LITERAL:
            layer.forward = _LITERAL[type(layer)](layer, product)
    return module


def why_not_literal(module: nn.Module, inputs: Tensor) -> str | None:
    """Return the reason if no layer has a literal formula or unfolded windows would take too much memory; else None."""
    if not any(type(layer) in _LITERAL for layer in module.modules()):
        return "there is no literal formula of these layers"
    total = 0

    def add_windows(layer: nn.Conv2d, arguments: Any, output: Tensor) -> None:
        nonlocal total
        window = layer.weight[0].numel() * layer.groups
        total += output[:, 0].numel() * window * output.element_size()

    hooks = [m.register_forward_hook(add_windows) for m in module.modules() if isinstance(m, nn.Conv2d)]
    with torch.no_grad():
        module(inputs)
    for hook in hooks:
        hook.remove()
    if total <= _MOST_WINDOWS:
        return None
    return f"its windows alone, unfolded, take {total / 2**30:.1f} GiB"


def _linear(layer: Any, product: str) -> Any:
    return lambda x: reference.linear(x, layer.weight, layer.bias, product=product)


def _conv2d(layer: Any, product: str) -> Any:
    geometry = layer.stride, layer.padding, layer.dilation, layer.groups
    return lambda x: reference.conv2d(x, layer.weight, layer.bias, *geometry, product=product)


def _lstm(layer: Any, product: str) -> Any:
    def forward(input: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        weights = layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0
        state = (input.new_zeros(input.shape[1], layer.hidden_size),) * 2
        outputs = []
        for step in input:  # (length, batch, features)
            state = reference.lstm_cell(step, state, *weights, product=product)
            outputs.append(state[0])
        return torch.stack(outputs), state

    return forward


_LITERAL: dict[type[nn.Module], Any] = {nn.Linear: _linear, nn.Conv2d: _conv2d, nn.LSTM: _lstm}
