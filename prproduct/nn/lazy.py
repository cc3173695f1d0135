"""Layers that learn their input size from the first batch, and then are the ordinary layers of this package."""

from __future__ import annotations

import torch

from prproduct.nn import conv, linear
from prproduct.nn.layer import ProductLayer


class LazyLinear(ProductLayer, torch.nn.LazyLinear):
    """`torch.nn.LazyLinear` under a product: becomes a `Linear`.

    >>> layer = LazyLinear(3)
    >>> output = layer(torch.randn(2, 5))
    >>> layer
    Linear(in_features=5, out_features=3, bias=True, product=pr)
    """

    cls_to_become = linear.Linear
    forward = linear.Linear.forward


class LazyConv1d(ProductLayer, torch.nn.LazyConv1d):  # type: ignore[misc]
    """`torch.nn.LazyConv1d` under a product: becomes a `Conv1d`."""

    cls_to_become = conv.Conv1d


class LazyConv2d(ProductLayer, torch.nn.LazyConv2d):  # type: ignore[misc]
    """`torch.nn.LazyConv2d` under a product: becomes a `Conv2d`."""

    cls_to_become = conv.Conv2d


class LazyConv3d(ProductLayer, torch.nn.LazyConv3d):  # type: ignore[misc]
    """`torch.nn.LazyConv3d` under a product: becomes a `Conv3d`."""

    cls_to_become = conv.Conv3d


class LazyConvTranspose1d(ProductLayer, torch.nn.LazyConvTranspose1d):  # type: ignore[misc]
    """`torch.nn.LazyConvTranspose1d` under a product: becomes a `ConvTranspose1d`."""

    cls_to_become = conv.ConvTranspose1d
    forward = conv.ConvTranspose1d.forward


class LazyConvTranspose2d(ProductLayer, torch.nn.LazyConvTranspose2d):  # type: ignore[misc]
    """`torch.nn.LazyConvTranspose2d` under a product: becomes a `ConvTranspose2d`."""

    cls_to_become = conv.ConvTranspose2d
    forward = conv.ConvTranspose2d.forward


class LazyConvTranspose3d(ProductLayer, torch.nn.LazyConvTranspose3d):  # type: ignore[misc]
    """`torch.nn.LazyConvTranspose3d` under a product: becomes a `ConvTranspose3d`."""

    cls_to_become = conv.ConvTranspose3d
    forward = conv.ConvTranspose3d.forward
