"""What the networks share: bare convolutions, three stages of blocks, and two initialisations."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

STAGE_WIDTHS = (16, 32, 64)


def conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3×3 convolution with padding 1 and without bias, which BatchNorm would cancel."""
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)


def conv1x1(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    """Return a 1×1 convolution without bias."""
    return nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)


def three_stages(
    block: Callable[[int, int, int], nn.Module], blocks: int, widening: int = 1, expansion: int = 1
) -> tuple[list[nn.Sequential], int]:
    """Return three stages of `blocks` blocks each, and the number of channels of the last.

    `block(in_channels, width, stride)` makes a block with `expansion · width` output channels. Widths are `widening`
    times 16, 32 and 64; the first block of the second and of the third stage has stride 2.
    """
    channels, stages = STAGE_WIDTHS[0], []
    for number, stage_width in enumerate(STAGE_WIDTHS):
        width = widening * stage_width
        first = block(channels, width, 1 if number == 0 else 2)
        channels = expansion * width
        stages.append(nn.Sequential(first, *(block(channels, width, 1) for _ in range(blocks - 1))))
    return stages, channels


def kaiming_fan_in(model: nn.Module) -> None:
    """Draw weights of convolutions and linear layers from N(0, √(2/fan_in)), set biases to 0; leave BatchNorm at 1, 0.

    >>> layer = nn.Linear(50, 1000)
    >>> kaiming_fan_in(layer)
    >>> round(layer.weight.std().item(), 2), layer.bias.abs().max().item()
    (0.2, 0.0)
    """
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def normal_fan_out(model: nn.Module) -> None:
    """Draw convolutions from N(0, √(2/(k²·out))); linear layers keep torch's weights, with bias 0 (as WRN).

    >>> layer = nn.Conv2d(100, 50, 3)
    >>> normal_fan_out(layer)
    >>> round(layer.weight.std().item(), 2)
    0.07
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
            nn.init.normal_(module.weight, 0.0, math.sqrt(2 / fan_out))
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
