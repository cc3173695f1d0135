"""Progress on stderr: bars where stderr is a terminal, and a line for each event that matters.

A command with one loop uses `progress_bar`. The engine calls the methods of `NoTrainingProgress` at the events of a
training, and a sweep those of `NoSweepProgress`; both do nothing. `TrainingProgress` shows a training,
`sweep.progress.SweepProgress` a sweep. No line or name is read as Rich's markup.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from prproduct.lab.sweep.jobs import Ending, Job

_SHOWN = ("error", "train_loss", "train_reward", "cider")  # endings of the names in an epoch's record that are shown


def note(line: str) -> None:
    """Print a line of the program on stderr."""
    print(f"prproduct: {line}", file=sys.stderr, flush=True)


def counted(number: int, what: str) -> str:
    """Return a number of things in words.

    >>> counted(1, "run"), counted(1200, "step")
    ('1 run', '1,200 steps')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


@contextmanager
def progress_bar(name: str = "", total: int | None = None, *, hidden: bool = False) -> Iterator[Callable[..., None]]:
    """A bar on stderr until the block ends, if stderr is a terminal.

    It yields Rich's `Progress.update` of this bar: `update(advance=1)`, `update(completed=5, description="another")`.
    """
    with _bars(Console(stderr=True), MofNCompleteColumn(), hidden=hidden, transient=True) as bars:
        yield partial(bars.update, bars.add_task(name, total=total))


def _bars(console: Console, *columns: ProgressColumn, hidden: bool = False, transient: bool = False) -> Progress:
    """Bars with a name, these columns, and times; none if the console is no terminal."""
    times = (
        TextColumn("elapsed"),
        TimeElapsedColumn(),
        TextColumn("remaining"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    name = TextColumn("{task.description}", markup=False)
    shown = (name, BarColumn(), *columns, *times)
    hidden = hidden or not console.is_terminal
    # What is printed on stdout stays there, as in a file: Rich would move it to this console.
    return Progress(*shown, console=console, disable=hidden, transient=transient, redirect_stdout=False)


class NoProgress:
    """Shows nothing."""

    def say(self, line: str) -> None:
        """Show a line."""

    def stop(self) -> None:
        """End of the training or the sweep: remove the bars."""


class NoTrainingProgress(NoProgress):
    """Shows nothing of a training; the base class of what shows it."""

    def start(self, name: str, done: int, steps: int) -> None:
        """Start of a training of `steps` steps, of which `done` are done."""

    def step(self, samples: int, loss: float) -> None:
        """End of a training step of `samples` samples with mean loss `loss`."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """End of an epoch with this record in metrics.jsonl."""


class NoSweepProgress(NoProgress):
    """Shows nothing of a sweep; the base class of what shows it."""

    def begin(self, jobs: Sequence[Job], finished: int) -> None:
        """Start of a sweep of `jobs`, of which `finished` are finished already."""

    def look(self, running: Iterable[Job]) -> None:
        """Called repeatedly during a sweep with the jobs that are running."""

    def settled(self, job: Job, ending: Ending) -> None:
        """End of a job that will not be tried again."""


class Bars(NoProgress):
    """A console on stderr, and rich's progress bars on it if it is a terminal."""

    def __init__(self, *columns: ProgressColumn, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.bars = _bars(self.console, *columns)

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def stop(self) -> None:
        self.bars.stop()


class TrainingProgress(Bars, NoTrainingProgress):
    """The progress of a training: steps, loss, samples per second, time left, and a line for each epoch."""

    def __init__(self, samples: str = "samples", console: Console | None = None) -> None:
        """`samples` is what a sample is called: "images", "captions"."""
        super().__init__(MofNCompleteColumn(), TextColumn("{task.fields[speed]}"), console=console)
        self.samples = samples
        self._task = self.bars.add_task("", speed="", total=None)
        self._steps_done = self._samples_done = 0

    def start(self, name: str, done: int, steps: int) -> None:
        self.bars.update(self._task, description=name, total=steps, completed=done)
        self.bars.start()

    def step(self, samples: int, loss: float) -> None:
        self._steps_done, self._samples_done = self._steps_done + 1, self._samples_done + samples
        steps_a_second = self.bars.tasks[0].speed or 0.0  # Rich's, over its last 30 seconds
        rate = steps_a_second * self._samples_done / self._steps_done
        speed = f"loss {loss:.4f}  {rate:,.0f} {self.samples}/s"
        self.bars.update(self._task, description="training", advance=1, speed=speed)

    def epoch(self, record: Mapping[str, Any]) -> None:
        numbers = (
            f"{name.replace('_', ' ')} {100 * value:.2f} %"
            if name.endswith("error")
            else f"{name.replace('_', ' ')} {value:.4f}"
            for name, value in record.items()
            if name.endswith(_SHOWN)
        )
        speed = f"{record['time']['samples_per_second']:,.0f} {self.samples}/s"
        self.say(f"epoch {record['epoch'] + 1}: {', '.join(numbers)}, {speed}")
