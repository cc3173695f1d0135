"""N-grams of token ids as keys of 64 bits, compiled by Numba: counted, looked up, compared.

A key is the n-gram's tokens, each plus one, 16 bits each. Different n-grams have different keys, and sorted keys stand
by n, since an n-gram's key lies between 2^16(n−1) and 2^16n. So two captions are compared by walking along two sorted
lists; nothing is hashed but to find the weight of a candidate's n-gram among millions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from prproduct.captioning.metrics.cider import SCALE, SIGMA
from prproduct.captioning.metrics.ngrams import ORDER

EMPTY = np.uint64(0)  # no n-gram has this key
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64/φ: spreads keys that differ in few bits (Fibonacci hashing)


def compiled_pass(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled at the first call, and kept on disk for the next process where there is a place to write."""
    try:
        return numba.njit(function, nogil=True, error_model="numpy", cache=True)
    except RuntimeError:  # no such place
        return numba.njit(function, nogil=True, error_model="numpy")


@compiled_pass
def sorted_keys(tokens: Any, keys: Any) -> int:
    """All n-grams of a caption, into the front of `keys`; returns how many."""
    size = 0
    for n in range(1, ORDER + 1):
        for i in range(len(tokens) - n + 1):
            key = np.uint64(0)
            for k in range(n):
                key = (key << np.uint64(16)) | np.uint64(tokens[i + k] + 1)
            keys[size] = key
            size += 1
    keys[:size].sort()
    return size


@compiled_pass
def order_of(key: np.uint64) -> int:
    """n − 1 of an n-gram."""
    if key < np.uint64(1 << 16):
        return 0
    if key < np.uint64(1 << 32):
        return 1
    return 2 if key < np.uint64(1 << 48) else 3


@compiled_pass
def _slot(key: np.uint64, table: Any) -> Any:
    """Where in the table the key is, or would be. The table's size is a power of two, and half of it is empty."""
    mask = np.uint64(len(table) - 1)
    place = ((key * MULTIPLIER) >> np.uint64(32)) & mask
    while table[place] != key and table[place] != EMPTY:
        place = (place + np.uint64(1)) & mask
    return place


@compiled_pass
def fill_table(keys: Any, rarities: Any, table: Any, table_rarities: Any) -> None:
    """Every key with its rarity into an empty table."""
    for k in range(len(keys)):
        place = _slot(keys[k], table)
        table[place] = keys[k]
        table_rarities[place] = rarities[k]


@compiled_pass
def weigh(
    keys: Any, size: int, table: Any, table_rarities: Any, rarest: float, distinct: Any, weights: Any, norms: Any
) -> int:
    """Sorted keys to distinct keys with count times rarity, and the norm of each order; returns how many."""
    norms[:] = 0.0
    written, k = 0, 0
    while k < size:
        key, count = keys[k], 0
        while k < size and keys[k] == key:
            k, count = k + 1, count + 1
        place = _slot(key, table)
        weight = count * (table_rarities[place] if table[place] == key else rarest)
        distinct[written], weights[written] = key, weight
        norms[order_of(key)] += weight * weight
        written += 1
    norms[:] = np.sqrt(norms)
    return written


@compiled_pass
def distinct_of_images(tokens: Any, caption_starts: Any, image_starts: Any, distinct: Any) -> int:
    """The distinct keys of every image, one image after the other; returns how many."""
    written = 0
    for image in range(len(image_starts) - 1):
        begin = written
        for caption in range(image_starts[image], image_starts[image + 1]):
            written += sorted_keys(tokens[caption_starts[caption] : caption_starts[caption + 1]], distinct[written:])
        of_image = distinct[begin:written]
        of_image.sort()
        kept = begin
        for k in range(begin, written):
            if k == begin or distinct[k] != distinct[kept - 1]:
                distinct[kept] = distinct[k]
                kept += 1
        written = kept
    return written


@compiled_pass
def weigh_captions(
    tokens: Any,
    starts: Any,
    table: Any,
    table_rarities: Any,
    rarest: float,
    entry_starts: Any,
    keys: Any,
    weights: Any,
    norms: Any,
) -> None:
    """`weigh` for every caption, one after the other; entry_starts tells where each begins."""
    longest = 0
    for caption in range(len(starts) - 1):
        longest = max(longest, starts[caption + 1] - starts[caption])
    scratch = np.empty(ORDER * longest, np.uint64)
    entry_starts[0] = 0
    for caption in range(len(starts) - 1):
        size = sorted_keys(tokens[starts[caption] : starts[caption + 1]], scratch)
        at = entry_starts[caption]
        written = weigh(scratch, size, table, table_rarities, rarest, keys[at:], weights[at:], norms[caption])
        entry_starts[caption + 1] = at + written


@compiled_pass
def _similarity(
    keys: Any, weights: Any, norms: Any, other_keys: Any, other_weights: Any, other_norms: Any, common: Any
) -> float:
    """Σ over n of the clipped products over the norms, along two sorted lists."""
    common[:] = 0.0
    a, b = 0, 0
    while a < len(keys) and b < len(other_keys):
        if keys[a] < other_keys[b]:
            a += 1
        elif keys[a] > other_keys[b]:
            b += 1
        else:
            common[order_of(keys[a])] += min(weights[a], other_weights[b]) * other_weights[b]
            a, b = a + 1, b + 1
    total = 0.0
    for n in range(ORDER):
        product = norms[n] * other_norms[n]
        total += common[n] / product if product != 0.0 else common[n]
    return total


@compiled_pass
def score_samples(
    samples: Any, rows: Any, eos: int, table: Any, table_rarities: Any, rarest: float,
    image_starts: Any, lengths: Any, entry_starts: Any, ref_keys: Any, ref_weights: Any, ref_norms: Any, scores: Any,
) -> None:  # fmt: skip
    """CIDEr-D of each row of `samples`, up to and with its first `eos`, for image rows[b]."""
    room = ORDER * samples.shape[1]
    found, keys, weights = np.empty(room, np.uint64), np.empty(room, np.uint64), np.empty(room)
    norms, common = np.empty(ORDER), np.empty(ORDER)
    for b in range(len(samples)):
        length = 0
        while length < samples.shape[1]:
            length += 1
            if samples[b, length - 1] == eos:
                break
        size = sorted_keys(samples[b, :length], found)
        size = weigh(found, size, table, table_rarities, rarest, keys, weights, norms)
        total = 0.0
        for caption in range(image_starts[rows[b]], image_starts[rows[b] + 1]):
            entries = slice(entry_starts[caption], entry_starts[caption + 1])
            similar = _similarity(
                keys[:size], weights[:size], norms, ref_keys[entries], ref_weights[entries], ref_norms[caption], common
            )
            delta = max(0, length - 1) - max(0, lengths[caption] - 1)  # bigrams
            total += similar * np.exp(-(delta * delta) / (2 * SIGMA**2))
        scores[b] = SCALE * total / (ORDER * (image_starts[rows[b] + 1] - image_starts[rows[b]]))
