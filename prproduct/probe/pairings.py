"""What a call of a layer multiplies with what: its weight vectors, its data vectors, and the contraction of the two."""

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
    """Most weights lie as their contraction wants them."""
    return weight


@dataclass(frozen=True)
class Pairing:
    """One product in one call of a layer. `view` takes from the parameter, and from its gradient, what takes part.

    `output` and `bias` are what the layer made of p, where that is known.
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
    """The random numbers that a layer is about to draw, so that its dropout can be repeated."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.host = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Inside, the generators stand where they stood; afterwards, where they stand now."""
        with torch.random.fork_rng(devices=[] if self.cuda is None else [self.device]):
            torch.set_rng_state(self.host)
            if self.cuda is not None:
                torch.cuda.set_rng_state(self.cuda, self.device)
            yield


@dataclass(frozen=True)
class Call:
    """One call of a layer, as a forward hook sees it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    random: RandomState | None = None

    def arguments(self, *names: str) -> list[Any]:
        """The arguments of these names, in the order of the layer's signature; None where one was not given."""
        given = {**dict(zip(names, self.args, strict=False)), **self.kwargs}
        return [given.get(name) for name in names]

    def first(self) -> Any:
        """The first argument, whatever its name."""
        return next(iter((*self.args, *self.kwargs.values())))

    def repeated_dropout(self) -> contextlib.AbstractContextManager[None]:
        """Inside, dropout draws what it drew in this call; readers are called there, and without gradient."""
        return contextlib.nullcontext() if self.random is None else self.random.again()


def product_of(layer: nn.Module) -> Product:
    """The product under which a layer works: `p` for a native one."""
    product = getattr(layer, "product", None)
    return product if isinstance(product, Product) else P()
