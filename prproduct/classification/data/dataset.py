"""A data set in memory: the whole of it as uint8 tensors, verified before anything is trained on it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from prproduct.classification.data import locate
from prproduct.classification.data.fetch import Report, fetch, silent
from prproduct.classification.data.formats import Pixels
from prproduct.classification.data.sources import WIDESPREAD_MEAN, WIDESPREAD_STD, Source, source
from prproduct.lab.errors import InputError

NORMALISATIONS = ("true", "widespread")


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images (images, channels, rows, columns) of uint8, labels of int64, and how to normalise."""

    name: str
    train_images: Tensor = field(repr=False)
    train_labels: Tensor = field(repr=False)
    test_images: Tensor = field(repr=False)
    test_labels: Tensor = field(repr=False)
    classes: int
    mean: tuple[float, ...]  # of each channel, where the pixel value `levels` is 1
    std: tuple[float, ...]
    fingerprint: str  # sha256 of images and labels, the same from every layout
    levels: int = 255

    @property
    def channels(self) -> int:
        """Channels of an image."""
        return self.train_images.shape[1]

    @property
    def image_size(self) -> int:
        """Rows, and columns, of an image."""
        return self.train_images.shape[-1]


def load(
    name: str,
    data_dir: str | Path | None = None,
    *,
    download: bool = True,
    normalisation: str = "true",
    report: Report = silent,
) -> Dataset:
    """The data set of that name: found, or else fetched into the cache, and verified.

    `normalisation="widespread"` gives the mean and deviation that most CIFAR code has, the paper's code among it;
    its deviation is not CIFAR's.

    >>> digits = load("digits")
    >>> digits.train_images.shape, digits.test_images.shape, digits.classes
    (torch.Size([1442, 1, 8, 8]), torch.Size([355, 1, 8, 8]), 10)
    >>> load("digits", normalisation="widespread")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: normalisation 'widespread' is for cifar10 and cifar100, digits has its own
    """
    wanted = source(name)
    mean, std = _normalisation(wanted, normalisation)
    train, test = read_source(wanted, data_dir, download=download, report=report) if wanted.layouts else _digits()
    for part, count, (images, labels) in (("train", wanted.train_count, train), ("test", wanted.test_count, test)):
        if images.shape != (count, *wanted.shape) or labels.min() < 0 or labels.max() >= wanted.classes:
            raise InputError(
                f"{name}: its {part} images have shape {images.shape}, labels to {labels.max()}; not its own"
            )
    # Copied only where an array is a view of a file's bytes, which torch must not write to.
    arrays = (np.require(array, requirements=["C", "W"]) for array in (*train, *test))
    train_images, train_labels, test_images, test_labels = map(torch.from_numpy, arrays)
    found = fingerprint(name, train_images, train_labels, test_images, test_labels)
    if wanted.fingerprint and found != wanted.fingerprint:
        raise InputError(f"{name}: its images or labels are not the official ones: sha256 {found}")
    return Dataset(
        name, train_images, train_labels, test_images, test_labels, wanted.classes, mean, std, found, wanted.levels
    )


def read_source(
    wanted: Source, data_dir: str | Path | None, *, download: bool, report: Report = silent
) -> tuple[Pixels, Pixels]:
    """Training and test part, from the place where the files are or come to be."""
    found = locate.find(wanted, data_dir)
    if found is None and download:
        try:
            fetch(wanted, locate.cache(), report)
        except InputError as error:
            raise InputError(f"{missing(wanted, data_dir)}; {error}") from None
        found = locate.find(wanted, data_dir)
    if found is None:
        raise InputError(missing(wanted, data_dir))
    parts = (found.layout.read(locate.read(found, files)) for files in (found.layout.train, found.layout.test))
    return next(parts), next(parts)


def missing(wanted: Source, data_dir: str | Path | None = None) -> str:
    """Where the data set is not, and what to put there."""
    layout = wanted.layouts[0]
    what = layout.archive or ", ".join(f"{file.name}.gz" for file in (*layout.train, *layout.test))
    places = ", ".join(map(str, locate.roots(data_dir)))
    hint = f"put {what} (from {wanted.downloads[0].url.rsplit('/', 1)[0]}/) into a folder and give it as --data-dir"
    return f"{wanted.name} is not in {places}: {hint}"


def fingerprint(name: str, *tensors: Tensor) -> str:
    """The sha256 of a data set: its name, then shape and content of each tensor.

    >>> fingerprint("a", torch.zeros(2, dtype=torch.uint8))[:8]
    '2d2d46d9'
    """
    digest = hashlib.sha256(name.encode())
    for tensor in tensors:
        digest.update(f"|{tensor.dtype}{tuple(tensor.shape)}|".encode())
        digest.update(np.ascontiguousarray(tensor.numpy()).data)
    return digest.hexdigest()


def _normalisation(wanted: Source, normalisation: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if normalisation not in NORMALISATIONS:
        raise InputError(f"normalisation {normalisation!r} is not known; there are {', '.join(NORMALISATIONS)}")
    if normalisation == "true":
        return wanted.mean, wanted.std
    if not wanted.name.startswith("cifar"):
        raise InputError(f"normalisation 'widespread' is for cifar10 and cifar100, {wanted.name} has its own")
    return WIDESPREAD_MEAN, WIDESPREAD_STD


def _digits() -> tuple[Pixels, Pixels]:
    """Scikit-learn's 1,797 digits have no test set: ours is every fifth image of each class, in their order."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images.astype(np.uint8)[:, None], digits.target.astype(np.int64)
    test = np.zeros(len(labels), bool)
    for label in range(10):
        test[np.flatnonzero(labels == label)[4::5]] = True
    return (images[~test], labels[~test]), (images[test], labels[test])
