"""CIDEr-D as a reward: the scores of sampled captions, given as token ids, in a small part of the sampling's time.

The end token is part of a caption, in references and in samples; without it, captions that stop in the middle would be
rewarded. Scores are computed by the C++ operators of `torch.ops.prproduct` (`csrc/ngrams.cpp`) on n-grams packed into
64-bit keys, or, without the compiled library, by the functions of `ngram_metrics` on token ids written as strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prproduct.captioning.metrics.frequencies import Frequencies
from prproduct.captioning.metrics.ngram_metrics import cider_of_image, weigh
from prproduct.lab.errors import InputError
from prproduct.ops import kernels

END = 0  # the token that ends a caption
LARGEST_TOKEN = 2**16 - 2  # an n-gram's 64-bit key holds four token ids, each plus one, of 16 bits


@dataclass(frozen=True, eq=False)
class PackedCaptions:
    """The captions of many images as token ids in three flat arrays.

    Caption c is tokens[caption_starts[c] : caption_starts[c + 1]]; image i has the captions from image_starts[i] to
    image_starts[i + 1], exclusive.

    >>> packed = PackedCaptions.pack([[[5, 8], [5]], [[7, 7, 7]]])
    >>> packed.tokens.tolist(), packed.caption_starts.tolist(), packed.image_starts.tolist()
    ([5, 8, 5, 7, 7, 7], [0, 2, 3, 6], [0, 2, 3])
    """

    tokens: NDArray[np.int64]
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
        """Number of images."""
        return len(self.image_starts) - 1

    @classmethod
    def pack(cls, images: Sequence[Sequence[Sequence[int]]]) -> PackedCaptions:
        """Pack the token ids of each caption of each image."""
        captions = [caption for image in images for caption in image]
        tokens = [token for caption in captions for token in caption]
        return cls(
            np.array(tokens, np.int64), _starts([len(c) for c in captions]), _starts([len(image) for image in images])
        )

    @classmethod
    def from_labels(
        cls, labels: NDArray[np.integer], first: NDArray[np.integer], last: NDArray[np.integer]
    ) -> PackedCaptions:
        """Pack the arrays of `cocotalk_label.h5`: zero-padded rows, and the first and last row of each image from 1.

        >>> labels = np.array([[5, 8, 0], [7, 7, 7], [5, 0, 0]])
        >>> PackedCaptions.from_labels(labels, np.array([1, 3]), np.array([2, 3])).tokens.tolist()
        [5, 8, 7, 7, 7, 5]
        """
        if not len(first) or first.min() < 1 or last.max() > len(labels):
            raise InputError(
                f"captions {first.min(initial=1)} to {last.max(initial=0)} of {len(labels)}; they count from 1"
            )
        rows = np.concatenate([np.arange(a - 1, b) for a, b in zip(first.tolist(), last.tolist(), strict=True)])
        used = labels[rows]
        lengths = np.where((used == 0).any(1), (used == 0).argmax(1), used.shape[1])
        written = np.arange(used.shape[1]) < lengths[:, None]
        counts = last.astype(np.int64) - first.astype(np.int64) + 1
        return cls(used[written].astype(np.int64), _starts(lengths), _starts(counts))

    def with_end(self) -> PackedCaptions:
        """The same captions with the end token after each."""
        starts = self.caption_starts + np.arange(len(self.caption_starts))
        return PackedCaptions(np.insert(self.tokens, self.caption_starts[1:], END), starts, self.image_starts)


def _starts(lengths: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int64]:
    """Offsets (n + 1,) of n consecutive pieces of these lengths."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


@dataclass(frozen=True, eq=False)
class CiderReward:
    """The references of many images; called with samples, it returns their CIDEr-D.

    >>> reward = CiderReward.of(PackedCaptions.pack([[[1, 2, 3], [1, 2]], [[4, 5, 8]], [[6]]]))
    >>> reward(torch.tensor([[1, 2, 3, 0, 0], [4, 5, 8, 0, 9], [4, 4, 4, 4, 4]]), torch.tensor([0, 1, 2]))
    tensor([ 6.5098, 10.0000,  0.0000], dtype=torch.float64)
    """

    references: KeyReferences | StringReferences
    images: int

    @classmethod
    def of(cls, captions: PackedCaptions, frequencies: Frequencies | None = None) -> CiderReward:
        """Prepare references, given without the end token 0, which is appended to each.

        `frequencies` are over token ids, with end tokens; without them n-grams are counted in these references.
        """
        if (captions.tokens == END).any():
            raise InputError(f"references with their end ({END}) in them; give them without it, it is added")
        if frequencies is not None:
            _check_ids(frequencies)
        prepare = KeyReferences.of if kernels.library() else StringReferences.of
        return cls(prepare(captions.with_end(), frequencies), captions.images)

    def __call__(self, samples: Tensor, images: Tensor) -> Tensor:
        """CIDEr-D (batch,) in float64, on the samples' device, of samples (batch, length) for `images` (batch,).

        A sample ends with its first 0, and the tokens after it are ignored; a sample without 0 was truncated, and no
        end token is added to it. `images` are their indices, from 0, in the references.
        """
        if samples.ndim != 2 or images.shape != samples.shape[:1]:
            raise ValueError(
                f"samples (batch, length) and images (batch,) expected, not {(*samples.shape,)}, {(*images.shape,)}"
            )
        for what, tensor in (("samples", samples), ("images", images)):
            if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
                raise TypeError(f"{what} of {tensor.dtype}; they must be of integers, such as torch.int64")
        tokens, indices = (t.detach().to("cpu", torch.int64).contiguous() for t in (samples, images))
        _check_range("token ids", tokens, LARGEST_TOKEN)
        _check_range("images", indices, self.images - 1)
        return self.references.score(tokens, indices).to(samples.device)


