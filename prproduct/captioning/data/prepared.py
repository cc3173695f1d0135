"""Captions ready for training: what `prproduct data captions` writes, in a folder of three files.

    captions.json      the images: id, file name, split, references as written and as tokens
    vocabulary.json    the words, by their ids
    frequencies.npz    in how many training images each n-gram of ids occurs, ends included

Tokens are kept whole. Captions are cut, and their words looked up, when a folder is read.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from prproduct.captioning.data.vocabulary import END, Vocabulary
from prproduct.captioning.metrics.fields import ImageId, caption_of, entries, image_id, refuse, refuse_repeated
from prproduct.captioning.metrics.frequencies import Frequencies, load_frequencies
from prproduct.lab.errors import InputError
from prproduct.lab.files import read_json, write_durably, writing

FORMAT = "prproduct captions 1"
SPLITS = ("train", "val", "test")
SPLIT_OF = {"train": "train", "restval": "train", "val": "val", "test": "test"}  # by the names that files have
LONGEST = 16  # words of a caption, as in the paper
CAPTIONS, VOCABULARY, FREQUENCIES = "captions.json", "vocabulary.json", "frequencies.npz"


class Described(NamedTuple):
    """An image and what people wrote about it, before any vocabulary."""

    id: ImageId
    file: str
    split: str
    references: tuple[str, ...]  # as written
    tokens: tuple[str, ...]  # the same, as tokens with single blanks between them


class Image(NamedTuple):
    """An image and its captions as ids, without an end."""

    id: ImageId
    file: str
    split: str
    references: tuple[str, ...]
    captions: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class CaptionSet:
    """The images of all splits, with one vocabulary.

    >>> cat = Described(7, "cat.jpg", "train", ("A cat!", "One cat sits."), ("a cat", "one cat sits"))
    >>> captions = encode([cat], Vocabulary(("a", "cat", "sits", "UNK")))
    >>> captions.of("train")[0].captions, captions.frequencies.counts["2", "0"], captions.of("val")
    (((1, 2), (4, 2, 3)), 1, ())
    """

    vocabulary: Vocabulary
    images: tuple[Image, ...]
    longest: int = LONGEST
    frequencies_file: Path | None = None  # counted in the training captions, unless a file has them

    def of(self, split: str) -> tuple[Image, ...]:
        """The images of train, val or test."""
        if split not in SPLITS:
            raise InputError(f"split {split!r} is not known; there are {', '.join(SPLITS)}")
        return tuple(image for image in self.images if image.split == split)

    @cached_property
    def frequencies(self) -> Frequencies:
        """In how many training images each n-gram of ids occurs; COCO's take 0.7 GB, so they are read when asked for.

        The captions are those that a reward compares with: cut, and with their end.
        """
        if self.frequencies_file is not None:
            return load_frequencies(self.frequencies_file, self.vocabulary.words)
        written = [str(number) for number in range(len(self.vocabulary))]
        texts = (
            [" ".join([*(written[word] for word in caption), written[END]]) for caption in image.captions]
            for image in self.of("train")
        )
        return Frequencies.of(list(texts), self.vocabulary.words)

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with any image, caption or word."""
        digest = hashlib.sha256(f"{self.vocabulary.fingerprint} {self.longest}".encode())
        for image in self.images:
            digest.update(json.dumps(image).encode())
        return digest.hexdigest()[:16]


