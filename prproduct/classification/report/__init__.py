"""The report on classifiers: `sections(records)` as content, `write(folders, target)` as a page (docs/report.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prproduct.classification.report.beside_paper import beside_paper
from prproduct.classification.report.comparison import comparisons, groups
from prproduct.classification.report.curves import angles, training
from prproduct.classification.report.tables import cost, results
from prproduct.classification.report.traces import runs
from prproduct.classification.report.words import summary
from prproduct.lab.errors import InputError
from prproduct.lab.report import files
from prproduct.lab.report.content import Section
from prproduct.lab.runs import Record

TITLE = "The PR product in image classification"


def sections(records: Sequence[Record]) -> list[Section]:
    """Everything that runs of classifiers say, from the summary to the runs themselves."""
    sorted_in = groups(records)
    compared = comparisons(sorted_in)
    trained = [group for group in sorted_in if group.counted]
    found = [summary(sorted_in, compared)]
    if trained:
        found.append(results(trained, compared))
        found.append(Section("Training", ()))
        for group in trained:
            found.append(Section(f"{group.name}: curves", (training(group),), level=3))
            found += angles(group)
        found.append(cost(trained))
        found += [section for section in [beside_paper(trained)] if section]
    return [*found, *runs(sorted_in)]


def write(folders: Sequence[Path], target: Path) -> None:
    """Write the report on the runs that folders are or hold, as HTML, or as Markdown if the target ends in .md."""
    target = files.check_target(target)
    records = files.find(folders)
    for record in records:
        if record.config["task"] != "classifier":
            raise InputError(f"{record.folder}: is a run of a {record.config['task']}, not of a classifier")
    files.write(TITLE, files.lead(records), sections(records), target)
