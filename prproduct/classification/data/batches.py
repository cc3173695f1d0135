"""The batches of an epoch: an order keyed by (seed, epoch), shared between processes, that can begin at any step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from prproduct.classification.data.augment import Augmentation, normalise
from prproduct.classification.data.dataset import Dataset
from prproduct.lab.errors import InputError
from prproduct.lab.keyed import keyed_bits

_STREAM = 2


class Batch(NamedTuple):
    """A process's share of one batch."""

    step: int  # in the epoch
    images: Tensor  # float32, normalised
    labels: Tensor
    indices: Tensor  # in the training set, or in the evaluated part
    whole: int  # images of this batch in all processes: divide the sum of losses by it


class TrainingBatches:
    """Batches of `batch_size` images over all processes together, each process taking its stretch of each batch.

    Every image of `indices` comes once an epoch; the last batch is smaller, unless `drop_last`. Order and augmentation
    depend on (seed, epoch) and on the image, so processes, steps and restarts change nothing:

    >>> from prproduct.classification.data import load
    >>> digits = load("digits")
    >>> batches = TrainingBatches(digits, torch.arange(1442), batch_size=128, seed=0)
    >>> batches.steps
    12
    >>> [batch.step for batch in batches.epoch(3, start_step=9)]
    [9, 10, 11]
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
        drop_last: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        if len(indices) == 0:
            raise InputError(f"{dataset.name}: there are no images to train on")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of {world_size}")
        if batch_size < world_size:
            raise InputError(f"a batch of {batch_size} images cannot be shared by {world_size} processes")
        rest = len(indices) % batch_size
        if drop_last and len(indices) < batch_size:
            raise InputError(f"a batch of {batch_size} is more than the {len(indices)} images there are to train on")
        if not drop_last and 0 < rest < world_size:
            raise InputError(
                f"the last batch of an epoch has {rest} images for {world_size} processes; "
                f"choose another batch size than {batch_size}, or drop the last batch"
            )
        self.dataset, self.batch_size, self.seed, self.augment = dataset, batch_size, seed, augment
        self.rank, self.world_size = rank, world_size
        self.steps = len(indices) // batch_size + (0 if drop_last or not rest else 1)
        self._indices = indices.cpu().numpy()
        self._images, self._labels = dataset.train_images.to(device), dataset.train_labels.to(device)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The batches of an epoch (from 0), from a step on."""
        if not 0 <= start_step <= self.steps:
            raise ValueError(f"step {start_step} of {self.steps}")
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
            yield Batch(step, images, self._labels[indices], indices, len(whole))

    def order(self, epoch: int) -> np.ndarray:
        """The indices in the order in which an epoch takes them, in all processes alike."""
        bits = keyed_bits(self._indices, self.seed, epoch, _STREAM)
        return self._indices[np.argsort(bits, kind="stable")]


@dataclass(frozen=True, eq=False)
class EvaluationBatches:
    """Images in their order, normalised and not augmented; each process has one stretch of them, which may be empty."""

    dataset: Dataset
    images: Tensor
    labels: Tensor
    batch_size: int = 500
    rank: int = 0
    world_size: int = 1

    @classmethod
    def of_test(cls, dataset: Dataset, device: torch.device | str = "cpu", **settings: int) -> EvaluationBatches:
        """The test set."""
        return cls(dataset, dataset.test_images.to(device), dataset.test_labels.to(device), **settings)

    @classmethod
    def of_training(
        cls, dataset: Dataset, indices: Tensor, device: torch.device | str = "cpu", **settings: int
    ) -> EvaluationBatches:
        """Some images of the training set: those held out."""
        return cls(
            dataset, dataset.train_images[indices].to(device), dataset.train_labels[indices].to(device), **settings
        )

    def __iter__(self) -> Iterator[Batch]:
        own = torch.from_numpy(_stretch(np.arange(len(self.images)), self.rank, self.world_size))
        for step, indices in enumerate(own.to(self.images.device).split(self.batch_size)):
            if len(indices):
                images = normalise(self.images[indices], self.dataset.mean, self.dataset.std, self.dataset.levels)
                yield Batch(step, images, self.labels[indices], indices, len(self.images))


def _stretch(whole: np.ndarray, rank: int, world_size: int) -> np.ndarray:
    """A process's part: one behind the other they are the whole, and their lengths differ by at most one."""
    return np.array_split(whole, world_size)[rank]
