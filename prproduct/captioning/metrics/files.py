"""Captions in the files that people have: COCO's annotations and results, Karpathy's splits, plain text.

A file that ends in .json is one of the first three, told apart by what is in it; any other is text, a caption a line,
where line n is image n. Several references stand on one line with tabs between them.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from prproduct.captioning.metrics.fields import (
    ImageId,
    caption_of,
    entries,
    image_id,
    json_of,
    refuse,
    refuse_repeated,
    text_of,
)
from prproduct.lab.errors import InputError

T = TypeVar("T")
RESULTS = "results"  # the folder in a run's with its captions and their scores


class Captions(NamedTuple):
    """Images in the order of the references' file, and for each its references and its candidate."""

    images: list[ImageId]
    references: list[list[str]]
    candidates: list[str]


def read_pair(references_path: Path, results_path: Path, split: str = "test", subset: bool = False) -> Captions:
    """References and results of the same images; with `subset`, references of images without a result are left out."""
    if (references_path.suffix.lower() == ".json") != (results_path.suffix.lower() == ".json"):
        raise InputError(f"{references_path} and {results_path}: give two .json files, or two of plain text")
    return pair(
        references_path, read_references(references_path, split), results_path, read_results(results_path), subset
    )


def pair(
    references_path: Path,
    references: dict[ImageId, list[str]],
    results_path: Path,
    results: dict[ImageId, str],
    subset: bool = False,
) -> Captions:
    """As `read_pair`, of what was read from these places."""
    unknown = results.keys() - references.keys()
    refuse(results_path, "images that the references do not have", unknown, _other_kind(unknown, references))
    if subset:
        references = {image: references[image] for image in references if image in results}
    advice = " (--subset scores the others)"
    refuse(results_path, "no caption of images that have references", references.keys() - results.keys(), advice)
    refuse(references_path, "images without a reference", [image for image in references if not references[image]])
    return Captions(list(references), list(references.values()), [results[image] for image in references])


def read_references(path: Path, split: str = "test") -> dict[ImageId, list[str]]:
    """The references of each image; `split` tells which images of Karpathy's format to take."""
    if path.suffix.lower() != ".json":
        return {n: [part for part in line.split("\t") if part.strip()] for n, line in enumerate(_lines(path), start=1)}
    content = json_of(path)
    if isinstance(content, list):
        raise InputError(f"{path}: a list of results, where references are expected; the references come first")
    if not isinstance(content, dict) or not {"annotations", "images"} & content.keys():
        raise InputError(
            f"{path}: neither COCO's annotations (with 'annotations') nor Karpathy's format (with 'images')"
        )
    if "annotations" not in content:
        return _karpathy(path, entries(path, content["images"]), split)
    listed = [image_id(path, entry, "id") for entry in entries(path, content.get("images", []))]
    refuse_repeated(path, "images listed more than once", listed)
    images: dict[ImageId, list[str]] = {image: [] for image in listed}
    for entry in entries(path, content["annotations"]):
        images.setdefault(image_id(path, entry, "image_id"), []).append(caption_of(path, entry, "caption"))
    return _some(path, images)


def read_results(path: Path) -> dict[ImageId, str]:
    """The one caption of each image."""
    if path.suffix.lower() != ".json":
        return dict(enumerate(_lines(path), start=1))
    content = json_of(path)
    if not isinstance(content, list):
        raise InputError(f'{path}: not COCO\'s results, a list of {{"image_id": …, "caption": …}}')
    pairs = [(image_id(path, e, "image_id"), caption_of(path, e, "caption")) for e in entries(path, content)]
    refuse_repeated(path, "more than one caption of images", [image for image, _ in pairs])
    return _some(path, dict(pairs))


def _karpathy(path: Path, images: list[dict[str, Any]], split: str) -> dict[ImageId, list[str]]:
    of_split = [entry for entry in images if entry.get("split") == split]
    ids = [image_id(path, entry, "cocoid" if "cocoid" in entry else "imgid") for entry in of_split]
    refuse_repeated(path, "images listed more than once", ids)
    captions = [[_sentence(path, s) for s in entries(path, entry.get("sentences", []))] for entry in of_split]
    if images and not of_split:
        splits = ", ".join(sorted({str(entry.get("split")) for entry in images}))
        raise InputError(f"{path}: no image of split {split!r}; there are {splits}")
    return _some(path, dict(zip(ids, captions, strict=True)))


def _sentence(path: Path, entry: dict[str, Any]) -> str:
    """As it was written, where the file says; else its tokens."""
    if "raw" in entry:
        return caption_of(path, entry, "raw")
    tokens = entry.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise InputError(f"{path}: a sentence without 'raw' or 'tokens', a list of strings: {str(entry)[:80]}")
    return " ".join(tokens)


def _lines(path: Path) -> list[str]:
    return text_of(path).removesuffix("\n").split("\n")  # no other line breaks: a caption may have a form feed


def _some(path: Path, images: dict[ImageId, T]) -> dict[ImageId, T]:
    if not images:
        raise InputError(f"{path}: no captions in it")
    return images


def _other_kind(unknown: Collection[ImageId], references: Collection[ImageId]) -> str:
    """Advice where 7 and "7" do not meet, which look the same in a list."""
    known = set(map(str, references))
    if not unknown or not all(str(image) in known for image in unknown):
        return ""
    is_text = isinstance(next(iter(unknown)), str)
    theirs, ours = ("strings", "numbers") if is_text else ("numbers", "strings")
    return f" (as {theirs}; the references have them as {ours}: write both alike)"
