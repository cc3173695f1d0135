"""The convolutional layers (the paper's PR-CNN) and their transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from prproduct import functional
from prproduct.nn.layer import ProductLayer


def _forward_by(convolve: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The method that torch's convolutions call with their weight and bias."""

    def _conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return convolve(input, weight, bias, self.stride, padding, self.dilation, self.groups, product=self.product)

    return _conv_forward


def _transposed_forward_by(convolve: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The forward of torch's transposed convolutions."""

    def forward(self: Any, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        dims = len(self.kernel_size)
        output_padding = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, dims, self.dilation
        )
        geometry = (self.stride, self.padding, output_padding, self.groups, self.dilation)
        return convolve(input, self.weight, self.bias, *geometry, product=self.product)

    return forward


class Conv1d(ProductLayer, torch.nn.Conv1d):
    """`torch.nn.Conv1d` under a product.

    >>> Conv1d(2, 4, 3)
    Conv1d(2, 4, kernel_size=(3,), stride=(1,), product=pr)
    """

    _conv_forward = _forward_by(functional.conv1d)  # type: ignore[assignment]


class Conv2d(ProductLayer, torch.nn.Conv2d):
    """`torch.nn.Conv2d` under a product.

    >>> Conv2d(3, 16, 3, padding=1, product="r")
    Conv2d(3, 16, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), product=r)
    """

    _conv_forward = _forward_by(functional.conv2d)  # type: ignore[assignment]


class Conv3d(ProductLayer, torch.nn.Conv3d):
    """`torch.nn.Conv3d` under a product.

    >>> Conv3d(2, 4, 3)(torch.ones(1, 2, 5, 5, 5)).shape
    torch.Size([1, 4, 3, 3, 3])
    """

    _conv_forward = _forward_by(functional.conv3d)  # type: ignore[assignment]


class ConvTranspose1d(ProductLayer, torch.nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d` under a product.

    >>> ConvTranspose1d(2, 4, 4, stride=2, padding=1)(torch.ones(1, 2, 5)).shape
    torch.Size([1, 4, 10])
    """

    forward = _transposed_forward_by(functional.conv_transpose1d)  # type: ignore[assignment]


class ConvTranspose2d(ProductLayer, torch.nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d` under a product.

    >>> ConvTranspose2d(2, 4, 4, stride=2, padding=1)(torch.ones(1, 2, 5, 5)).shape
    torch.Size([1, 4, 10, 10])
    """

    forward = _transposed_forward_by(functional.conv_transpose2d)  # type: ignore[assignment]


class ConvTranspose3d(ProductLayer, torch.nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d` under a product.

    >>> ConvTranspose3d(2, 4, 2, stride=2)(torch.ones(1, 2, 3, 3, 3)).shape
    torch.Size([1, 4, 6, 6, 6])
    """

    forward = _transposed_forward_by(functional.conv_transpose3d)  # type: ignore[assignment]
