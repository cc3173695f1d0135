"""torch's encoder without its fused kernel, where a product in it has its own forward.

In eval mode and without gradients, `torch.nn.TransformerEncoderLayer` passes its weights to one fused kernel and calls
none of its layers. That is right for every product with the inner product's forward; under `r` it would compute the
inner product instead.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from prproduct.nn.layer import ProductLayer


def _false_under_own_forward(flag: str) -> property:
    """Return a property for a flag that the fused kernel requires: False while a product inside has its own forward."""

    def read(self: Any) -> Any:
        own_forward = any(isinstance(m, ProductLayer) and not m.product.has_native_forward for m in self.modules())
        return False if own_forward else self.__dict__[flag]

    def write(self: Any, value: Any) -> None:
        self.__dict__[flag] = value

    return property(read, write)


class UnfusedEncoderLayer(nn.TransformerEncoderLayer):
    """`torch.nn.TransformerEncoderLayer` that calls its layers where one has a product with its own forward."""

    activation_relu_or_gelu = _false_under_own_forward("activation_relu_or_gelu")


class UnfusedEncoder(nn.TransformerEncoder):
    """`torch.nn.TransformerEncoder` that makes no nested tensors for such layers, which do not take them."""

    use_nested_tensor = _false_under_own_forward("use_nested_tensor")
