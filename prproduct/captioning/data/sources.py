"""Reading raw captions, with a split for every image: Karpathy's JSON, and COCO's annotations.

Karpathy's files have a split for each image and tokens for each caption. All published vocabularies are made of these
tokens, so they are the default. COCO's annotations have neither: images are for training unless a list of ids says
otherwise, and captions are tokenized by the evaluation's tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prproduct.captioning.data.features import normalized_id
from prproduct.captioning.data.prepared import SPLIT_OF, Described
from prproduct.captioning.metrics.files import (
    ImageId,
    image_id_field,
    object_list,
    raise_for_images,
    read_caption_json,
    read_text,
    string_field,
)
from prproduct.captioning.metrics.java import coco_captions
from prproduct.captioning.metrics.tokenizer import tokenize_all
from prproduct.lab.errors import InputError

BUNDLED = "coco2014"  # in place of a file name: the captions of COCO that pycocoevalcap bundles
TOKENS = ("given", "own")


def read(sources: Sequence[str], lists: Mapping[str, Path], tokens: str | None = None) -> list[Described]:
    """The images of all sources.

    `lists` maps "val" and "test" to files of image ids. `tokens` is "given" for the tokens of the files, "own" for
    those of our tokenizer, None for "given" if there are any.
    """
    if tokens is not None and tokens not in TOKENS:
        raise InputError(f"tokens {tokens!r} are not known; choose {' or '.join(TOKENS)}")
    images: list[Described] = []
    for source in sources:
        images += _bundled() if source == BUNDLED else _file(Path(source), tokens)
    if lists:
        images = _with_splits(images, lists)
    return images


def without_empty(images: Sequence[Described]) -> tuple[list[Described], int]:
    """The images with captions that have no word removed, and the number of removed captions.

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


def _file(path: Path, tokens: str | None) -> list[Described]:
    content = read_caption_json(path)
    if not isinstance(content, dict) or "images" not in content:
        raise InputError(f"{path}: neither Karpathy's format nor COCO's annotations, which both have 'images'")
    images = object_list(path, content["images"])
    if any("sentences" in image for image in images):
        return _karpathy(path, images, tokens)
    if tokens == "given":
        raise InputError(f"{path}: COCO's annotations have no tokens; leave out --tokens given")
    captions: dict[ImageId, list[str]] = {image_id_field(path, image, "id"): [] for image in images}
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
        split = image.get("split")
        if split not in SPLIT_OF:
            raise InputError(f"{path}: an image of split {split!r}, not of {', '.join(SPLIT_OF)}: {str(image)[:80]}")
        number = image_id_field(path, image, "cocoid" if "cocoid" in image else "imgid")
        given = [_tokens(path, sentence) if have_tokens else "" for sentence in of_image]
        raw = [string_field(path, s, "raw") if "raw" in s else " ".join(_tokens(path, s).split()) for s in of_image]
        file = string_field(path, image, "filename")
        described.append(Described(number, file, SPLIT_OF[split], tuple(raw), tuple(given)))
    return described if have_tokens and tokens != "own" else _with_own_tokens(described)


def _tokens(path: Path, sentence: dict[str, Any]) -> str:
    tokens = sentence.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise InputError(f"{path}: a sentence without 'tokens', a list of strings: {str(sentence)[:80]}")
    return " ".join(word for token in tokens for word in token.split())


def _bundled() -> list[Described]:
    described = []
    for part in ("train", "val"):
        captions = coco_captions(part)
        files = [f"COCO_{part}2014_{number:012d}.jpg" for number in captions]
        described += _tokenized(captions.items(), files, "train")
    return described


def _tokenized(captions: Iterable[tuple[ImageId, list[str]]], files: list[str], split: str) -> list[Described]:
    pairs = zip(captions, files, strict=True)
    described = [Described(image, file, split, tuple(texts), ()) for (image, texts), file in pairs]
    return _with_own_tokens(described)


def _with_own_tokens(images: list[Described]) -> list[Described]:
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
