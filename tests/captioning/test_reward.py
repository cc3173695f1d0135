"""CIDEr-D on token ids: what CIDEr-D on the same tokens as words gives, from kept references."""

from dataclasses import astuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pycocoevalcap.cider.cider import Cider
from torch.nn.utils.rnn import pad_sequence

from prproduct.captioning.metrics import CiderReward, Frequencies, PackedCaptions, cider_d
from prproduct.captioning.metrics.java import coco_captions
from prproduct.captioning.metrics.reward import LARGEST_TOKEN, KeyReferences, StringReferences
from prproduct.captioning.metrics.tokenizer import tokenize_all
from prproduct.lab.errors import InputError
from prproduct.ops import kernels

tokens = st.one_of(st.integers(1, 6), st.integers(1, LARGEST_TOKEN))
references = st.lists(st.lists(st.lists(tokens, max_size=9), min_size=1, max_size=4), min_size=1, max_size=5)
samples = st.lists(st.lists(st.one_of(st.just(0), tokens), min_size=7, max_size=7), min_size=1, max_size=5)


@pytest.fixture(scope="module", autouse=True, params=[KeyReferences, StringReferences])
def kind(request):
    """Every test runs with the compiled operators, and as without the library."""
    assert kernels.library()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "library", lambda: request.param is KeyReferences)
        yield request.param


def test_the_references_are_those_that_the_library_decides_on(kind):
    assert type(CiderReward.of(PackedCaptions.pack([[[1]]])).references) is kind


def as_words(ids, end=True):
    return " ".join(map(str, [*ids, 0] if end else ids))


def ended(sample):
    return as_words(sample[: sample.index(0)]) if 0 in sample else as_words(sample, end=False)


def expected(images, batch, rows, frequencies=None):
    words = [[as_words(caption) for caption in image] for image in images]
    frequencies = frequencies or Frequencies.of(words)
    return cider_d([words[row] for row in rows], [ended(sample) for sample in batch], frequencies).each


@given(references, samples, st.randoms())
def test_scores_are_those_of_the_same_words(images, batch, random):
    rows = [random.randrange(len(images)) for _ in batch]
    scores = CiderReward.of(PackedCaptions.pack(images))(torch.tensor(batch), torch.tensor(rows))
    np.testing.assert_allclose(scores, expected(images, batch, rows), rtol=0, atol=1e-9)


@given(references, samples)
def test_frequencies_of_another_corpus_serve(images, batch):
    frequencies = Frequencies.of([["1 2 3 0"], ["1 2 0", "4 0"], ["1 0"]])
    rows = [0] * len(batch)
    scores = CiderReward.of(PackedCaptions.pack(images), frequencies)(torch.tensor(batch), torch.tensor(rows))
    np.testing.assert_allclose(scores, expected(images, batch, rows, frequencies), rtol=0, atol=1e-9)


@given(references, st.lists(st.lists(st.one_of(st.just(0), tokens), max_size=9), max_size=4), samples, st.randoms())
def test_scores_are_the_same_with_the_library_and_without(images, corpus, batch, random):
    """With frequencies counted in the references and with given ones."""
    batch, rows = torch.tensor(batch), torch.tensor([random.randrange(len(images)) for _ in batch])
    captions = PackedCaptions.pack(images).with_end()
    for frequencies in (None, Frequencies.of([[as_words(caption, end=False)] for caption in corpus] or [["0"]])):
        scores, plain = (
            kind.of(captions, frequencies).score(batch, rows) for kind in (KeyReferences, StringReferences)
        )
        assert scores.dtype == plain.dtype == torch.float64
        np.testing.assert_allclose(plain, scores, rtol=0, atol=1e-12)


IMAGES = [[[1, 2, 3], [1, 2]], [[4, 5, 8]], [[6]]]


def test_the_end_of_a_caption_belongs_to_it():
    reward = CiderReward.of(PackedCaptions.pack(IMAGES))
    whole, cut = reward(torch.tensor([[4, 5, 8, 0], [9, 4, 5, 8]]), torch.tensor([1, 1]))
    assert whole == pytest.approx(10)
    assert cut < 8
    assert reward(torch.tensor([[4, 5, 8, 0, 3, 3, 0]]), torch.tensor([1])) == pytest.approx(10), (
        "nothing behind it counts"
    )


def test_labels_in_rows_padded_with_zeros_are_the_same_captions():
    labels = np.array([[1, 2, 3], [1, 2, 0], [4, 5, 8], [6, 0, 0]], np.uint32)
    packed = PackedCaptions.from_labels(labels, np.array([1, 3, 4], np.uint32), np.array([2, 3, 4], np.uint32))
    for got, expected in zip(astuple(packed), astuple(PackedCaptions.pack(IMAGES)), strict=True):
        assert np.array_equal(got, expected)


