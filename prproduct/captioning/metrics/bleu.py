"""BLEU-1 … BLEU-4 as the COCO evaluation computes them.

    BLEU-n = BP · (Π_{k≤n} c_k / g_k)^(1/n)        BP = min(1, exp(1 − r/t))

Of the candidate's g_k k-grams, c_k are in some reference, each at most as often as in the reference that has it most
often. t is the candidate's length, r that of the reference closest in length, the shorter of two equally close. The
total is computed from the sums of c, g, r, t over all images: it is not the mean of the images' values.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prproduct.captioning.metrics.ngrams import ORDER, Ngram, Score, check_pairs, count_ngrams

# The COCO evaluation adds these to counts above and below a fraction bar. They decide what short captions get: one
# word, the right one, has BLEU-2 = √(1e-15/1e-9) = 0.001.
ABOVE, BELOW = 1e-15, 1e-9


def bleu(references: Sequence[Sequence[str]], candidates: Sequence[str]) -> list[Score]:
    """BLEU-1 to BLEU-4 of candidates, each with its own references.

    >>> scores = bleu([["a cat sits on a mat", "the cat sat"]], ["a cat sat on a mat"])
    >>> [round(score.total, 3) for score in scores]
    [1.0, 0.894, 0.585, 0.0]
    """
    check_pairs(references, candidates)
    rows = np.array([_counts(*pair) for pair in zip(references, candidates, strict=True)])  # (images, 2·ORDER + 2)
    each = np.array([_from_counts(row) for row in rows])  # (images, ORDER)
    return [Score(total, each[:, n]) for n, total in enumerate(_from_counts(rows.sum(axis=0)))]


def _counts(references: Sequence[str], candidate: str) -> list[int]:
    """c_1 … c_4, g_1 … g_4, t, r."""
    most: Counter[Ngram] = Counter()
    for reference in references:
        most |= count_ngrams(reference)
    correct = [0] * ORDER
    for ngram, count in count_ngrams(candidate).items():
        correct[len(ngram) - 1] += min(count, most[ngram])
    length = len(candidate.split())
    _, closest = min((abs(len(reference.split()) - length), len(reference.split())) for reference in references)
    return [*correct, *(max(0, length - n) for n in range(ORDER)), length, closest]


def _from_counts(counts: NDArray[np.int64]) -> list[float]:
    correct, guessed = counts[:ORDER].tolist(), counts[ORDER : 2 * ORDER].tolist()
    length, closest = counts[2 * ORDER :].tolist()
    ratio = (length + ABOVE) / (closest + BELOW)
    penalty = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
    product, values = 1.0, []
    for n in range(ORDER):
        product *= (correct[n] + ABOVE) / (guessed[n] + BELOW)
        values.append(product ** (1 / (n + 1)) * penalty)
    return values
