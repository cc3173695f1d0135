"""How long a batch of rewards takes, ours and pycocoevalcap's, on the same captions of COCO."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from prproduct.captioning.metrics.bundled import coco_captions
from prproduct.captioning.metrics.packed import PackedCaptions
from prproduct.captioning.metrics.reward import CiderReward
from prproduct.captioning.metrics.tokenizer import tokenize_all

TokenIds = list[int]


class RewardSpeed(NamedTuple):
    """Medians in seconds for one batch."""

    captions: int
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        """How many times as long pycocoevalcap takes."""
        return self.theirs / self.ours


def measure_reward(images: int = 64, samples: int = 6, length: int = 16, repeats: int = 5) -> RewardSpeed:
    """Score `samples` captions for each of `images` images, with five references each, in both ways."""
    ours, theirs = reward_calls(images, samples, length)
    ours()  # loads the compiled library
    return RewardSpeed(images * samples, _median_time(ours, repeats * 4), _median_time(theirs, repeats))


def reward_calls(
    images: int = 64, samples: int = 6, length: int = 16
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Two calls that score the same batch, ours and pycocoevalcap's, each from what it likes best."""
    references = to_ids(list(coco_captions("val").values())[:2000])
    reward = CiderReward.of(PackedCaptions.pack(references))
    batch, rows = spliced_samples(references, images, samples, length)
    return lambda: reward(batch, rows), pycocoevalcap_reward(references, batch, rows)


def to_ids(images: Sequence[Sequence[str]]) -> list[list[TokenIds]]:
    """Captions as token ids from 1, in a vocabulary of their own."""
    places: dict[str, int] = {}
    return [
        [[places.setdefault(word, len(places) + 1) for word in caption.split()] for caption in tokenize_all(captions)]
        for captions in images
    ]


def spliced_samples(
    references: Sequence[Sequence[TokenIds]], images: int, samples: int, length: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Captions (images · samples, length) half right, as a model's: one image's beginning, another's end."""
    chance = random.Random(seed)
    rows = np.repeat(chance.sample(range(len(references)), images), samples)
    batch = np.zeros((len(rows), length), np.int64)
    for row, sample in zip(rows.tolist(), batch, strict=True):
        begin, end = chance.choice(references[row]), chance.choice(chance.choice(references))
        words = [*begin[: len(begin) // 2], *end[len(end) // 2 :]][: length - 1]
        sample[: len(words)] = words
    return torch.from_numpy(batch), torch.from_numpy(rows)


def pycocoevalcap_reward(
    references: Sequence[Sequence[TokenIds]], batch: Tensor, rows: Tensor
) -> Callable[[], tuple[float, object]]:
    """A call that scores the batch with pycocoevalcap's CIDEr, from strings that are ready."""
    from pycocoevalcap.cider.cider import Cider

    def ended(ids: Sequence[int]) -> str:
        return " ".join(map(str, [*ids, 0]))

    gts = {b: [ended(caption) for caption in references[row]] for b, row in enumerate(rows.tolist())}
    res = {b: [ended(sample[: sample.index(0)])] for b, sample in enumerate(batch.tolist())}
    return lambda: Cider().compute_score(gts, res)


def _median_time(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return median(times)