def test_an_empty_batch_has_no_scores():
    reward = CiderReward.of(PackedCaptions.pack(IMAGES))
    assert reward(torch.empty(0, 5, dtype=torch.long), torch.empty(0, dtype=torch.long)).shape == (0,)


def test_int32_and_transposed_samples_are_read_alike():
    reward, batch, rows = CiderReward.of(PackedCaptions.pack(IMAGES)), [[1, 2, 0], [4, 5, 0]], torch.tensor([0, 1])
    scores = reward(torch.tensor(batch), rows)
    assert torch.equal(scores, reward(torch.tensor(batch, dtype=torch.int32), rows))
    assert torch.equal(scores, reward(torch.tensor(batch).T.contiguous().T, rows))


def test_real_captions_have_pycocoevalcaps_scores():
    """The first caption of each image is scored against the others."""
    ids: dict[str, int] = {}
    images = [tokenize_all(captions) for captions in list(coco_captions("val").values())[:300]]
    tokens = [
        [[ids.setdefault(word, len(ids) + 1) for word in text.split()] for text in captions] for captions in images
    ]
    samples = pad_sequence([torch.tensor([*first, 0]) for first, *_ in tokens], batch_first=True)
    scores = CiderReward.of(PackedCaptions.pack([others for _, *others in tokens]))(samples, torch.arange(300))

    words = {index: [as_words(caption) for caption in captions] for index, captions in enumerate(tokens)}
    references, candidates = (
        {index: texts[part] for index, texts in words.items()} for part in (slice(1, None), slice(1))
    )
    np.testing.assert_allclose(scores, Cider().compute_score(references, candidates)[1], rtol=0, atol=1e-9)
    assert 0.1 < scores.mean() < 5


@pytest.mark.parametrize(
    ("images", "line"),
    [
        ([], "no images"),
        ([[[1]], []], "image 1 has no captions"),
        ([[[1, LARGEST_TOKEN + 1]]], "token ids from 1 to 65535"),
        ([[[-1]]], "token ids from -1"),
    ],
)
def test_references_that_cannot_be_kept_are_named(images, line):
    with pytest.raises(InputError, match=line):
        PackedCaptions.pack(images)


@pytest.mark.parametrize(
    ("batch", "rows", "line"),
    [
        ([[1, 0]], [3], "images from 3 to 3"),
        ([[1, 0]], [-1], "images from -1"),
        ([[1, 70000]], [0], "token ids from 1 to 70000"),
        ([[1, 0]], [0, 1], "expected"),
        ([1, 0], [0, 1], "expected"),
    ],
)
def test_samples_out_of_range_are_refused_before_memory_is_touched(batch, rows, line):
    with pytest.raises(ValueError, match=line):
        CiderReward.of(PackedCaptions.pack(IMAGES))(torch.tensor(batch), torch.tensor(rows))


@pytest.mark.parametrize(
    ("batch", "rows", "line"),
    [
        ([[1.5, 0.0]], [0], "samples of torch.float32"),
        ([[1, 0]], [0.5], "images of"),
        ([[True]], [0], "samples of .*bool"),
    ],
)
def test_samples_that_are_no_integers_are_refused_and_not_rounded(batch, rows, line):
    with pytest.raises(TypeError, match=line):
        CiderReward.of(PackedCaptions.pack(IMAGES))(torch.tensor(batch), torch.tensor(rows))


@pytest.mark.parametrize("caption", [[1, 2, 0], [1, 0, 2]])
def test_references_that_have_their_end_are_refused(caption):
    """A second end would be added, and no sample could ever equal them."""
    with pytest.raises(InputError, match=r"references with their end \(0\) in them"):
        CiderReward.of(PackedCaptions.pack([[caption], [[3]]]))


@pytest.mark.parametrize(("first", "last"), [([0], [1]), ([1], [3]), ([], [])])
def test_labels_that_point_outside_their_rows_are_refused(first, last):
    with pytest.raises(InputError, match="they count from 1"):
        PackedCaptions.from_labels(np.ones((2, 3), int), np.array(first, int), np.array(last, int))


def test_an_ngram_of_all_images_weighs_exactly_nothing():
    """With a weight of 1e-15, an empty sample would be equal to an empty reference: 2.5. log(9170) is such a number."""
    reward = CiderReward.of(PackedCaptions.pack([[[]]] * 9170))
    assert reward(torch.tensor([[0, 0]]), torch.tensor([0])) == 0


def test_samples_without_any_token_score_nothing():
    assert CiderReward.of(PackedCaptions.pack(IMAGES))(
        torch.empty(2, 0, dtype=torch.int64), torch.tensor([0, 1])
    ).tolist() == [0, 0]


@pytest.mark.parametrize("word", ["cat", str(LARGEST_TOKEN + 1)])
def test_frequencies_over_anything_but_token_ids_are_refused(word):
    with pytest.raises(InputError, match=f"'{word}', not token ids"):
        CiderReward.of(PackedCaptions.pack(IMAGES), Frequencies.of([[f"3 {word}"]]))