def encode(described: Iterable[Described], vocabulary: Vocabulary, longest: int = LONGEST) -> CaptionSet:
    """Captions as ids of the vocabulary's words, cut to the first `longest`."""
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
    """Write a new folder, whole or not at all; frequencies are counted in the training captions unless given."""
    check_new(folder)
    check(folder, described)
    captions = encode(described, vocabulary, longest)
    counted = captions.frequencies if frequencies is None else frequencies
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            write_durably(temporary / CAPTIONS, _captions_json(described, vocabulary, longest))
            write_durably(temporary / VOCABULARY, vocabulary_json(vocabulary))
            counted.save(temporary / FREQUENCIES)
            temporary.chmod(0o755)  # mkdtemp's own folders are for their owner alone
            temporary.replace(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return captions


def check_new(folder: Path) -> None:
    """Refuse a folder that has something in it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: is there already; choose another folder, or remove this one")


def read(folder: str | Path) -> CaptionSet:
    """Read what `write` wrote."""
    folder = Path(folder)
    path = folder / CAPTIONS
    if not path.exists():
        raise InputError(f"{folder}: no {CAPTIONS} in it; give a folder that `prproduct data captions` wrote")
    content = read_json(path)
    longest = content.get("longest")
    if content.get("format") != FORMAT or not isinstance(longest, int):
        raise InputError(f"{path}: not what `prproduct data captions` writes, {FORMAT!r}; prepare the captions again")
    vocabulary = read_vocabulary(folder / VOCABULARY)
    if content.get("vocabulary") != vocabulary.fingerprint:
        raise InputError(f"{folder / VOCABULARY}: another vocabulary than {CAPTIONS} was prepared with; prepare again")
    described = [_described(path, entry) for entry in entries(path, content.get("images"))]
    check(path, described)
    captions = encode(described, vocabulary, longest)
    frequencies = folder / FREQUENCIES
    if not frequencies.exists():
        raise InputError(f"{frequencies}: no such file; prepare the captions again")
    return CaptionSet(vocabulary, captions.images, longest, frequencies)


def check(path: Path, described: Sequence[Described]) -> None:
    """Refuse images that are there twice, of no known split, without references, or with an empty one.

    >>> check(Path("a.json"), [Described(7, "cat.jpg", "val", (".",), ("",))])
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: a.json: empty captions of images: 7 (--skip-empty leaves them out)
    """
    if not described:
        raise InputError(f"{path}: no images in it")
    refuse_repeated(path, "images listed more than once", [image.id for image in described])
    unknown = [image.id for image in described if image.split not in SPLITS]
    refuse(path, f"images of no split of {', '.join(SPLITS)}", unknown)
    empty = [image.id for image in described if not all(image.tokens)]
    refuse(path, "empty captions of images", empty, " (--skip-empty leaves them out)")
    # Images that nobody has described can be captioned, not trained or chosen on.
    without = [image.id for image in described if not image.tokens and image.split != "test"]
    refuse(path, "no captions of train or val images", without)


def _captions_json(described: Sequence[Described], vocabulary: Vocabulary, longest: int) -> bytes:
    """An image a line."""
    head = {"format": FORMAT, "longest": longest, "vocabulary": vocabulary.fingerprint}
    lines = ",\n".join(json.dumps(image._asdict(), ensure_ascii=False) for image in described)
    return (json.dumps(head)[:-1] + f', "images": [\n{lines}\n]}}\n').encode()


def vocabulary_json(vocabulary: Vocabulary) -> bytes:
    """A word a line, in the order of their ids.

    >>> vocabulary_json(Vocabulary(("a", "UNK")))
    b'[\\n"a",\\n"UNK"\\n]'
    """
    return json.dumps(vocabulary.words, ensure_ascii=False, indent=0).encode()


def read_vocabulary(path: Path, remedy: str = "prepare the captions again") -> Vocabulary:
    """Read such a file; what to do about one that is missing or damaged is the `remedy`."""
    try:
        words = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InputError(f"{path}: not a JSON list of words; {remedy}")
    return Vocabulary(tuple(words))


def _described(path: Path, entry: dict[str, Any]) -> Described:
    references, tokens = entry.get("references"), entry.get("tokens")
    strings = [value for texts in (references, tokens) if isinstance(texts, list) for value in texts]
    if (
        not isinstance(references, list)
        or not isinstance(tokens, list)
        or len(references) != len(tokens)
        or not all(isinstance(text, str) for text in strings)
    ):
        raise InputError(f"{path}: an image without as many 'tokens' as 'references': {str(entry)[:80]}")
    file, split = (caption_of(path, entry, name) for name in ("file", "split"))
    return Described(image_id(path, entry, "id"), file, split, tuple(references), tuple(tokens))
