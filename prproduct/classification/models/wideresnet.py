"""Wide ResNet, WRN-d-k (Zagoruyko and Komodakis): pre-activated basic blocks, k times as wide, dropout between the two.

Where the shape changes, the shortcut is a 1×1 convolution of the activated input, as its authors have it.
"""

from __future__ import annotations

from torch import Tensor, nn

from prproduct.classification.models.initialisation import normal_fan_out
from prproduct.classification.models.resnet import STAGE_WIDTHS, conv1x1, conv3x3


class WideBlock(nn.Module):
    """BatchNorm, ReLU, 3×3 convolution, BatchNorm, ReLU, dropout, 3×3 convolution; the input is added."""

    def __init__(self, in_channels: int, width: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv3x3(in_channels, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = conv3x3(width, width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = conv1x1(in_channels, width, stride) if stride != 1 or in_channels != width else None

    def forward(self, x: Tensor) -> Tensor:
        activated = self.relu(self.bn1(x))
        out = self.relu(self.bn2(self.conv1(activated)))
        out = self.conv2(self.dropout(out))
        return out + (x if self.shortcut is None else self.shortcut(activated))


class WideResNet(nn.Module):
    """Stem of 16 channels, stages of 16k, 32k and 64k, BatchNorm and ReLU, the mean over the image, and a classifier.

    >>> import torch
    >>> WideResNet(blocks=1, widening=2, in_channels=3, classes=10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, blocks: int, widening: int, in_channels: int, classes: int, dropout: float = 0.3) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, STAGE_WIDTHS[0])
        channels = STAGE_WIDTHS[0]
        stages: list[nn.Module] = []
        for number, stage_width in enumerate(STAGE_WIDTHS):
            width = widening * stage_width
            first = WideBlock(channels, width, 1 if number == 0 else 2, dropout)
            stages.append(nn.Sequential(first, *(WideBlock(width, width, 1, dropout) for _ in range(blocks - 1))))
            channels = width
        self.stage1, self.stage2, self.stage3 = stages
        self.bn = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(channels, classes)
        normal_fan_out(self)

    def forward(self, images: Tensor) -> Tensor:
        out = self.stage3(self.stage2(self.stage1(self.conv1(images))))
        return self.fc(self.flatten(self.pool(self.relu(self.bn(out)))))
