"""Captions prepared from others' files: vocabulary, splits, frequencies, and what is refused."""

import json
import os
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest

from prproduct.captioning.data import prepared, sources, vocabulary
from prproduct.captioning.data.prepared import Described
from prproduct.captioning.data.vocabulary import Vocabulary
from prproduct.captioning.metrics import CiderReward, PackedCaptions
from prproduct.lab.errors import InputError

WORDS = Vocabulary(("a", "cat", "sits", "dog", "runs", "UNK"))
DESCRIBED = [
    Described(7, "cat.jpg", "train", ("A cat sits.", "A cat!"), ("a cat sits", "a cat")),
    Described(3, "dog.jpg", "train", ("A dog runs",), ("a dog runs",)),
    Described(9, "cow.jpg", "val", ("A cow",), ("a cow",)),
    Described(5, "new.jpg", "test", (), ()),
]


def sentence(raw):
    return {"raw": raw, "tokens": raw.lower().replace(".", "").replace("'", "").split()}


def karpathy(**changes):
    entries = [
        ("train", "a.jpg", ["A cat's hat.", "The cat sat"]),
        ("restval", "b.jpg", ["A cat sat. "]),
        ("val", "c.jpg", ["A dog sat"]),
        ("test", "d.jpg", ["A cat"]),
    ]
    images = [
        {"imgid": n, "cocoid": 10 + n, "filename": file, "split": split, "sentences": [sentence(raw) for raw in raws]}
        for n, (split, file, raws) in enumerate(entries)
    ]
    images[0].update(changes)
    return {"images": images, "dataset": "coco"}


@pytest.fixture
def karpathy_file(tmp_path):
    path = tmp_path / "dataset_coco.json"
    path.write_text(json.dumps(karpathy()))
    return path


# vocabulary


def test_ids_and_words_go_both_ways_and_0_ends():
    assert WORDS.decode(WORDS.encode(["a", "cow", "runs"])) == "a UNK runs"
    assert WORDS.decode([1, 2, 0, 4]) == "a cat"
    assert len(WORDS) == 7
    assert WORDS.unknown == 6


@pytest.mark.parametrize("words", [("a",), ("UNK", "UNK"), ("a", "a", "UNK"), ("a b", "UNK"), ("", "UNK")])
def test_a_vocabulary_that_cannot_be_is_refused(words):
    with pytest.raises(InputError):
        Vocabulary(words)


@pytest.mark.parametrize("number", [7, -1])
def test_an_id_of_another_vocabulary_is_refused(number):
    with pytest.raises(InputError, match=f"word id {number}, of a vocabulary that has 1 to 6"):
        WORDS.decode([1, number])


def test_words_are_kept_at_the_minimum_and_not_below():
    captions = [["a"] * 6, ["b"] * 5, ["c", "c", "UNK"]]
    assert vocabulary.build(captions, 5).words == ("a", "b", "UNK")
    assert vocabulary.build(captions, 6).words == ("a", "UNK")
    with pytest.raises(InputError, match="no word occurs 7 times"):
        vocabulary.build(captions, 7)


# the folder


def test_a_folder_is_read_as_it_was_written(tmp_path):
    written = prepared.write(tmp_path / "c", DESCRIBED, WORDS)
    read = prepared.read(tmp_path / "c")
    assert read.images == written.images
    assert read.vocabulary == WORDS
    assert read.fingerprint == written.fingerprint
    assert read.frequencies == written.frequencies
    assert [image.captions for image in read.images] == [((1, 2, 3), (1, 2)), ((1, 4, 5),), ((1, 6),), ()]
    assert [image.id for image in read.of("train")] == [7, 3]
    assert read.of("train")[0].references == ("A cat sits.", "A cat!")
    with pytest.raises(InputError, match="split 'restval' is not known"):
        read.of("restval")


def test_captions_of_the_size_of_coco_are_read(tmp_path):
    """COCO's captions.json has more bytes than other JSON files may have."""
    long = Described(1, "a.jpg", "train", ("a" * (17 << 20),), ("a cat",))
    prepared.write(tmp_path / "captions", [long], WORDS)
    assert prepared.read(tmp_path / "captions").of("train")[0].captions == ((1, 2),)


