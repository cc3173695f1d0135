"""The images that a report shows, with what people wrote about them: kept beside a run's captions.

A report reads runs and nothing else; so a few references, of images spread evenly over the split, stay with the run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from prproduct.captioning.data.prepared import Image
from prproduct.captioning.metrics.fields import ImageId, caption_of, entries, image_id, json_of
from prproduct.captioning.metrics.writing import replacing
from prproduct.lab.errors import InputError

COUNT = 12


class Example(NamedTuple):
    """An image, the name of its file, and its references."""

    image: ImageId
    file: str
    references: tuple[str, ...]


def choose(images: Sequence[Image], count: int = COUNT) -> list[Example]:
    """So many of the images that have references, evenly spread: the same for every run on the same captions.

    >>> images = [Image(number, f"{number}.jpg", "test", ("a dog",), ()) for number in range(100)]
    >>> [example.image for example in choose(images, 4)]
    [12, 37, 62, 87]
    """
    known = [image for image in images if image.references]
    count = min(count, len(known))
    places = [(2 * number + 1) * len(known) // (2 * count) for number in range(count)]
    return [Example(known[place].id, known[place].file, known[place].references) for place in places]


def write(path: Path, examples: Sequence[Example]) -> None:
    """Write them as JSON."""
    rows = [{"image_id": one.image, "file": one.file, "references": list(one.references)} for one in examples]
    with replacing(path) as file:
        file.write(json.dumps(rows, indent=1, ensure_ascii=False).encode())


def read(path: Path) -> list[Example]:
    """Read what `write` wrote."""
    found = []
    for entry in entries(path, json_of(path)):
        references = entry.get("references")
        if not isinstance(references, list) or not all(isinstance(text, str) for text in references):
            raise InputError(f"{path}: an image without 'references', a list of captions: {str(entry)[:80]}")
        found.append(Example(image_id(path, entry, "image_id"), caption_of(path, entry, "file"), tuple(references)))
    return found
