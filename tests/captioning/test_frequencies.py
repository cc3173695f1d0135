"""Files of n-gram frequencies: what comes back, what is never executed, and which vocabulary they go with."""

import os
import pickle
from collections import defaultdict

import numpy as np
import pytest

from prproduct.captioning.metrics import Frequencies, load_frequencies
from prproduct.lab.errors import InputError

VOCABULARY = ["a", "cat", "dog"]
REFERENCES = [["1 2 0", "1 2 2 1 3 0"], ["1 3 0"]]


def idxs(counts=None, images=2, **more):
    counts = defaultdict(float, Frequencies.of(REFERENCES).counts) if counts is None else counts
    return {"document_frequency": counts, "ref_len": images, **more}


def test_what_was_saved_comes_back(tmp_path):
    saved = Frequencies.of([["a cat 猫", ""], ["ein é"]], VOCABULARY)
    saved.save(tmp_path / "f.npz")
    loaded = load_frequencies(tmp_path / "f.npz", VOCABULARY)
    assert (loaded.counts, loaded.images, loaded.vocabulary) == (saved.counts, 2, saved.vocabulary)


def test_an_empty_corpus_comes_back(tmp_path):
    Frequencies.of([[""]]).save(tmp_path / "f.npz")
    assert load_frequencies(tmp_path / "f.npz").counts == {}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", [dict, lambda counts: defaultdict(float, counts)], ids=["dict", "defaultdict"])
def test_the_pickles_that_others_keep_are_read(tmp_path, protocol, kind):
    counts = kind({ngram: float(count) for ngram, count in Frequencies.of(REFERENCES).counts.items()})
    (tmp_path / "coco-train-idxs.p").write_bytes(pickle.dumps(idxs(counts), protocol))
    loaded = load_frequencies(tmp_path / "coco-train-idxs.p", VOCABULARY)
    assert (loaded.counts, loaded.images) == (counts, 2)
    assert type(loaded.counts) is dict, "looking up what is not there must not add it"


def test_a_pickle_of_python_2_is_read(tmp_path):
    """{'document_frequency': defaultdict(float, {('1', '2'): 1.0}), 'ref_len': 2}, strings in Python 2's opcodes."""
    counts = b"c__builtin__\nfloat\n\x85Rq\x00U\x011U\x012\x86G?\xf0\x00\x00\x00\x00\x00\x00s"
    (tmp_path / "f.p").write_bytes(
        b"\x80\x02}(U\x12document_frequencyccollections\ndefaultdict\n" + counts + b"U\x07ref_lenK\x02u."
    )
    loaded = load_frequencies(tmp_path / "f.p")
    assert (loaded.counts, loaded.images) == ({("1", "2"): 1.0}, 2)


class Attack:
    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (str(self.place),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_that_a_pickle_names_is_executed(tmp_path, protocol):
    (tmp_path / "f.p").write_bytes(pickle.dumps(idxs(more=Attack(tmp_path / "executed")), protocol))
    with pytest.raises(InputError, match=r"f\.p: .*mkdir"):
        load_frequencies(tmp_path / "f.p")
    assert not (tmp_path / "executed").exists()


def test_a_vocabulary_other_than_that_of_the_counts_is_refused(tmp_path):
    Frequencies.of(REFERENCES, VOCABULARY).save(tmp_path / "f.npz")
    with pytest.raises(InputError, match="another vocabulary"):
        load_frequencies(tmp_path / "f.npz", ["a", "dog", "cat"])


@pytest.mark.parametrize(
    ("counts", "words", "line"),
    [
        ({("1",): 1, ("4",): 1}, 3, "has '4'"),
        ({("a",): 1}, 3, "has 'a'"),
        ({("1",): 1}, 9487, "knows 1 ids"),
    ],
)
def test_ids_that_do_not_go_with_the_vocabulary_are_refused(tmp_path, counts, words, line):
    (tmp_path / "f.p").write_bytes(pickle.dumps(idxs(counts)))
    with pytest.raises(InputError, match=line):
        load_frequencies(tmp_path / "f.p", [f"word {i}" for i in range(words)])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        pickle.dumps([1]),
        pickle.dumps({"document_frequency": {}}),
        pickle.dumps(idxs({"12": 1})),
        pickle.dumps(idxs({("1", 2): 1})),
        pickle.dumps(idxs({(): 1})),
        pickle.dumps(idxs({("1",) * 5: 1})),
        pickle.dumps(idxs({("1",): "1"})),
        pickle.dumps(idxs(images="many")),
        pickle.dumps(idxs())[:-20],
        pickle.dumps(idxs(images=0)),
        pickle.dumps(idxs(images=float("inf"))),
        pickle.dumps(idxs(images=10**400)),
        pickle.dumps(idxs({("1",): 10**400})),
        pickle.dumps(idxs({("1",): float("nan")})),
        pickle.dumps(idxs({("1",): -1})),
        b"\x80\x04\x8c\x05evil\n\x8c\x02\nx\x93.",
    ],
)
def test_a_file_of_something_else_is_one_line(tmp_path, content):
    (tmp_path / "f.p").write_bytes(content)
    with pytest.raises(InputError) as error:
        load_frequencies(tmp_path / "f.p")
    assert len(str(error.value).splitlines()) == 1


def test_a_file_with_any_byte_changed_or_cut_anywhere_is_read_or_refused_in_one_line(tmp_path):
    path = tmp_path / "f.npz"
    Frequencies.of(REFERENCES, VOCABULARY).save(path)
    whole = path.read_bytes()
    damaged = [whole[:place] for place in range(0, len(whole), 7)]
    damaged += [whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :] for place in range(len(whole))]
    refused = []
    for content in damaged:
        path.write_bytes(content)
        try:
            load_frequencies(path, VOCABULARY)
        except InputError as error:
            refused.append(str(error))
    assert len(refused) > len(whole) / 2
    assert all(len(line.splitlines()) == 1 for line in refused)


def test_an_archive_of_something_else_is_one_line(tmp_path):
    np.savez(tmp_path / "f.npz", words=np.zeros(3))
    with pytest.raises(InputError, match="not a file of n-gram frequencies"):
        load_frequencies(tmp_path / "f.npz")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.npz: no such file"):
        load_frequencies(tmp_path / "nowhere.npz")
