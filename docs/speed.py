"""Prints the tables of speed.md from files of `prproduct bench --json`: `python docs/speed.py layers.json`."""

from __future__ import annotations

import sys
from pathlib import Path

from prproduct.bench.results import Report
from prproduct.bench.timing import Verdict


def measured_table(report: Report) -> list[str]:
    """What a run measured; ? where it was too noisy to judge."""
    headings = ["case", "native ms", "time", "spread", "target", "saved"]
    with_literal = any(row.times.reference_ratio is not None for row in report.rows)
    lines = [f"| {' | '.join([*headings, *['literal'] * with_literal])} |"]
    lines.append("| --- " * (len(headings) + with_literal) + "|")
    for row in report.rows:
        times = row.times
        mark = " ?" if row.verdict is Verdict.NOISY else ""
        literal = f" {_or_dash(times.reference_ratio, 1)} |" if with_literal else ""
        lines.append(
            f"| {row.name} | {times.native_ms:.1f} | {times.ratio:.2f}{mark} | {times.spread:.2f} "
            f"| {_or_dash(row.target)} | {_or_dash(row.saved_ratio)} |{literal}"
        )
    return lines


def _or_dash(number: float | None, digits: int = 2) -> str:
    return "–" if number is None else f"{number:.{digits}f}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print("\n".join([*measured_table(Report.from_json(Path(name).read_text())), ""]))
