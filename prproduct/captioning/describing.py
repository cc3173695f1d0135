"""Captions for images by a trained captioner: greedy or by beam search, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from prproduct.captioning.data.batches import collate
from prproduct.captioning.data.training_batches import RegionSource
from prproduct.captioning.data.vocabulary import Vocabulary
from prproduct.captioning.decoding import Limits, beam
from prproduct.captioning.metrics.fields import ImageId
from prproduct.captioning.model import Captioner
from prproduct.lab.errors import InputError


@dataclass(frozen=True)
class Search:
    """How captions are searched for; the fields are command-line options as well."""

    beams: int = field(default=5, metadata={"help": "beginnings that are followed at a time; 1: the likeliest word"})
    longest: int = field(default=16, metadata={"help": "words of a caption at most"})
    shortest: int = field(default=0, metadata={"help": "words of a caption at least"})
    unknown: bool = field(default=False, metadata={"help": "allow UNK, the word for all rare ones"})
    block_trigrams: bool = field(default=False, metadata={"help": "never say three words in the same order twice"})
    length_power: float = field(default=0.0, metadata={"help": "divide log-probabilities by the length to this power"})

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise InputError(f"{self.beams} beams; there must be at least 1")
        _ = Limits(self.longest, self.shortest)


@dataclass(frozen=True, eq=False)
class Description:
    """What a captioner says about an image."""

    image: ImageId
    caption: str
    log_probability: float
    words: tuple[str, ...]
    attention: NDArray[np.float32]  # (words, regions): where each word looked


def describe(
    model: Captioner,
    vocabulary: Vocabulary,
    features: RegionSource,
    images: Sequence[ImageId],
    search: Search | None = None,
    *,
    batch_size: int = 50,
    tick: Callable[[int], Any] = lambda images: None,
) -> Iterator[Description]:
    """A caption for each image, in their order; `tick` hears how many more are done."""
    search, device = search or Search(), next(model.parameters()).device
    limits = Limits(
        search.longest, search.shortest, None if search.unknown else vocabulary.unknown, search.block_trigrams
    )
    for start in range(0, len(images), batch_size):
        some = images[start : start + batch_size]
        regions = collate([features.of(image) for image in some])
        with torch.inference_mode():
            memory = model.encode(regions.features.to(device), regions.present.to(device))
            found = beam(model, memory, beams=search.beams, length_power=search.length_power, limits=limits)
        counts = regions.present.sum(1).tolist()
        for place, image in enumerate(some):
            caption = vocabulary.decode(found.words[place, 0].tolist())
            words = tuple(caption.split())
            looked = found.attention[place, 0, : len(words), : counts[place]].float().cpu().numpy()
            yield Description(image, caption, float(found.scores[place, 0]), words, looked)
        tick(len(some))
