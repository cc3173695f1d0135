"""A job is one run of a sweep: its folder, and the call that trains it. It comes to an end in one of five ways."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prproduct.lab import runs
from prproduct.lab.errors import InputError

FINISHED = "finished"  # trained to the end
REFUSED = "refused"  # diverged, or something that the user can mend: another try would end alike
STOPPED = "stopped"  # asked to stop, with a checkpoint
FAILED = "failed"  # an error that nobody foresaw, memory of a GPU among them
DIED = "died"  # the process is gone, killed or out of memory


@dataclass(frozen=True)
class Job:
    """One run of a sweep. `train` is pickled: a function of a module, or a `functools.partial` of one.

    It goes on with the run where it was, and leaves a finished one as it is, as `train(…, resume=True)` does.
    """

    name: str
    folder: Path
    train: Callable[[], object]
    steps: int  # of the whole training, to show how far it is

    @property
    def finished(self) -> bool:
        """Whether its folder holds a run that was trained to the end."""
        return (self.folder / runs.CONFIG).exists() and runs.read(self.folder).finished


@dataclass(frozen=True)
class Ending:
    """How an attempt at a job came to its end, and why."""

    how: str
    why: str = ""


def attempt(job: Job) -> Ending:
    """Train, in a worker; whatever happens is told, so that the worker can go on with another job.

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
    """What became of a job: how its last attempt ended, and how many there were; none if it was finished before."""

    job: Job
    ending: Ending
    attempts: int

    @property
    def finished(self) -> bool:
        """Whether the run is trained to the end, now or before."""
        return self.ending.how == FINISHED
