"""CIDEr-D as a reward on all of COCO: preparing it, its memory, and its speed beside pycocoevalcap's."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from statistics import median
from typing import TypeVar

import numpy as np

from prproduct.captioning.metrics import CiderReward, PackedCaptions
from prproduct.captioning.metrics.java import coco_captions
from prproduct.captioning.metrics.reward import LARGEST_TOKEN
from prproduct.captioning.metrics.speed import reward_calls, spliced_samples, to_ids

T = TypeVar("T")


def main() -> None:
    """Print the figures of docs/metrics.md."""
    # 123,287 images: the 113,287 of the usual training split, and those that validate and test
    captions = [*coco_captions("train").values(), *coco_captions("val").values()]
    references = [[[min(t, LARGEST_TOKEN) for t in caption] for caption in image] for image in to_ids(captions)]
    del captions
    packed = PackedCaptions.pack(references)
    before = _peak()
    made, reward = _timed(lambda: CiderReward.of(packed))
    batch, indices = spliced_samples(references, images=64, samples=6, length=16)
    scored = min(_timed(lambda: reward(batch, indices))[0] for _ in range(20))
    print(f"{packed.images:,} images, {len(packed.caption_starts) - 1:,} captions")
    print(f"prepared in {made:.1f} s")
    held = sum(array.nbytes for array in vars(reward.references).values() if isinstance(array, np.ndarray))
    print(f"the references take {held / 1e6:.0f} MB, preparing them up to {(_peak() - before) / 1e6:.0f} MB")
    print(f"a batch of {len(indices)}: {scored * 1e3:.2f} ms, {len(indices) / scored:,.0f} captions/s")
    ours, theirs = (
        median(_timed(call)[0] for _ in range(repeats)) * 1e3
        for call, repeats in zip(reward_calls(), (20, 5), strict=True)
    )
    print(f"with 2,000 images: {ours:.2f} ms; pycocoevalcap {theirs:.0f} ms, {theirs / ours:.0f} times as long")


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def _peak() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
