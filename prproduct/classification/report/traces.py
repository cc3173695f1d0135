"""Where every number comes from: the runs, how they ended, and the commands that made them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prproduct.classification.report.comparison import Group, Run
from prproduct.lab.report.content import Block, Code, Paragraph, Section, Table, Text, display, number, seconds_text
from prproduct.lab.report.observations import placed
from prproduct.lab.report.origin import COLUMNS, OPENING, origin, written

_HEADER = ("product", "seed", "ended", "last, %", "selected, %", "time", *COLUMNS)


def runs(groups: Sequence[Group]) -> list[Section]:
    """A table of the runs of each group, with the settings that they share."""
    sections = [Section("Runs", (OPENING,))]
    for group in groups:
        ordered = sorted(group.runs, key=placed)
        caption = f"{len(group.runs)} runs; {sum(run.counts for run in group.runs)} of them are averaged."
        table = Table(caption, _HEADER, "lrlrrrllll", tuple(_row(run) for run in ordered))
        blocks: tuple[Block, ...] = (Paragraph(_shared(group.settings)), table)
        sections.append(Section(f"{group.name}: runs", blocks, level=3))
    return sections


def _row(run: Run) -> tuple[Text, ...]:
    return (
        display(run.product),
        str(run.seed),
        run.status,
        number(run.error("last")),
        _selected(run),
        seconds_text(run.seconds),
        *origin(run.record),
    )


def _selected(run: Run) -> str:
    """The error of the epoch that was selected, and which one that was."""
    end = run.record.of("end")
    chosen = end[0]["selected"] if end else None
    return "–" if chosen is None else f"{number(run.error('selected'))} (epoch {chosen['epoch'] + 1})"


def _shared(settings: Mapping[str, Any]) -> Text:
    """What all runs of a group share, in the order of the configuration."""
    told = [
        (key.replace("_", " "), value) for key, value in settings.items() if key not in ("fingerprint", "mean", "std")
    ]
    words = ", ".join(f"{key} {written(value)}" for key, value in told)
    return (f"They share: {words}; data fingerprint ", Code(str(settings["fingerprint"])), ".")
