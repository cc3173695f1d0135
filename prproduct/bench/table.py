"""The table that `prproduct bench` prints."""

from __future__ import annotations

from rich import box
from rich.table import Table

from prproduct.bench.rows import NOT_ASKED_FOR, Report, Row
from prproduct.bench.timing import Verdict

_STYLES = {Verdict.MET: "green", Verdict.MISSED: "red", Verdict.NOISY: "yellow", Verdict.OPEN: ""}
_MARKS = {Verdict.MET: "✓", Verdict.MISSED: "✗", Verdict.NOISY: "?", Verdict.OPEN: ""}
SMALL = 0.1  # below which two decimals say nothing
_COLUMNS = ("native ms", "time ×", "±", "target", "", "literal ×", "saved ×", "peak ×", "path")


def table(report: Report) -> Table:
    """One row a case, a line between groups."""
    result = Table(box=box.SIMPLE)
    result.add_column("case", overflow="fold")
    for heading in _COLUMNS:
        result.add_column(heading, justify="left" if heading in ("", "path") else "right", no_wrap=True)
    for index, row in enumerate(report.rows):
        last_of_group = index + 1 < len(report.rows) and report.rows[index + 1].group != row.group
        result.add_row(*_cells(row), end_section=last_of_group)
    for name in report.left_out:
        result.add_row(name, *("–" if heading else "" for heading in _COLUMNS))
    return result


def remarks(report: Report) -> list[str]:
    """What the table has no room for: rows that cannot be judged or measured, and where no literal formula ran."""
    lines = []
    for row in report.rows:
        if row.verdict is Verdict.NOISY:
            reason = (
                row.times.noise or f"{_number(row.times.ratio)} is too near to its target for the noise of this run"
            )
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
    lines += [f"– not measured: {name}: {reason}" for name, reason in report.left_out.items()]
    return lines


def _cells(row: Row) -> list[str]:
    times, style = row.times, _STYLES[row.verdict]
    return [
        row.name,
        f"{times.native_ms:.2f}",
        f"[{style}]{_number(times.ratio)}[/]" if style else _number(times.ratio),
        _number(times.spread) if times.ratio < SMALL else f"{times.spread:.2f}",
        _number(row.target),
        _MARKS[row.verdict],
        _number(times.reference_ratio, 1),
        _number(row.saved_ratio),
        _number(row.peak_ratio),
        row.path,
    ]


def _number(value: float | None, digits: int = 2) -> str:
    if value is None:
        return "–"
    return f"{value:.2g}" if 0 < value < SMALL else f"{value:.{digits}f}"
