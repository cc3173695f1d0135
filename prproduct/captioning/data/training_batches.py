"""The batches of an epoch: images with some of their captions, keyed by (seed, epoch), shared between processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prproduct.captioning.data.batches import Regions, collate
from prproduct.captioning.data.prepared import Image
from prproduct.captioning.metrics.fields import ImageId
from prproduct.lab.errors import InputError
from prproduct.lab.keyed import keyed_bits

_ORDER, _CHOICE = 3, 4  # streams of random numbers


class RegionSource(Protocol):
    """Where the regions of an image come from."""

    def of(self, image: ImageId) -> NDArray[np.float32]:
        """The features (regions, width) of an image."""


class FeatureSource(RegionSource, Protocol):
    """What a captioner can be trained on, such as `features.open(path)`."""

    def __contains__(self, image: ImageId) -> bool:
        """True if there are features of the image."""

    @property
    def width(self) -> int:
        """The length of a region's vector."""

    @property
    def fingerprint(self) -> str:
        """What changes with the features."""


class CaptionBatch(NamedTuple):
    """A process's share of one batch."""

    regions: Regions
    words: Tensor  # (images · captions, steps), begun with 0 and padded with it; the captions of an image together
    rows: Tensor  # (images,), their places among the training images
    whole: int  # what the sum of losses is divided by, counted over all processes


class CaptionBatches:
    """Batches of `batch_size` images over all processes together, each with `captions` captions.

    Every image comes once an epoch. Of an image with more captions than are taken, each epoch takes others; one with
    fewer gives some of them twice. What the loss is divided by is the number of words and ends, or with `by_caption`
    that of captions.
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

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[CaptionBatch]:
        """The batches of an epoch (from 0), from a step on."""
        places = np.arange(len(self.images))
        order = np.argsort(keyed_bits(places, self.seed, epoch, _ORDER), kind="stable")
        for step in range(start_step, self.steps):
            whole = order[step * self.batch_size : (step + 1) * self.batch_size]
            chosen = [self._chosen(int(place), epoch) for place in whole]
            count = len(whole) * self.captions
            if not self.by_caption:
                count += sum(len(caption) for captions in chosen for caption in captions)
            share = np.array_split(np.arange(len(whole)), self.world_size)[self.rank]
            rows = torch.from_numpy(whole[share])
            regions = collate([self.features.of(self.images[place].id) for place in whole[share]])
            yield CaptionBatch(regions, padded([c for k in share for c in chosen[k]]), rows, count)

    def _chosen(self, place: int, epoch: int) -> list[tuple[int, ...]]:
        captions = self.images[place].captions
        bits = keyed_bits(np.arange(len(captions)), self.seed, epoch, place, _CHOICE)
        order = np.argsort(bits, kind="stable")
        return [captions[order[k % len(captions)]] for k in range(self.captions)]


def padded(captions: Sequence[Sequence[int]]) -> Tensor:
    """Captions as the words (captions, steps) that a captioner is given: 0, the words, 0 up to the longest.

    >>> padded([[4, 2], [7]])
    tensor([[0, 4, 2],
            [0, 7, 0]])
    """
    words = np.zeros((len(captions), 1 + max(map(len, captions), default=0)), np.int64)
    for row, caption in zip(words, captions, strict=True):
        row[1 : 1 + len(caption)] = caption
    return torch.from_numpy(words)
