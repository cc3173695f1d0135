"""Progress of a sweep on stderr, and its end: bars for each running run and for all, and which runs did not finish.

How far a run is, is read from its metrics.jsonl, so that it does not matter on which machine it is trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import TaskID, TaskProgressColumn, TextColumn

from prproduct.lab import runs
from prproduct.lab.errors import InputError
from prproduct.lab.progress import Bars, NoSweepProgress, note
from prproduct.lab.sweep.jobs import Ending, Job, Result


class SweepProgress(Bars, NoSweepProgress):
    """A bar for each running run, one for all runs, and a line for each run that ended."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(TaskProgressColumn(), TextColumn("{task.fields[note]}"), console=console)
        self._tasks: dict[str, TaskID] = {}
        self._steps: dict[str, int] = {}  # steps done by each run, according to its records
        self._settled = self._count = 0

    def begin(self, jobs: Sequence[Job], finished: int) -> None:
        self._count, self._settled = len(jobs), finished
        self._steps = {job.name: min(steps_done(job), job.steps) for job in jobs}
        self._all = self.bars.add_task("all runs", total=sum(job.steps for job in jobs), note="")
        if finished:
            self.say(f"{finished} of {len(jobs)} runs were finished before")
        self._show_all()
        self.bars.start()

    def look(self, running: Iterable[Job]) -> None:
        if not self.console.is_terminal:
            return
        now = {job.name: job for job in running}
        for name in self._tasks.keys() - now.keys():
            self.bars.remove_task(self._tasks.pop(name))
        for name, job in now.items():
            if name not in self._tasks:
                self._tasks[name] = self.bars.add_task(name, total=job.steps, note="")
            self._steps[name] = min(steps_done(job), job.steps)
            self.bars.update(self._tasks[name], completed=self._steps[name])
        self._show_all()

    def settled(self, job: Job, ending: Ending) -> None:
        self._settled += 1
        self._steps[job.name] = job.steps
        self.say(f"[{self._settled}/{self._count}] {job.name}: {ending.how}{': ' if ending.why else ''}{ending.why}")
        self._show_all()

    def _show_all(self) -> None:
        note = f"{self._settled} of {self._count} runs"
        self.bars.update(self._all, completed=sum(self._steps.values()), note=note)


def steps_done(job: Job) -> int:
    """Return the number of steps in the records of a job's runs."""
    return sum(map(_steps_recorded, (*job.earlier, job.folder)))


def _steps_recorded(folder: Path) -> int:
    """Return the number of steps in a run's records; 0 for a run that has not begun or cannot be read."""
    if not (folder / runs.CONFIG).exists():
        return 0
    try:
        return max((record.get("step", 0) for record in runs.read(folder).metrics), default=0)
    except InputError:  # reported by the sweep or by the worker
        return 0


def exit_if_unfinished(results: Sequence[Result]) -> None:
    """If runs did not finish, name them on stderr and end the command with exit status 1."""
    others = [result for result in results if not result.finished]
    if not others:
        return
    note(f"{len(others)} of {len(results)} runs did not finish:")
    for result in others:
        note(f"{result.job.name}: {result.ending.why}")
    raise typer.Exit(1)
