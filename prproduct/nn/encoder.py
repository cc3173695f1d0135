"""torch's encoder without its fused path where a layer in it has a value of its own.

In evaluation mode and without gradients, `torch.nn.TransformerEncoderLayer` passes its weights to one fused operation
and calls none of its layers. That is right for every product with the inner product's value; under `r` it would compute
the inner product instead.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from prproduct.nn.layer import ProductLayer


def _off_under_own_values(flag: str) -> property:
    """A flag of the encoder that opens the fused path, closed while a product in the encoder has its own value."""

    def read(self: Any) -> Any:
        own_value = any(isinstance(m, ProductLayer) and not m.product.has_native_forward for m in self.modules())
        return False if own_value else self.__dict__[flag]

    def write(self: Any, value: Any) -> None:
        self.__dict__[flag] = value

    return property(read, write)


class UnfusedEncoderLayer(nn.TransformerEncoderLayer):
    """`torch.nn.TransformerEncoderLayer` that calls its layers where their product has a value of its own."""

    activation_relu_or_gelu = _off_under_own_values("activation_relu_or_gelu")


class UnfusedEncoder(nn.TransformerEncoder):
    """`torch.nn.TransformerEncoder` that makes no nested tensors where its layers would have to multiply them."""

    use_nested_tensor = _off_under_own_values("use_nested_tensor")