def test_captions_are_cut_and_the_cut_is_part_of_the_fingerprint(tmp_path):
    prepared.write(tmp_path / "short", DESCRIBED, WORDS, longest=2)
    short = prepared.read(tmp_path / "short")
    assert short.of("train")[0].captions == ((1, 2), (1, 2))
    assert short.fingerprint != prepared.encode(DESCRIBED, WORDS).fingerprint
    assert len(json.loads((tmp_path / "short/captions.json").read_text())["images"][0]["tokens"][0].split()) == 3


@pytest.mark.parametrize("longest", [2, 16])
def test_frequencies_are_those_that_a_reward_counts_itself(longest):
    captions = prepared.encode(DESCRIBED, WORDS, longest)
    references = PackedCaptions.pack([image.captions for image in captions.of("train")])
    given, own = CiderReward.of(references, captions.frequencies), CiderReward.of(references)
    assert np.array_equal(given.references.keys, own.references.keys)
    assert np.allclose(given.references.weights, own.references.weights, rtol=1e-12)
    assert captions.frequencies.counts[("0",)] == 2  # ends are counted
    assert captions.frequencies.vocabulary == WORDS.fingerprint


def test_a_folder_that_is_there_is_not_overwritten_and_nothing_is_left_of_a_failure(tmp_path, monkeypatch):
    prepared.write(tmp_path / "c", DESCRIBED, WORDS)
    with pytest.raises(InputError, match="is there already"):
        prepared.write(tmp_path / "c", DESCRIBED[:1], WORDS)
    assert len(prepared.read(tmp_path / "c").images) == 4

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(prepared, "write_durably", full)
    with pytest.raises(InputError, match="d: cannot be written"):
        prepared.write(tmp_path / "d", DESCRIBED, WORDS)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_place_that_cannot_be_written_is_named_before_anything_is_read(tmp_path, command):
    (tmp_path / "file").touch()
    ended = command("data", "captions", tmp_path / "gone.json", "-o", tmp_path / "file" / "c")
    assert ended == (2, "", f"prproduct: {tmp_path}/file: is a file; give the name of a folder\n")


@pytest.mark.parametrize(
    ("image", "line"),
    [
        (Described(7, "x.jpg", "val", ("A",), ("a",)), "images listed more than once: 7"),
        (Described(1, "x.jpg", "dev", ("A",), ("a",)), "images of no split of train, val, test: 1"),
        (Described(1, "x.jpg", "val", ("A", "!"), ("a", "")), "empty captions of images: 1"),
        (Described(1, "x.jpg", "val", (), ()), "no captions of train or val images: 1"),
    ],
)
def test_images_that_cannot_be_used_are_named(tmp_path, image, line):
    with pytest.raises(InputError, match=line):
        prepared.write(tmp_path / "c", [*DESCRIBED, image], WORDS)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("name", "change", "line"),
    [
        ("captions.json", lambda text: text[:50], "is not JSON"),
        ("captions.json", lambda text: text.replace("captions 1", "captions 9"), "prepare the captions again"),
        ("captions.json", lambda text: text.replace('"tokens": ["a dog runs"]', '"tokens": []'), "as many 'tokens'"),
        ("vocabulary.json", lambda text: text.replace("cat", "cow"), "another vocabulary"),
        ("vocabulary.json", lambda text: "{}", "not a JSON list of words"),
    ],
)
def test_a_folder_that_was_damaged_is_one_line(tmp_path, name, change, line):
    prepared.write(tmp_path / "c", DESCRIBED, WORDS)
    path = tmp_path / "c" / name
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=line):
        prepared.read(tmp_path / "c")


@pytest.mark.parametrize("name", ["captions.json", "vocabulary.json", "frequencies.npz"])
def test_a_file_that_is_gone_is_named(tmp_path, name):
    prepared.write(tmp_path / "c", DESCRIBED, WORDS)
    (tmp_path / "c" / name).unlink()
    with pytest.raises(InputError, match=name):
        prepared.read(tmp_path / "c")


