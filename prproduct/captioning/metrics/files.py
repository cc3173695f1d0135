"""Reading files of captions: COCO's annotations and results, Karpathy's splits, and plain text.

A file that ends in .json is one of the first three, recognized by its content. Any other file is plain text with one
image per line, numbered from 1; several references of an image are separated by tabs. Whatever is wrong with a file
raises an InputError of one line that names the file and the images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from prproduct.lab.errors import InputError
from prproduct.lab.files import read_json_value

T = TypeVar("T")
ImageId = int | str
SHOWN = 5  # names in a message
LARGEST = 4 << 30  # bytes of a JSON file of captions; COCO's annotations have 70 MB


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


def read_text(path: Path) -> str:
    """The content of a UTF-8 file that is not empty."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not text.strip():
        raise InputError(f"{path}: empty; it must have captions")
    return text


def object_list(path: Path, value: Any) -> list[dict[str, Any]]:
    """`value`, which must be a list of JSON objects.

    >>> object_list(Path("a.json"), [1])
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: a.json: expected a list of objects, found '[1]'
    """
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise InputError(f"{path}: expected a list of objects, found {str(value)[:40]!r}")
    return value


def image_id_field(path: Path, entry: dict[str, Any], name: str) -> ImageId:
    """The image id `entry[name]`, which must be an integer or a string.

    >>> image_id_field(Path("a.json"), {"id": None}, "id")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: a.json: an entry without 'id', a whole number or a string: {'id': None}
    """
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InputError(f"{path}: an entry without {name!r}, a whole number or a string: {str(entry)[:80]}")
    return _text(path, value) if isinstance(value, str) else value


def string_field(path: Path, entry: dict[str, Any], name: str) -> str:
    """The string `entry[name]`.

    >>> string_field(Path("a.json"), {"caption": "A cat."}, "caption")
    'A cat.'
    """
    value = entry.get(name)
    if not isinstance(value, str):
        raise InputError(f"{path}: an entry without {name!r}, a string: {str(entry)[:80]}")
    return _text(path, value)


def strings_field(path: Path, entry: dict[str, Any], name: str) -> list[str]:
    """The list of strings `entry[name]`.

    >>> strings_field(Path("a.json"), {"tokens": ["a", "cat"]}, "tokens")
    ['a', 'cat']
    """
    values = entry.get(name)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InputError(f"{path}: an entry without {name!r}, a list of strings: {str(entry)[:80]}")
    return [_text(path, value) for value in values]


def _text(path: Path, value: str) -> str:
    """`value`, if it has no lone surrogates, which JSON can express and UTF-8 cannot."""
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError(f"{path}: half a character (a lone surrogate) in {value[:80]!a}; write it again")
    return value


def raise_for_repeated(path: Path | str, what: str, images: list[ImageId]) -> None:
    """Raise InputError that names the images which occur more than once, if there are any."""
    raise_for_images(path, what, [image for image, count in Counter(images).items() if count > 1])


def raise_for_images(path: Path | str, what: str, images: Collection[ImageId], advice: str = "") -> None:
    """Raise InputError that says `what` is wrong with `images`, unless there are none.

    >>> raise_for_images(Path("a.json"), "no caption of images", [*range(7)])
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: a.json: no caption of images: 0, 1, 2, 3, 4 and 2 more
    """
    if images:
        named = listed([repr(image) for image in sorted(images, key=str)])  # 7 and "7" are two images
        raise InputError(f"{path}: {what}: {named}{advice}")


def listed(names: Sequence[str]) -> str:
    """The first few of many names, and the number of the others.

    >>> listed(["a", "b", "c", "d", "e", "f"])
    'a, b, c, d, e and 1 more'
    """
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(name[:80] for name in names[:SHOWN]) + more


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