@dataclass(frozen=True, eq=False)
class KeyReferences:
    """References for the C++ operators: counted, weighted and sorted once.

    The key of an n-gram is an unsigned 64-bit number; in an int64 tensor large ones are negative.
    """

    image_starts: Tensor  # (images + 1,)
    lengths: Tensor  # (captions,), in tokens, including the end token
    entry_starts: Tensor  # (captions + 1,)
    keys: Tensor  # (entries,), the distinct n-grams of each caption, sorted
    weights: Tensor  # (entries,), count times rarity, the log inverse document frequency
    norms: Tensor  # (captions, ORDER)
    table: Tensor  # (slots,), hash table of all n-grams with a document frequency
    table_rarities: Tensor  # (slots,)
    rarest: float  # the rarity of every n-gram outside of the table: log(images)

    @classmethod
    def of(cls, captions: PackedCaptions, frequencies: Frequencies | None) -> KeyReferences:
        """Prepare captions that have their end tokens."""
        arrays = captions.tokens, captions.caption_starts, captions.image_starts
        tokens, caption_starts, image_starts = map(torch.from_numpy, arrays)
        if frequencies is None:
            distinct = torch.ops.prproduct.distinct_ngrams(tokens, caption_starts, image_starts)
            keys, counts = np.unique(distinct.numpy(), return_counts=True)
        else:
            keys = np.array([_key(ngram) for ngram in frequencies.counts], np.uint64).view(np.int64)
            counts = np.fromiter(frequencies.counts.values(), np.float64, len(keys))
        # np.log, as below: math.log may differ in the last bit, and an n-gram of all images must weigh 0.
        rarest = float(np.log(captions.images if frequencies is None else frequencies.images))
        rarities = rarest - np.log(np.maximum(1.0, counts))
        table, table_rarities = torch.ops.prproduct.ngram_table(torch.from_numpy(keys), torch.from_numpy(rarities))
        entry_starts, entry_keys, weights, norms = torch.ops.prproduct.weigh_captions(
            tokens, caption_starts, table, table_rarities, rarest
        )
        lengths = caption_starts.diff()
        return cls(image_starts, lengths, entry_starts, entry_keys, weights, norms, table, table_rarities, rarest)

    def score(self, samples: Tensor, images: Tensor) -> Tensor:
        """CIDEr-D (batch,) of each row of `samples`, up to and including its first 0, for the image images[b]."""
        references = (self.image_starts, self.lengths, self.entry_starts, self.keys, self.weights, self.norms)
        scores: Tensor = torch.ops.prproduct.score_samples(
            samples, images, END, self.table, self.table_rarities, self.rarest, *references
        )
        return scores


@dataclass(frozen=True, eq=False)
class StringReferences:
    """References for installations without the compiled library: captions of token ids written as decimal strings.

    They are weighted in each call. The weighted captions of all images would take several times the memory.
    """

    captions: Sequence[Sequence[str]]  # of each image
    frequencies: Frequencies

    @classmethod
    def of(cls, captions: PackedCaptions, frequencies: Frequencies | None) -> StringReferences:
        """Prepare captions that have their end tokens."""
        written = [_as_words(captions.tokens[a:b].tolist()) for a, b in pairwise(captions.caption_starts.tolist())]
        of_images = [written[a:b] for a, b in pairwise(captions.image_starts.tolist())]
        return cls(of_images, frequencies or Frequencies.of(of_images))

    def score(self, samples: Tensor, images: Tensor) -> Tensor:
        """CIDEr-D (batch,) of each row of `samples`, up to and including its first 0, for the image images[b]."""
        indices = images.tolist()
        references = {i: [weigh(caption, self.frequencies) for caption in self.captions[i]] for i in set(indices)}
        scores = []
        for sample, index in zip(samples.tolist(), indices, strict=True):
            caption = sample[: sample.index(END) + 1] if END in sample else sample
            scores.append(cider_of_image(references[index], weigh(_as_words(caption), self.frequencies)))
        return torch.tensor(scores, dtype=torch.float64)


def _as_words(tokens: Sequence[int]) -> str:
    return " ".join(map(str, tokens))


def _check_ids(frequencies: Frequencies) -> None:
    for word in {word for ngram in frequencies.counts for word in ngram}:
        if not (word.isdecimal() and int(word) <= LARGEST_TOKEN):
            raise InputError(f"n-gram frequencies have {word!r}, not token ids; a reward needs those over token ids")


def _key(ngram: Sequence[str]) -> int:
    """16 bits for each token id plus one, the first in the highest bits."""
    key = 0
    for word in ngram:
        key = key << 16 | int(word) + 1
    return key


def _check_range(what: str, values: Tensor, largest: int) -> None:
    if values.numel():
        low, high = (int(bound) for bound in values.aminmax())
        if not 0 <= low <= high <= largest:
            raise ValueError(f"{what} from {low} to {high}; they must lie between 0 and {largest}")
