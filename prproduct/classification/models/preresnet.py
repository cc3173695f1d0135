"""Pre-activated residual networks, where BatchNorm and ReLU precede each convolution: PreResNet and Wide ResNet.

PreResNet (He et al., Identity Mappings in Deep Residual Networks): where the shape changes, the shortcut is a bare 1×1
convolution of the block's input, as in the PR paper's code. Wide ResNet, WRN-d-k (Zagoruyko and Komodakis): basic
blocks k times as wide, with dropout between the two convolutions; there the shortcut is a 1×1 convolution of the
activated input, as in its authors' code.

Blocks add out of place: an in-place sum would overwrite the last convolution's output w·x, which the backward of a PR
convolution uses, and would have to compute again.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from prproduct.classification.models.layers import (
    STAGE_WIDTHS,
    conv1x1,
    conv3x3,
    kaiming_fan_in,
    normal_fan_out,
    three_stages,
)


class PreBasicBlock(nn.Module):
    """Two 3×3 convolutions, plus the shortcut."""

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
    """1×1, 3×3 (with the stride) and 1×1 convolutions, the last to four times the width, plus the shortcut."""

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
    """Return the identity where the shape stays, a 1×1 convolution where it changes."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return conv1x1(in_channels, out_channels, stride)


class WideBlock(nn.Module):
    """BatchNorm, ReLU, 3×3 convolution, BatchNorm, ReLU, dropout, 3×3 convolution, plus the shortcut."""

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


class PreActivated(nn.Module):
    """A 3×3 convolution to 16 channels, three stages, BatchNorm, ReLU, the mean over the image, and a linear layer.

    `channels` is the number of channels that the last of the `stages` returns.
    """

    def __init__(self, in_channels: int, stages: list[nn.Sequential], channels: int, classes: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, STAGE_WIDTHS[0])
        self.stage1, self.stage2, self.stage3 = stages
        self.bn = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        out = self.stage3(self.stage2(self.stage1(self.conv1(images))))
        return self.fc(self.flatten(self.pool(self.relu(self.bn(out)))))


class PreResNet(PreActivated):
    """PreResNet with `blocks` blocks per stage.

    >>> import torch
    >>> PreResNet(PreBasicBlock, blocks=1, in_channels=3, classes=10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self, block: type[PreBasicBlock] | type[PreBottleneck], blocks: int, in_channels: int, classes: int
    ) -> None:
        super().__init__(in_channels, *three_stages(block, blocks, expansion=block.expansion), classes)
        kaiming_fan_in(self)


class WideResNet(PreActivated):
    """Wide ResNet with `blocks` blocks per stage, `widening` times as wide as PreResNet.

    >>> import torch
    >>> WideResNet(blocks=1, widening=2, in_channels=3, classes=10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(self, blocks: int, widening: int, in_channels: int, classes: int, dropout: float = 0.3) -> None:
        super().__init__(in_channels, *three_stages(partial(WideBlock, dropout=dropout), blocks, widening), classes)
        normal_fan_out(self)
