"""The captions of many images as token ids in three flat arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prproduct.lab.errors import InputError

LARGEST_TOKEN = 2**16 - 2  # four tokens, each plus one, make an n-gram's key of 64 bits


@dataclass(frozen=True, eq=False)
class PackedCaptions:
    """Caption c is tokens[caption_starts[c] : caption_starts[c + 1]]; image i has captions image_starts[i] and on.

    >>> packed = PackedCaptions.pack([[[5, 8], [5]], [[7, 7, 7]]])
    >>> packed.tokens.tolist(), packed.caption_starts.tolist(), packed.image_starts.tolist()
    ([5, 8, 5, 7, 7, 7], [0, 2, 3, 6], [0, 2, 3])
    """

    tokens: NDArray[np.int32]
    caption_starts: NDArray[np.int64]
    image_starts: NDArray[np.int64]

    def __post_init__(self) -> None:
        if self.images < 1:
            raise InputError("no images; CIDEr-D needs references to count in")
        if self.tokens.size and not 0 <= self.tokens.min() <= self.tokens.max() <= LARGEST_TOKEN:
            raise InputError(
                f"token ids from {self.tokens.min()} to {self.tokens.max()}; 0 to {LARGEST_TOKEN} can be kept"
            )
        without = np.flatnonzero(np.diff(self.image_starts) < 1)
        if len(without):
            raise InputError(f"image {without[0]} has no captions; give at least one an image")

    @property
    def images(self) -> int:
        return len(self.image_starts) - 1

    @classmethod
    def pack(cls, images: Sequence[Sequence[Sequence[int]]]) -> PackedCaptions:
        """From the token ids of each caption of each image."""
        captions = [caption for image in images for caption in image]
        tokens = [token for caption in captions for token in caption]
        return cls(
            np.array(tokens, np.int32), _starts([len(c) for c in captions]), _starts([len(image) for image in images])
        )

    @classmethod
    def from_labels(
        cls, labels: NDArray[np.integer], first: NDArray[np.integer], last: NDArray[np.integer]
    ) -> PackedCaptions:
        """From the three arrays of `cocotalk_label.h5`: zero-padded rows, and each image's rows, from 1, last included.

        >>> labels = np.array([[5, 8, 0], [7, 7, 7], [5, 0, 0]])
        >>> PackedCaptions.from_labels(labels, np.array([1, 3]), np.array([2, 3])).tokens.tolist()
        [5, 8, 7, 7, 7, 5]
        """
        rows = np.concatenate([np.arange(a - 1, b) for a, b in zip(first.tolist(), last.tolist(), strict=True)])
        used = labels[rows]
        lengths = np.where((used == 0).any(1), (used == 0).argmax(1), used.shape[1])
        written = np.arange(used.shape[1]) < lengths[:, None]
        counts = last.astype(np.int64) - first.astype(np.int64) + 1
        return cls(used[written].astype(np.int32), _starts(lengths), _starts(counts))

    def fingerprint(self) -> str:
        """Changes with any token and any boundary."""
        digest = hashlib.sha256()
        for array in (self.tokens, self.caption_starts, self.image_starts):
            digest.update(len(array).to_bytes(8, "little") + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]


def _starts(lengths: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
