"""The table of data sets: their files and checksums, directory layouts, download addresses, means and deviations.

Checksums are md5, as the authors publish them, of uncompressed content: the same content may be compressed differently.
`prproduct data verify` recomputes the means and standard deviations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prproduct.classification.data import formats
from prproduct.lab.errors import InputError

# Limits in bytes, checked before anything is read. The largest official file (CIFAR-100's pickled training images) has
# 155 MB, the largest official archive 171 MB.
LARGEST_FILE, LARGEST_ARCHIVE = 160_000_000, 180_000_000


class File(NamedTuple):
    """A file name, and the md5 of its content; of the uncompressed content for .gz."""

    name: str
    md5: str


class Layout(NamedTuple):
    """One of the directory layouts in which a data set is distributed."""

    read: Callable[[Sequence[bytes]], formats.Pixels]
    folders: tuple[str, ...]  # where its files may be, relative to a searched folder
    train: tuple[File, ...]
    test: tuple[File, ...]
    archive: str = ""  # the .tar.gz that holds the first of the folders


class Download(NamedTuple):
    """A file to download, the md5 of the downloaded bytes, and its path relative to a searched folder."""

    url: str
    md5: str
    place: str


@dataclass(frozen=True)
class Source:
    """A data set's description: what is known of it before its files are read."""

    name: str
    shape: tuple[int, int, int]  # channels, rows, columns
    classes: int
    train_count: int
    test_count: int
    mean: tuple[float, ...]  # over all training images
    std: tuple[float, ...]
    layouts: tuple[Layout, ...] = ()  # empty if it comes with a Python package
    downloads: tuple[Download, ...] = ()
    levels: int = 255  # the largest pixel value
    fingerprint: str = ""  # `dataset.fingerprint` of the tensors; empty: not compared


_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_FASHION_FILES = (
    File("train-images-idx3-ubyte", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
    File("train-labels-idx1-ubyte", "9018921c3c673c538a1fc5bad174d6f9"),
    File("t10k-images-idx3-ubyte", "8181f5470baa50b63fa0f6fddb340f0a"),
    File("t10k-labels-idx1-ubyte", "15d484375f8d13e6eb1aabb0c3f46965"),
)
_FASHION_PACKED = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)

DIGITS = Source(
    name="digits",
    shape=(1, 8, 8),
    classes=10,
    train_count=1442,
    test_count=355,
    mean=(0.30513582480929263,),
    std=(0.3761575569554463,),
    levels=16,
    fingerprint="69328ca6ed816a7112e26837314aef4aaa5651bf7c7b27154b09deead8f47095",
)

FASHION_MNIST = Source(
    name="fashion-mnist",
    shape=(1, 28, 28),
    classes=10,
    train_count=60_000,
    test_count=10_000,
    mean=(0.2860405969887955,),
    std=(0.3530242445149226,),
    layouts=(
        Layout(formats.read_idx, ("fashion-mnist", "FashionMNIST/raw", "."), _FASHION_FILES[:2], _FASHION_FILES[2:]),
    ),
    downloads=tuple(
        Download(f"{_FASHION_URL}{file.name}.gz", md5, f"fashion-mnist/{file.name}.gz")
        for file, md5 in zip(_FASHION_FILES, _FASHION_PACKED, strict=True)
    ),
    fingerprint="057dc322abf7d965dd04e30aa91d2cf9bd05af051ed4b939e60935f1ced69f0b",
)

CIFAR10 = Source(
    name="cifar10",
    shape=(3, 32, 32),
    classes=10,
    train_count=50_000,
    test_count=10_000,
    mean=(0.49139967861519607, 0.48215840839460783, 0.44653091444546567),
    std=(0.24703223246328201, 0.24348512800005553, 0.2615878417279645),
    layouts=(
        Layout(
            formats.read_cifar10_binary,
            ("cifar-10-batches-bin", "."),
            (
                File("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25"),
                File("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692"),
                File("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421"),
                File("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb"),
                File("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d"),
            ),
            (File("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d"),),
            "cifar-10-binary.tar.gz",
        ),
        Layout(
            formats.read_cifar10_pickle,
            ("cifar-10-batches-py", "."),
            (
                File("data_batch_1", "c99cafc152244af753f735de768cd75f"),
                File("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
                File("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
                File("data_batch_4", "634d18415352ddfa80567beed471001a"),
                File("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
            ),
            (File("test_batch", "40351d587109b95175f43aff81a1287e"),),
            "cifar-10-python.tar.gz",
        ),
    ),
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            "cifar-10-binary.tar.gz",
        ),
    ),
    fingerprint="5d573412c34a1dc5de1ee4d9c1c4caba7720971d910387b994fddea276b0c409",
)

# Mean and deviation are the published ones, to 8 digits. The checksums of the binary files are published in one place
# only, those of the pickles in many, so the pickles are what is downloaded.
CIFAR100 = Source(
    name="cifar100",
    shape=(3, 32, 32),
    classes=100,
    train_count=50_000,
    test_count=10_000,
    mean=(0.50707516, 0.48654887, 0.44091784),
    std=(0.26733429, 0.25643846, 0.27615047),
    layouts=(
        Layout(
            formats.read_cifar100_pickle,
            ("cifar-100-python",),
            (File("train", "16019d7e3df5f24257cddd939b257f8d"),),
            (File("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),),
            "cifar-100-python.tar.gz",
        ),
        Layout(
            formats.read_cifar100_binary,
            ("cifar-100-binary",),
            (File("train.bin", "6172c7755cfe09b2fe270c85cebc1b15"),),
            (File("test.bin", "4499cfba6c016c1be1438163640a0898"),),
            "cifar-100-binary.tar.gz",
        ),
    ),
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            "cifar-100-python.tar.gz",
        ),
    ),
    fingerprint="c6e3601f0eea14519418b90cc588f3c6541ab5d8a9fda927fa219fdb87c41566",
)

SOURCES = {source.name: source for source in (DIGITS, FASHION_MNIST, CIFAR10, CIFAR100)}

# The constants of most CIFAR code, used for CIFAR-100 too. The deviation is the mean over images of each image's own
# deviation, about a fifth smaller than the deviation over all pixels.
WIDESPREAD_MEAN = (0.4914, 0.4822, 0.4465)
WIDESPREAD_STD = (0.2023, 0.1994, 0.2010)


def source(name: str) -> Source:
    """Return the description of the data set `name`.

    >>> source("cifar10").shape
    (3, 32, 32)
    >>> source("imagenet")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: no data set is named 'imagenet'; there are digits, fashion-mnist, cifar10, cifar100
    """
    if name not in SOURCES:
        raise InputError(f"no data set is named {name!r}; there are {', '.join(SOURCES)}")
    return SOURCES[name]
