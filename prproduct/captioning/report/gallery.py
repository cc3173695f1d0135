"""The examples of a report: test images with their references and the captions of each product."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image

from prproduct.captioning.data.pictures import Picture, find, in_batches
from prproduct.captioning.input_files import ImageId
from prproduct.captioning.metrics.files import read_results
from prproduct.captioning.report.runs import Group, Run
from prproduct.captioning.results import Example, captions_file, examples_file, read_examples
from prproduct.lab.report.content import Block, Card, Folded, Paragraph, Section, Strong, Text, display

SHOWN = 6  # examples that are not folded
LONGEST_SIDE = 360  # pixels of a picture


def gallery(groups: Sequence[Group], pictures: Path | None = None) -> list[Section]:
    """Sections with example captions of each group; `pictures` is a folder or zip archive of the images, if given."""
    found = {id(group): _examples(group) for group in groups}
    files = list(dict.fromkeys(one.file for some in found.values() for one in some))
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
        notes = [Paragraph(f"No picture of {name}: {reason}", note=True) for name, reason in unread]
        sections.insert(0, Section("Examples", tuple(notes)))
    return sections


def _examples(group: Group) -> list[Example]:
    """The examples of the first run that has them; all runs of a group have the same."""
    for run in group.runs:
        path = examples_file(run.record.folder, "test")
        if run.counts and path.exists():
            return read_examples(path)
    return []


def _cards(group: Group, chosen: Sequence[Example], thumbnails: dict[str, bytes]) -> list[Card]:
    """A card for each example: its references, and the captions of each product and stage."""
    generated: list[tuple[str, dict[ImageId, str]]] = []
    for stage in group.stages:
        for product, runs in stage.counted.items():
            captions = _captions(runs[seed] for seed in sorted(runs))
            if captions:
                generated.append((f"{display(product)}, {stage.name}", captions))
    cards = []
    for example in chosen if generated else []:
        people: list[tuple[str, Text]] = [("people", reference) for reference in example.references]
        ours: list[tuple[str, Text]] = [
            (label, Strong(captions[example.image] or "(no word)"))
            for label, captions in generated
            if example.image in captions
        ]
        cards.append(Card(f"{example.file} ({example.image})", (*people, *ours), thumbnails.get(example.file)))
    return cards


def _captions(runs: Iterable[Run]) -> dict[ImageId, str]:
    """The test captions of the first run that has them."""
    for run in runs:
        path = captions_file(run.record.folder, "test")
        if path.exists():
            return read_results(path)
    return {}


def find_examples(place: Path, files: Sequence[str]) -> dict[ImageId, Picture]:
    """The pictures in a folder or zip archive by file; InputError if it has none of them."""
    return {picture.id: picture for picture in find([place], {Path(file).name: file for file in files})}


def _thumbnails(place: Path, files: Sequence[str]) -> tuple[dict[str, bytes], list[tuple[str, str]]]:
    """Small JPEGs by file, and the files that could not be read, with the reason."""
    known = find_examples(place, files)
    unreadable: list[tuple[Picture, str]] = []
    batches = in_batches(known.values(), 1, unreadable)
    found = {str(picture.id): _jpeg(image) for batch in batches for picture, image in batch}
    missing = [(file, f"not in {place}") for file in files if file not in known]
    return found, [*missing, *((str(picture.id), reason) for picture, reason in unreadable)]


def _jpeg(picture: Image.Image) -> bytes:
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=82, optimize=True)
    return stream.getvalue()
