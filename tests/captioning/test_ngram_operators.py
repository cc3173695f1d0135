"""The compiled operators of the caption reward: the n-grams and weights of strings of the same tokens, and errors."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prproduct.captioning.metrics.frequencies import Frequencies, count_ngrams
from prproduct.captioning.metrics.ngram_metrics import weigh
from prproduct.captioning.metrics.reward import LARGEST_TOKEN
from prproduct.ops import kernels

assert kernels.library()
compiled = torch.ops.prproduct
tokens = st.one_of(st.integers(0, 5), st.integers(0, LARGEST_TOKEN))
captions = st.lists(st.lists(st.lists(tokens, max_size=9), min_size=1, max_size=4), max_size=5)
samples = st.lists(st.lists(tokens, min_size=7, max_size=7), max_size=5)


def ints(*values):
    return torch.tensor(values, dtype=torch.int64)


def floats(*values):
    return torch.tensor(values, dtype=torch.float64)


def packed(images):
    """Tokens, caption_starts and image_starts of the captions of images, which may be none."""
    flat = [caption for image in images for caption in image]
    starts = [torch.tensor([0, *map(len, rows)]).cumsum(0) for rows in (flat, images)]
    return ints(*(token for caption in flat for token in caption)), *starts


def rarities_of(found):
    return torch.arange(1, len(found) + 1, dtype=torch.float64) / 7


def prepared(images):
    """The arguments of `score_samples` from the table on."""
    words, caption_starts, image_starts = packed(images)
    found = compiled.distinct_ngrams(words, caption_starts, image_starts)[::2].unique()
    table = compiled.ngram_table(found, rarities_of(found))
    weighted = compiled.weigh_captions(words, caption_starts, *table, 2.5)
    return *table, 2.5, image_starts, caption_starts.diff(), *weighted


def as_string(ids):
    return " ".join(map(str, ids))


def ngram_of(key):
    """The n-gram, of decimal strings, that a key holds: 16 bits for each token id plus one."""
    key %= 2**64
    return tuple(str((key >> shift & 0xFFFF) - 1) for shift in (48, 32, 16, 0) if key >> shift)


@given(captions)
def test_distinct_ngrams_are_those_of_each_images_captions_in_ascending_order(images):
    found = compiled.distinct_ngrams(*packed(images))
    expected = [{ngram for caption in image for ngram in count_ngrams(as_string(caption))} for image in images]
    keys, at = found.numpy().view(np.uint64), 0
    for of_image in expected:
        part = keys[at : at + len(of_image)]
        assert {ngram_of(int(key)) for key in part} == of_image
        assert (part[:-1] < part[1:]).all()
        at += len(of_image)
    assert at == len(keys)


@given(captions)
def test_captions_are_weighted_as_their_strings_are(images):
    """The table has every second n-gram; the rest are as rare as possible."""
    words, caption_starts, image_starts = packed(images)
    known = compiled.distinct_ngrams(words, caption_starts, image_starts).unique()[::2].contiguous()
    counts = torch.arange(1, len(known) + 1, dtype=torch.float64) / 7
    frequencies = Frequencies(dict(zip(map(ngram_of, known.tolist()), counts.tolist(), strict=True)), 9)
    rarest = math.log(frequencies.images)
    table = compiled.ngram_table(known, rarest - counts.clamp(min=1).log())
    entry_starts, keys, weights, norms = compiled.weigh_captions(words, caption_starts, *table, rarest)
    flat = [caption for image in images for caption in image]
    for caption, (begin, end), norm in zip(flat, pairwise(entry_starts.tolist()), norms.tolist(), strict=True):
        expected = weigh(as_string(caption), frequencies)
        found = dict(zip(map(ngram_of, keys[begin:end].tolist()), weights[begin:end].tolist(), strict=True))
        assert found == pytest.approx({k: v for of_order in expected.weights for k, v in of_order.items()}, abs=1e-14)
        assert norm == pytest.approx(expected.norms, abs=1e-13)
        ascending = keys[begin:end].numpy().view(np.uint64)
        assert (ascending[:-1] < ascending[1:]).all()


def test_scores_do_not_depend_on_the_number_of_threads():
    batch, rows = torch.randint(6, (3000, 12)), torch.randint(2, (3000,))
    call = (batch, rows, 0, *prepared([[[1, 2, 3, 0], [2, 3, 0]], [[4, 1, 0]]]))
    scores = compiled.score_samples(*call)
    torch.set_num_threads(3)
    assert torch.equal(scores, compiled.score_samples(*call))
    assert scores.unique().numel() > 100


def test_keys_with_the_highest_bit_are_larger_than_all_others():
    """As signed integers they would be the smallest."""
    high = [LARGEST_TOKEN] * 4
    found = compiled.distinct_ngrams(*packed([[high, [3]]]))
    assert (found.numpy().view(np.uint64)[:-1] < found.numpy().view(np.uint64)[1:]).all()
    assert found[-1] < 0


class TestShapesWithNothingIn:
    def test_no_keys_make_a_table_of_one_empty_slot(self):
        assert [t.tolist() for t in compiled.ngram_table(ints(), floats())] == [[0], [0.0]]

    @pytest.mark.parametrize("images", [[], [[]], [[[]]], [[], [[], []], []]])
    def test_no_captions_and_empty_captions_have_no_ngrams(self, images):
        words, caption_starts, image_starts = packed(images)
        assert compiled.distinct_ngrams(words, caption_starts, image_starts).shape == (0,)
        weighted = compiled.weigh_captions(words, caption_starts, ints(0), floats(0), 1.0)
        count = len(caption_starts) - 1
        assert [t.shape for t in weighted] == [(count + 1,), (0,), (0,), (count, 4)]
        assert not weighted[0].any()
        assert not weighted[3].any()

    @pytest.mark.parametrize(("batch", "length"), [(0, 0), (0, 5), (3, 0), (0, 2**40)])
    def test_no_samples_and_empty_samples_score_nothing(self, batch, length):
        call = (torch.empty(batch, length, dtype=torch.int64), torch.zeros(batch, dtype=torch.int64), 0)
        assert compiled.score_samples(*call, *prepared([[[1, 0], []]])).tolist() == [0.0] * batch

    def test_an_empty_batch_needs_no_images(self):
        assert compiled.score_samples(ints().view(0, 4), ints(), 0, *prepared([])).shape == (0,)


TABLE = {"table": ints(0, 5, 0, 0), "table_rarities": floats(0, 1, 0, 0)}
RIGHT = {
    "ngram_table": {"keys": ints(5, -6), "rarities": floats(1, 2)},
    "distinct_ngrams": {"tokens": ints(4, 5, 4), "caption_starts": ints(0, 2, 3), "image_starts": ints(0, 1, 2)},
    "weigh_captions": {"tokens": ints(4, 5, 4), "starts": ints(0, 2, 3), **TABLE, "rarest": 1.0},
    "score_samples": {
        "samples": ints([4, 0], [7, 7]), "rows": ints(0, 1), "eos": 0, **TABLE, "rarest": 1.0,
        "image_starts": ints(0, 1, 3), "lengths": ints(1, 1, 2), "entry_starts": ints(0, 1, 2, 4),
        "keys": ints(5, 5, 6, 7), "weights": floats(1, 1, 1, 1), "norms": torch.ones(3, 4, dtype=torch.float64),
    },
}  # fmt: skip
WRONG = [
    ("ngram_table", "keys", ints(5, 0), "keys must not be 0"),
    ("ngram_table", "rarities", floats(1), "rarities has 1 elements, expected 2"),
    ("distinct_ngrams", "tokens", ints(4, -1, 4), "tokens must be token ids from 0 to 65534"),
    ("distinct_ngrams", "tokens", ints(4, 65535, 4), "tokens must be token ids from 0 to 65534"),
    ("distinct_ngrams", "tokens", ints(4, 5), "caption_starts must ascend from 0 to 2"),
    ("distinct_ngrams", "caption_starts", ints(), "caption_starts must ascend from 0 to 3"),
    ("distinct_ngrams", "caption_starts", ints(1, 2, 3), "caption_starts must ascend"),
    ("distinct_ngrams", "caption_starts", ints(0, 4, 3), "caption_starts must ascend"),
    ("distinct_ngrams", "caption_starts", ints(0, -2, 3), "caption_starts must ascend"),
    ("distinct_ngrams", "caption_starts", ints(0, 2, 2**62), "caption_starts must ascend"),
    ("distinct_ngrams", "image_starts", ints(), "image_starts must ascend from 0 to 2"),
    ("distinct_ngrams", "image_starts", ints(0, 1, 3), "image_starts must ascend"),
    ("distinct_ngrams", "image_starts", ints(0, 3, 2), "image_starts must ascend"),
    ("distinct_ngrams", "image_starts", ints(-1, 2), "image_starts must ascend"),
    ("weigh_captions", "tokens", ints(4, -(2**63), 4), "tokens must be token ids"),
    ("weigh_captions", "starts", ints(), "starts must ascend from 0 to 3"),
    ("weigh_captions", "starts", ints(0, 4, 3), "starts must ascend from 0 to 3"),
    ("weigh_captions", "starts", ints(0, 2), "starts must ascend from 0 to 3"),
    ("score_samples", "samples", ints([4, 0], [7, 65535]), "samples must be token ids from 0 to 65534"),
    ("score_samples", "samples", ints([4, 0], [0, -1]), "samples must be token ids from 0 to 65534"),
    ("score_samples", "samples", ints([4, 0]), "rows has 2 elements, expected 1"),
    ("score_samples", "rows", ints(0, 2), "rows must be from 0 to 1"),
    ("score_samples", "rows", ints(0, -1), "rows must be from 0 to 1"),
    ("score_samples", "rows", ints(0, 2**63 - 1), "rows must be from 0 to 1"),
    ("score_samples", "eos", -1, "eos must be a token id from 0 to 65534"),
    ("score_samples", "eos", 65535, "eos must be a token id from 0 to 65534"),
    ("score_samples", "image_starts", ints(), "rows must be from 0 to -2"),
    ("score_samples", "image_starts", ints(0, 1, 4), "image_starts must ascend from 0 to 3"),
    ("score_samples", "image_starts", ints(-1, 1, 3), "image_starts must ascend from 0 to 3"),
    ("score_samples", "image_starts", ints(0, 2, 1), "image_starts must ascend from 0 to 3"),
    ("score_samples", "image_starts", ints(0, 3, 3), "image_starts has no captions for image 1"),
    ("score_samples", "lengths", ints(1, 1), "entry_starts has 4 elements, expected 3"),
    ("score_samples", "lengths", ints(1, 1, -(2**63)), "lengths must be from 0 to"),
    ("score_samples", "lengths", ints(1, 1, 2**63 - 1), "lengths must be from 0 to"),
    ("score_samples", "entry_starts", ints(0, 1, 2, 5), "entry_starts must ascend from 0 to 4"),
    ("score_samples", "entry_starts", ints(0, 3, 2, 4), "entry_starts must ascend from 0 to 4"),
    ("score_samples", "entry_starts", ints(-1, 1, 2, 4), "entry_starts must ascend from 0 to 4"),
    ("score_samples", "keys", ints(5, 5, 6), "weights has 4 elements, expected 3"),
    ("score_samples", "weights", floats(1), "weights has 1 elements, expected 4"),
    ("score_samples", "norms", torch.ones(4, 3, dtype=torch.float64), r"norms has shape \(4, 3\), expected \(3, 4\)"),
    *(
        (name, argument, wrong, line)
        for name in ("weigh_captions", "score_samples")
        for argument, wrong, line in [
            ("table", ints(5, 6), "table has no empty slot"),
            ("table", ints(), "table has 0 slots, expected a power of two"),
            ("table", ints(0, 5, 0), "table has 3 slots, expected a power of two"),
            ("table_rarities", floats(1, 2), "table_rarities has 2 elements, expected 4"),
        ]
    ),
]
TENSORS = [(name, argument) for name, call in RIGHT.items() for argument in call if torch.is_tensor(call[argument])]


def assert_refused(name, argument, wrong, line):
    with pytest.raises(RuntimeError, match=line) as refused:
        getattr(compiled, name)(**RIGHT[name] | {argument: wrong})
    assert "\n" not in str(refused.value)


class TestWrongArguments:
    @pytest.mark.parametrize("name", RIGHT)
    def test_the_call_that_they_are_put_into_is_right(self, name):
        before = {argument: value.clone() for argument, value in RIGHT[name].items() if torch.is_tensor(value)}
        getattr(compiled, name)(**RIGHT[name])
        assert all(torch.equal(RIGHT[name][argument], value) for argument, value in before.items()), (
            "nothing is written"
        )

    @pytest.mark.parametrize(("name", "argument", "wrong", "line"), WRONG)
    def test_values_that_would_lead_out_of_memory_or_into_an_endless_search(self, name, argument, wrong, line):
        assert_refused(name, argument, wrong, line)

    @pytest.mark.parametrize(("name", "argument"), TENSORS)
    def test_another_dtype(self, name, argument):
        right = RIGHT[name][argument]
        for other in {torch.int32, torch.float32, torch.int64, torch.float64, torch.uint64} - {right.dtype}:
            assert_refused(name, argument, right.to(other), f"{argument} must be {str(right.dtype).split('.')[1]}")

    @pytest.mark.parametrize(("name", "argument"), TENSORS)
    def test_another_number_of_dimensions(self, name, argument):
        right = RIGHT[name][argument]
        for wrong in (right[None], right[0]):
            assert_refused(name, argument, wrong, f"{argument} has shape .*, expected dimensions: {right.ndim}")

    @pytest.mark.parametrize(("name", "argument"), TENSORS)
    def test_memory_with_gaps(self, name, argument):
        wrong = RIGHT[name][argument].repeat_interleave(2, dim=-1)[..., ::2]
        assert_refused(name, argument, wrong, f"{argument} is not contiguous")

    @pytest.mark.parametrize(("name", "argument"), TENSORS)
    @pytest.mark.parametrize("kept", [0, 8])
    def test_a_storage_that_was_cut(self, name, argument, kept):
        wrong = RIGHT[name][argument].clone()
        wrong.untyped_storage().resize_(kept)
        assert_refused(name, argument, wrong, f"{argument} has a storage of {kept} bytes")

    @pytest.mark.parametrize(("name", "argument"), TENSORS)
    def test_another_layout(self, name, argument):
        with pytest.raises(NotImplementedError):  # the dispatcher's own
            getattr(compiled, name)(**RIGHT[name] | {argument: RIGHT[name][argument].to_sparse()})


@pytest.mark.parametrize("name", RIGHT)
def test_the_schema_says_what_is_written_and_shared(name):
    torch.library.opcheck(getattr(compiled, name).default, kwargs=RIGHT[name], args=(), test_utils=("test_schema",))
