"""In how many images each n-gram occurs: counted, kept in a file, and read from the file that others keep.

Over words, or over a vocabulary's token ids written as numbers ("12 7 0"), as training with CIDEr-D as a reward does.
Ids mean nothing without their vocabulary, so a file remembers which one they came from: with another one, rewards would
be noise, and nothing else would tell.
"""

from __future__ import annotations

import hashlib
import pickle
import zipfile
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from prproduct.captioning.metrics.ngrams import ORDER, Ngram, count_ngrams
from prproduct.captioning.metrics.writing import replacing
from prproduct.lab.errors import InputError

FORMAT = "prproduct n-gram frequencies 1"


@dataclass(frozen=True)
class Frequencies:
    """In how many of `images` images each n-gram occurs in some reference."""

    counts: Mapping[Ngram, float]
    images: float
    vocabulary: str = ""  # fingerprint of the vocabulary whose token ids the n-grams are made of

    def __post_init__(self) -> None:
        if not self.images >= 1:
            raise InputError(f"n-gram frequencies over {self.images} images; there must be at least one")

    @classmethod
    def of(cls, references: Sequence[Sequence[str]], vocabulary: Sequence[str] | None = None) -> Frequencies:
        """Counted in the references of each image.

        >>> Frequencies.of([["a cat", "a cat sits"], ["a dog"]]).counts[("a",)]
        2
        """
        counts: Counter[Ngram] = Counter()
        for captions in references:
            counts.update({ngram for caption in captions for ngram in count_ngrams(caption)})
        return cls(counts, len(references), fingerprint(vocabulary) if vocabulary is not None else "")

    def save(self, path: Path) -> None:
        """Write to an .npz file: every n-gram as up to four places in a list of words."""
        places: dict[str, int] = {}
        rows = np.full((len(self.counts), ORDER), -1, np.int32)
        for row, ngram in zip(rows, self.counts, strict=True):
            row[: len(ngram)] = [places.setdefault(word, len(places)) for word in ngram]
        with replacing(path) as file:
            np.savez_compressed(
                file,
                format=np.array(FORMAT),
                words=np.frombuffer(" ".join(places).encode(), np.uint8),
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
    """Read what `save` wrote, or a pickle like `coco-train-idxs.p`, from which nothing but plain data is taken.

    `vocabulary` lists the words of token ids 1, 2, …; a file counted with another one is refused. The pickles hold no
    fingerprint: of them, the ids must be those of the vocabulary, and most of the vocabulary must occur.
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
        for n in range(1, ORDER + 1):  # column by column: row by row takes five times as long
            columns = [words[rows[lengths == n, k]].tolist() for k in range(n)]
            frequencies.update(zip(zip(*columns, strict=True), counts[lengths == n].tolist(), strict=True))
    except (KeyError, IndexError, ValueError, zipfile.BadZipFile):
        raise InputError(f"{path}: not a file of n-gram frequencies; count them again") from None
    return Frequencies(frequencies, images, vocabulary)


class _PlainUnpickler(pickle.Unpickler):
    """Takes containers and numbers from a pickle, and calls nothing else that it names."""

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
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which plain data never does") from None


def _read_pickle(path: Path) -> Frequencies:
    try:
        with path.open("rb") as file:
            content = _PlainUnpickler(file, encoding="utf-8").load()
    except OSError:
        raise
    except Exception as error:  # a pickle may fail in any way that the types which it builds can
        raise InputError(f"{path}: not a pickle of n-gram frequencies: {error}") from None
    try:
        counts, images = content["document_frequency"], float(content["ref_len"])
        plain = all(
            type(ngram) is tuple
            and 1 <= len(ngram) <= ORDER
            and all(type(word) is str for word in ngram)
            and type(count) in (int, float)
            for ngram, count in counts.items()
        )
    except (KeyError, TypeError, ValueError, AttributeError):
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
