"""The driver of a sweep: which job is next, which is tried again, and when to stop.

It keeps nothing of its own: what is finished, and how far the others are, stands in the folders of the runs. So it may
be stopped or killed at any moment and started again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Protocol

from prproduct.lab.engine import Stopped
from prproduct.lab.errors import InputError
from prproduct.lab.stopping import StopSignals
from prproduct.lab.sweep.jobs import DIED, FAILED, FINISHED, REFUSED, STOPPED, Ending, Job, Result
from prproduct.lab.sweep.progress import Silent

POLL_SECONDS = 0.5


class Workers(Protocol):
    """What runs jobs, elsewhere: processes of this machine, or of a cluster."""

    def room(self) -> bool:
        """Whether another job can be started now."""
        ...

    def start(self, job: Job) -> None:
        """Begin with a job."""
        ...

    def ended(self, seconds: float) -> list[tuple[Job, Ending]]:
        """The jobs that came to an end; waits for one, but not longer than this."""
        ...

    def ask_to_stop(self) -> None:
        """Have every running job write its checkpoint and end."""
        ...

    def close(self) -> None:
        """End all workers, at once."""
        ...


def sweep(jobs: Sequence[Job], workers: Workers, *, retries: int = 2, progress: Silent | None = None) -> list[Result]:
    """Run all jobs whose runs are not finished, and say what became of each; the workers are closed.

    A job whose worker died is started again, up to `retries` times, and goes on from its checkpoint. One that diverged
    or was refused is not, and the others go on. Ctrl-C or SIGTERM has all running ones write their checkpoints, and
    raises `Stopped`.
    """
    with StopSignals() as stop:
        try:
            return _Sweep(jobs, workers, retries, progress or Silent(), stop).run()
        finally:
            workers.close()


class _Sweep:
    def __init__(
        self, jobs: Sequence[Job], workers: Workers, retries: int, progress: Silent, stop: StopSignals
    ) -> None:
        if len({job.folder for job in jobs}) < len(jobs):
            raise InputError("two runs of a sweep have the same folder")
        self.jobs, self.workers, self.retries, self.progress, self.stop = jobs, workers, retries, progress, stop
        self.attempts: Counter[str] = Counter()
        self.running: dict[str, Job] = {}
        self.endings = {job.name: ending for job in jobs if (ending := _ended_before(job))}
        self.waiting = deque(job for job in jobs if job.name not in self.endings)

    def run(self) -> list[Result]:
        asked = False
        self.progress.begin(self.jobs, len(self.endings))
        try:
            while self.running or (self.waiting and not self.stop.asked):
                if self.stop.asked and not asked:
                    asked = True
                    self.progress.say(f"stopping; runs that write their checkpoints: {len(self.running)}")
                    self.workers.ask_to_stop()
                while self.waiting and not self.stop.asked and self.workers.room():
                    self.start(self.waiting.popleft())
                for job, ending in self.workers.ended(POLL_SECONDS):
                    self.end(job, ending)
                self.progress.look(self.running.values())
        finally:
            self.progress.end()
        if self.stop.asked:
            self.progress.say("stopped; the same command goes on")
            raise Stopped("stopped; the same command goes on")
        return [Result(job, self.endings[job.name], self.attempts[job.name]) for job in self.jobs]

    def start(self, job: Job) -> None:
        self.attempts[job.name] += 1
        self.running[job.name] = job
        self.workers.start(job)

    def end(self, job: Job, ending: Ending) -> None:
        """Settle a job, or try it again. What the folder says counts: a worker may die behind the last record."""
        del self.running[job.name]
        if ending.how in (DIED, STOPPED) and job.finished:
            ending = Ending(FINISHED)
        if ending.how in (FINISHED, REFUSED):
            self.endings[job.name] = ending
            self.progress.settled(job, ending)
            return
        if self.stop.asked:
            return
        if ending.how == STOPPED:  # by somebody else: whoever ends a machine of a cluster asks like this
            ending = Ending(DIED, "its worker was asked to stop")
        if self.attempts[job.name] > self.retries:
            self.endings[job.name] = ending
            self.progress.settled(job, ending)
            return
        why = ending.why.splitlines()[-1] if ending.how == FAILED else ending.why
        self.progress.say(f"{job.name}: {why}; try {self.attempts[job.name] + 1} of {self.retries + 1}")
        self.waiting.appendleft(job)


def _ended_before(job: Job) -> Ending | None:
    """How a job ended before the sweep began, if it did; one whose records cannot be read is refused, not the sweep."""
    try:
        return Ending(FINISHED) if job.finished else None
    except InputError as error:
        return Ending(REFUSED, str(error))
