"""Progress bars of downloads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from prproduct.classification.data.fetch import Report


@contextmanager
def download_bars() -> Iterator[Report]:
    """Something to give to `load` as `report`: a bar for each file, on stderr, once there is something to fetch.

    >>> from prproduct.classification.data import load
    >>> with download_bars() as report:
    ...     data = load("digits", report=report)
    """
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=Console(stderr=True))
    tasks: dict[str, TaskID] = {}

    def report(name: str, done: int, total: int | None) -> None:
        if not tasks:
            bars.start()
        if name not in tasks:
            tasks[name] = bars.add_task(name)
        bars.update(tasks[name], completed=done, total=total)

    try:
        yield report
    finally:
        if tasks:
            bars.stop()
