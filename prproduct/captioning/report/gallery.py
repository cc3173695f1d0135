"""Examples: some test images with what people wrote about them, and the captions of each product, before and after."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image

from prproduct.captioning import examples
from prproduct.captioning.data.pictures import Reader, UnreadableError, find
from prproduct.captioning.examples import Example
from prproduct.captioning.metrics.fields import ImageId
from prproduct.captioning.metrics.files import read_results
from prproduct.captioning.report.stages import Group, Run
from prproduct.captioning.results import captions_file, examples_file
from prproduct.lab.report.charts import display
from prproduct.lab.report.content import Block, Card, Folded, Paragraph, Section, Strong, Text

SHOWN = 6  # the others are folded
_SIDE = 360  # pixels of the longer side of a picture


def gallery(groups: Sequence[Group], pictures: Path | None = None) -> list[Section]:
    """A section of the examples of each group whose runs have them; pictures come from a folder or a zip archive."""
    found = {id(group): _examples(group) for group in groups}
    files = {one.file: one.image for some in found.values() for one in some}
    thumbnails, unread = _thumbnails(pictures, files) if pictures and files else ({}, [])
    sections = []
    for group in groups:
        cards = _cards(group, found[id(group)], thumbnails)
        if cards:
            opening = Paragraph(
                "Test images, evenly spread, not chosen; captions of the smallest seed of each product."
            )
            folded = [Folded(f"{len(cards) - SHOWN} more", tuple(cards[SHOWN:]))] if len(cards) > SHOWN else []
            blocks: tuple[Block, ...] = (opening, *cards[:SHOWN], *folded)
            sections.append(Section(group.name, blocks, level=3))
    if sections:
        said = [Paragraph(f"No picture of {name}: {reason}", note=True) for name, reason in unread]
        sections.insert(0, Section("Examples", tuple(said)))
    return sections


def _examples(group: Group) -> list[Example]:
    """Of the first run that has them; runs of a group have the same captions, and so the same examples."""
    for run in group.runs:
        path = examples_file(run.record.folder, "test")
        if run.counts and path.exists():
            return examples.read(path)
    return []


def _cards(group: Group, chosen: Sequence[Example], thumbnails: dict[ImageId, bytes]) -> list[Card]:
    said: list[tuple[str, dict[ImageId, str]]] = []
    for stage in group.stages:
        for product, runs in stage.counted.items():
            captions = _captions(runs[seed] for seed in sorted(runs))
            if captions:
                said.append((f"{display(product)}, {stage.name}", captions))
    cards = []
    for example in chosen if said else []:
        people: list[tuple[str, Text]] = [("people", reference) for reference in example.references]
        ours: list[tuple[str, Text]] = [
            (label, Strong(captions[example.image] or "(no word)"))
            for label, captions in said
            if example.image in captions
        ]
        cards.append(Card(f"{example.file} ({example.image})", (*people, *ours), thumbnails.get(example.image)))
    return cards


def _captions(runs: Iterable[Run]) -> dict[ImageId, str]:
    for run in runs:
        path = captions_file(run.record.folder, "test")
        if path.exists():
            return read_results(path)
    return {}


def _thumbnails(place: Path, files: dict[str, ImageId]) -> tuple[dict[ImageId, bytes], list[tuple[str, str]]]:
    """Small JPEGs by image, and the names of files that gave none, with the reason."""
    found, unread = {}, []
    names = {Path(file).name: (file, image) for file, image in files.items()}
    known = {picture.id: picture for picture in find([place], {name: image for name, (_, image) in names.items()})}
    with Reader() as reader:
        for file, image in names.values():
            if image not in known:
                unread.append((file, f"not in {place}"))
                continue
            try:
                found[image] = _jpeg(reader.read(known[image]))
            except UnreadableError as error:
                unread.append((file, str(error)))
    return found, unread


def _jpeg(picture: Image.Image) -> bytes:
    picture.thumbnail((_SIDE, _SIDE))
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=82, optimize=True)
    return stream.getvalue()
