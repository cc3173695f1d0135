"""What every reader of other people's files shares: checked fields of JSON, and errors that name the file and images.

Whatever is wrong with a file is an InputError of one line. `ImageId` is here since all data are stored by image.
"""

from __future__ import annotations

import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from prproduct.lab.errors import InputError

ImageId = int | str
SHOWN = 5  # names in a message
LARGEST = 4 << 30  # bytes of a JSON file of captions; COCO's annotations have 70 MB
# The exceptions of np.load and h5py for a file that is of another kind, is truncated, or has changed bytes.
DAMAGED = (KeyError, IndexError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


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
