"""The results of a run as JSON with every single time, and as the table that `prproduct bench` prints."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from rich import box
from rich.table import Table

from prproduct.bench.machine import Machine
from prproduct.bench.timing import Times, Verdict
from prproduct.ops.autograd import Memory

NOT_ASKED_FOR = "not asked for"


@dataclass(frozen=True)
class Row:
    """The measurements of one case."""

    group: str
    name: str
    path: str  # the implementation of our backward: C++, Triton, plain torch, inductor
    seconds: dict[str, list[float]]  # of every step, by variant
    target: float | None
    saved_native: int | None  # bytes saved for backward; None if not counted
    saved_ours: int | None
    without_reference: str | None  # why the literal formula was not measured; None if it was
    waited: float | None = None  # seconds per second that threads waited for a core
    size: int | None = None  # the value of what a sweep varies
    peak_native: int | None = None  # bytes that a step allocates at most, on a GPU
    peak_ours: int | None = None

    @property
    def times(self) -> Times:
        """The times with their ratios and noise."""
        return Times(self.seconds, self.waited)

    @property
    def verdict(self) -> Verdict:
        """Whether the ratio of the times is within its target."""
        return self.times.verdict(self.target)

    @property
    def saved_ratio(self) -> float | None:
        """Bytes saved for backward by ours, divided by the native module's."""
        if self.saved_ours is None or not self.saved_native:
            return None
        return self.saved_ours / self.saved_native

    @property
    def peak_ratio(self) -> float | None:
        """The peak memory of a step of ours, divided by the native step's."""
        return None if self.peak_ours is None or not self.peak_native else self.peak_ours / self.peak_native


@dataclass(frozen=True)
class Settings:
    """The options of the command that hold for all rows."""

    product: str = "pr"
    dtype: str = "float32"
    autocast: bool = False  # bfloat16
    threads: int = 1
    compile: bool = False
    sweep: str | None = None
    memory: Memory = "save"
    device: str = "cpu"

    def __str__(self) -> str:
        mode = "torch.compile on both sides" if self.compile else "eager"
        kept = "" if self.memory == "save" else f', memory="{self.memory}"'
        threads = f"{self.threads} thread{'s'[: self.threads > 1]}" if self.device == "cpu" else self.device
        dtype = "bfloat16 under autocast" if self.autocast else self.dtype
        return f"{self.product} beside native, {dtype}, {threads}, {mode}{kept}"


@dataclass(frozen=True)
class Report:
    """A run of the command: machine, settings and rows."""

    machine: Machine
    settings: Settings
    rows: list[Row]

    def to_json(self) -> str:
        """Return the run as JSON; ratios and verdicts are written beside the times they are computed from."""
        return json.dumps({**asdict(self), "rows": [{**asdict(row), **_derived(row)} for row in self.rows]}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Return the run that `to_json` wrote; ratios and verdicts are computed again."""
        data = json.loads(text)
        known = {field.name for field in fields(Row)}
        rows = [Row(**{name: value for name, value in row.items() if name in known}) for row in data["rows"]]
        return cls(Machine(**data["machine"]), Settings(**data["settings"]), rows)


def _derived(row: Row) -> dict[str, Any]:
    times = row.times
    return {
        "native_ms": times.native_ms,
        "ratio": times.ratio,
        "spread": times.spread,
        "self_difference": times.self_difference,
        "reference_ratio": times.reference_ratio,
        "verdict": row.verdict,
        "saved_ratio": row.saved_ratio,
        "peak_ratio": row.peak_ratio,
    }


_STYLES = {Verdict.MET: "green", Verdict.MISSED: "red", Verdict.NOISY: "yellow", Verdict.OPEN: ""}
_MARKS = {Verdict.MET: "✓", Verdict.MISSED: "✗", Verdict.NOISY: "?", Verdict.OPEN: ""}
_COLUMNS = ("native ms", "time ×", "±", "target", "", "literal ×", "saved ×", "peak ×", "path")


def table(report: Report) -> Table:
    """Return a table with a row for each case and a line between groups."""
    result = Table(box=box.SIMPLE)
    result.add_column("case", overflow="fold")
    for heading in _COLUMNS:
        result.add_column(heading, justify="left" if heading in ("", "path") else "right", no_wrap=True)
    for index, row in enumerate(report.rows):
        last_of_group = index + 1 < len(report.rows) and report.rows[index + 1].group != row.group
        result.add_row(*_cells(row), end_section=last_of_group)
    return result


def remarks(report: Report) -> list[str]:
    """Return lines below the table: rows that are too noisy or without the literal formula, and why."""
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
    return lines + [f"– no literal formula for {'; '.join(names)}: {reason}" for reason, names in skipped.items()]


def _cells(row: Row) -> list[str]:
    times, style = row.times, _STYLES[row.verdict]
    return [
        row.name,
        f"{times.native_ms:.2f}",
        f"[{style}]{_number(times.ratio)}[/]" if style else _number(times.ratio),
        _number(times.spread),
        _number(row.target),
        _MARKS[row.verdict],
        _number(times.reference_ratio, 1),
        _number(row.saved_ratio),
        _number(row.peak_ratio),
        row.path,
    ]


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
