"""A data set in memory: uint8 tensors, verified against official checksums, and split into training and validation.

`load` finds or downloads a data set and returns a `Dataset`; `split` returns the indices to train and to validate on.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from prproduct.classification.data import locate
from prproduct.classification.data.fetch import Report, fetch, silent
from prproduct.classification.data.formats import Pixels
from prproduct.classification.data.sources import WIDESPREAD_MEAN, WIDESPREAD_STD, Source, source
from prproduct.lab.checks import check_known
from prproduct.lab.errors import InputError
from prproduct.lab.seeds import keyed_bits

NORMALISATIONS = ("true", "widespread")
PROTOCOLS = ("validation", "paper")
_HELD_OUT = 0.1  # the share of the training images that is validated on
_SPLIT = 3  # the last part of the key of its random bits; batches.py uses 1 and 2


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images (n, channels, rows, columns) of uint8, labels (n,) of int64, and how to normalise the images."""

    name: str
    train_images: Tensor = field(repr=False)
    train_labels: Tensor = field(repr=False)
    test_images: Tensor = field(repr=False)
    test_labels: Tensor = field(repr=False)
    classes: int
    mean: tuple[float, ...]  # of each channel, of pixel / levels
    std: tuple[float, ...]
    fingerprint: str  # sha256 of images and labels, the same from every layout
    levels: int = 255  # the largest pixel value

    @property
    def channels(self) -> int:
        """The number of channels of an image."""
        return self.train_images.shape[1]

    @property
    def image_size(self) -> int:
        """The number of rows, which is that of columns, of an image."""
        return self.train_images.shape[-1]


def load(
    name: str,
    data_dir: str | Path | None = None,
    *,
    download: bool = True,
    normalisation: str = "true",
    report: Report = silent,
) -> Dataset:
    """Return the data set `name`: found on disk or else downloaded into the cache, and verified.

    `normalisation="widespread"` uses the mean and standard deviation of most CIFAR code, the paper's included; its
    standard deviation is not that of CIFAR's pixels. `report` is called as a download advances.

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
    # A copy only where an array is a read-only view of a file's bytes.
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
    """Return the training and the test images and labels, downloading the files if `download` and none are found."""
    found = locate.find(wanted, data_dir)
    if found is None and download:
        try:
            fetch(wanted, locate.cache(), report)
        except InputError as error:
            raise InputError(f"{missing(wanted, data_dir)}; {error}") from None
        found = locate.find(wanted, data_dir)
    if found is None:
        raise InputError(missing(wanted, data_dir))
    layout = found.layout
    return layout.read(locate.read(found, layout.train)), layout.read(locate.read(found, layout.test))


def missing(wanted: Source, data_dir: str | Path | None = None) -> str:
    """Return the error of a data set that was not found: what is missing where, and which files to download by hand."""
    layout = wanted.layouts[0]
    what = layout.archive or ", ".join(f"{file.name}.gz" for file in (*layout.train, *layout.test))
    hint = f"put {what} (from {wanted.downloads[0].url.rsplit('/', 1)[0]}/) into a folder and give it as --data-dir"
    if absent := locate.find_absent(wanted, data_dir):
        return f"{wanted.name} is incomplete: {absent} is missing; put it there, or {hint}"
    return f"{wanted.name} is not in {', '.join(map(str, locate.roots(data_dir)))}: {hint}"


def fingerprint(name: str, *tensors: Tensor) -> str:
    """Return the sha256 over the name, and over dtype, shape and content of each tensor.

    >>> fingerprint("a", torch.zeros(2, dtype=torch.uint8))[:8]
    '2d2d46d9'
    """
    digest = hashlib.sha256(name.encode())
    for tensor in tensors:
        digest.update(f"|{tensor.dtype}{tuple(tensor.shape)}|".encode())
        digest.update(np.ascontiguousarray(tensor.numpy()).data)
    return digest.hexdigest()


def channel_statistics(images: Tensor, levels: int = 255) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and (population) standard deviation of pixel / levels for each channel of uint8 images.

    Sums are Python integers, so that only the last division rounds.

    >>> channel_statistics(torch.tensor([0, 255, 255, 0], dtype=torch.uint8).reshape(1, 1, 2, 2))
    ((0.5,), (0.5,))
    """
    means, deviations = [], []
    for channel in range(images.shape[1]):
        counts = np.bincount(images[:, channel].numpy().ravel(), minlength=256).tolist()
        n = sum(counts)
        total = sum(value * count for value, count in enumerate(counts))
        squares = sum(value * value * count for value, count in enumerate(counts))
        means.append(total / (n * levels))
        deviations.append(math.sqrt((n * squares - total**2) / (n * levels) ** 2))
    return tuple(means), tuple(deviations)


@dataclass(frozen=True, eq=False)
class Split:
    """Ascending indices into the training set; `validation` is empty under the paper's protocol."""

    train: Tensor
    validation: Tensor


def split(dataset: Dataset, protocol: str = "validation") -> Split:
    """Split the training set into images to train on and images to validate on.

    `validation` holds out a tenth of every class (stratified, rounded so that the total is right), the same images in
    all runs. `paper` holds out nothing: the model is tested every epoch, as in the paper, and reporting the best epoch
    then means choosing on the test set.

    >>> parts = split(load("digits"))
    >>> len(parts.train), len(parts.validation)
    (1298, 144)
    """
    check_known("protocol", protocol, PROTOCOLS)
    labels = dataset.train_labels.numpy()
    everything = np.arange(len(labels))
    if protocol == "paper":
        return Split(torch.from_numpy(everything), torch.empty(0, dtype=torch.int64))
    held = _held_per_class(np.bincount(labels, minlength=dataset.classes))
    bits = keyed_bits(everything, 0, _SPLIT)
    chosen = np.zeros(len(labels), bool)
    for label, count in enumerate(held):
        members = np.flatnonzero(labels == label)
        chosen[members[np.argsort(bits[members], kind="stable")[:count]]] = True
    return Split(torch.from_numpy(everything[~chosen]), torch.from_numpy(everything[chosen]))


def _normalisation(wanted: Source, normalisation: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    check_known("normalisation", normalisation, NORMALISATIONS)
    if normalisation == "true":
        return wanted.mean, wanted.std
    if not wanted.name.startswith("cifar"):
        raise InputError(f"normalisation 'widespread' is for cifar10 and cifar100, {wanted.name} has its own")
    return WIDESPREAD_MEAN, WIDESPREAD_STD


def _digits() -> tuple[Pixels, Pixels]:
    """Return scikit-learn's 1,797 digits, which have no official test set: ours is every fifth image of each class."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images.astype(np.uint8)[:, None], digits.target.astype(np.int64)
    test = np.zeros(len(labels), bool)
    for label in range(10):
        test[np.flatnonzero(labels == label)[4::5]] = True
    return (images[~test], labels[~test]), (images[test], labels[test])


def _held_per_class(counts: np.ndarray) -> np.ndarray:
    """Return whole numbers near a tenth of `counts` that add up to a tenth of all, by the largest-remainder method."""
    held = np.floor(_HELD_OUT * counts).astype(np.int64)
    first = np.argsort(held - _HELD_OUT * counts, kind="stable")[: round(_HELD_OUT * counts.sum()) - held.sum()]
    held[first] += 1
    return held
