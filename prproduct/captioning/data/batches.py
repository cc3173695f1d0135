"""Batches of images with captions: padded features, and the batches of a training epoch.

Which images and captions a batch has depends on (seed, epoch, image) alone, through keyed random numbers; so a resumed
run, and any number of processes, see the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prproduct.captioning.data.prepared import Image
from prproduct.captioning.input_files import ImageId
from prproduct.lab.errors import InputError
from prproduct.lab.seeds import keyed_bits

_ORDER, _CHOICE = 3, 4  # streams of random numbers


class Regions(NamedTuple):
    """Padded features (images, regions, width) of float32, and a mask (images, regions), False for padding."""

    features: Tensor
    present: Tensor

    def to(self, device: torch.device) -> Regions:
        """The same on a device."""
        return Regions(self.features.to(device), self.present.to(device))


def collate(features: Sequence[NDArray[np.float32]]) -> Regions:
    """Pad the features (regions, width) of several images with zeros to the largest number of regions.

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


class RegionSource(Protocol):
    """Provides the features of images."""

    def of(self, image: ImageId) -> NDArray[np.float32]:
        """The features (regions, width) of an image."""


class FeatureSource(RegionSource, Protocol):
    """The features that a captioner is trained on, such as `features.open(path)`."""

    def __contains__(self, image: ImageId) -> bool:
        """True if there are features of the image."""

    @property
    def width(self) -> int:
        """The length of a region's vector."""

    @property
    def fingerprint(self) -> str:
        """A string that changes with the features."""


class CaptionBatch(NamedTuple):
    """The share of a batch that one process computes."""

    regions: Regions
    words: Tensor  # (images · captions, steps), begin with 0 and are padded with 0; captions of an image consecutive
    images: Tensor  # (images,), indices into the training images
    global_size: int  # divisor of the summed loss: the number of words or captions of the batch over all processes

    def to(self, device: torch.device) -> CaptionBatch:
        """The same on a device."""
        return CaptionBatch(self.regions.to(device), self.words.to(device), self.images.to(device), self.global_size)


class CaptionBatches:
    """Batches of `batch_size` images over all processes together, with `captions` captions of each image.

    Every image comes once in an epoch. If an image has more captions than `captions`, the selection changes from epoch
    to epoch; if it has fewer, some are repeated. The loss is divided by the number of words and end tokens, or with
    `by_caption` by the number of captions.
    """

    def __init__(
        self,
        images: Sequence[Image],
        features: FeatureSource,
        *,
        batch_size: int,
        captions: int,
        seed: int,
        by_caption: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        rest = len(images) % batch_size
        if not images:
            raise InputError("there are no images to train on: none is of the split train")
        if batch_size < world_size or 0 < rest < world_size:
            raise InputError(
                f"batches of {batch_size} of {len(images)} images cannot be shared by {world_size} processes; "
                "choose another batch size"
            )
        self.images, self.features, self.batch_size, self.captions = images, features, batch_size, captions
        self.seed, self.by_caption, self.rank, self.world_size = seed, by_caption, rank, world_size
        self.steps = -(-len(images) // batch_size)
        self.least = (rest or batch_size) // world_size  # images that a process gets in the smallest batch

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[CaptionBatch]:
        """The batches of an epoch (from 0), beginning with `start_step`."""
        indices = np.arange(len(self.images))
        order = np.argsort(keyed_bits(indices, self.seed, epoch, _ORDER), kind="stable")
        for step in range(start_step, self.steps):
            batch = order[step * self.batch_size : (step + 1) * self.batch_size]
            chosen = [self._chosen(int(index), epoch) for index in batch]
            count = len(batch) * self.captions
            if not self.by_caption:
                count += sum(len(caption) for captions in chosen for caption in captions)
            share = np.array_split(np.arange(len(batch)), self.world_size)[self.rank]
            regions = collate([self.features.of(self.images[index].id) for index in batch[share]])
            words = padded([c for k in share for c in chosen[k]])
            yield CaptionBatch(regions, words, torch.from_numpy(batch[share]), count)

    def _chosen(self, index: int, epoch: int) -> list[tuple[int, ...]]:
        """The captions of an image in an epoch."""
        captions = self.images[index].captions
        bits = keyed_bits(np.arange(len(captions)), self.seed, epoch, index, _CHOICE)
        order = np.argsort(bits, kind="stable")
        return [captions[order[k % len(captions)]] for k in range(self.captions)]


def padded(captions: Sequence[Sequence[int]]) -> Tensor:
    """The input words (captions, steps) of a captioner: 0, the caption's words, and 0 up to the longest caption.

    >>> padded([[4, 2], [7]])
    tensor([[0, 4, 2],
            [0, 7, 0]])
    """
    words = np.zeros((len(captions), 1 + max(map(len, captions), default=0)), np.int64)
    for row, caption in zip(words, captions, strict=True):
        row[1 : 1 + len(caption)] = caption
    return torch.from_numpy(words)
