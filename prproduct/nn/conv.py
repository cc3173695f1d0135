"""The convolutional layers (the paper's PR-CNN) and their transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from prproduct import functional
from prproduct.nn.layer import ProductLayer


def _convolve(op: Callable[..., Tensor], layer: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply `op`, a convolution of `functional`, with the arguments that the layer stores."""
    padding = layer.padding
    if layer.padding_mode != "zeros":
        input = F.pad(input, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        padding = 0
    return op(
        input,
        weight,
        bias,
        layer.stride,
        padding,
        layer.dilation,
        layer.groups,
        product=layer.product,
        memory=layer.product_memory,
    )


def _convolve_transposed(op: Callable[..., Tensor], layer: Any, input: Tensor, output_size: list[int] | None) -> Tensor:
    """Apply `op`, a transposed convolution of `functional`, with the arguments that the layer stores."""
    output_padding = layer._output_padding(
        input, output_size, layer.stride, layer.padding, layer.kernel_size, len(layer.kernel_size), layer.dilation
    )
    return op(
        input,
        layer.weight,
        layer.bias,
        layer.stride,
        layer.padding,
        output_padding,
        layer.groups,
        layer.dilation,
        product=layer.product,
        memory=layer.product_memory,
    )


class Conv1d(ProductLayer, torch.nn.Conv1d):
    """`torch.nn.Conv1d` under a product.

    >>> Conv1d(2, 4, 3)
    Conv1d(2, 4, kernel_size=(3,), stride=(1,), product=pr)
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _convolve(functional.conv1d, self, input, weight, bias)


class Conv2d(ProductLayer, torch.nn.Conv2d):
    """`torch.nn.Conv2d` under a product.

    >>> Conv2d(3, 16, 3, padding=1, product="r")
    Conv2d(3, 16, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), product=r)
    """

    redundant_keys: ClassVar = {"ones_weight": None}

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _convolve(functional.conv2d, self, input, weight, bias)


class Conv3d(ProductLayer, torch.nn.Conv3d):
    """`torch.nn.Conv3d` under a product.

    >>> Conv3d(2, 4, 3)(torch.ones(1, 2, 5, 5, 5)).shape
    torch.Size([1, 4, 3, 3, 3])
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _convolve(functional.conv3d, self, input, weight, bias)


class ConvTranspose1d(ProductLayer, torch.nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d` under a product.

    >>> ConvTranspose1d(2, 4, 4, stride=2, padding=1)(torch.ones(1, 2, 5)).shape
    torch.Size([1, 4, 10])
    """

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        return _convolve_transposed(functional.conv_transpose1d, self, input, output_size)


class ConvTranspose2d(ProductLayer, torch.nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d` under a product.

    >>> ConvTranspose2d(2, 4, 4, stride=2, padding=1)(torch.ones(1, 2, 5, 5)).shape
    torch.Size([1, 4, 10, 10])
    """

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        return _convolve_transposed(functional.conv_transpose2d, self, input, output_size)


class ConvTranspose3d(ProductLayer, torch.nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d` under a product.

    >>> ConvTranspose3d(2, 4, 2, stride=2)(torch.ones(1, 2, 3, 3, 3)).shape
    torch.Size([1, 4, 6, 6, 6])
    """

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        return _convolve_transposed(functional.conv_transpose3d, self, input, output_size)
