"""Prepared captions: the folder that `prproduct data captions` writes and training reads.

    captions.json      the images: id, file name, split, references as written and as tokens
    vocabulary.json    the words, in the order of their ids
    frequencies.npz    in how many training images each n-gram of ids occurs, with end tokens

The files have all tokens of a caption. Captions are truncated and encoded as ids when a folder is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from prproduct.captioning.data.vocabulary import END, Vocabulary
from prproduct.captioning.input_files import (
    LARGEST,
    ImageId,
    image_id_field,
    object_list,
    raise_for_images,
    raise_for_repeated,
    string_field,
    strings_field,
)
from prproduct.captioning.metrics.frequencies import Frequencies, load_frequencies
from prproduct.lab.checks import check_known
from prproduct.lab.errors import InputError
from prproduct.lab.files import check_writable, read_json, read_json_value, replacing, write_durably

FORMAT = "prproduct captions 1"
SPLITS = ("train", "val", "test")
SPLIT_OF = {"train": "train", "restval": "train", "val": "val", "test": "test"}  # split names in the files of others
LONGEST = 16  # words of a truncated caption, as in the paper
CAPTIONS, VOCABULARY, FREQUENCIES = "captions.json", "vocabulary.json", "frequencies.npz"


class Described(NamedTuple):
    """An image and its reference captions, before they are encoded with a vocabulary."""

    id: ImageId
    file: str
    split: str
    references: tuple[str, ...]  # as written
    tokens: tuple[str, ...]  # the same captions as tokens, joined by single blanks


class Image(NamedTuple):
    """An image and its captions as word ids, without end tokens."""

    id: ImageId
    file: str
    split: str
    references: tuple[str, ...]
    captions: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class CaptionSet:
    """The captioned images of all splits, encoded with one vocabulary.

    >>> cat = Described(7, "cat.jpg", "train", ("A cat!", "One cat sits."), ("a cat", "one cat sits"))
    >>> captions = encode([cat], Vocabulary(("a", "cat", "sits", "UNK")))
    >>> captions.of("train")[0].captions, captions.frequencies.counts["2", "0"], captions.of("val")
    (((1, 2), (4, 2, 3)), 1, ())
    """

    vocabulary: Vocabulary
    images: tuple[Image, ...]
    longest: int = LONGEST
    frequencies_file: Path | None = None  # None: they are counted in the training captions

    def of(self, split: str) -> tuple[Image, ...]:
        """The images of the split train, val or test."""
        check_known("split", split, SPLITS)
        return tuple(image for image in self.images if image.split == split)

    @cached_property
    def frequencies(self) -> Frequencies:
        """In how many training images each n-gram of ids occurs, in truncated captions with end tokens.

        COCO's take 0.7 GB, so they are computed or read on first access.
        """
        if self.frequencies_file is not None:
            return load_frequencies(self.frequencies_file, self.vocabulary.words)
        texts = [str(number) for number in range(len(self.vocabulary))]
        references = [
            [" ".join([*(texts[word] for word in caption), texts[END]]) for caption in image.captions]
            for image in self.of("train")
        ]
        return Frequencies.of(references, self.vocabulary.words)

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with any image, caption or word."""
        digest = hashlib.sha256(f"{self.vocabulary.fingerprint} {self.longest}".encode())
        for image in self.images:
            digest.update(json.dumps(image).encode())
        return digest.hexdigest()[:16]


def encode(described: Iterable[Described], vocabulary: Vocabulary, longest: int = LONGEST) -> CaptionSet:
    """Encode captions as word ids, truncated to the first `longest` words."""
    if longest < 1:
        raise InputError(f"captions cut to {longest} words; at least one must be left")
    images = tuple(
        Image(
            image.id,
            image.file,
            image.split,
            image.references,
            tuple(tuple(vocabulary.encode(tokens.split(" ")[:longest])) for tokens in image.tokens),
        )
        for image in described
    )
    return CaptionSet(vocabulary, images, longest)


def write(
    folder: Path,
    described: Sequence[Described],
    vocabulary: Vocabulary,
    longest: int = LONGEST,
    frequencies: Frequencies | None = None,
) -> CaptionSet:
    """Write a new folder, atomically; frequencies are counted in the training captions unless given."""
    check_new(folder)
    check(folder, described)
    captions = encode(described, vocabulary, longest)
    counted = captions.frequencies if frequencies is None else frequencies
    with replacing(folder) as temporary:
        temporary.mkdir()
        write_durably(temporary / CAPTIONS, _captions_json(described, vocabulary, longest))
        write_durably(temporary / VOCABULARY, vocabulary_json(vocabulary))
        counted.save(temporary / FREQUENCIES)
    return captions


