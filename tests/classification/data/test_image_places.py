"""Where data sets are looked for, what is refused, and what is said when there is none."""

import gzip
import os
import tarfile
from dataclasses import replace

import cifar_files
import numpy as np
import pytest
import torch

from prproduct.classification.data import dataset, locate, sources
from prproduct.lab.errors import InputError


@pytest.fixture(autouse=True)
def _places(tmp_path, monkeypatch):
    """No place but those of the test."""
    monkeypatch.setattr(locate, "SYSTEM", tmp_path / "system")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PRPRODUCT_DATA", raising=False)


@pytest.fixture
def cifar100(monkeypatch):
    source, contents, train, test = cifar_files.small_cifar100()
    monkeypatch.setitem(sources.SOURCES, "cifar100", source)
    return contents, train, test


@pytest.fixture
def cifar10(monkeypatch):
    source, contents, parts = cifar_files.small_cifar10()
    monkeypatch.setitem(sources.SOURCES, "cifar10", source)
    return contents, parts


@pytest.fixture
def fashion(monkeypatch):
    source, contents = cifar_files.small_fashion()
    monkeypatch.setitem(sources.SOURCES, "fashion-mnist", source)
    return contents[0] | contents[1]


def load(name, data_dir=None):
    return dataset.load(name, data_dir, download=False)


def test_every_layout_and_archive_gives_the_same_data_and_fingerprint(tmp_path, cifar100):
    contents, (pixels, fine, _), (test_pixels, test_fine, _) = cifar100
    for number, (folder, layout) in enumerate(zip(("cifar-100-python", "cifar-100-binary"), contents, strict=True)):
        files = layout[0] | layout[1]
        cifar_files.put(tmp_path / f"{number}" / folder, files)
        (tmp_path / f"{number}-packed").mkdir()
        (tmp_path / f"{number}-packed" / f"{folder}.tar.gz").write_bytes(cifar_files.tar_gz(folder, files))
    loaded = [load("cifar100", tmp_path / place) for place in ("0", "1", "0-packed", "1-packed")]
    for data in loaded:
        np.testing.assert_array_equal(data.train_images, pixels)
        np.testing.assert_array_equal(data.train_labels, fine)
        np.testing.assert_array_equal(data.test_images, test_pixels)
        np.testing.assert_array_equal(data.test_labels, test_fine)
        assert data.train_images.dtype == torch.uint8
        assert (data.classes, data.channels, data.image_size) == (100, 3, 32)
    assert len({data.fingerprint for data in loaded}) == 1


def test_the_five_batches_of_cifar10_are_read_from_both_layouts(tmp_path, cifar10):
    contents, parts = cifar10
    prints = set()
    for folder, layout in zip(("cifar-10-batches-bin", "cifar-10-batches-py"), contents, strict=True):
        cifar_files.put(tmp_path / folder / folder, layout[0] | layout[1])
        data = load("cifar10", tmp_path / folder)
        np.testing.assert_array_equal(data.train_images, np.concatenate([pixels for pixels, _ in parts[:5]]))
        prints.add(data.fingerprint)
    assert len(prints) == 1


@pytest.mark.parametrize("folder", ["fashion-mnist", "FashionMNIST/raw", "."])
@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist_is_read_packed_or_not_from_the_usual_folders(tmp_path, fashion, folder, packed):
    cifar_files.put(tmp_path / "d" / folder, fashion, packed)
    assert load("fashion-mnist", tmp_path / "d").train_images.shape == (30, 1, 28, 28)


def test_the_data_sets_own_folder_may_be_given_itself(tmp_path, cifar100, monkeypatch):
    contents, *_ = cifar100
    cifar_files.put(tmp_path / "cifar-100-python", contents[0][0] | contents[0][1])
    assert len(load("cifar100", tmp_path / "cifar-100-python").train_images) == 200
    monkeypatch.chdir(tmp_path / "cifar-100-python")
    assert len(load("cifar100", ".").train_images) == 200


def test_places_are_searched_in_their_order(tmp_path, monkeypatch, fashion):
    source = sources.SOURCES["fashion-mnist"]
    (tmp_path / "given").mkdir()
    (tmp_path / "env").mkdir()
    monkeypatch.setenv("PRPRODUCT_DATA", str(tmp_path / "env"))
    places = [tmp_path / "home" / "prproduct", tmp_path / "system", tmp_path / "env", tmp_path / "given"]
    assert locate.find(source, tmp_path / "given") is None
    for place in places:  # from the last to be searched to the first
        cifar_files.put(place / "fashion-mnist", fashion, packed=True)
        assert locate.find(source, tmp_path / "given").place == place / "fashion-mnist"


def test_a_folder_that_is_not_there_is_an_error_and_not_passed_over(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="nowhere: no such folder"):
        load("cifar10", tmp_path / "nowhere")
    monkeypatch.setenv("PRPRODUCT_DATA", str(tmp_path / "gone"))
    with pytest.raises(InputError, match="gone: no such folder"):
        load("cifar10")


