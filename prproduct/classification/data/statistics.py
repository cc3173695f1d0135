"""Mean and standard deviation of each channel, exactly."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor


def channel_statistics(images: Tensor, levels: int = 255) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and (population) standard deviation of each channel, in units in which the pixel value `levels` is 1.

    Sums are integers of any size, so the only rounding is the last one.

    >>> import torch
    >>> channel_statistics(torch.tensor([0, 255, 255, 0], dtype=torch.uint8).reshape(1, 1, 2, 2))
    ((0.5,), (0.5,))
    """
    means, deviations = [], []
    for channel in range(images.shape[1]):
        counts = np.bincount(images[:, channel].numpy().ravel(), minlength=256).tolist()
        n = sum(counts)
        total = sum(value * count for value, count in enumerate(counts))
        squares = sum(value * value * count for value, count in enumerate(counts))
        means.append(total / (n * levels))
        deviations.append(math.sqrt((n * squares - total**2) / (n * levels) ** 2))
    return tuple(means), tuple(deviations)
