"""N-grams, and document frequencies: in how many images each n-gram occurs. CIDEr weights n-grams by them.

They are counted from captions, saved to an .npz file, or read from the pickle that other projects use. The n-grams are
of words, or of token ids written as decimal strings ("12 7 0"), which the CIDEr-D reward of training needs. Ids mean
nothing without their vocabulary, so a file stores the vocabulary's fingerprint: with another vocabulary the rewards
would be noise, without any error.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import zipfile
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from prproduct.captioning.input_files import DAMAGED
from prproduct.lab.errors import InputError
from prproduct.lab.files import replacing

FORMAT = "prproduct n-gram frequencies 1"
ORDER = 4  # BLEU and CIDEr count n-grams of 1 to 4 words

Ngram = tuple[str, ...]


def count_ngrams(caption: str) -> Counter[Ngram]:
    """The number of occurrences of each n-gram of 1 to `ORDER` words.

    >>> count_ngrams("a cat a")
    Counter({('a',): 2, ('cat',): 1, ('a', 'cat'): 1, ('cat', 'a'): 1, ('a', 'cat', 'a'): 1})
    """
    words = caption.split()
    return Counter(tuple(words[i : i + n]) for n in range(1, ORDER + 1) for i in range(len(words) - n + 1))


@dataclass(frozen=True)
class Frequencies:
    """The number of images, of `images` in total, whose references contain each n-gram."""

    counts: Mapping[Ngram, float]
    images: float
    vocabulary: str = ""  # fingerprint of the vocabulary whose token ids the n-grams are made of

    def __post_init__(self) -> None:
        if not 1 <= self.images < math.inf:
            raise InputError(f"n-gram frequencies over {self.images} images; there must be at least one")

    @classmethod
    def of(cls, references: Sequence[Sequence[str]], vocabulary: Sequence[str] | None = None) -> Frequencies:
        """Count the n-grams of the references of each image.

        >>> Frequencies.of([["a cat", "a cat sits"], ["a dog"]]).counts[("a",)]
        2
        """
        counts: Counter[Ngram] = Counter()
        for captions in references:
            counts.update({ngram for caption in captions for ngram in count_ngrams(caption)})
        return cls(counts, len(references), fingerprint(vocabulary) if vocabulary is not None else "")

    @property
    def over_ids(self) -> bool:
        """True if the n-grams are of token ids, not of words."""
        return bool(self.counts) and all(ngram[0].isdecimal() for ngram in self.counts if len(ngram) == 1)

    def save(self, path: Path) -> None:
        """Write to an .npz file, in which an n-gram is up to four indices into a list of words."""
        indices: dict[str, int] = {}
        rows = np.full((len(self.counts), ORDER), -1, np.int32)
        for row, ngram in zip(rows, self.counts, strict=True):
            row[: len(ngram)] = [indices.setdefault(word, len(indices)) for word in ngram]
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(
                file,
                format=np.array(FORMAT),
                words=np.frombuffer(" ".join(indices).encode(), np.uint8),
                ngrams=rows,
                counts=np.fromiter(self.counts.values(), np.float64, len(self.counts)),
                images=np.array(self.images, np.float64),
                vocabulary=np.array(self.vocabulary),
            )


def fingerprint(vocabulary: Sequence[str]) -> str:
    """Sixteen hexadecimal digits that change with any word of a vocabulary, and with their order.

    >>> fingerprint(["a", "cat"]) == fingerprint(["cat", "a"])
    False
    """
    return hashlib.sha256("\n".join(vocabulary).encode()).hexdigest()[:16]


def load_frequencies(path: Path, vocabulary: Sequence[str] | None = None) -> Frequencies:
    """Read a file of `Frequencies.save`, or a pickle like `coco-train-idxs.p`, without executing anything in it.

    `vocabulary` lists the words of token ids 1, 2, …; a file counted with another vocabulary raises InputError. Pickles
    have no fingerprint: their ids must be ids of the vocabulary, and at least half of its words must occur.
    """
    try:
        read = _read_npz if zipfile.is_zipfile(path) else _read_pickle
        frequencies = read(path)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; count n-grams with Frequencies.of(...).save(path)") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if vocabulary is not None:
        _check_vocabulary(path, frequencies, vocabulary)
    return frequencies


def _read_npz(path: Path) -> Frequencies:
    try:
        with path.open("rb") as content, np.load(content, allow_pickle=False) as file:
            if str(file["format"]) != FORMAT:
                raise ValueError
            words = np.array(file["words"].tobytes().decode().split(" "), object)
            rows, counts = file["ngrams"], file["counts"]
            images, vocabulary = float(file["images"]), str(file["vocabulary"])
        frequencies: dict[Ngram, float] = {}
        lengths = (rows >= 0).sum(axis=1)
        for n in range(1, ORDER + 1):  # by columns: row by row takes five times as long
            columns = [words[rows[lengths == n, k]].tolist() for k in range(n)]
            frequencies.update(zip(zip(*columns, strict=True), counts[lengths == n].tolist(), strict=True))
    except DAMAGED:
        raise InputError(f"{path}: not a file of n-gram frequencies; count them again") from None
    return Frequencies(frequencies, images, vocabulary)


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles containers and numbers; any other class or function that the pickle names is an error."""

    ADMITTED = {  # noqa: RUF012
        ("collections", "defaultdict"): defaultdict,
        ("collections", "OrderedDict"): OrderedDict,
        ("collections", "Counter"): Counter,
        **{(module, kind.__name__): kind for module in ("builtins", "__builtin__") for kind in (int, float, dict)},
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self.ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {f'{module}.{name}'!r}, which plain data never does") from None


def _read_pickle(path: Path) -> Frequencies:
    try:
        with path.open("rb") as file:
            content = _PlainUnpickler(file, encoding="utf-8").load()
    except OSError:
        raise
    except Exception as error:  # a pickle may fail in any way that the types which it builds can
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: not a pickle of n-gram frequencies: {reason}") from None
    try:
        counts, images = content["document_frequency"], float(content["ref_len"])
        plain = all(
            type(ngram) is tuple
            and 1 <= len(ngram) <= ORDER
            and all(type(word) is str for word in ngram)
            and type(count) in (int, float)
            and 0 <= float(count) < math.inf
            for ngram, count in counts.items()
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        plain = False
    if not plain:
        raise InputError(f"{path}: expected document_frequency (numbers, by tuples of 1 to 4 strings) and ref_len")
    return Frequencies(dict(cast(Mapping[Ngram, float], counts)), images)


def _check_vocabulary(path: Path, frequencies: Frequencies, vocabulary: Sequence[str]) -> None:
    if frequencies.vocabulary:
        if frequencies.vocabulary != fingerprint(vocabulary):
            raise InputError(
                f"{path}: counted with another vocabulary ({frequencies.vocabulary}) than the {len(vocabulary)} words "
                f"in use ({fingerprint(vocabulary)}); count n-grams again with this one"
            )
        return
    words = [ngram[0] for ngram in frequencies.counts if len(ngram) == 1]
    unknown = [word for word in words if not (word.isdecimal() and int(word) <= len(vocabulary))]
    if unknown or len(words) < len(vocabulary) / 2:
        what = f"has {unknown[0]!r}" if unknown else f"knows {len(words)} ids"
        raise InputError(
            f"{path}: {what}, which does not go with a vocabulary of {len(vocabulary)} words; "
            "count n-grams again with this one"
        )