def broken(content, how):
    return {
        "truncated": content[: len(content) // 2],
        "empty": b"",
        "longer": content + b"\0",
        "one bit": content[:-1] + bytes([content[-1] ^ 1]),
    }[how]


@pytest.mark.parametrize("how", ["truncated", "empty", "longer", "one bit"])
@pytest.mark.parametrize("name", ["train.bin", "test.bin"])
def test_a_broken_file_is_named_and_refused(tmp_path, cifar100, how, name):
    files = cifar100[0][1][0] | cifar100[0][1][1]
    cifar_files.put(tmp_path / "cifar-100-binary", files | {name: broken(files[name], how)})
    with pytest.raises(InputError, match=rf"cifar-100-binary/{name}: truncated, corrupt or another file.*replace"):
        load("cifar100", tmp_path)


def test_a_broken_file_is_not_passed_over_for_a_whole_one_elsewhere(tmp_path, cifar100):
    files = cifar100[0][0][0] | cifar100[0][0][1]
    cifar_files.put(tmp_path / "home" / "prproduct" / "cifar-100-python", files)
    cifar_files.put(tmp_path / "given" / "cifar-100-python", files | {"train": b""})
    with pytest.raises(InputError, match="given/cifar-100-python/train"):
        load("cifar100", tmp_path / "given")


def test_a_missing_file_is_named(tmp_path, fashion):
    """Of the folder given, though the cache, which is searched later, is incomplete as well."""
    cifar_files.put(tmp_path / "home" / "prproduct" / "fashion-mnist", dict([fashion.popitem()]))
    cifar_files.put(tmp_path / "fashion-mnist", fashion)
    with pytest.raises(InputError, match=rf"{tmp_path}/fashion-mnist/t10k-labels-idx1-ubyte is missing; put it there"):
        load("fashion-mnist", tmp_path)


def test_an_incomplete_folder_is_passed_over_for_a_whole_one(tmp_path, fashion):
    cifar_files.put(tmp_path / "home" / "prproduct" / "fashion-mnist", fashion)
    cifar_files.put(tmp_path / "fashion-mnist", dict([fashion.popitem()]))
    assert len(load("fashion-mnist", tmp_path).train_images) == 30


@pytest.mark.parametrize("how", ["truncated", "empty", "one bit"])
def test_a_broken_gz_is_named(tmp_path, fashion, how):
    cifar_files.put(tmp_path / "fashion-mnist", fashion, packed=True)
    path = tmp_path / "fashion-mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(broken(path.read_bytes(), how))
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz: (cannot be read|truncated)"):
        load("fashion-mnist", tmp_path)


@pytest.mark.parametrize("how", ["truncated", "empty"])
def test_a_broken_archive_is_named(tmp_path, cifar100, how):
    content = cifar_files.tar_gz("cifar-100-python", cifar100[0][0][0] | cifar100[0][0][1])
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(broken(content, how))
    with pytest.raises(InputError, match=r"cifar-100-python\.tar\.gz: cannot be read"):
        load("cifar100", tmp_path)


def test_another_archive_of_that_name_is_refused(tmp_path, cifar100):
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(cifar_files.tar_gz("elsewhere", {"train": b""}))
    with pytest.raises(InputError, match="holds no cifar-100-python/train; it is not the official archive"):
        load("cifar100", tmp_path)


def test_images_other_than_the_official_ones_are_refused(tmp_path, monkeypatch):
    """As digits of another scikit-learn, which have no checksums of files."""
    source, contents, *_ = cifar_files.small_cifar100()
    cifar_files.put(tmp_path / "cifar-100-python", contents[0][0] | contents[0][1])
    monkeypatch.setitem(sources.SOURCES, "cifar100", replace(source, fingerprint="0"))
    with pytest.raises(InputError, match=r"^cifar100: its images or labels are not the official ones"):
        load("cifar100", tmp_path)


def test_without_the_data_one_line_says_what_to_put_where(tmp_path):
    for name, what in (("cifar10", r"cifar-10-binary\.tar\.gz"), ("fashion-mnist", r"train-images-idx3-ubyte\.gz, ")):
        with pytest.raises(InputError, match=rf"^{name} is not in .*: put {what}.* --data-dir") as error:
            load(name)
        assert "\n" not in str(error.value)


def big_gzip(path, size):
    """A small file that unpacks to `size` bytes."""
    block = gzip.compress(bytes(1 << 24), 9)
    with path.open("wb") as file:
        for _ in range(size >> 24):
            file.write(block)


@pytest.mark.parametrize("how", ["bomb", "sparse", "device", "folder", "dangling"])
def test_what_is_no_official_file_is_refused_before_it_is_read(tmp_path, fashion, how, monkeypatch):
    monkeypatch.setattr(locate, "LARGEST_FILE", 1 << 25)
    folder = tmp_path / "fashion-mnist"
    cifar_files.put(folder, fashion)
    path = folder / next(iter(fashion))
    path.unlink()
    if how == "bomb":
        path = path.with_name(f"{path.name}.gz")
        big_gzip(path, 1 << 28)
    elif how == "sparse":
        path.touch()
        os.truncate(path, 100 << 30)
    elif how == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if how == "device" else "/nowhere")
    with pytest.raises(InputError, match=path.name) as refused:
        load("fashion-mnist", tmp_path)
    assert "\n" not in str(refused.value)


def test_an_archive_with_a_huge_member_is_refused_before_it_is_unpacked(tmp_path, cifar100):
    header = tarfile.TarInfo("cifar-100-python/train")
    header.size = 20 << 30
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(gzip.compress(header.tobuf() + bytes(1 << 20)))
    with pytest.raises(InputError, match=r"cifar-100-python/train in it has 21,474,836,480 bytes"):
        load("cifar100", tmp_path)
