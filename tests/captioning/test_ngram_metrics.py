"""BLEU, ROUGE-L and CIDEr-D against pycocoevalcap, and what must hold of each by its definition."""

import contextlib
import io

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pycocoevalcap.bleu.bleu import Bleu
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

from prproduct.captioning.metrics import Frequencies, bleu, cider_d, rouge_l
from prproduct.lab.errors import InputError

COMMON = ["a", "a", "cat", "dog", "on", "the", "mat", ".", "über", "猫", "n't", "'s", "12", "\u00e9", "e\u0301"]
words = st.one_of(st.sampled_from(COMMON), st.text("ab", min_size=1))
captions = st.lists(words, max_size=12).map(" ".join)
images = st.lists(st.tuples(st.lists(captions, min_size=1, max_size=6), captions), min_size=1, max_size=6)


def theirs(scorer, references, candidates):
    with contextlib.redirect_stdout(io.StringIO()):
        return scorer.compute_score(dict(enumerate(references)), {i: [c] for i, c in enumerate(candidates)})


def assert_equal(score, total, each):
    np.testing.assert_allclose(score.total, total, rtol=0, atol=1e-9)
    np.testing.assert_allclose(score.each, each, rtol=0, atol=1e-9)


@given(images)
def test_bleu_is_pycocoevalcaps(pairs):
    references, candidates = zip(*pairs, strict=True)
    totals, each = theirs(Bleu(4), references, candidates)
    for n, score in enumerate(bleu(references, candidates)):
        assert_equal(score, totals[n], each[n])


@given(images)
def test_rouge_is_pycocoevalcaps(pairs):
    references, candidates = zip(*pairs, strict=True)
    assert_equal(rouge_l(references, candidates), *theirs(Rouge(), references, candidates))


@given(images)
def test_cider_is_pycocoevalcaps(pairs):
    references, candidates = zip(*pairs, strict=True)
    assume(any(caption.split() for captions in references for caption in captions))  # else pycocoevalcap's fails
    assert_equal(cider_d(references, candidates), *theirs(Cider(), references, candidates))


@given(images)
def test_cider_with_frequencies_of_a_larger_corpus_is_pycocoevalcaps_on_the_larger_corpus(pairs):
    references, candidates = zip(*pairs, strict=True)
    others = [["a cat on the mat", "the dog"], ["a dog"], ["über a mat"]]
    _, each = theirs(Cider(), [*references, *others], [*candidates, "a", "a", "a"])
    score = cider_d(references, candidates, Frequencies.of([*references, *others]))
    assert_equal(score, each[: len(candidates)].mean(), each[: len(candidates)])


def test_a_caption_equal_to_its_only_reference_is_perfect():
    caption, other = "a cat sits on a mat", "two dogs run along the beach"
    assert [score.total for score in bleu([[caption]], [caption])] == pytest.approx([1] * 4, abs=1e-8)
    assert rouge_l([[caption]], [caption]).total == pytest.approx(1, abs=1e-15)
    assert cider_d([[caption], [other]], [caption, other]).total == pytest.approx(10, abs=1e-13)


def test_cider_of_one_image_alone_is_nothing():
    assert cider_d([["a cat"]], ["a cat"]).total == 0.0


@pytest.mark.parametrize("metric", [bleu, rouge_l, cider_d])
@pytest.mark.parametrize(
    ("references", "candidates", "line"),
    [
        ([], [], "no captions to score"),
        ([["a"]], ["a", "b"], "2 captions for 1 images"),
        ([["a"], []], ["a", "b"], "image 1 has no list of references"),
        ([["a"], "b"], ["a", "b"], "image 1 has no list of references"),
    ],
)
def test_what_cannot_be_scored_is_named(metric, references, candidates, line):
    with pytest.raises(InputError, match=line):
        metric(references, candidates)
