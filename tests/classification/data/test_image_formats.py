"""What the readers make of files in the official formats, and of others."""

import os
import pickle

import cifar_files
import numpy as np
import pytest

from prproduct.classification.data import formats


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
    with pytest.raises(pickle.UnpicklingError, match=r"^refused: the pickle asks for posix\.mkdir"):
        formats.read_cifar100_pickle([content])
    assert not target.exists()


@pytest.mark.parametrize("name", ["builtins eval", "numpy.core.multiarray scalar", "numpy load", "os system"])
def test_no_other_name_is_known_to_the_unpickler(name):
    module, function = name.split()
    content = f"c{module}\n{function}\n.".encode()
    with pytest.raises(pickle.UnpicklingError, match="refused"):
        formats.read_cifar10_pickle([content])


def test_a_column_major_array_is_read_as_such():
    pixels = np.arange(2 * 3072, dtype=np.int64).astype(np.uint8).reshape(2, 3072)
    content = cifar_files.pickled({b"labels": [0, 1], b"data": np.asfortranarray(pixels)})
    written = content.replace(b"\x89T", b"\x88T").replace(pixels.tobytes(), pixels.tobytes(order="F"))
    found, _ = formats.read_cifar10_pickle([written])
    np.testing.assert_array_equal(found.reshape(2, 3072), pixels)


def test_idx_files_are_read():
    pixels = np.arange(2 * 6, dtype=np.uint8).reshape(2, 2, 3)
    found, labels = formats.read_idx([cifar_files.idx(pixels), cifar_files.idx(np.array([3, 1]))])
    np.testing.assert_array_equal(found, pixels[:, None])
    assert labels.tolist() == [3, 1]
