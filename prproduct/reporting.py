"""The command `prproduct report`: one page on runs of any task."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from prproduct.lab.errors import InputError
from prproduct.lab.progress import note
from prproduct.lab.report import files
from prproduct.lab.report.content import Section
from prproduct.lab.runs import Record

# The module of each task has TITLE, `check(record)` and `sections(records)`; it is imported if there are such runs.
TASKS = {"classifier": "prproduct.classification.report", "captioner": "prproduct.captioning.report"}


def report(
    places: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="folders of runs, or that hold runs")],
    target: Annotated[Path, typer.Option("--output", "-o", help="the page: .html, or .md for Markdown")] = Path(
        "report.html"
    ),
    pictures: Annotated[
        Path | None,
        typer.Option(help="a folder or zip archive of pictures, for examples of captions", show_default=False),
    ] = None,
) -> None:
    """Write tables, statistics, curves and angles of runs to one self-contained page."""
    lead, broken = files.write_report(places, target, check, partial(content, pictures=pictures))
    typer.echo(f"{target}: {lead}")
    for line in broken:
        note(line)


def check(record: Record) -> None:
    """Raise an error for a run whose files do not hold what the report of its task reads."""
    task = record.config["task"]
    if not isinstance(task, str) or task not in TASKS:
        raise InputError(f"{record.folder}: its task is {task!r}; there are reports for {', '.join(TASKS)}")
    importlib.import_module(TASKS[task]).check(record)


def content(records: Sequence[Record], pictures: Path | None = None) -> tuple[str, list[Section]]:
    """Return the title and the sections of a report; with several tasks, headings begin with the task."""
    by_task: dict[str, list[Record]] = {}
    for record in records:
        by_task.setdefault(record.config["task"], []).append(record)
    if pictures is not None and "captioner" not in by_task:
        raise InputError("pictures are shown with captions, and no run is of a captioner; leave out --pictures")
    sections: list[Section] = []
    for task, its_records in by_task.items():
        module = importlib.import_module(TASKS[task])
        options = {"pictures": pictures} if task == "captioner" and pictures else {}
        its_sections = module.sections(its_records, **options)
        if len(by_task) == 1:
            return module.TITLE, its_sections
        for section in its_sections:
            if section.level == 2:
                name = section.title[:1].lower() + section.title[1:]
                section = replace(section, title=f"{task.capitalize()}s: {name}")
            sections.append(section)
    return "The PR product, measured", sections
