"""N-grams of a caption, and what every metric returns.

A caption is a string of tokens with single blanks between them, as the tokenizer leaves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prproduct.lab.errors import InputError

ORDER = 4  # the longest n-grams that BLEU and CIDEr count

Ngram = tuple[str, ...]


class Score(NamedTuple):
    """A metric's value over all images, and of each image."""

    total: float
    each: NDArray[np.float64]


def count_ngrams(caption: str, order: int = ORDER) -> Counter[Ngram]:
    """How often each n-gram of 1 to `order` words occurs.

    >>> count_ngrams("a cat a", 2)
    Counter({('a',): 2, ('cat',): 1, ('a', 'cat'): 1, ('cat', 'a'): 1})
    """
    words = caption.split()
    return Counter(tuple(words[i : i + n]) for n in range(1, order + 1) for i in range(len(words) - n + 1))


def check_pairs(references: Sequence[Sequence[str]], candidates: Sequence[str]) -> None:
    """Every metric needs one candidate an image, and at least one reference."""
    if not candidates:
        raise InputError("no captions to score")
    if len(references) != len(candidates):
        raise InputError(f"{len(candidates)} captions for {len(references)} images; give one caption an image")
    for image, captions in enumerate(references):
        if isinstance(captions, str) or not captions:
            raise InputError(f"image {image} has no list of references; give at least one reference an image")