# others' files


def test_karpathys_tokens_are_taken_unless_ours_are_asked_for(karpathy_file):
    given, own = (sources.read([str(karpathy_file)], {}, tokens) for tokens in (None, "own"))
    assert given[0] == Described(10, "a.jpg", "train", ("A cat's hat.", "The cat sat"), ("a cats hat", "the cat sat"))
    assert own[0].tokens == ("a cat 's hat", "the cat sat")
    assert [image.split for image in given] == ["train", "train", "val", "test"]


def test_without_cocoid_the_images_have_imgid(tmp_path):
    content = karpathy()
    for image in content["images"]:
        del image["cocoid"]
    (tmp_path / "f.json").write_text(json.dumps(content))
    assert [image.id for image in sources.read([str(tmp_path / "f.json")], {})] == [0, 1, 2, 3]


def coco(tmp_path):
    images = [{"id": n, "file_name": f"{n}.jpg"} for n in (1, 2, 3, 4)]
    annotations = [{"image_id": n, "caption": f"Number {n} isn't it."} for n in (4, 2, 3, 1, 2)]
    (tmp_path / "captions.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    (tmp_path / "test.json").write_text(json.dumps({"images": [{"id": 50, "file_name": "50.jpg"}]}))
    (tmp_path / "val.txt").write_text("3\n\n1\n")
    (tmp_path / "test.txt").write_text("2\n")
    return [str(tmp_path / name) for name in ("captions.json", "test.json")]


def test_coco_annotations_are_split_by_lists_and_images_without_annotations_are_for_testing(tmp_path):
    files = coco(tmp_path)
    images = sources.read(files, {"val": tmp_path / "val.txt", "test": tmp_path / "test.txt"})
    assert {image.id: image.split for image in images} == {1: "val", 2: "test", 3: "val", 4: "train", 50: "test"}
    assert images[1].tokens == ("number 2 is n't it",) * 2
    assert images[4].references == ()


@pytest.mark.parametrize(
    ("lists", "line"),
    [
        ({"val": "1\n99\n"}, "images that the captions do not have: 99"),
        ({"val": "1\n2\n", "test": "2\n"}, "images of another list: 2"),
        ({"val": ""}, "empty"),
    ],
)
def test_lists_that_do_not_fit_are_refused(tmp_path, lists, line):
    files = coco(tmp_path)
    for split, content in lists.items():
        (tmp_path / f"{split}.txt").write_text(content)
    with pytest.raises(InputError, match=line):
        sources.read(files, {split: tmp_path / f"{split}.txt" for split in lists})


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ([], "neither Karpathy's format nor COCO's annotations"),
        (karpathy(split="dev"), "an image of split 'dev'"),
        (karpathy(split=["train"]), "an image of split ['train']"),
        (karpathy(cocoid=None), "without 'cocoid'"),
        (karpathy(filename=3), "without 'filename'"),
        (karpathy(sentences=[{"raw": "A cat", "tokens": "a cat"}]), "without 'tokens', a list of strings"),
        (karpathy(sentences=[{"raw": "."}, {"raw": "A cat"}]), "empty captions of images: 10"),
        (karpathy(sentences=[]), "no captions of train or val images: 10"),
        (karpathy(cocoid=11), "images listed more than once: 11"),
        ({"images": [{"id": 3, "file_name": "a.jpg"}] * 2, "annotations": []}, "images listed more than once: 3"),
        ({"images": [], "annotations": []}, "no images in it"),
        ({"images": [], "annotations": [{"image_id": 3, "caption": "x"}]}, "images that it does not list: 3"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path, command, content, line):
    (tmp_path / "f.json").write_text(json.dumps(content))
    status, _, error = command("data", "captions", tmp_path / "f.json", "-o", tmp_path / "c", "--minimum-count", 1)
    assert (status, len(error.splitlines())) == (2, 1)
    assert line in error
    assert not (tmp_path / "c").exists()


# the command


def test_the_command_prepares_and_says_what(karpathy_file, tmp_path, command):
    status, out, _ = command("data", "captions", karpathy_file, "-o", tmp_path / "c", "--minimum-count", 2)
    assert (status, "2 images, 3 captions" in out) == (0, True)
    captions = prepared.read(tmp_path / "c")
    assert captions.vocabulary.words == ("a", "cat", "sat", "UNK")
    assert captions.fingerprint in out
    assert captions.frequencies.images == 2


def test_the_papers_rule_counts_in_what_is_left_of_training_captions(karpathy_file, tmp_path, command):
    options = ["--rule", "paper", "--minimum-count", 2, "--longest", 2]
    assert command("data", "captions", karpathy_file, "-o", tmp_path / "c", *options)[0] == 0
    assert prepared.read(tmp_path / "c").vocabulary.words == ("a", "cat", "UNK")


def test_empty_captions_are_left_out_where_that_is_asked_for(tmp_path, command):
    (tmp_path / "f.json").write_text(json.dumps(karpathy(sentences=[sentence("."), sentence("A cat")])))
    options = ["--minimum-count", 1, "--skip-empty"]
    status, _, err = command("data", "captions", tmp_path / "f.json", "-o", tmp_path / "c", *options)
    assert (status, "1 captions without a word left out" in err) == (0, True)
    assert prepared.read(tmp_path / "c").images[0].references == ("A cat",)


@pytest.mark.parametrize("rule", ["cocotalk", "paper"])
def test_captions_without_training_images_are_named(tmp_path, command, rule):
    images = [image for image in karpathy()["images"] if image["split"] in ("val", "test")]
    (tmp_path / "a.json").write_text(json.dumps({"images": images}))
    ended = command("data", "captions", tmp_path / "a.json", "-o", tmp_path / "c", "--rule", rule)
    assert ended == (2, "", f"prproduct: {tmp_path}/a.json: no training images; all are in the splits val and test\n")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    "options",
    [["--rule", "mine"], ["--tokens", "mine"], ["--longest", 0], ["--minimum-count", 0], ["--minimum-count", 9]],
)
def test_options_that_cannot_be_are_one_line(karpathy_file, tmp_path, command, options):
    status, _, err = command("data", "captions", karpathy_file, "-o", tmp_path / "c", *options)
    assert (status, len(err.splitlines())) == (2, 1)


