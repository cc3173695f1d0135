"""`prproduct caption`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from prproduct.captioning.data import features, pictures, prepared
from prproduct.captioning.data.prepared import SPLITS
from prproduct.captioning.describing import Search
from prproduct.captioning.material import material_of
from prproduct.captioning.metrics.writing import replacing
from prproduct.captioning.ready import open_ready
from prproduct.captioning.results import captions_file, write_captions
from prproduct.captioning.training import CHOICES, check_fits, check_ids, config_of
from prproduct.captioning.use import attention, own_pictures, page
from prproduct.captioning.use.own_pictures import Seen
from prproduct.captioning.use.speakers import labels_of, open_speakers
from prproduct.captioning.use.split import ALL, listed, targets_of, write_split
from prproduct.lab import runs
from prproduct.lab.errors import InputError
from prproduct.lab.options import takes_options_of

PAGES = (".html", ".htm")
OTHERS = 5  # files that are no pictures, by name; more are counted


@takes_options_of(Search)
def caption(
    search: Search,
    images: Annotated[
        list[Path] | None, typer.Argument(metavar="PICTURES...", help="pictures, folders, zip archives")
    ] = None,
    run: Annotated[
        list[Path] | None, typer.Option("--run", help="a captioner's run, may be given often; else the ready ones")
    ] = None,
    epoch: Annotated[str, typer.Option(help=f"the run's {' or '.join(CHOICES)}, by validation CIDEr")] = "best",
    figures: Annotated[
        Path | None, typer.Option("--attention", help="a folder for figures of where each word looked")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="a page, .html; with --split a .json or a folder"),
    ] = None,
    encoder: Annotated[str | None, typer.Option(help="of the run's features, where it does not say")] = None,
    split: Annotated[
        str | None, typer.Option(help=f"in place of pictures: {', '.join(SPLITS)}; or {ALL} that --features has")
    ] = None,
    captions: Annotated[
        str | None, typer.Option(help="with --split: a folder of `prproduct data captions`, or world")
    ] = None,
    source: Annotated[Path | None, typer.Option("--features", help="with --split: of its images")] = None,
    ids: Annotated[
        Path | None, typer.Option(help=f"with --split {ALL}: a list of those to caption, one a line")
    ] = None,
) -> None:
    """Captions for pictures of your own; or with --split for a whole split, as COCO's server wants them."""
    if bool(images) == (split is not None):
        raise InputError("give either pictures, or --split for images whose features are in a file")
    if split is not None:
        if figures or encoder:
            raise InputError("--attention and --encoder go with pictures, not with --split")
        if not run:
            raise InputError("whose captions? Give --run, the folder of a captioner's run")
        if split == ALL:
            _of_features(search, run, epoch, captions, source, ids, output)
        else:
            _of_split(search, run, epoch, split, captions, source, ids, output)
    else:
        if source or ids:
            raise InputError("--features and --ids go with --split, not with pictures")
        _of_pictures(search, images or [], run or [], epoch, figures, output, encoder, captions)


def _of_pictures(
    search: Search,
    places: Sequence[Path],
    folders: Sequence[Path],
    epoch: str,
    figures: Path | None,
    output: Path | None,
    encoder: str | None,
    captions: str | None,
) -> None:
    if output and output.suffix.lower() not in PAGES:
        raise InputError(f"{output}: is no page; give a name that ends in .html")
    if figures and figures.exists() and not figures.is_dir():
        raise InputError(f"{figures}: is a file; --attention takes a folder")
    others: list[str] = []
    found = pictures.list_all(places, others)
    if others:
        names = [printable(Path(name).name) for name in others[:OTHERS]]
        more = f" and {len(others) - OTHERS} more" if len(others) > OTHERS else ""
        print(f"prproduct: no pictures, and left out: {', '.join(names)}{more}", file=sys.stderr)
    known = prepared.read(captions) if captions else None
    speakers = open_speakers(folders, epoch, known) if folders else open_ready()
    encoders = own_pictures.encoders_for(speakers, encoder)
    labels = [speaker.label for speaker in speakers]
    unreadable: list[tuple[pictures.Picture, str]] = []
    cards: list[str] = []
    taken: set[str] = set()
    named = 0
    with _progress(len(found), "pictures") as (bar, task):
        for seen in own_pictures.look(found, speakers, encoders, search, unreadable):
            named = _name_unreadable(unreadable, named)
            _print(seen, labels)
            if figures:
                _draw(figures, seen, labels, taken)
            if output:
                cards.append(page.card(shown(seen.picture), seen, labels))
            bar.advance(task)
        _name_unreadable(unreadable, named)
    if output and cards:
        written = page.page(cards, speakers, [(shown(picture), reason) for picture, reason in unreadable])
        with replacing(output) as file:
            file.write(written.encode())
    if unreadable:
        raise typer.Exit(1)


