"""The four operators of the CIDEr-D reward, on n-grams of token ids packed into 64-bit keys.

    ngram_table(keys, rarities) -> (table, table_rarities)
    distinct_ngrams(tokens, caption_starts, image_starts) -> keys
    weigh_captions(tokens, starts, table, table_rarities, rarest) -> (entry_starts, keys, weights, norms)
    score_samples(samples, rows, eos, table, table_rarities, rarest,
                  image_starts, lengths, entry_starts, keys, weights, norms) -> scores

`csrc/ngrams.cpp` implements them in C++ as `torch.ops.prproduct` (`csrc/ngrams.h` defines the keys). The functions of
this module are the same in plain Python, for installations without the compiled library; they check no argument.
All tensors are contiguous and on the CPU, of int64 or float64; keys are int64 with the bits of uint64. Results are new
tensors. The C++ operators raise a RuntimeError of one line for a wrong argument.
"""

from __future__ import annotations

import functools
import math
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prproduct.captioning.metrics.frequencies import ORDER
from prproduct.captioning.metrics.ngram_metrics import SCALE, WeightedCaption, similarity
from prproduct.ops import kernels


@functools.cache
def operators() -> Any:
    """`torch.ops.prproduct`, or this module if the compiled library cannot be loaded."""
    if not kernels.library():
        return sys.modules[__name__]
    _register_fakes()
    return torch.ops.prproduct


def _register_fakes() -> None:
    """Register the shapes of the operators' results, for tracing and for fake tensors."""

    def ngram_table(keys: Tensor, rarities: Tensor) -> tuple[Tensor, Tensor]:
        slots = 1 << (2 * len(keys)).bit_length()
        return keys.new_empty(slots), rarities.new_empty(slots)

    def distinct_ngrams(tokens: Tensor, caption_starts: Tensor, image_starts: Tensor) -> Tensor:
        return tokens.new_empty(torch.library.get_ctx().new_dynamic_size())

    def weigh_captions(
        tokens: Tensor, starts: Tensor, table: Tensor, table_rarities: Tensor, rarest: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        entries, norms = torch.library.get_ctx().new_dynamic_size(), table_rarities.new_empty(len(starts) - 1, ORDER)
        return torch.empty_like(starts), tokens.new_empty(entries), table_rarities.new_empty(entries), norms

    def score_samples(samples: Tensor, rows: Tensor, eos: int, table: Tensor, rarities: Tensor, *_: Any) -> Tensor:
        return rarities.new_empty(len(rows))

    for fake in (ngram_table, distinct_ngrams, weigh_captions, score_samples):
        torch.library.register_fake(f"prproduct::{fake.__name__}", fake)


def ngram_table(keys: Tensor, rarities: Tensor) -> tuple[Tensor, Tensor]:
    """Hash table (slots,) of the keys, at least half of it empty, and the rarity of the key in each slot."""
    slots = 1 << (2 * len(keys)).bit_length()
    table, table_rarities = np.zeros(slots, np.uint64), np.zeros(slots)
    for key, rarity in zip(_bits(keys).tolist(), rarities.tolist(), strict=True):
        slot = _slot_of(key, table)
        table[slot], table_rarities[slot] = key, rarity
    return torch.from_numpy(table.view(np.int64)), torch.from_numpy(table_rarities)


def distinct_ngrams(tokens: Tensor, caption_starts: Tensor, image_starts: Tensor) -> Tensor:
    """The distinct keys of each image's captions in ascending order, concatenated over the images."""
    keys = [_count_keys(tokens[a:b].tolist()) for a, b in pairwise(caption_starts.tolist())]
    distinct = [key for a, b in pairwise(image_starts.tolist()) for key in sorted(set(chain(*keys[a:b])))]
    return torch.from_numpy(np.array(distinct, np.uint64).view(np.int64))


def weigh_captions(
    tokens: Tensor, starts: Tensor, table: Tensor, table_rarities: Tensor, rarest: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`entry_starts`, `keys`, `weights` and `norms` of `CiderReward` for captions tokens[starts[c] : starts[c + 1]]."""
    captions = [_weigh(tokens[a:b].tolist(), table, table_rarities, rarest) for a, b in pairwise(starts.tolist())]
    entry_starts = [0, *accumulate(sum(map(len, caption.weights)) for caption in captions)]
    keys = np.array([key for caption in captions for of_order in caption.weights for key in of_order], np.uint64)
    weights = [weight for caption in captions for of_order in caption.weights for weight in of_order.values()]
    norms = torch.tensor([caption.norms for caption in captions], dtype=torch.float64).view(-1, ORDER)
    entries = torch.from_numpy(keys.view(np.int64)), torch.tensor(weights, dtype=torch.float64)
    return torch.tensor(entry_starts), *entries, norms


def score_samples(
    samples: Tensor, rows: Tensor, eos: int, table: Tensor, table_rarities: Tensor, rarest: float,
    image_starts: Tensor, lengths: Tensor, entry_starts: Tensor, keys: Tensor, weights: Tensor, norms: Tensor,
) -> Tensor:  # fmt: skip
    """CIDEr-D (batch,) of each row of `samples`, up to and including its first `eos`, against image rows[b]."""
    scores = []
    for sample, row in zip(samples.tolist(), rows.tolist(), strict=True):
        caption = sample[: sample.index(eos) + 1] if eos in sample else sample
        own, total = _weigh(caption, table, table_rarities, rarest), 0.0
        captions = range(int(image_starts[row]), int(image_starts[row + 1]))
        for c in captions:
            entries = slice(entry_starts[c], entry_starts[c + 1])
            of_caption = dict(zip(_bits(keys[entries]).tolist(), weights[entries].tolist(), strict=True))
            reference = WeightedCaption([of_caption] * ORDER, norms[c].tolist(), max(0, int(lengths[c]) - 1))
            total += similarity(own, reference)
        scores.append(SCALE * total / (ORDER * len(captions)))
    return torch.tensor(scores, dtype=torch.float64)


def _weigh(tokens: Sequence[int], table: Tensor, table_rarities: Tensor, rarest: float) -> WeightedCaption:
    """The n-grams of one caption, each weighted by its count times its rarity."""
    weights: list[dict[int, float]] = [{} for _ in range(ORDER)]
    slots = _bits(table)
    for key, count in sorted(_count_keys(tokens).items()):
        slot = _slot_of(key, slots)
        rarity = float(table_rarities[slot]) if int(slots[slot]) == key else rarest
        weights[(key.bit_length() - 1) // 16][key] = count * rarity
    norms = [math.sqrt(sum(w * w for w in of_order.values())) for of_order in weights]
    return WeightedCaption(weights, norms, max(0, len(tokens) - 1))


def _count_keys(tokens: Sequence[int]) -> Counter[int]:
    """How often each n-gram occurs. A key has 16 bits for each token id plus one, the last token in the lowest bits."""
    keys: Counter[int] = Counter()
    for begin in range(len(tokens)):
        key = 0
        for token in tokens[begin : begin + ORDER]:
            key = key << 16 | token + 1
            keys[key] += 1
    return keys


def _slot_of(key: int, table: NDArray[np.uint64]) -> int:
    """The slot of the key, or the empty slot where it would be inserted (linear probing)."""
    slot = (key * 0x9E3779B97F4A7C15 % 2**64 >> 32) % len(table)
    while int(table[slot]) not in (key, 0):
        slot = (slot + 1) % len(table)
    return slot


def _bits(keys: Tensor) -> NDArray[np.uint64]:
    return keys.numpy().view(np.uint64)
