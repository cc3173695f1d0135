"""Jobs for the tests of sweeps; workers import this file by name."""

import os
import signal
from functools import partial
from pathlib import Path

from training_runs import SMALL, run

from prproduct.lab.progress import NoSweepProgress, NoTrainingProgress
from prproduct.lab.sweep import Job


class AtStep(NoTrainingProgress):
    """Does something behind a step of a training, but only once: a file says that it was done."""

    def __init__(self, step, what, folder):
        self.left, self.what, self.done = step, what, Path(f"{folder}.done")

    def step(self, samples, loss):
        self.left -= 1
        if self.left == 0 and not self.done.exists():
            self.done.touch()
            self.what()


class Said(NoSweepProgress):
    """Keeps the lines of a sweep."""

    def __init__(self):
        self.lines = []

    def say(self, line):
        self.lines.append(line)


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def asked_to_stop():
    os.kill(os.getpid(), signal.SIGTERM)


def breaks():
    raise RuntimeError("something unforeseen")


def training(config, folder, step=None, what=None):
    """Train, with a checkpoint behind each step; behind one of them something happens, once."""
    watch = AtStep(step, what, folder) if what else None
    run(config, folder, resume=True, checkpoint_minutes=0.0, progress=watch)


def job(folder, config=SMALL, step=None, what=None):
    return Job(folder.name, folder, partial(training, config, folder, step, what), steps=21)
