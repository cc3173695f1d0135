"""The report on captioners: `sections(records)` as content, `write(folders, target)` as a page (docs/report.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prproduct.captioning.report.cost import cost
from prproduct.captioning.report.curves import angles, training
from prproduct.captioning.report.gallery import gallery
from prproduct.captioning.report.scores import scores_of
from prproduct.captioning.report.stages import comparisons, groups
from prproduct.captioning.report.table_2 import beside_paper, results
from prproduct.captioning.report.traces import runs
from prproduct.captioning.report.words import summary
from prproduct.lab.errors import InputError
from prproduct.lab.report import files
from prproduct.lab.report.content import Section
from prproduct.lab.report.origin import angles_of
from prproduct.lab.runs import Record

__all__ = ["TITLE", "scores_of", "sections", "write"]

TITLE = "The PR product in image captioning"


def check(record: Record) -> None:
    """Refuse a run whose files do not hold what this report reads."""
    (group,) = groups([record])
    runs([group])
    for run in group.runs:
        if run.counts:
            _ = run.scores
            angles_of(record)


def sections(records: Sequence[Record], pictures: Path | None = None) -> list[Section]:
    """Everything that runs of captioners say; examples show pictures if there is a folder or zip archive of them."""
    sorted_in = groups(records)
    compared = comparisons(sorted_in)
    trained = [group for group in sorted_in if any(stage.counted for stage in group.stages)]
    found = [summary(sorted_in, compared)]
    if trained:
        found += [results(trained, compared), *gallery(trained, pictures), Section("Training", ())]
        for group in trained:
            found += [*training(group), *angles(group)]
        found += [cost(trained), beside_paper(trained)]
    return [*found, *runs(sorted_in)]


def write(folders: Sequence[Path], target: Path, pictures: Path | None = None) -> None:
    """Write the report on the runs that folders are or hold, as HTML, or as Markdown if the target ends in .md."""
    target = files.check_target(target)
    records = files.find(folders)
    for record in records:
        if record.config["task"] != "captioner":
            raise InputError(f"{record.folder}: is a run of a {record.config['task']}, not of a captioner")
    files.write(TITLE, files.lead(records), sections(records, pictures), target)
