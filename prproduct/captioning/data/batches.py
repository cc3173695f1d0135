"""The features of several images as one tensor, whatever their numbers of regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prproduct.lab.errors import InputError


class Regions(NamedTuple):
    """Features (images, regions, width) of float32, and which regions there are (images, regions)."""

    features: Tensor
    present: Tensor


def collate(features: Sequence[NDArray[np.float32]]) -> Regions:
    """Features (regions, width) of each image, with zeros up to the largest number of regions.

    >>> regions = collate([np.ones((2, 4), np.float32), np.ones((3, 4), np.float32)])
    >>> regions.features.shape, regions.present.tolist()
    (torch.Size([2, 3, 4]), [[True, True, False], [True, True, True]])
    """
    if not features:
        raise InputError("a batch without images; it needs at least one")
    shapes = [array.shape for array in features]
    if any(len(shape) != 2 or shape[0] < 1 or shape[1] != shapes[0][-1] for shape in shapes):
        raise InputError(f"features of shapes {sorted(set(shapes))}; each is (regions, width), all of one width")
    counts = np.array([shape[0] for shape in shapes])
    padded = np.zeros((len(features), counts.max(), shapes[0][1]), np.float32)
    for image, array in zip(padded, features, strict=True):
        image[: len(array)] = array
    present = np.arange(counts.max()) < counts[:, None]  # (images, regions)
    return Regions(torch.from_numpy(padded), torch.from_numpy(present))