def _of_split(
    search: Search,
    folders: Sequence[Path],
    epoch: str,
    split: str,
    captions: str | None,
    source: Path | None,
    ids: Path | None,
    output: Path | None,
) -> None:
    if ids:
        raise InputError(f"--ids goes with --split {ALL}")
    if captions is None:
        raise InputError(f"--split {split} needs --captions, the folder that says which images are of it")
    material = material_of(captions, source)
    images, records = material.captions.of(split), [runs.read(folder) for folder in folders]
    labels = labels_of([config_of(record) for record in records], folders)
    targets = targets_of(output, split, labels) if output else []
    for record in records:
        check_fits(record, material)
    check_ids(material, [split])
    with _progress(len(images) * len(folders), "captions") as (bar, task):
        for folder in folders:
            write_captions(folder, material, split, search, which=epoch, tick=lambda count: bar.advance(task, count))
    own = [captions_file(folder, split) for folder in folders]
    for target, file in zip(targets, own, strict=True) if targets else ():
        with replacing(target) as copy:
            copy.write(file.read_bytes())
    for file in [*own, *targets]:
        print(f"{file}: captions of {len(images):,} images")
    for folder in folders if not targets else ():
        print(f"for their scores: prproduct score {captions} {folder}{'' if split == 'test' else f' --split {split}'}")


def _of_features(
    search: Search,
    folders: Sequence[Path],
    epoch: str,
    captions: str | None,
    source: Path | None,
    ids: Path | None,
    output: Path | None,
) -> None:
    """Captions of all images that there are features of, or of those in a list."""
    if output is None:
        raise InputError("where to? Give -o, a .json file, or a folder for files with the server's names")
    if source is None:
        raise InputError(f"--split {ALL} needs --features, whose images are captioned")
    held = features.open(source)
    images = listed(ids, held) if ids else list(held.ids)
    speakers = open_speakers(folders, epoch, prepared.read(captions) if captions else None)
    targets = targets_of(output, ALL, [speaker.label for speaker in speakers])
    with _progress(len(images) * len(speakers), "captions") as (bar, task):
        write_split(speakers, targets, held, images, search, tick=lambda count: bar.advance(task, count))
    for target in targets:
        print(f"{target}: captions of {len(images):,} images")


def shown(picture: pictures.Picture) -> str:
    r"""A picture's name in one line of characters that can be printed, whatever the file system allows.

    >>> shown(pictures.Picture(1, Path("holiday\n\udce9té 1.jpg")))
    'holiday??té 1.jpg'
    """
    return printable(str(picture))


def printable(name: str) -> str:
    """A name with ? for what cannot be printed."""
    return "".join(character if character.isprintable() else "?" for character in name)


def _print(seen: Seen, labels: Sequence[str]) -> None:
    for label, about in zip(labels, seen.said, strict=True):
        print("\t".join([shown(seen.picture), *([label] if len(labels) > 1 else []), about.caption]), flush=True)


def _name_unreadable(unreadable: Sequence[tuple[pictures.Picture, str]], named: int) -> int:
    """Say which cannot be read beyond the first `named`, and give back how many there are."""
    for picture, reason in unreadable[named:]:
        print(f"prproduct: {shown(picture)}: cannot be read: {reason}", file=sys.stderr, flush=True)
    return len(unreadable)


def _draw(folder: Path, seen: Seen, labels: Sequence[str], taken: set[str]) -> None:
    """A figure under the picture's name, with a number where that is taken; never under the name of a picture."""
    stem = Path(seen.picture.name).stem.replace("\\", "_")
    name, number = stem, 1
    while name.casefold() in taken:
        number += 1
        name = f"{stem}-{number}"
    taken.add(name.casefold())
    with replacing(folder / f"{name}.attention.png") as file:
        attention.draw(seen.image, list(zip(labels, seen.said, strict=True))).save(file, "PNG")


@contextmanager
def _progress(total: int, what: str) -> Iterator[tuple[Progress, TaskID]]:
    """A bar on stderr, where captions on stdout do not run through it."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(what), TimeElapsedColumn())
    hidden = not console.is_terminal or (what == "pictures" and sys.stdout.isatty())
    with Progress(*columns, console=console, disable=hidden) as bar:
        yield bar, bar.add_task("", total=total)
