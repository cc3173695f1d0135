"""What the readers make of files in the official formats, and of others."""

import os
import pickle
import struct

import cifar_files
import numpy as np
import pytest

from prproduct.classification.data import formats
from prproduct.lab.errors import InputError


def test_python_and_binary_files_of_cifar100_give_the_same_images_and_fine_labels():
    pixels, fine, coarse = cifar_files.images(300, 100)
    for read, content in (
        (formats.read_cifar100_pickle, cifar_files.cifar100_pickle(pixels, fine, coarse)),
        (formats.read_cifar100_binary, cifar_files.cifar100_binary(pixels, fine, coarse)),
    ):
        found, labels = read({"train": content})
        assert found.dtype == np.uint8
        assert labels.dtype == np.int64
        np.testing.assert_array_equal(found, pixels)
        np.testing.assert_array_equal(labels, fine)


def test_batches_of_cifar10_are_joined_in_their_order():
    parts = [cifar_files.images(10, 10, seed)[:2] for seed in (0, 1)]
    for read, write in (
        (formats.read_cifar10_pickle, cifar_files.cifar10_pickle),
        (formats.read_cifar10_binary, cifar_files.cifar10_binary),
    ):
        found, labels = read({str(number): write(*part) for number, part in enumerate(parts)})
        np.testing.assert_array_equal(found, np.concatenate([pixels for pixels, _ in parts]))
        np.testing.assert_array_equal(labels, np.concatenate([classes for _, classes in parts]))


def test_the_fixture_is_a_pickle_that_numpy_itself_reads(recwarn):
    """So it is in the format of the official files, and not only in one that our reader understands."""
    pixels, fine, coarse = cifar_files.images(100, 100)
    batch = pickle.loads(cifar_files.cifar100_pickle(pixels, fine, coarse), encoding="bytes")
    recwarn.clear()  # numpy's, about the old names in the file
    np.testing.assert_array_equal(batch[b"data"].reshape(pixels.shape), pixels)
    assert batch[b"fine_labels"] == fine.tolist()


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_that_runs_code_is_refused_and_runs_nothing(tmp_path, protocol):
    target = tmp_path / "made by the pickle"
    content = pickle.dumps({"data": Evil(str(target))}, protocol)
    with pytest.raises(InputError, match=r"^train: refused: the pickle asks for posix\.mkdir"):
        formats.read_cifar100_pickle({"train": content})
    assert not target.exists()


@pytest.mark.parametrize("name", ["builtins eval", "numpy.core.multiarray scalar", "numpy load", "os system"])
def test_no_other_name_is_known_to_the_unpickler(name):
    module, function = name.split()
    content = f"c{module}\n{function}\n.".encode()
    with pytest.raises(InputError, match="refused"):
        formats.read_cifar10_pickle({"batch": content})


def pickle_of_objects():
    """An array whose dtype is that of Python objects."""
    content = cifar_files.pickled({b"labels": [1], b"data": np.zeros((1, 3072), np.uint8)})
    return content.replace(b"U\x02u1", b"U\x02O8")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        cifar_files.cifar10_pickle(*cifar_files.images(4, 4)[:2])[:-500],
        cifar_files.pickled({b"labels": [1]}),
        cifar_files.pickled([1, 2]),
        cifar_files.pickled({b"labels": [1, 2], b"data": np.zeros((1, 3072), np.uint8)}),
        cifar_files.pickled({b"labels": [1], b"data": np.zeros((1, 3071), np.uint8)}),
        cifar_files.pickled({b"labels": [b"x"], b"data": np.zeros((1, 3072), np.uint8)}),
        pickle_of_objects(),
    ],
    ids=["empty", "text", "truncated", "no data", "a list", "labels", "pixels", "no number", "objects"],
)
def test_a_pickle_of_something_else_is_named_and_refused(content):
    with pytest.raises(InputError, match=r"^some/batch: "):
        formats.read_cifar10_pickle({"some/batch": content})


def test_a_huge_shape_that_numpy_would_allocate_first_is_not_allocated():
    content = cifar_files.pickled({b"labels": [1], b"data": np.ones((1, 3072), np.uint8)})
    terabyte = b"\x8a\x06" + (10**12).to_bytes(6, "little")
    huge = content.replace(b"ndarray\nK\x00", b"ndarray\n" + terabyte)
    assert huge != content
    assert formats.read_cifar10_pickle({"batch": huge})[0].all()


def test_a_column_major_array_is_read_as_such():
    pixels = np.arange(2 * 3072, dtype=np.int64).astype(np.uint8).reshape(2, 3072)
    content = cifar_files.pickled({b"labels": [0, 1], b"data": np.asfortranarray(pixels)})
    written = content.replace(b"\x89T", b"\x88T").replace(pixels.tobytes(), pixels.tobytes(order="F"))
    found, _ = formats.read_cifar10_pickle({"batch": written})
    np.testing.assert_array_equal(found.reshape(2, 3072), pixels)


def test_binary_records_that_are_cut_off_are_refused():
    content = cifar_files.cifar10_binary(*cifar_files.images(3, 3)[:2])
    with pytest.raises(InputError, match=r"^b\.bin: 9,218 bytes are not whole records of 3,073"):
        formats.read_cifar10_binary({"a.bin": content, "b.bin": content[:-1]})


def test_idx_files_are_read():
    pixels = np.arange(2 * 6, dtype=np.uint8).reshape(2, 2, 3)
    found, labels = formats.read_idx({"i": cifar_files.idx(pixels), "l": cifar_files.idx(np.array([3, 1]))})
    np.testing.assert_array_equal(found, pixels[:, None])
    assert labels.tolist() == [3, 1]


IMAGES, LABELS = cifar_files.idx(np.zeros((2, 2, 3))), cifar_files.idx(np.zeros(2))


@pytest.mark.parametrize(
    ("pair", "line"),
    [
        ((b"", LABELS), "^i: not an idx file"),
        ((LABELS, LABELS), "^i: not an idx file of unsigned bytes with 3 axes"),
        ((struct.pack(">I", 0x0D03) + IMAGES[4:], LABELS), "^i: not an idx file"),
        ((IMAGES[:-1], LABELS), r"^i: 11 bytes of data, its header says \(2, 2, 3\)"),
        ((IMAGES[:4] + b"\xff" * 12, LABELS), "^i: 0 bytes of data"),
        ((IMAGES, LABELS + b"0"), "^l: 3 bytes of data"),
        ((IMAGES, cifar_files.idx(np.zeros(3))), "^l: 3 labels for the 2 images of i"),
    ],
)
def test_other_idx_files_are_named_and_refused(pair, line):
    with pytest.raises(InputError, match=line):
        formats.read_idx(dict(zip(("i", "l"), pair, strict=True)))
