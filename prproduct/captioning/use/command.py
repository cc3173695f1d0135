"""The command `prproduct caption`: captions of a user's pictures, or of a whole split in COCO's format."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from prproduct.captioning.data import features
from prproduct.captioning.data.features import Features, normalized_id
from prproduct.captioning.data.pictures import Picture, list_all
from prproduct.captioning.data.prepared import SPLITS
from prproduct.captioning.dataset import check_features, check_fits, check_ids, open_dataset, read_captions
from prproduct.captioning.inference import Search, config_of, generate_captions, open_runs, run_labels
from prproduct.captioning.input_files import ImageId, listed, raise_for_images, raise_for_repeated, read_text
from prproduct.captioning.ready import open_ready
from prproduct.captioning.results import captions_file, save_captions, write_captions
from prproduct.captioning.use import attention, page
from prproduct.captioning.use.pictures import CaptionedPicture, caption_pictures, encoders_for
from prproduct.lab import runs
from prproduct.lab.checkpoints import EPOCHS
from prproduct.lab.errors import InputError
from prproduct.lab.files import check_writable, check_writable_file, replace_durably, replacing
from prproduct.lab.options import takes_options_of
from prproduct.lab.progress import note, progress_bar

ALL = "all"  # in place of a split: every image of the features, whether it has captions or not
PAGES = (".html", ".htm")
FIGURE = ".attention.png"  # the ending of figures of the attention
LONGEST_STEM = 200  # bytes of a figure's name before the ending; file systems take 255 in all


@takes_options_of(Search)
def caption(
    search: Search,
    images: Annotated[
        list[Path] | None, typer.Argument(metavar="PICTURES...", help="pictures, folders, zip archives")
    ] = None,
    run: Annotated[
        list[Path] | None, typer.Option("--run", help="a captioner's run, may be given often; else the ready ones")
    ] = None,
    epoch: Annotated[str, typer.Option(help=f"the run's {' or '.join(EPOCHS)}, by validation CIDEr")] = "best",
    figures: Annotated[
        Path | None, typer.Option("--attention", help="a folder for figures of where each word looked")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="a page, .html; with --split a .json or a folder"),
    ] = None,
    encoder: Annotated[str | None, typer.Option(help="what made the run's features, if the run does not say")] = None,
    split: Annotated[
        str | None, typer.Option(help=f"in place of pictures: {', '.join(SPLITS)}; or {ALL} that --features has")
    ] = None,
    captions: Annotated[
        str | None, typer.Option(help="with --split: a folder of `prproduct data captions`, or world")
    ] = None,
    source: Annotated[Path | None, typer.Option("--features", help="with --split: features of its images")] = None,
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
            _caption_features(search, run, epoch, captions, source, ids, output)
        else:
            _caption_split(search, run, epoch, split, captions, source, ids, output)
    else:
        if source or ids:
            raise InputError("--features and --ids go with --split, not with pictures")
        if not run and (captions or epoch != "best"):
            raise InputError("--captions and --epoch go with --run; ready captioners have neither")
        _caption_pictures(search, images or [], run or [], epoch, figures, output, encoder, captions)


def _caption_pictures(
    search: Search,
    paths: Sequence[Path],
    folders: Sequence[Path],
    epoch: str,
    figures: Path | None,
    output: Path | None,
    encoder: str | None,
    captions: str | None,
) -> None:
    """Print the captions of a user's pictures; if given, write attention to `figures` and a page to `output`."""
    if output and output.suffix.lower() not in PAGES:
        raise InputError(f"{output}: is no page; give a name that ends in .html")
    if output:
        check_writable_file(output)
    search = search.up_to()  # raises for impossible lengths
    if figures:
        check_writable(figures)
    others: list[str] = []
    # Not the figures that an earlier call wrote into a folder of pictures.
    found = [one for one in list_all(paths, others) if one.place in paths or not one.name.endswith(FIGURE)]
    if not found:
        raise InputError(f"{', '.join(map(str, paths))}: no pictures there but figures of the attention")
    if others:
        note(f"no pictures, and left out: {listed([shown(Path(name).name) for name in others])}")
    known = read_captions(captions) if captions else None
    captioners = open_runs(folders, epoch, known) if folders else open_ready()
    encoders = encoders_for(captioners, encoder)
    titles = [captioner.title for captioner in captioners]
    unreadable: list[tuple[Picture, str]] = []
    cards: list[page.Card] = []
    names: set[str] = set()
    try:
        # Not if stdout is a terminal, too: the bar would mix with captions.
        with progress_bar("pictures", len(found), hidden=sys.stdout.isatty()) as update:
            for captioned in caption_pictures(found, captioners, encoders, search, unreadable):
                _print(captioned, [captioner.label for captioner in captioners])
                if figures:
                    _draw(figures, captioned, titles, names)
                if output:
                    cards.append(page.card(shown(captioned.picture), captioned, titles))
                update(advance=1)
    finally:  # after Ctrl-C or an error, too: the page has the pictures that were captioned before
        for picture, reason in unreadable:
            note(f"{shown(picture)}: cannot be read: {reason}")
        if output and cards:
            html = page.page(cards, captioners, [(shown(picture), reason) for picture, reason in unreadable])
            replace_durably(output, html.encode())
            if len(cards) + len(unreadable) < len(found):
                note(f"{output}: has the first {len(cards):,} of {len(found):,} pictures")
    if unreadable:
        raise typer.Exit(1)


