"""CIDEr as the COCO evaluation computes it, which is CIDEr-D.

    CIDEr-D = 10 · mean over n = 1 … 4 and references of   Σ_g min(c_g, r_g)·r_g / (‖c‖‖r‖) · exp(−(l_c − l_r)²/2σ²)

c_g and r_g are an n-gram's count in candidate and reference, times log(number of images) − log(number of images whose
references have it). l is a caption's number of bigrams, σ = 6.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from prproduct.captioning.metrics.frequencies import Frequencies
from prproduct.captioning.metrics.ngrams import ORDER, Ngram, Score, check_pairs, count_ngrams

SIGMA = 6.0
SCALE = 10.0


class Weighted(NamedTuple):
    """A caption's n-grams, in any hashable form, with their weights, by n."""

    weights: Sequence[Mapping[Any, float]]
    norms: list[float]
    bigrams: int


def cider_d(
    references: Sequence[Sequence[str]], candidates: Sequence[str], frequencies: Frequencies | None = None
) -> Score:
    """CIDEr-D of candidates, each with its own references; the total is the mean over images.

    Without `frequencies` the references in hand are what n-grams are counted in. Of a single image every n-gram is then
    in all images, has no weight, and the score is 0.

    >>> references = [["a cat sits on a mat", "the cat sat"], ["two dogs run", "dogs that run"]]
    >>> score = cider_d(references, ["a cat sat on a mat", "dogs run"])
    >>> score.each.round(3)
    array([2.955, 2.885])
    """
    check_pairs(references, candidates)
    frequencies = frequencies or Frequencies.of(references)
    each = np.array([_cider(r, c, frequencies) for r, c in zip(references, candidates, strict=True)])
    return Score(float(each.mean()), each)


def _cider(references: Sequence[str], candidate: str, frequencies: Frequencies) -> float:
    weighted = _weigh(candidate, frequencies)
    total = sum(similarity(weighted, _weigh(reference, frequencies)) for reference in references)
    return SCALE * total / (ORDER * len(references))


def _weigh(caption: str, frequencies: Frequencies) -> Weighted:
    weights: list[dict[Ngram, float]] = [{} for _ in range(ORDER)]
    log_images = math.log(frequencies.images)
    for ngram, count in count_ngrams(caption).items():
        rarity = log_images - math.log(max(1.0, frequencies.counts.get(ngram, 0)))
        weights[len(ngram) - 1][ngram] = count * rarity
    norms = [math.sqrt(sum(w * w for w in of_order.values())) for of_order in weights]
    return Weighted(weights, norms, max(0, len(caption.split()) - 1))


def similarity(candidate: Weighted, reference: Weighted) -> float:
    """Σ over n of Σ_g min(c_g, r_g)·r_g / (‖c‖‖r‖), times exp(−(l_c − l_r)²/2σ²)."""
    total = 0.0
    for n in range(ORDER):
        others = reference.weights[n]
        common = sum(
            min(w, others[ngram]) * others[ngram] for ngram, w in candidate.weights[n].items() if ngram in others
        )
        norms = candidate.norms[n] * reference.norms[n]
        total += common / norms if norms != 0 else common
    return total * math.exp(-((candidate.bigrams - reference.bigrams) ** 2) / (2 * SIGMA**2))
