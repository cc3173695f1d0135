"""`prproduct data captions` and `prproduct data features`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from prproduct.captioning.data import grids, pictures, prepared, sources, vocabulary
from prproduct.captioning.encoder import DEFAULT, load
from prproduct.captioning.input_files import ImageId, listed
from prproduct.captioning.metrics.frequencies import load_frequencies
from prproduct.lab.checks import check_known
from prproduct.lab.errors import InputError
from prproduct.lab.progress import note, progress_bar
from prproduct.lab.stopping import StopSignals

STOPPED = 130  # the exit status of a command that Ctrl-C ended


def captions(
    files: Annotated[
        list[str],
        typer.Argument(
            help=f"Karpathy's .json, COCO's annotations, cocotalk.json, or {sources.BUNDLED} for COCO's own captions"
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="the folder to write")],
    val: Annotated[Path | None, typer.Option(help="image ids to validate on; others keep their split")] = None,
    test: Annotated[Path | None, typer.Option(help="image ids to test on")] = None,
    labels: Annotated[Path | None, typer.Option(help="cocotalk_label.h5, beside cocotalk.json")] = None,
    frequencies: Annotated[Path | None, typer.Option(help="coco-train-idxs.p; else they are counted")] = None,
    tokens: Annotated[
        str | None, typer.Option(help="given, in Karpathy's file; or own. Given, if there are any")
    ] = None,
    rule: Annotated[
        str, typer.Option(help="cocotalk: words of 6 occurrences; paper: of 5 in training captions, cut before")
    ] = "cocotalk",
    minimum_count: Annotated[int | None, typer.Option(help="another number of occurrences")] = None,
    longest: Annotated[int, typer.Option(help="words that captions are cut to")] = prepared.LONGEST,
    skip_empty: Annotated[bool, typer.Option("--skip-empty", help="leave out captions without a word")] = False,
) -> None:
    """Prepare captions: tokens, vocabulary and document frequencies, in a new folder."""
    prepared.check_new(output)
    check_known("rule", rule, vocabulary.RULES)
    if labels is not None:
        others = (val, test, tokens, minimum_count, skip_empty, rule != "cocotalk", longest != prepared.LONGEST)
        if len(files) != 1 or any(others):
            raise InputError("--labels goes with cocotalk.json alone, which has its splits, tokens and vocabulary")
        described, words, longest = sources.describe_cocotalk(Path(files[0]), labels)
        note("these references have UNK and are cut: scores against COCO's own captions are lower (prproduct score)")
    else:
        lists = {split: path for split, path in (("val", val), ("test", test)) if path is not None}
        described = sources.read(files, lists, tokens)
        if skip_empty:
            described, empty = sources.without_empty(described)
            note(f"{empty} captions without a word left out")
        prepared.check(", ".join(files), described, " (--skip-empty leaves them out)")
        if not any(image.split == "train" for image in described):
            raise InputError(f"{', '.join(files)}: no training images; all are in the splits val and test")
        words = _vocabulary(described, rule, minimum_count, longest)
    counted = load_frequencies(frequencies, words.words) if frequencies else None
    _print_summary(prepared.write(output, described, words, longest, counted), output)


def _vocabulary(
    described: Sequence[prepared.Described], rule: str, minimum_count: int | None, longest: int
) -> vocabulary.Vocabulary:
    training = [image for image in described if image.split == "train"]
    images, cut = (training, longest) if rule == "paper" else (described, None)
    captions = (tokens.split(" ")[:cut] for image in images for tokens in image.tokens)
    return vocabulary.build(captions, vocabulary.RULES[rule] if minimum_count is None else minimum_count)


def _print_summary(captions: prepared.CaptionSet, output: Path) -> None:
    table = Table("", "", box=None, show_header=False)
    for split in prepared.SPLITS:
        images = captions.of(split)
        table.add_row(split, f"{len(images):,} images, {sum(len(image.captions) for image in images):,} captions")
    ids = Counter(word for image in captions.images for caption in image.captions for word in caption)
    unknown = ids[captions.vocabulary.unknown] / max(1, ids.total())
    table.add_row("vocabulary", f"{len(captions.vocabulary.words):,} words with UNK, which is {unknown:.2%} of all")
    table.add_row("longest", f"{captions.longest} words")
    table.add_row("fingerprint", captions.fingerprint)
    table.add_row("in", Text(str(output)))
    Console(soft_wrap=True).print(table, highlight=False)


def features(
    images: Annotated[list[Path], typer.Argument(help="pictures, folders of pictures, zip archives of pictures")],
    output: Annotated[Path, typer.Option("--output", "-o", help="the HDF5 file to write, or to go on with")],
    captions: Annotated[
        Path | None, typer.Option(help="prepared captions, for the id of each file name; other pictures are left out")
    ] = None,
    encoder: Annotated[str, typer.Option(help=f"{DEFAULT}, timm:NAME or torchvision:NAME")] = DEFAULT,
    dtype: Annotated[str, typer.Option(help=" or ".join(grids.DTYPES))] = "float16",
) -> None:
    """Encode pictures as grids of features; after a stop the same command continues."""
    ids = _ids(captions) if captions is not None else None
    found = pictures.find(images, ids)
    with progress_bar("pictures", len(found)) as update, StopSignals() as stop:
        outcome = grids.write(
            output,
            found,
            load(encoder),
            dtype,
            progress=lambda finished: update(completed=finished),
            stop=lambda: stop.asked,
        )
    for picture, reason in outcome.unreadable:
        note(f"{picture}: cannot be read: {reason}")
    if outcome.stopped:
        note(f"stopped with {outcome.written:,} images done; the same command goes on")
        raise typer.Exit(STOPPED)
    if ids is not None:
        _print_missing(set(ids.values()) - {picture.id for picture in found})
    if outcome.known:
        note(f"{outcome.known:,} of the pictures, by their ids, were in the file before and are not encoded again")
    print(f"{output}: features of {outcome.written:,} images")
    if outcome.unreadable:
        raise typer.Exit(1)


def _ids(folder: Path) -> dict[str, ImageId]:
    ids: dict[str, ImageId] = {}
    for image in prepared.read(folder).images:
        name = Path(image.file).name  # some annotations name the folder too: "train2017/000000000009.jpg"
        if ids.setdefault(name, image.id) != image.id:
            raise InputError(f"{folder}: images {ids[name]} and {image.id} have one file name, {name!r}")
    return ids


def _print_missing(missing: set[ImageId]) -> None:
    if missing:
        note(f"no pictures of {len(missing):,} of the captions' images: {listed(sorted(map(str, missing)))}")
