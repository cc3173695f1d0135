"""BLEU, ROUGE-L and CIDEr-D exactly as the COCO evaluation (pycocoevalcap) computes them.

A caption is a string of tokens with single blanks between them, as the tokenizer returns it. Every metric takes one
list of references per image and one candidate caption per image, and returns a `Score`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prproduct.captioning.metrics.frequencies import ORDER, Frequencies, Ngram, count_ngrams
from prproduct.lab.errors import InputError

# BLEU: the COCO evaluation adds these to numerators and denominators. They decide the score of short captions: one
# word, the right one, has BLEU-2 = √(1e-15/1e-9) = 0.001.
NUMERATOR_EPSILON, DENOMINATOR_EPSILON = 1e-15, 1e-9
BETA = 1.2  # of ROUGE-L
SIGMA, SCALE = 6.0, 10.0  # of CIDEr-D


class Score(NamedTuple):
    """A metric's value over all images, and the value of each image."""

    total: float
    each: NDArray[np.float64]


def check_pairs(references: Sequence[Sequence[str]], candidates: Sequence[str]) -> None:
    """Raise InputError unless every image has one candidate and at least one reference."""
    if not candidates:
        raise InputError("no captions to score")
    if len(references) != len(candidates):
        raise InputError(f"{len(candidates)} captions for {len(references)} images; give one caption an image")
    for image, captions in enumerate(references):
        if isinstance(captions, str) or not captions:
            raise InputError(f"image {image} has no list of references; give at least one reference an image")


def bleu(references: Sequence[Sequence[str]], candidates: Sequence[str]) -> list[Score]:
    r"""BLEU-1 to BLEU-4.

        BLEU-n = BP · (Π_{k≤n} c_k / g_k)^(1/n)        BP = min(1, exp(1 − r/t))

    g_k is the number of k-grams of the candidate; c_k counts those that occur in a reference, each at most as often as
    in the reference that has it most often. t is the candidate's length, r the length of the reference closest in
    length (the shorter one of a tie). The total is computed from c, g, r, t summed over all images; it is not the mean
    of the images' values.

    >>> scores = bleu([["a cat sits on a mat", "the cat sat"]], ["a cat sat on a mat"])
    >>> [round(score.total, 3) for score in scores]
    [1.0, 0.894, 0.585, 0.0]
    """
    check_pairs(references, candidates)
    rows = np.array([_bleu_counts(*pair) for pair in zip(references, candidates, strict=True)])  # (images, 2·ORDER + 2)
    each = np.array([_bleu_values(row) for row in rows])  # (images, ORDER)
    return [Score(total, each[:, n]) for n, total in enumerate(_bleu_values(rows.sum(axis=0)))]


def _bleu_counts(references: Sequence[str], candidate: str) -> list[int]:
    """c_1 … c_4, g_1 … g_4, t, r of one image."""
    most: Counter[Ngram] = Counter()
    for reference in references:
        most |= count_ngrams(reference)
    correct = [0] * ORDER
    for ngram, count in count_ngrams(candidate).items():
        correct[len(ngram) - 1] += min(count, most[ngram])
    length = len(candidate.split())
    _, closest = min((abs(len(reference.split()) - length), len(reference.split())) for reference in references)
    return [*correct, *(max(0, length - n) for n in range(ORDER)), length, closest]


def _bleu_values(counts: NDArray[np.int64]) -> list[float]:
    """BLEU-1 to BLEU-4 from the counts of one image, or from their sum over images."""
    correct, guessed = counts[:ORDER].tolist(), counts[ORDER : 2 * ORDER].tolist()
    length, closest = counts[2 * ORDER :].tolist()
    ratio = (length + NUMERATOR_EPSILON) / (closest + DENOMINATOR_EPSILON)
    penalty = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
    product, values = 1.0, []
    for n in range(ORDER):
        product *= (correct[n] + NUMERATOR_EPSILON) / (guessed[n] + DENOMINATOR_EPSILON)
        values.append(product ** (1 / (n + 1)) * penalty)
    return values


def rouge_l(references: Sequence[Sequence[str]], candidates: Sequence[str]) -> Score:
    """ROUGE-L; the total is the mean over images.

        ROUGE-L = (1 + β²)·P·R / (R + β²·P)        β = 1.2

    P and R are the length of the longest common subsequence divided by the length of the candidate and of the
    reference. Each is the maximum over the references, so the two may come from different references.

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
    """Length of the longest common subsequence, by Hyyrö's bit-parallel recurrence: one integer update per word.

    Bit i of `row` is 0 if word i extends the longest common subsequence with the part of `others` read so far.

    >>> common_subsequence("a cat sat on a mat".split(), "the cat on the mat".split())
    3
    """
    positions: dict[str, int] = {}
    for i, word in enumerate(words):
        positions[word] = positions.get(word, 0) | 1 << i
    all_bits = (1 << len(words)) - 1
    row = all_bits
    for word in others:
        matched = row & positions.get(word, 0)
        row = (row + matched | row - matched) & all_bits
    return len(words) - row.bit_count()


def cider_d(
    references: Sequence[Sequence[str]], candidates: Sequence[str], frequencies: Frequencies | None = None
) -> Score:
    """CIDEr as the COCO evaluation computes it, which is CIDEr-D; the total is the mean over images.

        CIDEr-D = 10 · mean over n = 1 … 4 and references of  Σ_g min(c_g, r_g)·r_g / (‖c‖‖r‖) · exp(−(l_c − l_r)²/2σ²)

    c_g and r_g are the count of n-gram g in candidate and reference times its weight log(number of images) −
    log(number of images whose references contain g). l is a caption's number of bigrams, σ = 6.

    Without `frequencies` the images that contain an n-gram are counted in `references`. With a single image every
    n-gram then has weight 0, and so the score is 0.

    >>> references = [["a cat sits on a mat", "the cat sat"], ["two dogs run", "dogs that run"]]
    >>> score = cider_d(references, ["a cat sat on a mat", "dogs run"])
    >>> score.each.round(3)
    array([2.955, 2.885])
    """
    check_pairs(references, candidates)
    frequencies = frequencies or Frequencies.of(references)
    each = np.array(
        [
            cider_of_image([weigh(reference, frequencies) for reference in captions], weigh(candidate, frequencies))
            for captions, candidate in zip(references, candidates, strict=True)
        ]
    )
    return Score(float(each.mean()), each)


class WeightedCaption(NamedTuple):
    """The n-grams of a caption, each with its count times its rarity, the log inverse document frequency."""

    weights: Sequence[Mapping[Ngram, float]]  # by n
    norms: list[float]  # by n
    bigrams: int


def weigh(caption: str, frequencies: Frequencies) -> WeightedCaption:
    """Count and weight the n-grams of a caption."""
    weights: list[dict[Ngram, float]] = [{} for _ in range(ORDER)]
    log_images = math.log(frequencies.images)
    for ngram, count in count_ngrams(caption).items():
        rarity = log_images - math.log(max(1.0, frequencies.counts.get(ngram, 0)))
        weights[len(ngram) - 1][ngram] = count * rarity
    norms = [math.sqrt(sum(w * w for w in of_order.values())) for of_order in weights]
    return WeightedCaption(weights, norms, max(0, len(caption.split()) - 1))


def cider_of_image(references: Sequence[WeightedCaption], candidate: WeightedCaption) -> float:
    """CIDEr-D of a candidate for an image with these references."""
    total = sum(_similarity(candidate, reference) for reference in references)
    return SCALE * total / (ORDER * len(references))


def _similarity(candidate: WeightedCaption, reference: WeightedCaption) -> float:
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