def check_new(folder: Path) -> None:
    """Raise InputError if a folder exists and is not empty, or cannot be written."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: is there already; choose another folder, or remove this one")
    check_writable(folder)


def read(folder: str | Path) -> CaptionSet:
    """Read a folder of `write`."""
    folder = Path(folder)
    path = folder / CAPTIONS
    if not path.exists():
        raise InputError(f"{folder}: no {CAPTIONS} in it; give a folder that `prproduct data captions` wrote")
    content = read_json(path, LARGEST)
    longest = content.get("longest")
    if content.get("format") != FORMAT or not isinstance(longest, int):
        raise InputError(f"{path}: not what `prproduct data captions` writes, {FORMAT!r}; prepare the captions again")
    vocabulary = read_vocabulary(folder / VOCABULARY)
    if content.get("vocabulary") != vocabulary.fingerprint:
        raise InputError(f"{folder / VOCABULARY}: another vocabulary than {CAPTIONS} was prepared with; prepare again")
    described = [_described(path, entry) for entry in object_list(path, content.get("images"))]
    check(path, described)
    captions = encode(described, vocabulary, longest)
    frequencies = folder / FREQUENCIES
    if not frequencies.exists():
        raise InputError(f"{frequencies}: no such file; prepare the captions again")
    return CaptionSet(vocabulary, captions.images, longest, frequencies)


def check(path: Path | str, described: Sequence[Described], advice: str = "") -> None:
    """Raise InputError for images that are repeated, of an unknown split, without captions, or with an empty one.

    The message begins with `path`; for empty captions it ends with `advice`.

    >>> check(Path("a.json"), [Described(7, "cat.jpg", "val", (".",), ("",))])
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: a.json: empty captions of images: 7
    """
    if not described:
        raise InputError(f"{path}: no images in it")
    raise_for_repeated(path, "images listed more than once", [image.id for image in described])
    unknown = [image.id for image in described if image.split not in SPLITS]
    raise_for_images(path, f"images of no split of {', '.join(SPLITS)}", unknown)
    empty = [image.id for image in described if not all(image.tokens)]
    raise_for_images(path, "empty captions of images", empty, advice)
    # Test images need no references: they can be captioned without.
    without = [image.id for image in described if not image.tokens and image.split != "test"]
    raise_for_images(path, "no captions of train or val images", without)


def _captions_json(described: Sequence[Described], vocabulary: Vocabulary, longest: int) -> bytes:
    """The content of captions.json, with one image per line."""
    head = {"format": FORMAT, "longest": longest, "vocabulary": vocabulary.fingerprint}
    lines = ",\n".join(json.dumps(image._asdict(), ensure_ascii=False) for image in described)
    return (json.dumps(head)[:-1] + f', "images": [\n{lines}\n]}}\n').encode()


def vocabulary_json(vocabulary: Vocabulary) -> bytes:
    """The content of vocabulary.json: the words in the order of their ids, one per line.

    >>> vocabulary_json(Vocabulary(("a", "UNK")))
    b'[\\n"a",\\n"UNK"\\n]'
    """
    return json.dumps(vocabulary.words, ensure_ascii=False, indent=0).encode()


def read_vocabulary(path: Path, remedy: str = "prepare the captions again") -> Vocabulary:
    """Read a vocabulary.json; `remedy` ends the error message for a missing or damaged file."""
    try:
        words = read_json_value(path)
    except InputError as error:
        raise InputError(f"{error}; {remedy}") from None
    try:
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise InputError("not a JSON list of words")
        return Vocabulary(tuple(words))
    except InputError as error:
        raise InputError(f"{path}: {error}; {remedy}") from None


def _described(path: Path, entry: dict[str, Any]) -> Described:
    references, tokens = (strings_field(path, entry, name) for name in ("references", "tokens"))
    if len(references) != len(tokens):
        raise InputError(f"{path}: an image without as many 'tokens' as 'references': {str(entry)[:80]}")
    file, split = (string_field(path, entry, name) for name in ("file", "split"))
    return Described(image_id_field(path, entry, "id"), file, split, tuple(references), tuple(tokens))
