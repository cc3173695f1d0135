"""The report on classifiers: `sections(records)` is its content, `write(folders, target)` a page (docs/report.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prproduct.classification.report.beside_paper import beside_paper
from prproduct.classification.report.comparison import comparisons, groups
from prproduct.classification.report.curves import angles, training
from prproduct.classification.report.summary import summary
from prproduct.classification.report.tables import cost, results, runs
from prproduct.lab.errors import InputError
from prproduct.lab.report import files
from prproduct.lab.report.content import Section
from prproduct.lab.runs import Record

TITLE = "The PR product in image classification"


def check(record: Record) -> None:
    """Raise an error for a run whose files do not hold what this report reads."""
    if record.config["task"] != "classifier":
        raise InputError(f"{record.folder}: is a run of a {record.config['task']}, not of a classifier")
    sections([record])


def sections(records: Sequence[Record]) -> list[Section]:
    """Return the report's sections, from the summary to the list of runs."""
    every = groups(records)
    compared = comparisons(every)
    trained = [group for group in every if group.counted]
    found = [summary(every, compared)]
    if trained:
        found.append(results(trained, compared))
        found.append(Section("Training", ()))
        for group in trained:
            found.append(Section(f"{group.name}: curves", (training(group),), level=3))
            found += angles(group)
        found.append(cost(trained))
        found += [section for section in [beside_paper(trained)] if section]
    return [*found, *runs(every)]


def write(folders: Sequence[Path], target: Path) -> None:
    """Write the report on the runs in `folders` as HTML, or as Markdown if the target ends in .md."""
    files.write_report(folders, target, check, lambda records: (TITLE, sections(records)))
