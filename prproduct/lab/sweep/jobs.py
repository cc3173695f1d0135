"""A sweep: many runs, each a job; which is started next, which is tried again, and when to stop.

The sweep has no state of its own on disk: which runs are finished, and how far the others are, is read from their
folders. So it may be stopped or killed at any moment and started again.
"""

from __future__ import annotations

import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from prproduct.lab import runs
from prproduct.lab.errors import InputError
from prproduct.lab.progress import NoSweepProgress
from prproduct.lab.stopping import Stopped, StopSignals

POLL_SECONDS = 0.5  # between looks at running jobs; Ray waits as long before it sees a signal
# How an attempt at a job can end.
FINISHED = "finished"  # trained to the end
REFUSED = "refused"  # diverged, or an error that the user can mend: another attempt would end the same way
STOPPED = "stopped"  # by a signal, after writing a checkpoint
FAILED = "failed"  # by an unexpected exception, such as a GPU out of memory
DIED = "died"  # its process was killed, perhaps for want of memory


@dataclass(frozen=True)
class Job:
    """One run of a sweep: its name, its folder, and the call that trains it.

    `train` is pickled, so it is a function of a module or a `functools.partial` of one. It continues a run that was
    stopped and returns at once if the run is finished, as `train(…, resume=True)` does.
    """

    name: str
    folder: Path
    train: Callable[[], object]
    steps: int  # of the whole training, for progress bars
    earlier: tuple[Path, ...] = ()  # folders of the runs that `train` trains first; `steps` includes theirs

    @property
    def finished(self) -> bool:
        """True if its folder holds a run that was trained to the end."""
        return (self.folder / runs.CONFIG).exists() and runs.read(self.folder).finished


@dataclass(frozen=True)
class Ending:
    """How an attempt at a job ended, and the reason."""

    how: str
    why: str = ""


def attempt(job: Job) -> Ending:
    """Call `job.train()` and return how it ended; exceptions are returned, so that a worker survives them.

    >>> attempt(Job("a", Path("a"), lambda: 1 // 0, steps=1)).why.splitlines()[-1]
    'ZeroDivisionError: integer division or modulo by zero'
    """
    try:
        job.train()
    except InputError as error:
        return Ending(REFUSED, str(error))
    except KeyboardInterrupt:
        return Ending(STOPPED)
    except Exception:
        return Ending(FAILED, traceback.format_exc().strip())
    return Ending(FINISHED)


@dataclass(frozen=True)
class Result:
    """A job, how its last attempt ended, and the number of attempts; 0 if it was finished before the sweep."""

    job: Job
    ending: Ending
    attempts: int

    @property
    def finished(self) -> bool:
        """True if the run is trained to the end."""
        return self.ending.how == FINISHED


class Workers(Protocol):
    """Where jobs run: processes of this machine (`Pool`) or of a Ray cluster (`Cluster`)."""

    def room(self) -> bool:
        """Return True if another job can be started now."""
        ...

    def start(self, job: Job) -> None:
        """Start a job, and return without waiting for it."""
        ...

    def ended(self, seconds: float) -> list[tuple[Job, Ending]]:
        """Wait up to `seconds` for a job to end, and return the jobs that ended."""
        ...

    def ask_to_stop(self) -> None:
        """Ask every running job to write a checkpoint and end."""
        ...

    def close(self) -> None:
        """End all workers without waiting for their jobs."""
        ...


def sweep(
    jobs: Sequence[Job], workers: Workers, *, retries: int = 2, progress: NoSweepProgress | None = None
) -> list[Result]:
    """Run all jobs that are not finished, close the workers, and return a result for each job.

    A job whose worker died or that failed is started again up to `retries` times, and continues from its checkpoint. A
    job that diverged or was refused is not started again; the others go on. On Ctrl-C or SIGTERM all running jobs write
    a checkpoint, and `Stopped` is raised.
    """
    with StopSignals() as stop:
        try:
            return _Sweep(jobs, workers, retries, progress or NoSweepProgress(), stop).run()
        finally:
            workers.close()


class _Sweep:
    def __init__(
        self, jobs: Sequence[Job], workers: Workers, retries: int, progress: NoSweepProgress, stop: StopSignals
    ) -> None:
        for what in ("folder", "name"):
            if len({getattr(job, what) for job in jobs}) < len(jobs):
                raise InputError(f"two runs of a sweep have the same {what}")
        self.jobs, self.workers, self.retries, self.progress, self.stop = jobs, workers, retries, progress, stop
        self.attempts: Counter[str] = Counter()
        self.running: dict[str, Job] = {}
        self.endings = {job.name: ending for job in jobs if (ending := _ended_on_disk(job))}
        self.waiting = deque(job for job in jobs if job.name not in self.endings)

    def run(self) -> list[Result]:
        asked_to_stop = False
        refused = [job for job in self.jobs if job.name in self.endings and self.endings[job.name].how == REFUSED]
        self.progress.begin(self.jobs, len(self.endings) - len(refused))
        for job in refused:
            self.progress.settled(job, self.endings[job.name])
        try:
            while self.running or (self.waiting and not self.stop.asked):
                if self.stop.asked and not asked_to_stop:
                    asked_to_stop = True
                    self.progress.say(f"stopping; runs that write their checkpoints: {len(self.running)}")
                    self.workers.ask_to_stop()
                while self.waiting and not self.stop.asked and self.workers.room():
                    self.start(self.waiting.popleft())
                for job, ending in self.workers.ended(POLL_SECONDS):
                    self.end(job, ending)
                self.progress.look(self.running.values())
        finally:
            self.progress.stop()
        if self.stop.asked:
            self.progress.say("stopped; the same command goes on")
            raise Stopped("stopped; the same command goes on")
        return [Result(job, self.endings[job.name], self.attempts[job.name]) for job in self.jobs]

    def start(self, job: Job) -> None:
        self.attempts[job.name] += 1
        self.running[job.name] = job
        self.workers.start(job)

    def end(self, job: Job, ending: Ending) -> None:
        """Settle a job or queue it again; a worker that died after the last record has finished its run."""
        del self.running[job.name]
        if ending.how in (DIED, STOPPED):
            ending = _ended_on_disk(job) or ending
        if ending.how in (FINISHED, REFUSED):
            self.endings[job.name] = ending
            self.progress.settled(job, ending)
            return
        if self.stop.asked:
            return
        if ending.how == STOPPED:  # not by this sweep; machines that leave a cluster send SIGTERM
            ending = Ending(DIED, "its worker was asked to stop")
        if self.attempts[job.name] > self.retries:
            self.endings[job.name] = ending
            self.progress.settled(job, ending)
            return
        why = ending.why.splitlines()[-1] if ending.how == FAILED else ending.why
        self.progress.say(f"{job.name}: {why}; try {self.attempts[job.name] + 1} of {self.retries + 1}")
        self.waiting.appendleft(job)


def _ended_on_disk(job: Job) -> Ending | None:
    """Return how a job ended by the records in its folder, or None; a run whose records cannot be read is refused."""
    try:
        return Ending(FINISHED) if job.finished else None
    except InputError as error:
        return Ending(REFUSED, str(error))
