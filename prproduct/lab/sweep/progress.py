"""Progress of a sweep on stderr: where that is a terminal a bar for each running run and one for all of them.

How far a run is stands in its metrics.jsonl, wherever it is trained; nothing else tells it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from prproduct.lab import runs
from prproduct.lab.errors import InputError
from prproduct.lab.sweep.jobs import Ending, Job, Result

_LOOK_SECONDS = 1.0


class Silent:
    """Shows nothing; what the driver tells about its progress."""

    def begin(self, jobs: Sequence[Job], finished: int) -> None:
        """A sweep of these jobs begins; so many were finished before."""

    def look(self, running: Iterable[Job]) -> None:
        """These are running; see how far they are."""

    def settled(self, job: Job, ending: Ending) -> None:
        """This one will not be tried again."""

    def say(self, line: str) -> None:
        """Something else happened."""

    def end(self) -> None:
        """The sweep is over."""


class Terminal(Silent):
    """A bar for each running run, one for all, and a line for each that came to its end."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}"),
            TextColumn("elapsed"),
            TimeElapsedColumn(),
            TextColumn("remaining"),
            TimeRemainingColumn(elapsed_when_finished=False),
        )
        self._bars = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self._tasks: dict[str, TaskID] = {}
        self._steps: dict[str, int] = {}  # of each run, as far as its records say
        self._settled = self._count = 0
        self._looked = float("-inf")

    def begin(self, jobs: Sequence[Job], finished: int) -> None:
        self._count, self._settled = len(jobs), finished
        self._steps = {job.name: min(steps_done(job), job.steps) for job in jobs}
        self._all = self._bars.add_task("all runs", total=sum(job.steps for job in jobs), note="")
        if finished:
            self.say(f"{finished} of {len(jobs)} runs were finished before")
        self._show_all()
        self._bars.start()

    def look(self, running: Iterable[Job]) -> None:
        if time.monotonic() - self._looked < _LOOK_SECONDS or not self.console.is_terminal:
            return
        now = {job.name: job for job in running}
        for name in self._tasks.keys() - now.keys():
            self._bars.remove_task(self._tasks.pop(name))
        for name, job in now.items():
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(name, total=job.steps, note="")
            self._steps[name] = min(steps_done(job), job.steps)
            self._bars.update(self._tasks[name], completed=self._steps[name])
        self._show_all()
        self._looked = time.monotonic()

    def settled(self, job: Job, ending: Ending) -> None:
        self._settled += 1
        self._steps[job.name] = job.steps
        self.say(f"[{self._settled}/{self._count}] {job.name}: {ending.how}{': ' if ending.why else ''}{ending.why}")
        self._show_all()

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def end(self) -> None:
        self._bars.stop()

    def _show_all(self) -> None:
        note = f"{self._settled} of {self._count} runs"
        self._bars.update(self._all, completed=sum(self._steps.values()), note=note)


def steps_done(job: Job) -> int:
    """How many steps of a run its records tell of; a run that has not begun has none."""
    if not (job.folder / runs.CONFIG).exists():
        return 0
    try:
        return max((record.get("step", 0) for record in runs.read(job.folder).metrics), default=0)
    except InputError:  # the driver or the worker names it
        return 0


def exit_if_unfinished(results: Sequence[Result]) -> None:
    """Name the runs that did not finish on stderr, if there are any, and end the command with status 1."""
    others = [result for result in results if not result.finished]
    if not others:
        return
    errors = Console(stderr=True)
    errors.print(f"{len(others)} of {len(results)} runs did not finish:")
    for result in others:
        errors.print(f"{result.job.name}: {result.ending.why}", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(1)
