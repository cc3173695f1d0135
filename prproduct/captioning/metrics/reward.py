"""CIDEr-D as a reward: sampled token ids in, scores out, fast enough to cost nothing beside sampling them.

What depends on the references alone is done once: their n-grams are counted over all images, weighted and sorted, and
kept in flat arrays, in memory and in a file. The end of a caption belongs to it, in references and in samples: without
it the reward pays for captions that stop in the middle.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prproduct.captioning.metrics.frequencies import DAMAGED, Frequencies
from prproduct.captioning.metrics.keys import operators
from prproduct.captioning.metrics.ngrams import ORDER
from prproduct.captioning.metrics.packed import LARGEST_TOKEN, PackedCaptions
from prproduct.captioning.metrics.writing import replacing
from prproduct.lab.errors import InputError

FORMAT = "prproduct CIDEr-D references 1"


@dataclass(frozen=True, eq=False)
class CiderReward:
    """The weighted references of many images, and the scores of samples against them.

    >>> reward = CiderReward.of(PackedCaptions.pack([[[1, 2, 3], [1, 2]], [[4, 5, 8]], [[6]]]))
    >>> reward(torch.tensor([[1, 2, 3, 0, 0], [4, 5, 8, 0, 9], [4, 4, 4, 4, 4]]), torch.tensor([0, 1, 2]))
    tensor([ 6.5098, 10.0000,  0.0000], dtype=torch.float64)
    """

    image_starts: NDArray[np.int64]  # (images + 1,)
    lengths: NDArray[np.int64]  # (captions,), in tokens, the end included
    entry_starts: NDArray[np.int64]  # (captions + 1,)
    keys: NDArray[np.uint64]  # (entries,), the distinct n-grams of each caption, sorted
    weights: NDArray[np.float64]  # (entries,), count times rarity
    norms: NDArray[np.float64]  # (captions, ORDER)
    table: NDArray[np.uint64]  # (slots,), all n-grams that have been counted
    table_rarities: NDArray[np.float64]  # (slots,)
    rarest: NDArray[np.float64]  # (), the rarity of all others: log(images)
    eos: NDArray[np.int64]  # ()

    def __post_init__(self) -> None:
        """Refuse arrays that do not fit together, which a damaged file may hold."""
        slots = len(self.table)
        if not (
            _partition(self.image_starts, len(self.lengths))
            and _partition(self.entry_starts, len(self.keys))
            and len(self.entry_starts) == len(self.lengths) + 1
            and self.norms.shape == (len(self.lengths), ORDER)
            and len(self.weights) == len(self.keys)
            and len(self.table_rarities) == slots > 0 == slots & (slots - 1)
            and (self.table == 0).any()  # an empty slot, where the search for a key that is not there ends
        ):
            raise ValueError("arrays that do not belong together")

    @classmethod
    def of(cls, captions: PackedCaptions, frequencies: Frequencies | None = None, eos: int = 0) -> CiderReward:
        """From references without their end, which is added; one that has it already is refused.

        `frequencies` are over token ids, ends included; without them n-grams are counted in these references.
        """
        if not 0 <= eos <= LARGEST_TOKEN:
            raise InputError(f"captions that end in {eos}; an end is a token id from 0 to {LARGEST_TOKEN}")
        if (captions.tokens == eos).any():
            raise InputError(f"references with their end ({eos}) in them; give them without it, it is added")
        tokens, starts = _with_end(captions, eos)
        counted, counts, images = _count(tokens, starts, captions) if frequencies is None else _from(frequencies)
        rarest = math.log(images)
        rarities = rarest - np.log(np.maximum(1.0, counts))
        table, table_rarities = operators().ngram_table(_tensor(counted), _tensor(rarities))
        entry_starts, keys, weights, norms = operators().weigh_captions(
            _tensor(tokens), _tensor(starts), table, table_rarities, rarest
        )
        # Copies, since NumPy asks the system for huge pages and torch does not: a batch takes a sixth less time.
        return cls(
            captions.image_starts, np.diff(starts), entry_starts.numpy(), _as_keys(keys).copy(), weights.numpy().copy(),
            norms.numpy(), _as_keys(table).copy(), table_rarities.numpy().copy(), np.array(rarest), np.array(eos),
        )  # fmt: skip

    @classmethod
    def cached(
        cls, path: Path, captions: PackedCaptions, frequencies: Frequencies | None = None, eos: int = 0
    ) -> CiderReward:
        """Read from `path` if that was made from the same captions and frequencies; else made, and written there."""
        fingerprint = _fingerprint(captions, frequencies, eos)
        reward = _read(path, fingerprint)
        if reward is None:
            reward = cls.of(captions, frequencies, eos)
            arrays = {field.name: getattr(reward, field.name) for field in fields(reward)}
            with replacing(path) as file:
                np.savez(file, format=np.array(FORMAT), fingerprint=np.array(fingerprint), **arrays)
        return reward

    def __call__(self, samples: Tensor, rows: Tensor) -> Tensor:
        """The score (batch,) in float64, on the samples' device, of samples (batch, length) for images `rows` (batch,).

        A sample ends with its first `eos`; what stands behind it does not count. One without any was cut off, and gets
        no end. `rows` are places in the captions that this was made from, from 0.
        """
        if samples.ndim != 2 or rows.shape != samples.shape[:1]:
            raise ValueError(
                f"samples (batch, length) and rows (batch,) expected, not {(*samples.shape,)}, {(*rows.shape,)}"
            )
        for what, tensor in (("samples", samples), ("rows", rows)):
            if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
                raise TypeError(f"{what} of {tensor.dtype}; they must be of integers, such as torch.int64")
        tokens, places = (t.detach().to("cpu", torch.int64).contiguous() for t in (samples, rows))
        _check_range("token ids", tokens, LARGEST_TOKEN)
        _check_range("rows", places, len(self.image_starts) - 2)
        references = (self.image_starts, self.lengths, self.entry_starts, self.keys, self.weights, self.norms)
        table, table_rarities, *weighted = map(_tensor, (self.table, self.table_rarities, *references))
        rarest, eos = float(self.rarest), int(self.eos)
        scores: Tensor = operators().score_samples(tokens, places, eos, table, table_rarities, rarest, *weighted)
        return scores.to(samples.device)

    @property
    def nbytes(self) -> int:
        """How much memory the references take."""
        return sum(getattr(self, field.name).nbytes for field in fields(self))


def _partition(starts: NDArray[np.int64], size: int) -> bool:
    return bool(len(starts) and starts[0] == 0 and starts[-1] == size and (np.diff(starts) >= 0).all())


def _with_end(captions: PackedCaptions, eos: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    starts = captions.caption_starts + np.arange(len(captions.caption_starts))
    return np.insert(captions.tokens, captions.caption_starts[1:], eos), starts


def _count(
    tokens: NDArray[np.int32], starts: NDArray[np.int64], captions: PackedCaptions
) -> tuple[NDArray[np.uint64], NDArray[np.int64], int]:
    distinct = operators().distinct_ngrams(_tensor(tokens), _tensor(starts), _tensor(captions.image_starts))
    return *np.unique(_as_keys(distinct), return_counts=True), captions.images


def _from(frequencies: Frequencies) -> tuple[NDArray[np.uint64], NDArray[np.float64], float]:
    keys = np.empty(len(frequencies.counts), np.uint64)
    for k, ngram in enumerate(frequencies.counts):
        key = 0
        for word in ngram:
            if not (word.isdecimal() and int(word) <= LARGEST_TOKEN):
                raise InputError(
                    f"n-gram frequencies have {word!r}, not token ids; a reward needs those over token ids"
                )
            key = key << 16 | int(word) + 1
        keys[k] = key
    return keys, np.fromiter(frequencies.counts.values(), np.float64, len(keys)), frequencies.images


def _fingerprint(captions: PackedCaptions, frequencies: Frequencies | None, eos: int) -> str:
    parts = [captions.fingerprint(), str(eos)]
    if frequencies is not None:
        keys, counts, images = _from(frequencies)
        order = np.argsort(keys)
        digest = hashlib.sha256(keys[order].tobytes() + counts[order].tobytes()).hexdigest()
        parts += [digest, str(float(images)), frequencies.vocabulary]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def _read(path: Path, fingerprint: str) -> CiderReward | None:
    """None where there is no such file, or it belongs to other captions, was cut short or damaged."""
    try:
        content = path.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; choose another place for the cache") from None
    try:
        with content, np.load(content, allow_pickle=False) as file:
            if str(file["format"]) != FORMAT or str(file["fingerprint"]) != fingerprint:
                return None
            return CiderReward(**{field.name: file[field.name] for field in fields(CiderReward)})
    except (OSError, *DAMAGED):  # an OSError where a changed byte leads to a place before the file's beginning
        return None


def _check_range(what: str, values: Tensor, largest: int) -> None:
    if values.numel():
        low, high = (int(bound) for bound in values.aminmax())
        if not 0 <= low <= high <= largest:
            raise ValueError(f"{what} from {low} to {high}; they must lie between 0 and {largest}")


def _tensor(array: NDArray[Any]) -> Tensor:
    """As the operators take it: keys and all integers are int64. A copy where it must be one, or may not be written."""
    array = array.view(np.int64) if array.dtype == np.uint64 else array
    dtype = np.int64 if array.dtype.kind in "iu" else np.float64
    return torch.from_numpy(np.require(array, dtype, ["C", "W"]))


def _as_keys(bits: Tensor) -> NDArray[np.uint64]:
    return bits.numpy().view(np.uint64)
