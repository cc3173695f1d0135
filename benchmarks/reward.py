"""CIDEr-D as a reward on all of COCO: preparing it, its memory, and its speed beside pycocoevalcap's."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeVar

import numpy as np
import torch
from pycocoevalcap.cider.cider import Cider
from torch import Tensor

from prproduct.captioning.metrics import CiderReward, PackedCaptions
from prproduct.captioning.metrics.java import coco_captions
from prproduct.captioning.metrics.reward import LARGEST_TOKEN
from prproduct.captioning.metrics.tokenizer import tokenize_all

T = TypeVar("T")
Captions = Sequence[Sequence[Sequence[int]]]  # the token ids of each caption of each image


def main() -> None:
    """Print the figures of docs/metrics.md."""
    # 123,287 images: the 113,287 of the usual training split, and those that validate and test
    references = token_ids([*coco_captions("train").values(), *coco_captions("val").values()])
    packed = PackedCaptions.pack(references)
    before = _peak()
    made, reward = _timed(lambda: CiderReward.of(packed))
    batch, indices = spliced_samples(references)
    scored = min(_timed(lambda: reward(batch, indices))[0] for _ in range(20))
    print(f"{packed.images:,} images, {len(packed.caption_starts) - 1:,} captions")
    print(f"prepared in {made:.1f} s")
    held = sum(array.nbytes for array in vars(reward.references).values() if isinstance(array, np.ndarray))
    print(f"the references take {held / 1e6:.0f} MB, preparing them up to {(_peak() - before) / 1e6:.0f} MB")
    print(f"a batch of {len(indices)}: {scored * 1e3:.2f} ms, {len(indices) / scored:,.0f} captions/s")
    few = references[:2000]
    reward = CiderReward.of(PackedCaptions.pack(few))
    batch, indices = spliced_samples(few)
    words = as_words(few, batch, indices)
    ours = median(_timed(lambda: reward(batch, indices))[0] for _ in range(20)) * 1e3
    theirs = median(_timed(lambda: Cider().compute_score(*words))[0] for _ in range(5)) * 1e3
    print(f"with 2,000 images: {ours:.2f} ms; pycocoevalcap {theirs:.0f} ms, {theirs / ours:.0f} times as long")


def token_ids(images: Sequence[Sequence[str]]) -> Captions:
    """Return captions as token ids, numbered from 1 in the order of their first occurrence."""
    ids: dict[str, int] = {}
    return [
        [[min(ids.setdefault(word, len(ids) + 1), LARGEST_TOKEN) for word in caption.split()] for caption in captions]
        for captions in map(tokenize_all, images)
    ]


def spliced_samples(
    references: Captions, images: int = 64, samples: int = 6, length: int = 16
) -> tuple[Tensor, Tensor]:
    """Return samples (images · samples, length), half right as a model's, and the image of each.

    A sample is the first half of a caption of its image and the second half of any caption.
    """
    chance = random.Random(0)
    indices = torch.tensor(chance.sample(range(len(references)), images)).repeat_interleave(samples)
    batch = torch.zeros(len(indices), length, dtype=torch.long)
    for index, sample in zip(indices.tolist(), batch, strict=True):
        begin, end = chance.choice(references[index]), chance.choice(chance.choice(references))
        words = [*begin[: len(begin) // 2], *end[len(end) // 2 :]][: length - 1]
        sample[: len(words)] = torch.tensor(words)
    return batch, indices


def as_words(references: Captions, batch: Tensor, indices: Tensor) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    """Return the references and the sample of each row of the batch in pycocoevalcap's form."""

    def text(ids: Sequence[int]) -> str:
        return " ".join(map(str, [*ids, 0]))

    rows = list(zip(batch.tolist(), indices.tolist(), strict=True))
    gts = {row: [text(caption) for caption in references[index]] for row, (_, index) in enumerate(rows)}
    return gts, {row: [text(sample[: sample.index(0)])] for row, (sample, _) in enumerate(rows)}


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def _peak() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