# cocotalk.json and cocotalk_label.h5


def cocotalk(folder, words=("a", "cat", "sits", "dog", "runs", "UNK"), **changes):
    images = [
        {"split": "train", "file_path": "train2014/cat.jpg", "id": 7},
        {"split": "restval", "file_path": "val2014/dog.jpg", "id": 3},
        {"split": "test", "file_path": "val2014/cow.jpg", "id": 9},
    ]
    names = {str(number): word for number, word in enumerate(words, start=1)}
    (folder / "cocotalk.json").write_text(json.dumps({"ix_to_word": names, "images": images}))
    arrays = {
        "labels": np.array([[1, 2, 3, 0], [1, 2, 0, 0], [1, 4, 5, 5], [1, 6, 0, 0]], np.uint32),
        "label_start_ix": np.array([1, 3, 4], np.uint32),
        "label_end_ix": np.array([2, 3, 4], np.uint32),
        "label_length": np.array([3, 2, 4, 2], np.uint32),
        **changes,
    }
    with h5py.File(folder / "cocotalk_label.h5", "w") as file:
        for name, array in arrays.items():
            if array is not None:
                file[name] = array
    counts = {(str(n),): 1.0 for n in range(6)} | {("1", "2"): 1.0}
    (folder / "coco-train-idxs.p").write_bytes(pickle.dumps({"document_frequency": counts, "ref_len": 2}))
    return folder / "cocotalk.json", folder / "cocotalk_label.h5"


