"""The two ways in which the paper's networks were initialised."""

from __future__ import annotations

import math

from torch import nn


def kaiming_fan_in(model: nn.Module) -> None:
    """Weights of convolutions and linear layers from N(0, √(2/fan_in)), biases 0; BatchNorm keeps torch's 1 and 0.

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
    """Convolutions from N(0, √(2/(k²·out))), linear layers with torch's own weights and biases 0: for WRN.

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
