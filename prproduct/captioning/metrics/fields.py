"""What a JSON file of captions holds, checked field by field, so that a wrong one is a line that names the file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from prproduct.lab.errors import InputError

ImageId = int | str
SHOWN = 5  # image ids in an error


def text_of(path: Path) -> str:
    """All of a file that is not empty."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if not text.strip():
        raise InputError(f"{path}: empty; it must have captions")
    return text


def json_of(path: Path) -> Any:
    """What a JSON file holds."""
    text = text_of(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except ValueError:  # Python's only other complaint
        raise InputError(f"{path}: not JSON of captions: a number of thousands of digits") from None
    except RecursionError:
        raise InputError(f"{path}: JSON nested too deeply to be captions") from None


def entries(path: Path, value: Any) -> list[dict[str, Any]]:
    """A list of objects.

    >>> entries(Path("a.json"), [1])
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: a.json: expected a list of objects, found '[1]'
    """
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise InputError(f"{path}: expected a list of objects, found {str(value)[:40]!r}")
    return value


def image_id(path: Path, entry: dict[str, Any], name: str) -> ImageId:
    """The id of an image, a whole number or a string.

    >>> image_id(Path("a.json"), {"id": None}, "id")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: a.json: an entry without 'id', a whole number or a string: {'id': None}
    """
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InputError(f"{path}: an entry without {name!r}, a whole number or a string: {str(entry)[:80]}")
    return value


def caption_of(path: Path, entry: dict[str, Any], name: str) -> str:
    """A caption, of whole characters.

    >>> caption_of(Path("a.json"), {"caption": "A cat."}, "caption")
    'A cat.'
    """
    value = entry.get(name)
    if not isinstance(value, str):
        raise InputError(f"{path}: an entry without {name!r}, a string: {str(entry)[:80]}")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError(f"{path}: half a character (a lone surrogate) in {value[:80]!a}; write the caption again")
    return value


def refuse_repeated(path: Path, what: str, images: list[ImageId]) -> None:
    """Name the images that are there more than once."""
    refuse(path, what, [image for image, count in Counter(images).items() if count > 1])


def refuse(path: Path, what: str, images: Collection[ImageId], advice: str = "") -> None:
    """Name the images that something is wrong with, if there are any.

    >>> refuse(Path("a.json"), "no caption of images", [*range(7)])
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: a.json: no caption of images: 0, 1, 2, 3, 4 and 2 more
    """
    if images:
        shown = ", ".join(map(str, sorted(images, key=str)[:SHOWN]))
        more = f" and {len(images) - SHOWN} more" if len(images) > SHOWN else ""
        raise InputError(f"{path}: {what}: {shown}{more}{advice}")
