"""The report on captioners: `sections(records)` as content, `write(folders, target)` as a page (docs/report.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prproduct.captioning.report.beside_paper import beside_paper
from prproduct.captioning.report.gallery import gallery
from prproduct.captioning.report.results import results
from prproduct.captioning.report.runs import comparisons, groups, runs_table
from prproduct.captioning.report.summary import summary
from prproduct.captioning.report.training import angles, cost, training
from prproduct.captioning.results import scores_of
from prproduct.lab.errors import InputError
from prproduct.lab.report import files
from prproduct.lab.report.content import Section
from prproduct.lab.runs import Record

__all__ = ["TITLE", "check", "scores_of", "sections", "write"]

TITLE = "The PR product in image captioning"


def check(record: Record) -> None:
    """Raise an error for a run whose files do not have what this report reads."""
    if record.config["task"] != "captioner":
        raise InputError(f"{record.folder}: is a run of a {record.config['task']}, not of a captioner")
    sections([record])


def sections(records: Sequence[Record], pictures: Path | None = None) -> list[Section]:
    """The sections of a report on runs; example captions have pictures if `pictures`, a folder or zip, is given."""
    grouped = groups(records)
    compared = comparisons(grouped)
    trained = [group for group in grouped if any(stage.counted for stage in group.stages)]
    found = [summary(grouped, compared)]
    if trained:
        found += [results(trained, compared), *gallery(trained, pictures), Section("Training", ())]
        for group in trained:
            found += [*training(group), *angles(group)]
        found += [cost(trained), beside_paper(trained)]
    return [*found, *runs_table(grouped)]


def write(folders: Sequence[Path], target: Path, pictures: Path | None = None) -> None:
    """Write the report on all runs in folders as HTML, or as Markdown if the target ends in .md.

    Runs that cannot be read are named on the page; if none can be read, raises InputError.
    """
    files.write_report(folders, target, check, lambda records: (TITLE, sections(records, pictures)))
