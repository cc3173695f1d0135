"""The commands `prproduct data list`, `fetch` and `verify`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from prproduct.classification.data import locate
from prproduct.classification.data.dataset import channel_statistics, load, missing
from prproduct.classification.data.fetch import download_bars
from prproduct.classification.data.fetch import fetch as fetch_source
from prproduct.classification.data.sources import SOURCES, Source, source
from prproduct.lab.errors import InputError
from prproduct.lab.options import DataDir

Name = Annotated[str, typer.Argument(help=f"one of {', '.join(SOURCES)}")]


def list_(data_dir: DataDir = None) -> None:
    """List the data sets, and where each was found."""
    table = Table("data set", "images", "classes", "train", "test", "where", box=None)
    for known in SOURCES.values():
        channels, rows, columns = known.shape
        numbers = (
            f"{channels}×{rows}×{columns}",
            f"{known.classes}",
            f"{known.train_count:,}",
            f"{known.test_count:,}",
        )
        table.add_row(known.name, *numbers, Text(_where(known, data_dir)))
    _print(table)


def fetch(name: Name, data_dir: DataDir = None) -> None:
    """Find a data set, or download it from its authors into --data-dir or the cache; then verify it."""
    wanted = source(name)
    if wanted.layouts and locate.find(wanted, data_dir) is None:
        try:
            with download_bars() as report:
                fetch_source(wanted, data_dir or locate.cache(), report)
        except InputError as error:
            raise InputError(f"{missing(wanted, data_dir)}; {error}") from None
    verify(name, data_dir)


def verify(name: Name, data_dir: DataDir = None) -> None:
    """Compare all files of a data set with the official checksums, and show what it holds."""
    wanted = source(name)
    dataset = load(name, data_dir, download=False)
    mean, std = channel_statistics(dataset.train_images, dataset.levels)
    table = Table("data set", name, box=None)
    table.add_row("where", Text(_where(wanted, data_dir)))
    table.add_row("training images", f"{tuple(dataset.train_images.shape)}, verified")
    table.add_row("test images", f"{tuple(dataset.test_images.shape)}, verified")
    table.add_row("classes", str(dataset.classes))
    table.add_row("mean", ", ".join(f"{value:.4f}" for value in mean))
    table.add_row("deviation", ", ".join(f"{value:.4f}" for value in std))
    table.add_row("fingerprint", dataset.fingerprint)
    _print(table)


def _where(wanted: Source, data_dir: Path | None) -> str:
    if not wanted.layouts:
        return "in scikit-learn"
    found = locate.find(wanted, data_dir)
    return str(found.place) if found else f"not here: prproduct data fetch {wanted.name}"


def _print(table: Table) -> None:
    """Print a table; one line per row where the output is not a terminal, so that paths can be copied."""
    for column in table.columns:
        column.overflow = "fold"
    Console(width=None if sys.stdout.isatty() else 500).print(table)
