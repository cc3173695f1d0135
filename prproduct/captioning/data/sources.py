"""Reading the caption files of other projects.

Karpathy's JSON has a split for each image and tokens for each caption. All published vocabularies are made of these
tokens, so they are the default.

COCO's annotations have neither: images are for training unless a list of ids says otherwise, and captions are tokenized
by the evaluation's tokenizer.

`cocotalk.json` and `cocotalk_label.h5` are preprocessed captions. The first file has the vocabulary and the images. The
second has the captions as rows of word ids padded with 0, and the first and last row of each image, counted from 1.
`coco-train-idxs.p`, if there is one, has document frequencies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from prproduct.captioning.data.features import normalized_id
from prproduct.captioning.data.prepared import SPLIT_OF, CaptionSet, Described, check, encode
from prproduct.captioning.data.vocabulary import UNKNOWN, Vocabulary
from prproduct.captioning.input_files import (
    LARGEST,
    ImageId,
    image_id_field,
    object_list,
    raise_for_images,
    raise_for_repeated,
    read_text,
    string_field,
    strings_field,
)
from prproduct.captioning.metrics.java import coco_captions
from prproduct.captioning.metrics.reward import PackedCaptions
from prproduct.captioning.metrics.tokenizer import tokenize_all
from prproduct.lab.checks import check_known
from prproduct.lab.errors import InputError
from prproduct.lab.files import read_json_value

BUNDLED = "coco2014"  # in place of a file name: the captions of COCO that pycocoevalcap bundles
TOKENS = ("given", "own")


def read(sources: Sequence[str], lists: Mapping[str, Path], tokens: str | None = None) -> list[Described]:
    """The images of Karpathy's files, COCO's annotations or the bundled captions (`BUNDLED`).

    `lists` maps "val" and "test" to files of image ids. `tokens` is "given" for the tokens of the files, "own" for
    those of our tokenizer, None for "given" if there are any.
    """
    if tokens is not None:
        check_known("tokens", tokens, TOKENS)
    images: list[Described] = []
    for source in sources:
        images += _bundled() if source == BUNDLED else _file(Path(source), tokens)
    if lists:
        images = _with_splits(images, lists)
    return images


def without_empty(images: Sequence[Described]) -> tuple[list[Described], int]:
    """The images without those of their captions that have no word, and the number of captions left out.

    >>> without_empty([Described(7, "cat.jpg", "train", ("A cat", "!"), ("a cat", ""))])
    ([Described(id=7, file='cat.jpg', split='train', references=('A cat',), tokens=('a cat',))], 1)
    """
    kept, empty = [], 0
    for image in images:
        pairs = [pair for pair in zip(image.references, image.tokens, strict=True) if pair[1]]
        empty += len(image.tokens) - len(pairs)
        references, tokens = zip(*pairs, strict=True) if pairs else ((), ())
        kept.append(image._replace(references=references, tokens=tokens))
    return kept, empty


def read_cocotalk(words: str | Path, labels: str | Path, frequencies: str | Path | None = None) -> CaptionSet:
    """The captions of `cocotalk.json` and `cocotalk_label.h5`, with the word ids of these files."""
    described, vocabulary, longest = describe_cocotalk(Path(words), Path(labels))
    captions = encode(described, vocabulary, longest)
    return CaptionSet(vocabulary, captions.images, longest, Path(frequencies) if frequencies else None)


def describe_cocotalk(words: Path, labels: Path) -> tuple[list[Described], Vocabulary, int]:
    """The images with their captions as words, the vocabulary, and the maximum caption length (columns of the rows)."""
    content = read_json_value(words, LARGEST)
    if not isinstance(content, dict) or not {"ix_to_word", "images"} <= content.keys():
        raise InputError(f"{words}: not like cocotalk.json, with 'ix_to_word' and 'images'")
    vocabulary = _vocabulary(words, content["ix_to_word"])
    images = object_list(words, content["images"])
    rows, first, last = _labels(labels)
    if len(first) != len(images):
        raise InputError(f"{labels}: captions of {len(first)} images, where {words} has {len(images)}")
    if rows.max(initial=0) >= len(vocabulary):
        raise InputError(f"{labels}: the word id {rows.max()}, where {words} has 1 to {len(vocabulary.words)}")
    try:
        packed = PackedCaptions.from_labels(rows, first, last)
    except InputError as error:
        raise InputError(f"{labels}: {error}") from None
    starts = packed.caption_starts
    described = []
    for index, image in enumerate(images):
        captions = range(packed.image_starts[index], packed.image_starts[index + 1])
        texts = tuple(vocabulary.decode(packed.tokens[starts[c] : starts[c + 1]].tolist()) for c in captions)
        number, file = image_id_field(words, image, "id"), str(image.get("file_path", ""))
        described.append(Described(number, Path(file).name, _split(words, image), texts, texts))
    check(labels, described)
    return described, vocabulary, rows.shape[1]


def _file(path: Path, tokens: str | None) -> list[Described]:
    content = read_json_value(path, LARGEST)
    if not isinstance(content, dict) or "images" not in content:
        raise InputError(f"{path}: neither Karpathy's format nor COCO's annotations, which both have 'images'")
    if "ix_to_word" in content:
        raise InputError(f"{path}: is a cocotalk.json, which goes with --labels cocotalk_label.h5")
    images = object_list(path, content["images"])
    if any("sentences" in image for image in images):
        return _karpathy(path, images, tokens)
    if tokens == "given":
        raise InputError(f"{path}: COCO's annotations have no tokens; leave out --tokens given")
    return _coco(path, content, images)


def _coco(path: Path, content: dict[str, Any], images: list[dict[str, Any]]) -> list[Described]:
    ids = [image_id_field(path, image, "id") for image in images]
    raise_for_repeated(path, "images listed more than once", ids)
    captions: dict[ImageId, list[str]] = {image: [] for image in ids}
    unknown = []
    for entry in object_list(path, content.get("annotations", [])):
        image = image_id_field(path, entry, "image_id")
        if image in captions:
            captions[image].append(string_field(path, entry, "caption"))
        else:
            unknown.append(image)
    raise_for_images(path, "captions of images that it does not list", set(unknown))
    files = [string_field(path, image, "file_name") for image in images]
    # COCO publishes its test sets as images without annotations.
    return _tokenized(captions.items(), files, "train" if "annotations" in content else "test")


def _karpathy(path: Path, images: list[dict[str, Any]], tokens: str | None) -> list[Described]:
    sentences = [object_list(path, image.get("sentences", [])) for image in images]
    have_tokens = all("tokens" in sentence for of_image in sentences for sentence in of_image)
    if tokens == "given" and not have_tokens:
        raise InputError(f"{path}: sentences without 'tokens'; leave out --tokens given")
    described = []
    for image, of_image in zip(images, sentences, strict=True):
        split, file = _split(path, image), string_field(path, image, "filename")
        number = image_id_field(path, image, "cocoid" if "cocoid" in image else "imgid")
        given = [_tokens(path, sentence) if have_tokens else "" for sentence in of_image]
        raw = [string_field(path, s, "raw") if "raw" in s else _tokens(path, s) for s in of_image]
        described.append(Described(number, file, split, tuple(raw), tuple(given)))
    return described if have_tokens and tokens != "own" else _with_own_tokens(described)


def _split(path: Path, image: dict[str, Any]) -> str:
    """The split of an image; "restval", validation images that Karpathy's split trains on, is "train"."""
    split = image.get("split")
    if not isinstance(split, str) or split not in SPLIT_OF:
        raise InputError(f"{path}: an image of split {split!r}, not of {', '.join(SPLIT_OF)}: {str(image)[:80]}")
    return SPLIT_OF[split]


