"""Captions in the files that people have: COCO's annotations and results, Karpathy's splits, plain text.

A file that ends in .json is one of the first three, told apart by what is in it; any other is text, a caption a line,
where line n is image n. Several references stand on one line with tabs between them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from prproduct.lab.errors import InputError

ImageId = int | str
T = TypeVar("T")
SHOWN = 5  # image ids in an error


class Captions(NamedTuple):
    """Images in the order of the references' file, and for each its references and its candidate."""

    images: list[ImageId]
    references: list[list[str]]
    candidates: list[str]


def read_pair(references_path: Path, results_path: Path, split: str = "test", subset: bool = False) -> Captions:
    """References and results of the same images; with `subset`, references of images without a result are left out."""
    if (references_path.suffix.lower() == ".json") != (results_path.suffix.lower() == ".json"):
        raise InputError(f"{references_path} and {results_path}: give two .json files, or two of plain text")
    references = read_references(references_path, split)
    results = read_results(results_path)
    _refuse(results_path, "images that the references do not have", results.keys() - references.keys())
    if subset:
        references = {image: references[image] for image in references if image in results}
    advice = " (--subset scores the others)"
    _refuse(results_path, "no caption of images that have references", references.keys() - results.keys(), advice)
    _refuse(references_path, "images without a reference", [image for image in references if not references[image]])
    return Captions(list(references), list(references.values()), [results[image] for image in references])


def read_references(path: Path, split: str = "test") -> dict[ImageId, list[str]]:
    """The references of each image; `split` tells which images of Karpathy's format to take."""
    if path.suffix.lower() != ".json":
        return {n: [part for part in line.split("\t") if part.strip()] for n, line in enumerate(_lines(path), start=1)}
    content = _json(path)
    if isinstance(content, list):
        raise InputError(f"{path}: a list of results, where references are expected; the references come first")
    if not isinstance(content, dict) or not {"annotations", "images"} & content.keys():
        raise InputError(
            f"{path}: neither COCO's annotations (with 'annotations') nor Karpathy's format (with 'images')"
        )
    if "annotations" not in content:
        return _karpathy(path, _entries(path, content["images"]), split)
    images: dict[ImageId, list[str]] = {_image(path, e, "id"): [] for e in _entries(path, content.get("images", []))}
    for entry in _entries(path, content["annotations"]):
        images.setdefault(_image(path, entry, "image_id"), []).append(_caption(path, entry, "caption"))
    return _some(path, images)


def read_results(path: Path) -> dict[ImageId, str]:
    """The one caption of each image."""
    if path.suffix.lower() != ".json":
        return dict(enumerate(_lines(path), start=1))
    content = _json(path)
    if not isinstance(content, list):
        raise InputError(f'{path}: not COCO\'s results, a list of {{"image_id": …, "caption": …}}')
    pairs = [(_image(path, e, "image_id"), _caption(path, e, "caption")) for e in _entries(path, content)]
    counts = Counter(image for image, _ in pairs)
    _refuse(path, "more than one caption of images", [image for image, count in counts.items() if count > 1])
    return _some(path, dict(pairs))


def _karpathy(path: Path, images: list[dict[str, Any]], split: str) -> dict[ImageId, list[str]]:
    chosen: dict[ImageId, list[str]] = {}
    for entry in images:
        if entry.get("split") == split:
            sentences = _entries(path, entry.get("sentences", []))
            image = _image(path, entry, "cocoid" if "cocoid" in entry else "imgid")
            chosen[image] = [
                _caption(path, s, "raw") if "raw" in s else " ".join(map(str, s.get("tokens", []))) for s in sentences
            ]
    if images and not chosen:
        splits = ", ".join(sorted({str(entry.get("split")) for entry in images}))
        raise InputError(f"{path}: no image of split {split!r}; there are {splits}")
    return _some(path, chosen)


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if not text.strip():
        raise InputError(f"{path}: empty; it must have captions")
    return text


def _lines(path: Path) -> list[str]:
    return _text(path).removesuffix("\n").split("\n")  # no other line breaks: a caption may have a form feed


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise InputError(f"{path}: JSON nested too deeply to be captions") from None


def _entries(path: Path, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise InputError(f"{path}: expected a list of objects, found {str(value)[:40]!r}")
    return value


def _image(path: Path, entry: dict[str, Any], name: str) -> ImageId:
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InputError(f"{path}: an entry without {name!r}, a number or a string: {str(entry)[:80]}")
    return value


def _caption(path: Path, entry: dict[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise InputError(f"{path}: an entry without {name!r}, a string: {str(entry)[:80]}")
    return value


def _some(path: Path, images: dict[ImageId, T]) -> dict[ImageId, T]:
    if not images:
        raise InputError(f"{path}: no captions in it")
    return images


def _refuse(path: Path, what: str, images: Collection[ImageId], advice: str = "") -> None:
    if images:
        shown = ", ".join(map(str, sorted(images, key=str)[:SHOWN]))
        more = f" and {len(images) - SHOWN} more" if len(images) > SHOWN else ""
        raise InputError(f"{path}: {what}: {shown}{more}{advice}")
