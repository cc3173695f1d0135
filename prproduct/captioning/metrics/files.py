"""Reading the files that are scored: COCO's annotations and results, Karpathy's splits, and plain text.

A file that ends in .json is one of the first three, recognized by its content. Any other file is plain text with one
image per line, numbered from 1; several references of an image are separated by tabs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, TypeVar

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
from prproduct.lab.errors import InputError
from prproduct.lab.files import read_json_value

T = TypeVar("T")


class PairedCaptions(NamedTuple):
    """Images in the order of the reference file, and the references and the candidate of each."""

    images: list[ImageId]
    references: list[list[str]]
    candidates: list[str]


def pair(
    references_path: Path,
    references: dict[ImageId, list[str]],
    results_path: Path,
    results: dict[ImageId, str],
    subset: bool = False,
) -> PairedCaptions:
    """Match references and results by image; `subset` leaves out references of images without a result.

    The paths are only for error messages.
    """
    unknown = results.keys() - references.keys()
    raise_for_images(results_path, "images that the references do not have", unknown)
    if subset:
        references = {image: references[image] for image in references if image in results}
    without = [image for image in references if not references[image]]
    raise_for_images(references_path, "images without a reference", without)
    missing, hint = references.keys() - results.keys(), " (--subset scores the others)"
    raise_for_images(results_path, "no caption of images that have references", missing, hint)
    return PairedCaptions(list(references), list(references.values()), [results[image] for image in references])


def read_references(path: Path, split: str = "test") -> dict[ImageId, list[str]]:
    """The references of each image; of a file in Karpathy's format, the images of `split`."""
    if path.suffix.lower() != ".json":
        return {n: [part for part in line.split("\t") if part.strip()] for n, line in enumerate(_lines(path), start=1)}
    content = read_json_value(path, LARGEST)
    if isinstance(content, list):
        raise InputError(f"{path}: a list of results, where references are expected; the references come first")
    if not isinstance(content, dict) or not {"annotations", "images"} & content.keys():
        raise InputError(
            f"{path}: neither COCO's annotations (with 'annotations') nor Karpathy's format (with 'images')"
        )
    if "annotations" not in content:
        return _karpathy(path, object_list(path, content["images"]), split)
    listed = [image_id_field(path, entry, "id") for entry in object_list(path, content.get("images", []))]
    raise_for_repeated(path, "images listed more than once", listed)
    images: dict[ImageId, list[str]] = {image: [] for image in listed}
    for entry in object_list(path, content["annotations"]):
        images.setdefault(image_id_field(path, entry, "image_id"), []).append(string_field(path, entry, "caption"))
    return _not_empty(path, images)


def read_results(path: Path) -> dict[ImageId, str]:
    """The caption of each image."""
    if path.suffix.lower() != ".json":
        return dict(enumerate(_lines(path), start=1))
    content = read_json_value(path, LARGEST)
    if not isinstance(content, list):
        raise InputError(f'{path}: not COCO\'s results, a list of {{"image_id": …, "caption": …}}')
    pairs = [
        (image_id_field(path, entry, "image_id"), string_field(path, entry, "caption"))
        for entry in object_list(path, content)
    ]
    raise_for_repeated(path, "more than one caption of images", [image for image, _ in pairs])
    return _not_empty(path, dict(pairs))


def _karpathy(path: Path, images: list[dict[str, Any]], split: str) -> dict[ImageId, list[str]]:
    names = ("train", "restval") if split == "train" else (split,)  # validation images that this split trains on
    of_split = [entry for entry in images if entry.get("split") in names]
    ids = [image_id_field(path, entry, "cocoid" if "cocoid" in entry else "imgid") for entry in of_split]
    raise_for_repeated(path, "images listed more than once", ids)
    captions = [[_sentence(path, s) for s in object_list(path, entry.get("sentences", []))] for entry in of_split]
    if images and not of_split:
        splits = ", ".join(sorted({str(entry.get("split")) for entry in images}))
        raise InputError(f"{path}: no image of split {split!r}; there are {splits}")
    return _not_empty(path, dict(zip(ids, captions, strict=True)))


def _sentence(path: Path, entry: dict[str, Any]) -> str:
    """The sentence as it was written if the entry has it, otherwise its tokens joined by blanks."""
    return string_field(path, entry, "raw") if "raw" in entry else " ".join(strings_field(path, entry, "tokens"))


def _lines(path: Path) -> list[str]:
    return read_text(path).removesuffix("\n").split("\n")  # not splitlines: a caption may contain a form feed


def _not_empty(path: Path, images: dict[ImageId, T]) -> dict[ImageId, T]:
    if not images:
        raise InputError(f"{path}: no captions in it")
    return images
