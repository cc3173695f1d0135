"""Which weights a call of a layer multiplies with which data: the interface between readers and the measurement."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prproduct.ops.contractions import Contraction
from prproduct.products import P, Product


def as_it_is(weight: Tensor) -> Tensor:
    """Return the weight unchanged."""
    return weight


@dataclass(frozen=True)
class Pairing:
    """One product in one call of a layer: `data` is contracted with `view(owner.parameter)`.

    `view` selects the part of the parameter, and of its gradient, that takes part. If `output` is given, it is
    p + `bias`.
    """

    part: str
    owner: nn.Module
    parameter: str
    contraction: Contraction
    data: Tensor
    view: Callable[[Tensor], Tensor] = as_it_is
    output: Tensor | None = None
    bias: Tensor | None = None


class RandomState:
    """The state of the random generators before a forward, so that its dropout can be repeated."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.host = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Set the generators to the saved state inside the context, and restore them afterwards."""
        with torch.random.fork_rng(devices=[] if self.cuda is None else [self.device]):
            torch.set_rng_state(self.host)
            if self.cuda is not None:
                torch.cuda.set_rng_state(self.cuda, self.device)
            yield


@dataclass(frozen=True)
class Call:
    """Arguments and output of one call of a layer, from its forward hook."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    random: RandomState | None = None

    def arguments(self, *names: str) -> list[Any]:
        """Return the arguments `names`, listed in the order of the layer's signature; None for one not passed."""
        given = {**dict(zip(names, self.args, strict=False)), **self.kwargs}
        return [given.get(name) for name in names]

    def first(self) -> Any:
        """Return the first argument, positional or by keyword."""
        return next(iter((*self.args, *self.kwargs.values())))

    def repeated_dropout(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which dropout draws the same mask as in this call."""
        return contextlib.nullcontext() if self.random is None else self.random.again()


def product_of(layer: nn.Module) -> Product:
    """Return the product of a layer; `P()` for a native one."""
    product = getattr(layer, "product", None)
    return product if isinstance(product, Product) else P()