def _tokens(path: Path, sentence: dict[str, Any]) -> str:
    """The tokens of one of Karpathy's sentences, joined by single blanks."""
    return " ".join(word for token in strings_field(path, sentence, "tokens") for word in token.split())


def _bundled() -> list[Described]:
    """The captions of COCO's training and validation images of 2014, all of them for training."""
    described = []
    for part in ("train", "val"):
        captions = coco_captions(part)
        files = [f"COCO_{part}2014_{number:012d}.jpg" for number in captions]
        described += _tokenized(captions.items(), files, "train")
    return described


def _tokenized(captions: Iterable[tuple[ImageId, list[str]]], files: list[str], split: str) -> list[Described]:
    """Images of one split from their ids with captions, and their file names."""
    pairs = zip(captions, files, strict=True)
    described = [Described(image, file, split, tuple(texts), ()) for (image, texts), file in pairs]
    return _with_own_tokens(described)


def _with_own_tokens(images: list[Described]) -> list[Described]:
    """The images with tokens of their references by our tokenizer, in one call for all of them."""
    tokens = iter(tokenize_all([reference for image in images for reference in image.references]))
    return [image._replace(tokens=tuple(next(tokens) for _ in image.references)) for image in images]


def _with_splits(images: list[Described], lists: Mapping[str, Path]) -> list[Described]:
    """The images with the splits of the lists of ids; images in no list keep theirs."""
    split_of: dict[ImageId, str] = {}
    known = {normalized_id(image.id) for image in images}
    for split, path in lists.items():
        listed = [normalized_id(line.strip()) for line in read_text(path).splitlines() if line.strip()]
        raise_for_images(path, "images that the captions do not have", set(listed) - known)
        raise_for_images(path, "images of another list", set(listed) & split_of.keys())
        split_of |= dict.fromkeys(listed, split)
    return [image._replace(split=split_of.get(normalized_id(image.id), image.split)) for image in images]


def _vocabulary(path: Path, words: Any) -> Vocabulary:
    """The vocabulary of `ix_to_word`, whose keys are "1", "2", …; if it has no UNK, UNK gets the next id."""
    try:
        ordered = [words[str(number)] for number in range(1, len(words) + 1)]
    except (KeyError, TypeError):
        raise InputError(f"{path}: 'ix_to_word' is not words by the ids '1', '2' and so on without a gap") from None
    if not all(isinstance(word, str) for word in ordered):
        raise InputError(f"{path}: 'ix_to_word' has something else than words")
    return Vocabulary(tuple(ordered) if UNKNOWN in ordered else (*ordered, UNKNOWN))


def _labels(path: Path) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Caption rows, and the first and last row of each image."""
    try:
        with h5py.File(path, "r") as file:
            rows, first, last = (file[name][()] for name in ("labels", "label_start_ix", "label_end_ix"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give cocotalk_label.h5 or one like it") from None
    except (OSError, KeyError, AttributeError, TypeError):
        raise InputError(f"{path}: not HDF5 with 'labels', 'label_start_ix' and 'label_end_ix'") from None
    integers = all(isinstance(array, np.ndarray) and array.dtype.kind in "iu" for array in (rows, first, last))
    if not integers or rows.ndim != 2 or first.ndim != 1 or first.shape != last.shape or rows.size == 0:
        raise InputError(f"{path}: 'labels' must be rows of ids, and the other two an integer for each image")
    return rows, first, last
