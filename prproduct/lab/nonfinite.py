"""Find the first layer, weight or buffer that is NaN or infinite when a training diverges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from prproduct.lab.errors import InputError


class DivergedError(InputError):
    """A loss or gradient was NaN or infinite; the training stopped before the weights were updated with it."""


def where_it_began(model: nn.Module, forward: Callable[[], Any]) -> str:
    """Return the weight or buffer that is not finite, or else the first layer with such an output in a second forward.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> where_it_began(model, lambda: model(torch.full((1, 2), torch.inf)))
    'in the data: the input of layer 0 (Linear)'
    """
    for kind, tensors in (("weight", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in tensors:
            if not _finite(tensor):
                return f"in the {kind} {name}, at the step before"
    found: list[str] = []
    handles = [
        module.register_forward_hook(_Watch(name or "the model", found), with_kwargs=True)
        for name, module in model.named_modules()
    ]
    try:
        with torch.no_grad():
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else "in the loss: all layers gave finite numbers"


class _Watch:
    """A forward hook that notes the first output that is not finite; inner layers come first."""

    def __init__(self, name: str, found: list[str]) -> None:
        self.name, self.found = name, found

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.found or _finite(output):
            return
        layer = f"layer {self.name} ({type(module).__name__})"
        given = _finite(args) and _finite(tuple(kwargs.values()))
        self.found.append(f"in {layer}" if given else f"in the data: the input of {layer}")


def _finite(value: Any) -> bool:
    tensors = value if isinstance(value, (tuple, list)) else (value,)
    return all(bool(t.isfinite().all()) for t in tensors if isinstance(t, Tensor))


def all_finite(model: nn.Module) -> bool:
    """Return True if all weights and buffers are finite.

    >>> all_finite(nn.Linear(2, 2))
    True
    """
    return all(_finite(tensor) for tensor in (*model.parameters(), *model.buffers()))
