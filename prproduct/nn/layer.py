"""What every drop-in layer shares: torch's signature plus `product=`, and the product in its repr."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from prproduct.products import Product, resolve


class ProductLayer(nn.Module):
    """Mixed in before a torch layer: `class Linear(ProductLayer, torch.nn.Linear)`."""

    product: Product

    def __init__(self, *args: Any, product: str | Product = "pr", **kwargs: Any) -> None:
        product = resolve(product)
        super().__init__(*args, **kwargs)
        self.product = product

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Lets `help` and editors show torch's own arguments, which the subclass takes unchanged."""
        super().__init_subclass__(**kwargs)
        torch_layer = next(base for base in cls.__mro__ if base.__module__.startswith("torch.nn"))
        signature = inspect.signature(torch_layer)
        product = inspect.Parameter("product", inspect.Parameter.KEYWORD_ONLY, default="pr", annotation="str | Product")
        cls.__signature__ = signature.replace(parameters=[*signature.parameters.values(), product])  # type: ignore[attr-defined]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, product={self.product}"
