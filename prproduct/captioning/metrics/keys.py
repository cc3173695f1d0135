"""The operators on n-grams of token ids as 64-bit keys (`csrc/ngrams.h` says what a key is).

    ngram_table(keys, rarities) -> (table, table_rarities)
    distinct_ngrams(tokens, caption_starts, image_starts) -> keys
    weigh_captions(tokens, starts, table, table_rarities, rarest) -> (entry_starts, keys, weights, norms)
    score_samples(samples, rows, eos, table, table_rarities, rarest,
                  image_starts, lengths, entry_starts, keys, weights, norms) -> scores

All tensors are contiguous and on the CPU, of int64 or float64; keys are int64 with the bits of uint64. Results are new
tensors. A wrong argument raises a RuntimeError of one line.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from prproduct.captioning.metrics import plain_keys
from prproduct.captioning.metrics.ngrams import ORDER
from prproduct.ops import native


@functools.cache
def operators() -> Any:
    """`torch.ops.prproduct`, or `plain_keys` if the compiled library cannot be loaded."""
    if not native.library():
        return plain_keys
    _register_fakes()
    return torch.ops.prproduct


def _register_fakes() -> None:
    """Shapes of the operators' results, for tracing and for fake tensors."""

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
