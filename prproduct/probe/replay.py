"""The state before a forward, saved so that its dropout, or all of it, can be computed a second time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map_only


class RandomState:
    """The state of the random generators of the CPU and of a module's GPU."""

    def __init__(self, module: nn.Module) -> None:
        self.device = next((tensor.device for tensor in module.parameters()), torch.device("cpu"))
        self.host = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Set the generators to the saved state inside the context, and restore them afterwards."""
        with torch.random.fork_rng(devices=[] if self.cuda is None else [self.device]):
            torch.set_rng_state(self.host)
            if self.cuda is not None:
                torch.cuda.set_rng_state(self.cuda, self.device)
            yield


class ForwardState:
    """Copies of random state, buffers and arguments before a forward, so that a second one starts from the same."""

    def __init__(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        self.random = RandomState(model)
        self.buffers = {name: buffer.clone() for name, buffer in model.named_buffers() if not is_lazy(buffer)}
        copies: dict[int, Tensor] = {}  # one copy per tensor: attention tests whether query is key

        def copied(tensor: Tensor) -> Tensor:
            return copies.setdefault(id(tensor), tensor.detach().clone())

        self.args, self.kwargs = tree_map_only(Tensor, copied, (args, kwargs))


def draws_dropout(layer: nn.Module) -> bool:
    """Return True if the layer draws random numbers inside its forward: dropout of an LSTM or of attention."""
    if not layer.training:
        return False
    if isinstance(layer, nn.RNNBase):
        return layer.num_layers > 1 and layer.dropout > 0
    return isinstance(layer, nn.MultiheadAttention) and layer.dropout > 0
