"""`Pairing`: which weight a call of a layer multiplies with which data. Readers yield it, `SampledStep` measures it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from prproduct.ops.contractions import Contraction
from prproduct.probe.replay import RandomState
from prproduct.products import P, Product


def whole(weight: Tensor) -> Tensor:
    """The view of a weight that takes part as a whole."""
    return weight


@dataclass(frozen=True)
class Pairing:
    """One product in one call of a layer: `data` is contracted with `view(getattr(owner, parameter))`.

    `view` selects the part of the parameter, and of its gradient, that takes part. If `output` is given, it is
    p + `bias`.
    """

    part: str  # as in AngleRecord
    owner: nn.Module  # the module that holds the parameter
    parameter: str
    contraction: Contraction
    data: Tensor
    view: Callable[[Tensor], Tensor] = whole
    output: Tensor | None = None
    bias: Tensor | None = None


@dataclass(frozen=True)
class Call:
    """One call of a layer: arguments, output, parameters; `random` is the state before it, if it drew dropout."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    random: RandomState | None = None
    computed: Mapping[tuple[nn.Module, str], Tensor] = field(default_factory=dict)  # parameters by parametrizations

    def parameter(self, owner: nn.Module, name: str) -> Any:
        """Return the parameter with which this call computed; None if the layer has none of this name.

        Reading the attribute of a parametrized layer would compute it again, and spectral_norm would do another power
        iteration.
        """
        found = self.computed.get((owner, name))
        return getattr(owner, name, None) if found is None else found

    def arguments(self, *names: str) -> list[Any]:
        """Return the arguments `names`, listed in the order of the layer's signature; None for one not passed."""
        given = {**dict(zip(names, self.args, strict=False)), **self.kwargs}
        return [given.get(name) for name in names]

    def first(self) -> Any:
        """Return the first argument, positional or by keyword; None without arguments."""
        return next(iter((*self.args, *self.kwargs.values())), None)

    def repeated_dropout(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which dropout draws the same mask as in this call."""
        return contextlib.nullcontext() if self.random is None else self.random.restored()


def product_of(layer: nn.Module) -> Product:
    """Return the product of a layer; `P()` for a native one."""
    product = getattr(layer, "product", None)
    return product if isinstance(product, Product) else P()
