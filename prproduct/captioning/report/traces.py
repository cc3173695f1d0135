"""Where every number comes from: the runs, how they ended, and the commands that made them."""

from __future__ import annotations

from collections.abc import Sequence

from prproduct.captioning.report.stages import PHASES, Group, Run
from prproduct.lab.report.charts import display
from prproduct.lab.report.content import Block, Code, Paragraph, Section, Table, Text, number, seconds_text
from prproduct.lab.report.observations import placed
from prproduct.lab.report.origin import COLUMNS, OPENING, origin, written

_HEADER = ("product", "phase", "seed", "ended", "test CIDEr", "validation CIDEr", "time", *COLUMNS)


def runs(groups: Sequence[Group]) -> list[Section]:
    """A table of the runs of each group."""
    sections = [Section("Runs", (OPENING,))]
    for group in groups:
        rows = [_row(run, stage.phase) for stage in group.stages for run in sorted(stage.runs, key=placed)]
        caption = f"{len(rows)} runs; {sum(run.counts for run in group.runs)} of them are averaged."
        table = Table(caption, _HEADER, "llrlrrrllll", tuple(rows))
        blocks: tuple[Block, ...] = (*(Paragraph(text) for text in _shared(group)), table)
        sections.append(Section(f"{group.name}: runs", blocks, level=3))
    return sections


def _row(run: Run, phase: str) -> tuple[Text, ...]:
    cider = run.scores.numbers.get("CIDEr") if run.scores else None
    return (
        display(run.product),
        PHASES[phase],
        str(run.seed),
        run.status,
        number(cider, 1),
        _selected(run),
        seconds_text(run.seconds),
        *origin(run.record),
    )


def _selected(run: Run) -> str:
    """The best validation CIDEr, and of which epoch it was."""
    end = run.record.of("end")
    chosen = end[0]["selected"] if end else None
    return "–" if chosen is None else f"{number(100 * chosen['validation_cider'], 1)} (epoch {chosen['epoch'] + 1})"


def _shared(group: Group) -> list[Text]:
    """What the runs of each stage share."""
    told: list[Text] = []
    for stage in group.stages:
        settings = ", ".join(
            f"{key.replace('_', ' ')} {written(value)}" for key, value in stage.settings.items() if key != "phase"
        )
        told.append(f"In {stage.name} they share: {settings}.")
    data = ", ".join(f"{key} {value}" for key, value in group.data.items())
    told.append(("Data: ", Code(data), "."))
    return told
