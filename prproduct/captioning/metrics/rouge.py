"""ROUGE-L as the COCO evaluation computes it.

    ROUGE-L = (1 + β²)·P·R / (R + β²·P)        β = 1.2

P and R are the longest common subsequence's share of the candidate and of the reference, each the best over all
references, so the two may come from different ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prproduct.captioning.metrics.ngrams import Score, check_pairs

BETA = 1.2


def rouge_l(references: Sequence[Sequence[str]], candidates: Sequence[str]) -> Score:
    """ROUGE-L of candidates, each with its own references; the total is the mean over images.

    >>> rouge_l([["a cat sits on a mat", "the cat sat"]], ["a cat sat on a mat"]).total
    0.8333333333333334
    """
    check_pairs(references, candidates)
    each = np.array([_rouge(*pair) for pair in zip(references, candidates, strict=True)])
    return Score(float(each.mean()), each)


def _rouge(references: Sequence[str], candidate: str) -> float:
    # Split at each blank, as the COCO evaluation does here and nowhere else: an empty caption is one empty word.
    words = candidate.split(" ")
    precision = recall = 0.0
    for reference in references:
        others = reference.split(" ")
        common = common_subsequence(words, others)
        precision, recall = max(precision, common / len(words)), max(recall, common / len(others))
    if precision == 0 or recall == 0:
        return 0.0
    return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


def common_subsequence(words: Sequence[str], others: Sequence[str]) -> int:
    """The length of the longest common subsequence, one step of bit arithmetic a word (Hyyrö's recurrence).

    Bit i of `row` is 0 where word i makes the subsequence of what was read so far one longer.

    >>> common_subsequence("a cat sat on a mat".split(), "the cat on the mat".split())
    3
    """
    places: dict[str, int] = {}
    for i, word in enumerate(words):
        places[word] = places.get(word, 0) | 1 << i
    everywhere = (1 << len(words)) - 1
    row = everywhere
    for word in others:
        matched = row & places.get(word, 0)
        row = (row + matched | row - matched) & everywhere
    return len(words) - row.bit_count()
