"""Progress of a training on stderr: a bar where that is a terminal, and a line for each epoch."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_SHOWN = ("error", "train_loss", "train_reward", "cider")  # of an epoch's record, by the ends of their names


class Silent:
    """Shows nothing; what the engine tells about its progress."""

    def start(self, name: str, done: int, steps: int) -> None:
        """A training of `steps` steps begins behind the first `done`."""

    def step(self, samples: int, loss: float) -> None:
        """A step is done, of so many samples."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """An epoch is done; its record."""

    def say(self, line: str) -> None:
        """Something else happened."""

    def stop(self) -> None:
        """The training is over."""


class Terminal(Silent):
    """Steps, samples a second by their name, time left; and what each epoch gave."""

    def __init__(self, samples: str = "samples", console: Console | None = None) -> None:
        self.samples, self.console = samples, console or Console(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TextColumn("elapsed"),
            TimeElapsedColumn(),
            TextColumn("remaining"),
            TimeRemainingColumn(elapsed_when_finished=False),
        )
        self._bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self._task = self._bar.add_task("", speed="", total=None)
        self._rate = _Rate()

    def start(self, name: str, done: int, steps: int) -> None:
        self._bar.update(self._task, description=name, total=steps, completed=done)
        self._bar.start()

    def step(self, samples: int, loss: float) -> None:
        speed = f"loss {loss:.4f}  {self._rate.after(samples):,.0f} {self.samples}/s"
        self._bar.update(self._task, description="training", advance=1, speed=speed)

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

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def stop(self) -> None:
        self._bar.stop()


class _Rate:
    """Samples a second, over about the last ten seconds."""

    def __init__(self) -> None:
        self._seen = deque([(time.perf_counter(), 0)])  # moments, and the samples up to them

    def after(self, samples: int) -> float:
        now, before = time.perf_counter(), self._seen[-1][1]
        self._seen.append((now, before + samples))
        while len(self._seen) > 2 and now - self._seen[0][0] > 10:
            self._seen.popleft()
        began, already = self._seen[0]
        return (before + samples - already) / max(now - began, 1e-9)
