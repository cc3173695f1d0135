"""DenseNet-BC-L-k (Huang et al.): each layer concatenates k channels to its input; transitions halve their number."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from prproduct.classification.models.layers import conv1x1, conv3x3, kaiming_fan_in


class DenseLayer(nn.Module):
    """A 1×1 convolution to 4k channels and a 3×3 convolution to k channels, concatenated to the input."""

    def __init__(self, in_channels: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv1x1(in_channels, 4 * growth)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = conv3x3(4 * growth, growth)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(self.relu(self.bn1(x)))
        out = self.conv2(self.relu(self.bn2(out)))
        return torch.cat((x, out), dim=1)


def dense_stage(channels: int, layers: int, growth: int) -> tuple[nn.Sequential, int]:
    """Return `layers` dense layers in sequence, and the number of channels of their output."""
    stage = nn.Sequential(*(DenseLayer(channels + growth * number, growth) for number in range(layers)))
    return stage, channels + growth * layers


class Transition(nn.Sequential):
    """A 1×1 convolution to half the channels, and average pooling to half the image size."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(in_channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv = conv1x1(in_channels, in_channels // 2)
        self.pool = nn.AvgPool2d(2)


class DenseNet(nn.Module):
    """A convolution to 2k channels, three stages of `layers` dense layers with transitions between, and a linear layer.

    >>> DenseNet(layers=2, growth=12, in_channels=3, classes=10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, layers: int, growth: int, in_channels: int, classes: int) -> None:
        super().__init__()
        channels = 2 * growth
        self.conv1 = conv3x3(in_channels, channels)
        self.stage1, channels = dense_stage(channels, layers, growth)
        self.transition1, channels = Transition(channels), channels // 2
        self.stage2, channels = dense_stage(channels, layers, growth)
        self.transition2, channels = Transition(channels), channels // 2
        self.stage3, channels = dense_stage(channels, layers, growth)
        self.bn = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(channels, classes)
        kaiming_fan_in(self)

    def forward(self, images: Tensor) -> Tensor:
        out = self.transition1(self.stage1(self.conv1(images)))
        out = self.stage3(self.transition2(self.stage2(out)))
        return self.fc(self.flatten(self.pool(self.relu(self.bn(out)))))