def _caption_split(
    search: Search,
    folders: Sequence[Path],
    epoch: str,
    split: str,
    captions: str | None,
    source: Path | None,
    ids: Path | None,
    output: Path | None,
) -> None:
    """Write each run's captions of a split to its results, and to `output` if that is given."""
    if ids:
        raise InputError(f"--ids goes with --split {ALL}")
    if captions is None:
        raise InputError(f"--split {split} needs --captions, the folder that says which images are of it")
    dataset = open_dataset(captions, source)
    images, records = dataset.captions.of(split), [runs.read(folder) for folder in folders]
    labels = run_labels([config_of(record) for record in records], folders)
    targets = targets_of(output, split, labels) if output else []
    for record in records:
        check_fits(record, dataset)
    check_ids(dataset, [split])
    with progress_bar("captions", len(images) * len(folders)) as update:
        for folder in folders:
            write_captions(folder, dataset, split, search, which=epoch, progress=lambda count: update(advance=count))
    own = [captions_file(folder, split) for folder in folders]
    for target, file in zip(targets, own, strict=True) if targets else ():
        replace_durably(target, file.read_bytes())
    for file in [*own, *targets]:
        print(f"{file}: captions of {len(images):,} images")
    for folder in folders if not targets else ():
        print(f"for their scores: prproduct score {captions} {folder}{'' if split == 'test' else f' --split {split}'}")


def _caption_features(
    search: Search,
    folders: Sequence[Path],
    epoch: str,
    captions: str | None,
    source: Path | None,
    ids: Path | None,
    output: Path | None,
) -> None:
    """Write captions of all images of a feature file, or of those in a list of ids, to `output`."""
    if output is None:
        raise InputError("where to? Give -o, a .json file, or a folder for files with the server's names")
    if source is None:
        raise InputError(f"--split {ALL} needs --features, whose images are captioned")
    opened = features.open(source)
    images = read_ids(ids, opened) if ids else list(opened.ids)
    known = read_captions(captions) if captions else None
    search = search.up_to(known.longest) if known else search.up_to()
    captioners = open_runs(folders, epoch, known)
    targets = targets_of(output, ALL, [captioner.label for captioner in captioners])
    for captioner in captioners:
        check_features(captioner.record, opened)
    with progress_bar("captions", len(images) * len(captioners)) as update:
        for captioner, target in zip(captioners, targets, strict=True):
            generated = generate_captions(
                captioner.model,
                captioner.vocabulary,
                opened,
                images,
                search,
                progress=lambda count: update(advance=count),
            )
            save_captions(target, list(generated))
    for target in targets:
        print(f"{target}: captions of {len(images):,} images")


def targets_of(output: Path, split: str, labels: Sequence[str]) -> list[Path]:
    """The file for the captions of each run: `output` if it is a .json, otherwise a file in that folder.

    Raises InputError if it cannot be written: captions of a whole test set take long.

    >>> [str(path) for path in targets_of(Path("out"), "test", ["pr, REINFORCE", "p, REINFORCE"])]
    ['out/captions_test_pr-REINFORCE_results.json', 'out/captions_test_p-REINFORCE_results.json']
    """
    if output.suffix == ".json":
        if len(labels) > 1:
            raise InputError(f"{output}: one file for {len(labels)} runs; give a folder, which gets a file for each")
        check_writable_file(output)
        return [output]
    if output.is_file() or (output.suffix and not output.is_dir()):
        raise InputError(f"{output}: neither a .json file nor a folder; captions of a split are written as JSON")
    names = [re.sub(r"[^A-Za-z0-9.]+", "-", label).strip("-") for label in labels]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise InputError(f"{output}: two runs would be written to the same file, {repeated}; give one run at a time")
    check_writable(output)
    return [output / f"captions_{split}_{name}_results.json" for name in names]


def read_ids(path: Path, features: Features) -> list[ImageId]:
    """The image ids of a file with one id per line; each must have features."""
    ids = [normalized_id(line.strip()) for line in read_text(path).splitlines() if line.strip()]
    raise_for_repeated(path, "images listed more than once", ids)
    missing = [image for image in ids if image not in features]
    raise_for_images(path, f"images without features in {features.path}", missing)
    return ids


def shown(name: Picture | str) -> str:
    r"""A picture's path, or a file name, in one line, with ? for characters that cannot be printed.

    >>> shown(Picture(1, Path("holiday\n\udce9té 1.jpg")))
    'holiday??té 1.jpg'
    """
    return "".join(character if character.isprintable() else "?" for character in str(name))


def _print(captioned: CaptionedPicture, labels: Sequence[str]) -> None:
    """A line for each caption: the picture's path, the label if there are several, and the caption."""
    for label, one in zip(labels, captioned.captions, strict=True):
        print("\t".join([shown(captioned.picture), *([label] if len(labels) > 1 else []), one.caption]), flush=True)


def _draw(folder: Path, captioned: CaptionedPicture, titles: Sequence[str], names: set[str]) -> None:
    """Write the attention figure, named after the picture; with a number if an earlier one of `names` is the same."""
    stem = Path(captioned.picture.name).stem.replace("\\", "_")
    if len(os.fsencode(stem)) > LONGEST_STEM:
        stem = stem[:50]
    name, number = stem, 1
    while name.casefold() in names:
        number += 1
        name = f"{stem}-{number}"
    names.add(name.casefold())
    figure = attention.draw(captioned.image, list(zip(titles, captioned.captions, strict=True)))
    with replacing(folder / f"{name}{FIGURE}") as temporary:
        figure.save(temporary, "PNG")
