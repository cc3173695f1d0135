"""The table that `prproduct bench` prints."""

from __future__ import annotations

from rich import box
from rich.table import Table

from prproduct.bench.rows import NOT_ASKED_FOR, Report, Row
from prproduct.bench.timing import Verdict

_STYLES = {Verdict.MET: "green", Verdict.MISSED: "red", Verdict.NOISY: "yellow", Verdict.OPEN: ""}
_MARKS = {Verdict.MET: "✓", Verdict.MISSED: "✗", Verdict.NOISY: "?", Verdict.OPEN: ""}
_COLUMNS = ("native ms", "time ×", "±", "target", "", "literal ×", "saved ×", "at most", "", "path")


def table(report: Report) -> Table:
    """One row a case, a line between groups."""
    result = Table(box=box.SIMPLE)
    result.add_column("case", overflow="fold")
    for heading in _COLUMNS:
        result.add_column(heading, justify="left" if heading in ("", "path") else "right", no_wrap=True)
    for index, row in enumerate(report.rows):
        last_of_group = index + 1 < len(report.rows) and report.rows[index + 1].group != row.group
        result.add_row(*_cells(row), end_section=last_of_group)
    return result


def remarks(report: Report) -> list[str]:
    """What the table has no room for: which rows cannot be judged, and where the literal formula did not run."""
    lines = []
    for row in report.rows:
        if row.verdict is Verdict.NOISY:
            reason = row.times.noise or f"{row.times.ratio:.2f} is too near to its target for the noise of this run"
            lines.append(f"? {row.name}: {reason}")
    noisy = len(lines)
    if noisy:
        few = min(len(row.times.seconds["ours"]) for row in report.rows)
        lines.append(
            f"{noisy} of {len(report.rows)} rows cannot be judged on a machine as busy as this one was: "
            f"end other programs, or give more --repeats (there were {few})"
        )
    if report.machine.load is not None and report.machine.load > report.machine.cores / 2:
        lines.append(f"Other programs were running: load average {report.machine.load:.1f} when this began")
    skipped: dict[str, list[str]] = {}
    for row in report.rows:
        if row.without_reference not in (None, NOT_ASKED_FOR):
            skipped.setdefault(str(row.without_reference), []).append(row.name)
    lines += [f"– no literal formula for {'; '.join(names)}: {reason}" for reason, names in skipped.items()]
    return lines


def _cells(row: Row) -> list[str]:
    times, style = row.times, _STYLES[row.verdict]
    return [
        row.name,
        f"{times.native_ms:.2f}",
        f"[{style}]{times.ratio:.2f}[/]" if style else f"{times.ratio:.2f}",
        f"{times.spread:.2f}",
        _number(row.target),
        _MARKS[row.verdict],
        _number(times.reference_ratio, 1),
        _number(row.saved_ratio),
        _number(row.saved_target),
        _MARKS[row.saved_verdict],
        row.path,
    ]


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
