"""The same batch of captions of COCO for our CIDEr-D reward and for pycocoevalcap's, which `prproduct bench` times."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from prproduct.captioning.metrics.java import coco_captions
from prproduct.captioning.metrics.reward import CiderReward, PackedCaptions
from prproduct.captioning.metrics.tokenizer import tokenize_all

TokenIds = list[int]


def reward_calls(
    images: int = 64, samples: int = 6, length: int = 16
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Two functions that score `samples` captions of each of `images` images: ours, and pycocoevalcap's.

    Each image has five references. The input of both functions is prepared beforehand.
    """
    references = to_ids(list(coco_captions("val").values())[:2000])
    reward = CiderReward.of(PackedCaptions.pack(references))
    batch, indices = spliced_samples(references, images, samples, length)
    return lambda: reward(batch, indices), pycocoevalcap_reward(references, batch, indices)


def to_ids(images: Sequence[Sequence[str]]) -> list[list[TokenIds]]:
    """Captions as token ids, numbered from 1 in the order of their first occurrence."""
    ids: dict[str, int] = {}
    return [
        [[ids.setdefault(word, len(ids) + 1) for word in caption.split()] for caption in tokenize_all(captions)]
        for captions in images
    ]


def spliced_samples(
    references: Sequence[Sequence[TokenIds]], images: int, samples: int, length: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Half right captions (images · samples, length), each of parts of two references, and the image of each."""
    chance = random.Random(seed)
    indices = np.repeat(chance.sample(range(len(references)), images), samples)
    batch = np.zeros((len(indices), length), np.int64)
    for index, sample in zip(indices.tolist(), batch, strict=True):
        begin, end = chance.choice(references[index]), chance.choice(chance.choice(references))
        words = [*begin[: len(begin) // 2], *end[len(end) // 2 :]][: length - 1]
        sample[: len(words)] = words
    return torch.from_numpy(batch), torch.from_numpy(indices)


def pycocoevalcap_reward(
    references: Sequence[Sequence[TokenIds]], batch: Tensor, indices: Tensor
) -> Callable[[], tuple[float, object]]:
    """A function that scores the batch with pycocoevalcap's CIDEr; the strings are prepared beforehand."""
    from pycocoevalcap.cider.cider import Cider

    def with_end(ids: Sequence[int]) -> str:
        return " ".join(map(str, [*ids, 0]))

    gts = {b: [with_end(caption) for caption in references[index]] for b, index in enumerate(indices.tolist())}
    res = {b: [with_end(sample[: sample.index(0)])] for b, sample in enumerate(batch.tolist())}
    return lambda: Cider().compute_score(gts, res)