def test_the_cocotalk_files_are_read_with_the_ids_that_they_have(tmp_path):
    captions = sources.read_cocotalk(*cocotalk(tmp_path), tmp_path / "coco-train-idxs.p")
    assert [image.captions for image in captions.images] == [((1, 2, 3), (1, 2)), ((1, 4, 5, 5),), ((1, 6),)]
    assert [image.split for image in captions.images] == ["train", "train", "test"]
    assert [image.file for image in captions.images] == ["cat.jpg", "dog.jpg", "cow.jpg"]
    assert captions.images[2].references == ("a UNK",)
    assert captions.vocabulary == WORDS
    assert captions.longest == 4
    assert captions.frequencies.counts[("1", "2")] == 1
    assert captions.frequencies.images == 2


def test_the_command_keeps_what_the_cocotalk_files_say(tmp_path, command):
    words, labels = cocotalk(tmp_path)
    options = ["--labels", labels, "--frequencies", tmp_path / "coco-train-idxs.p"]
    assert command("data", "captions", words, *options, "-o", tmp_path / "c")[0] == 0
    assert prepared.read(tmp_path / "c").images == sources.read_cocotalk(words, labels).images
    assert prepared.read(tmp_path / "c").frequencies.counts == {(str(n),): 1 for n in range(6)} | {("1", "2"): 1}


@pytest.mark.parametrize("option", ["--skip-empty", "--minimum-count=3", "--longest=5", "--rule=paper", "--tokens=own"])
def test_options_that_the_cocotalk_files_decide_are_refused_beside_them(tmp_path, command, option):
    words, labels = cocotalk(tmp_path)
    status, _, err = command("data", "captions", words, "--labels", labels, option, "-o", tmp_path / "c")
    assert (status, "--labels goes with cocotalk.json alone" in err) == (2, True)


def test_without_their_frequencies_ours_are_counted(tmp_path):
    assert sources.read_cocotalk(*cocotalk(tmp_path)).frequencies.counts["5", "0"] == 1


def test_words_without_unk_get_it_behind_the_others(tmp_path):
    captions = sources.read_cocotalk(*cocotalk(tmp_path, ("a", "cat", "sits", "dog", "runs", "cow")))
    assert captions.vocabulary.unknown == 7
    assert captions.images[2].references == ("a cow",)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"labels": np.array([[1, 2, 3, 9]] * 4)}, "the word id 9, where .* has 1 to 6"),
        ({"labels": None}, "not HDF5 with 'labels'"),
        ({"labels": np.zeros((4, 4))}, "'labels' must be rows of ids"),
        ({"label_end_ix": np.array([2, 3, 5])}, "captions 1 to 5 of 4"),
        ({"label_start_ix": np.array([0, 3, 4])}, "captions 0 to 4 of 4"),
        ({"label_start_ix": np.array([1]), "label_end_ix": np.array([2])}, "captions of 1 images, where .* has 3"),
        ({"labels": np.array([[1, 2], [0, 0], [1, 2], [1, 2]])}, "empty captions of images: 7"),
    ],
)
def test_labels_that_do_not_fit_are_one_line(tmp_path, changes, line):
    with pytest.raises(InputError, match=line):
        sources.read_cocotalk(*cocotalk(tmp_path, **changes))


def test_words_with_a_gap_are_refused(tmp_path):
    words, labels = cocotalk(tmp_path)
    words.write_text(words.read_text().replace('"3":', '"30":'))
    with pytest.raises(InputError, match="without a gap"):
        sources.read_cocotalk(words, labels)


# real data

DATA = Path(os.environ["PRPRODUCT_DATA"]) / "flickr8k" if "PRPRODUCT_DATA" in os.environ else None


@pytest.mark.skipif(DATA is None or not DATA.exists(), reason="PRPRODUCT_DATA names no folder with flickr8k/")
def test_flickr8k_is_prepared(tmp_path, command):
    assert command("data", "captions", DATA / "dataset_flickr8k.json", "-o", tmp_path / "c")[0] == 0
    captions = prepared.read(tmp_path / "c")
    assert [len(captions.of(split)) for split in prepared.SPLITS] == [6000, 1000, 1000]
    assert len(captions.vocabulary.words) == 2627
    assert max(len(caption) for image in captions.images for caption in image.captions) == 16
