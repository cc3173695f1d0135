"""ResNet for small images (He et al., Deep Residual Learning, section 4.2): three stages of 16, 32 and 64 channels.

Where the shape changes, the shortcut is a 1×1 convolution with BatchNorm ("option B"), as in the PR paper's code, which
converts it like every other convolution. He et al. padded with zeros on CIFAR ("option A"), which has 2,752 parameters
fewer: 1.73 million either way for ResNet-110.
"""

from __future__ import annotations

from torch import Tensor, nn

from prproduct.classification.models.layers import STAGE_WIDTHS, conv1x1, conv3x3, kaiming_fan_in, three_stages


class BasicBlock(nn.Module):
    """Two 3×3 convolutions; the shortcut is added before the last ReLU."""

    expansion = 1
    convolutions = 2

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = shortcut(in_channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class Bottleneck(nn.Module):
    """1×1, 3×3 (with the stride) and 1×1 convolutions, the last to four times the width, plus the shortcut."""

    expansion = 4
    convolutions = 3

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv1x1(in_channels, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv1x1(width, 4 * width)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = shortcut(in_channels, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += self.shortcut(x)
        return self.relu(out)


def shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """Return the identity where the shape stays, a 1×1 convolution with BatchNorm where it changes."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(conv1x1(in_channels, out_channels, stride), nn.BatchNorm2d(out_channels))


class ResNet(nn.Module):
    """A 3×3 convolution to 16 channels, three stages of `blocks` blocks, the mean over the image, and a linear layer.

    >>> import torch
    >>> ResNet(BasicBlock, blocks=1, in_channels=3, classes=10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], blocks: int, in_channels: int, classes: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, STAGE_WIDTHS[0])
        self.bn1 = nn.BatchNorm2d(STAGE_WIDTHS[0])
        self.relu = nn.ReLU(inplace=True)
        stages, channels = three_stages(block, blocks, expansion=block.expansion)
        self.stage1, self.stage2, self.stage3 = stages
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(channels, classes)
        kaiming_fan_in(self)

    def forward(self, images: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(images)))
        out = self.stage3(self.stage2(self.stage1(out)))
        return self.fc(self.flatten(self.pool(out)))
