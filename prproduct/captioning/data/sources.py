"""Captions in the files that people have, with a split for every image: Karpathy's JSON, and COCO's annotations.

Karpathy's files say which image trains, and have tokens of their own, which all published vocabularies are made of; so
these are taken unless others are asked for. COCO's annotations have neither: images train unless a list says otherwise,
and captions are cut into words by the tokenizer of the evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prproduct.captioning.data.features import key_of
from prproduct.captioning.data.prepared import SPLIT_OF, Described
from prproduct.captioning.metrics.bundled import coco_captions
from prproduct.captioning.metrics.fields import (
    ImageId,
    caption_of,
    entries,
    image_id,
    json_of,
    refuse,
    text_of,
)
from prproduct.captioning.metrics.tokenizer import tokenize_all
from prproduct.lab.errors import InputError

BUNDLED = "coco2014"  # in place of a file: COCO's captions as they come with pycocoevalcap
TOKENS = ("given", "own")


def read(sources: Sequence[str], lists: Mapping[str, Path], tokens: str | None = None) -> list[Described]:
    """The images of all sources.

    `lists` names files of image ids, by "val" and "test"; `tokens` are those that files give, or our own.
    """
    if tokens is not None and tokens not in TOKENS:
        raise InputError(f"tokens {tokens!r} are not known; choose {' or '.join(TOKENS)}")
    images: list[Described] = []
    for source in sources:
        images += _bundled() if source == BUNDLED else _file(Path(source), tokens)
    if lists:
        images = _listed(images, lists)
    return images


def without_empty(images: Sequence[Described]) -> tuple[list[Described], int]:
    """The images without captions that have no word, and how many captions that were.

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
    content = json_of(path)
    if not isinstance(content, dict) or "images" not in content:
        raise InputError(f"{path}: neither Karpathy's format nor COCO's annotations, which both have 'images'")
    images = entries(path, content["images"])
    if any("sentences" in image for image in images):
        return _karpathy(path, images, tokens)
    if tokens == "given":
        raise InputError(f"{path}: COCO's annotations have no tokens; leave out --tokens given")
    captions: dict[ImageId, list[str]] = {image_id(path, image, "id"): [] for image in images}
    unknown = []
    for entry in entries(path, content.get("annotations", [])):
        image = image_id(path, entry, "image_id")
        if image in captions:
            captions[image].append(caption_of(path, entry, "caption"))
        else:
            unknown.append(image)
    refuse(path, "captions of images that it does not list", set(unknown))
    files = [caption_of(path, image, "file_name") for image in images]
    # A list of images without annotations is how COCO's test images come.
    return _tokenized(captions.items(), files, "train" if "annotations" in content else "test")


def _karpathy(path: Path, images: list[dict[str, Any]], tokens: str | None) -> list[Described]:
    sentences = [entries(path, image.get("sentences", [])) for image in images]
    have_tokens = all("tokens" in sentence for of_image in sentences for sentence in of_image)
    if tokens == "given" and not have_tokens:
        raise InputError(f"{path}: sentences without 'tokens'; leave out --tokens given")
    described = []
    for image, of_image in zip(images, sentences, strict=True):
        split = image.get("split")
        if split not in SPLIT_OF:
            raise InputError(f"{path}: an image of split {split!r}, not of {', '.join(SPLIT_OF)}: {str(image)[:80]}")
        number = image_id(path, image, "cocoid" if "cocoid" in image else "imgid")
        given = [_tokens(path, sentence) if have_tokens else "" for sentence in of_image]
        raw = [caption_of(path, s, "raw") if "raw" in s else " ".join(_tokens(path, s).split()) for s in of_image]
        file = caption_of(path, image, "filename")
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


def _listed(images: list[Described], lists: Mapping[str, Path]) -> list[Described]:
    split_of: dict[ImageId, str] = {}
    known = {key_of(image.id) for image in images}
    for split, path in lists.items():
        listed = [key_of(line.strip()) for line in text_of(path).splitlines() if line.strip()]
        refuse(path, "images that the captions do not have", set(listed) - known)
        refuse(path, "images of another list", set(listed) & split_of.keys())
        split_of |= dict.fromkeys(listed, split)
    return [image._replace(split=split_of.get(key_of(image.id), image.split)) for image in images]
