"""PreResNet for small images (He et al., Identity Mappings): BatchNorm and ReLU stand before each convolution.

Where the shape changes, the shortcut is a bare 1×1 convolution of the block's own input, as in the PR paper's code.
"""

from __future__ import annotations

from torch import Tensor, nn

from prproduct.classification.models.initialisation import kaiming_fan_in
from prproduct.classification.models.resnet import STAGE_WIDTHS, conv1x1, conv3x3


class PreBasicBlock(nn.Module):
    """Two 3×3 convolutions; nothing stands between the sum and the next block.

    The sum is a new tensor: written into the convolution's output, it would make a product compute that output again.
    """

    expansion = 1
    convolutions = 2

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv3x3(in_channels, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = shortcut(in_channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(self.relu(self.bn1(x)))
        out = self.conv2(self.relu(self.bn2(out)))
        return out + self.shortcut(x)


class PreBottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions, the last to four times the width; the stride is in the 3×3."""

    expansion = 4
    convolutions = 3

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv1x1(in_channels, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, stride)
        self.bn3 = nn.BatchNorm2d(width)
        self.conv3 = conv1x1(width, 4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = shortcut(in_channels, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(self.relu(self.bn1(x)))
        out = self.conv2(self.relu(self.bn2(out)))
        out = self.conv3(self.relu(self.bn3(out)))
        return out + self.shortcut(x)


def shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Nothing where the shape stays, a 1×1 convolution where it changes."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return conv1x1(in_channels, out_channels, stride)


class PreResNet(nn.Module):
    """Stem, three stages of `blocks` blocks each, BatchNorm and ReLU, the mean over the image, and a classifier.

    >>> import torch
    >>> PreResNet(PreBasicBlock, blocks=1, in_channels=3, classes=10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self, block: type[PreBasicBlock] | type[PreBottleneck], blocks: int, in_channels: int, classes: int
    ) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, STAGE_WIDTHS[0])
        channels = STAGE_WIDTHS[0]
        stages: list[nn.Module] = []
        for number, width in enumerate(STAGE_WIDTHS):
            first = block(channels, width, stride=1 if number == 0 else 2)
            channels = block.expansion * width
            stages.append(nn.Sequential(first, *(block(channels, width, stride=1) for _ in range(blocks - 1))))
        self.stage1, self.stage2, self.stage3 = stages
        self.bn = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(channels, classes)
        kaiming_fan_in(self)

    def forward(self, images: Tensor) -> Tensor:
        out = self.stage3(self.stage2(self.stage1(self.conv1(images))))
        return self.fc(self.flatten(self.pool(self.relu(self.bn(out)))))
