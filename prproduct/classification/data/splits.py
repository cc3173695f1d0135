"""Which training images train, and which are held out to choose by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from prproduct.classification.data.dataset import Dataset
from prproduct.lab.errors import InputError
from prproduct.lab.keyed import keyed_bits

PROTOCOLS = ("validation", "paper")
_STREAM = 3


@dataclass(frozen=True, eq=False)
class Split:
    """Indices into the training set, ascending. Under the paper's protocol nothing is held out."""

    protocol: str
    train: Tensor
    validation: Tensor


def split(dataset: Dataset, protocol: str = "validation", *, share: float = 0.1, seed: int = 0) -> Split:
    """Hold out a share of each class of the training set, or nothing.

    `validation`: the same share of every class (stratified, rounded down or up so that the sum is right), drawn by
    `seed`, which is not the seed of a run: all runs hold out the same images. `paper`: train on all images and look at
    the test set every epoch, as the paper did; whoever then reports the best epoch has chosen on the test set.

    >>> from prproduct.classification.data import load
    >>> parts = split(load("digits"))
    >>> len(parts.train), len(parts.validation)
    (1298, 144)
    """
    if protocol not in PROTOCOLS:
        raise InputError(f"protocol {protocol!r} is not known; there are {', '.join(PROTOCOLS)}")
    labels = dataset.train_labels.numpy()
    everything = np.arange(len(labels))
    if protocol == "paper":
        return Split(protocol, torch.from_numpy(everything), torch.empty(0, dtype=torch.int64))
    held = _held_per_class(np.bincount(labels, minlength=dataset.classes), share)
    bits = keyed_bits(everything, seed, _STREAM)
    chosen = np.zeros(len(labels), bool)
    for label, count in enumerate(held):
        members = np.flatnonzero(labels == label)
        chosen[members[np.argsort(bits[members], kind="stable")[:count]]] = True
    return Split(protocol, torch.from_numpy(everything[~chosen]), torch.from_numpy(everything[chosen]))


def _held_per_class(counts: np.ndarray, share: float) -> np.ndarray:
    """The share of each count in whole images, which add up to the share of all; largest remainders get the rest."""
    total = round(share * counts.sum()) if 0 < share < 1 else 0
    if total in (0, counts.sum()):
        raise InputError(
            f"a validation share of {share} of {counts.sum():,} images leaves none to hold out or to train on"
        )
    held = np.floor(share * counts).astype(np.int64)
    first = np.argsort(held - share * counts, kind="stable")[: total - held.sum()]
    held[first] += 1
    return held
