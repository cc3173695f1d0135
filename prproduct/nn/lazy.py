"""Layers that learn their input size from the first batch, and then are the ordinary layers of this package."""

from __future__ import annotations

import torch

from prproduct.nn import conv, linear
from prproduct.nn.layer import ProductLayer


class LazyLinear(ProductLayer, torch.nn.LazyLinear):
    """`torch.nn.LazyLinear` under a product: becomes a `Linear`."""

    cls_to_become = linear.Linear  # type: ignore[assignment]
    forward = linear.Linear.forward  # type: ignore[assignment]


class LazyConv1d(ProductLayer, torch.nn.LazyConv1d):
    """`torch.nn.LazyConv1d` under a product: becomes a `Conv1d`."""

    cls_to_become = conv.Conv1d  # type: ignore[assignment]


class LazyConv2d(ProductLayer, torch.nn.LazyConv2d):
    """`torch.nn.LazyConv2d` under a product: becomes a `Conv2d`."""

    cls_to_become = conv.Conv2d  # type: ignore[assignment]


class LazyConv3d(ProductLayer, torch.nn.LazyConv3d):
    """`torch.nn.LazyConv3d` under a product: becomes a `Conv3d`."""

    cls_to_become = conv.Conv3d  # type: ignore[assignment]


class LazyConvTranspose1d(ProductLayer, torch.nn.LazyConvTranspose1d):
    """`torch.nn.LazyConvTranspose1d` under a product: becomes a `ConvTranspose1d`."""

    cls_to_become = conv.ConvTranspose1d  # type: ignore[assignment]
    forward = conv.ConvTranspose1d.forward  # type: ignore[assignment]


class LazyConvTranspose2d(ProductLayer, torch.nn.LazyConvTranspose2d):
    """`torch.nn.LazyConvTranspose2d` under a product: becomes a `ConvTranspose2d`."""

    cls_to_become = conv.ConvTranspose2d  # type: ignore[assignment]
    forward = conv.ConvTranspose2d.forward  # type: ignore[assignment]


class LazyConvTranspose3d(ProductLayer, torch.nn.LazyConvTranspose3d):
    """`torch.nn.LazyConvTranspose3d` under a product: becomes a `ConvTranspose3d`."""

    cls_to_become = conv.ConvTranspose3d  # type: ignore[assignment]
    forward = conv.ConvTranspose3d.forward  # type: ignore[assignment]
