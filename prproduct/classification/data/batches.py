"""Batches of an epoch: shuffled, augmented on the device, normalised, and shared between processes.

The order of an epoch is a function of (seed, epoch); the crop and flip of an image are a function of (seed, epoch, its
index in the training set). Neither depends on the batch size, the process or earlier draws. So an epoch can start at
any step, and a resumed run needs no saved random state.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from prproduct.classification.data.dataset import Dataset
from prproduct.lab.errors import InputError
from prproduct.lab.seeds import keyed_bits

PADDING = 4
# The last part of the key of each kind of random bits, so that no two kinds share any; dataset.py uses 3.
_AUGMENTATION, _ORDER = 1, 2


@dataclass(frozen=True, eq=False)
class Augmentation:
    """The random crop and flip of every image of the training set in one epoch."""

    row: Tensor  # (images,) of int64: the first row of the crop in the padded image, 0 to 2·PADDING
    column: Tensor  # (images,) likewise
    flip: Tensor  # (images,) of bool

    @classmethod
    def of_epoch(cls, images: int, seed: int, epoch: int, device: torch.device | str = "cpu") -> Augmentation:
        """Draw the crops and flips of one epoch, and move them to the device in one transfer.

        >>> Augmentation.of_epoch(4, seed=0, epoch=0).row
        tensor([4, 8, 6, 2])
        """
        bits = keyed_bits(np.arange(images), seed, epoch, _AUGMENTATION)
        places = np.uint64(2 * PADDING + 1)
        row = (bits >> np.uint64(40)) % places  # bits 40–63, 16–39 and 0: no bit is used twice
        column = (bits >> np.uint64(16) & np.uint64(0xFFFFFF)) % places
        flip = (bits & np.uint64(1)).astype(bool)
        return cls(
            *(torch.from_numpy(draw).to(device) for draw in (row.astype(np.int64), column.astype(np.int64), flip))
        )

    def __call__(self, images: Tensor, indices: Tensor) -> Tensor:
        """Return cropped and flipped images (batch, channels, rows, columns) of any dtype.

        `indices` (batch,) are the images' places in the training set. Each image is padded with 4 zeros (black) on each
        side, and a window of the original size is cut out.
        """
        rows, columns = images.shape[-2:]
        padded = F.pad(images, (PADDING,) * 4)
        windows = padded.unfold(2, rows, 1).unfold(3, columns, 1)  # a view: (batch, channels, 9, 9, rows, columns)
        every = torch.arange(len(images), device=images.device)
        crops = windows[every, :, self.row[indices], self.column[indices]]  # (batch, channels, rows, columns)
        return torch.where(self.flip[indices][:, None, None, None], crops.flip(-1), crops)


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...], levels: int = 255) -> Tensor:
    """Return float32 images with each channel scaled to (pixel / levels − mean) / std.

    >>> normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), (0.5,), (0.5,))
    tensor([[[[-1.,  1.]]]])
    """
    scale, shift = _scale_and_shift(mean, std, levels, images.device)
    return images.float().mul_(scale).add_(shift)


@functools.cache
def _scale_and_shift(
    mean: tuple[float, ...], std: tuple[float, ...], levels: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return two constants of a dataset, copied to the device once: a copy would make every step wait for it."""
    scale = torch.tensor([1 / (levels * s) for s in std], device=device)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=device)
    return scale.view(1, -1, 1, 1), shift.view(1, -1, 1, 1)


class Batch(NamedTuple):
    """One process's part of one batch."""

    images: Tensor  # float32, normalised
    labels: Tensor
    global_size: int  # the divisor of a mean loss: images of this batch, or all evaluated images, over all processes


class TrainingBatches:
    """Batches of `batch_size` images over all processes; each process gets a contiguous part of each batch.

    Every image of `indices` comes once an epoch. The last batch may be smaller. Order and augmentation
    do not depend on the number of processes or on where an epoch starts:

    >>> from prproduct.classification.data import load
    >>> digits = load("digits")
    >>> batches = TrainingBatches(digits, torch.arange(1442), batch_size=128, seed=0)
    >>> batches.steps
    12
    >>> [len(batch.images) for batch in batches.epoch(3, start_step=9)]
    [128, 128, 34]
    """

    def __init__(
        self,
        dataset: Dataset,
        indices: Tensor,
        *,
        batch_size: int,
        seed: int,
        augment: bool = False,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        if len(indices) == 0:
            raise InputError(f"{dataset.name}: there are no images to train on")
        if batch_size < world_size:
            raise InputError(f"a batch of {batch_size} images cannot be shared by {world_size} processes")
        rest = len(indices) % batch_size
        if 0 < rest < world_size:
            raise InputError(
                f"the last batch of an epoch has {rest} images for {world_size} processes; "
                f"choose another batch size than {batch_size}"
            )
        self.dataset, self.batch_size, self.seed, self.augment = dataset, batch_size, seed, augment
        self.rank, self.world_size = rank, world_size
        self.steps = math.ceil(len(indices) / batch_size)
        self._indices = indices.cpu().numpy()
        self._images, self._labels = dataset.train_images.to(device), dataset.train_labels.to(device)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """Yield this process's batches of `epoch` (counted from 0), starting at `start_step`."""
        device = self._images.device
        order = torch.from_numpy(self.order(epoch)).to(device)  # once an epoch: a copy would make every step wait
        augmentation = Augmentation.of_epoch(len(self._images), self.seed, epoch, device) if self.augment else None
        for step in range(start_step, self.steps):
            whole = order[step * self.batch_size : (step + 1) * self.batch_size]
            indices = whole.tensor_split(self.world_size)[self.rank]
            images = self._images[indices]
            if augmentation:
                images = augmentation(images, indices)
            images = normalise(images, self.dataset.mean, self.dataset.std, self.dataset.levels)
            yield Batch(images, self._labels[indices], len(whole))

    def order(self, epoch: int) -> np.ndarray:
        """Return the image indices in the order of `epoch`, the same in every process."""
        bits = keyed_bits(self._indices, self.seed, epoch, _ORDER)
        return self._indices[np.argsort(bits, kind="stable")]


@dataclass(frozen=True, eq=False)
class EvaluationBatches:
    """Images in their own order, normalised and not augmented; each process gets a contiguous, possibly empty part."""

    dataset: Dataset
    images: Tensor
    labels: Tensor
    batch_size: int = 500
    rank: int = 0
    world_size: int = 1

    @classmethod
    def of_test(cls, dataset: Dataset, device: torch.device | str = "cpu", **settings: int) -> EvaluationBatches:
        """Return batches of the test set."""
        return cls(dataset, dataset.test_images.to(device), dataset.test_labels.to(device), **settings)

    @classmethod
    def of_training(
        cls, dataset: Dataset, indices: Tensor, device: torch.device | str = "cpu", **settings: int
    ) -> EvaluationBatches:
        """Return batches of the training images at `indices`, such as those held out for validation."""
        return cls(
            dataset, dataset.train_images[indices].to(device), dataset.train_labels[indices].to(device), **settings
        )

    def __iter__(self) -> Iterator[Batch]:
        own = (every.tensor_split(self.world_size)[self.rank] for every in (self.images, self.labels))
        for images, labels in zip(*(each.split(self.batch_size) for each in own), strict=True):
            if len(images):
                images = normalise(images, self.dataset.mean, self.dataset.std, self.dataset.levels)
                yield Batch(images, labels, len(self.images))
