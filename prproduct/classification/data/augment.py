"""Random crops and flips of a whole batch at once, on its device, and normalisation.

What happens to an image is keyed by (seed, epoch, its index in the training set). So it is the same in whichever batch,
at whichever place and in whichever process the image comes, and nothing has to be remembered to resume.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from prproduct.lab.keyed import keyed_bits

PADDING = 4
_STREAM = 1  # of random numbers, beside the one of the order of images


@dataclass(frozen=True, eq=False)
class Augmentation:
    """What one epoch does to each image of the training set."""

    row: Tensor  # (images,) where the crop begins in the padded image, 0 to 2·PADDING
    column: Tensor
    flip: Tensor  # (images,) of bool

    @classmethod
    def of_epoch(cls, images: int, seed: int, epoch: int, device: torch.device | str = "cpu") -> Augmentation:
        """Draw for all images of the training set; one transfer to the device an epoch.

        >>> Augmentation.of_epoch(4, seed=0, epoch=0).row
        tensor([4, 8, 6, 2])
        """
        bits = keyed_bits(np.arange(images), seed, epoch, _STREAM)
        places = np.uint64(2 * PADDING + 1)
        row = (bits >> np.uint64(40)) % places  # 24, 24 and 1 bits: no bit decides two things
        column = (bits >> np.uint64(16) & np.uint64(0xFFFFFF)) % places
        flip = (bits & np.uint64(1)).astype(bool)
        return cls(
            *(torch.from_numpy(draw).to(device) for draw in (row.astype(np.int64), column.astype(np.int64), flip))
        )

    def __call__(self, images: Tensor, indices: Tensor) -> Tensor:
        """Crop and flip images (batch, channels, rows, columns) of any dtype; `indices` are those in the training set.

        Each image is padded with zeros, black, by 4 on each side; a window of the old size is cut out.
        """
        rows, columns = images.shape[-2:]
        padded = F.pad(images, (PADDING,) * 4)
        windows = padded.unfold(2, rows, 1).unfold(3, columns, 1)  # a view: (batch, channels, 9, 9, rows, columns)
        number = torch.arange(len(images), device=images.device)
        crops = windows[number, :, self.row[indices], self.column[indices]]
        return torch.where(self.flip[indices][:, None, None, None], crops.flip(-1), crops)


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...], levels: int = 255) -> Tensor:
    """Pixels as float32 of mean 0 and deviation 1 in each channel.

    >>> normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), (0.5,), (0.5,))
    tensor([[[[-1.,  1.]]]])
    """
    scale, shift = _scale_and_shift(mean, std, levels, images.device)
    return images.float().mul_(scale).add_(shift)


@functools.cache
def _scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], levels: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Two constants of a dataset, copied to the device once: a copy would make every step wait for it."""
    scale = torch.tensor([1 / (levels * s) for s in std], device=device)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)
    return scale.view(1, -1, 1, 1), shift.view(1, -1, 1, 1)
