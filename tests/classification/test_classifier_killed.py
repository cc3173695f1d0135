"""Killed at any moment and resumed, a run ends as if nothing had happened: weights, optimizer, records."""

import os
import random
import signal
import time
from dataclasses import replace

import pytest
from training_runs import DROPOUT, SMALL, assert_same_run, process, run, status, train_and_die

from prproduct.lab import checkpoints, runs

NEVER = 10**9


def resume_once(config, folder, minutes=10.0):
    run(config, folder, resume=True, checkpoint_minutes=minutes)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small") / "whole"
    run(SMALL, folder)
    return folder


def test_killed_again_and_again_at_moments_of_writing_it_ends_as_if_never_stopped(small, tmp_path):
    """Each process dies a bit later than the one before, in the middle of config, records or checkpoints."""
    killed = 0
    for moment in random.Random(0).sample(range(1, 90), 25):
        ended = status(train_and_die, moment, SMALL, tmp_path / "run", 0.0)  # a checkpoint behind each step
        assert ended in (0, -signal.SIGKILL)
        killed += ended != 0
        for step in checkpoints.steps(tmp_path / "run" / "checkpoints"):
            checkpoints.load(tmp_path / "run" / "checkpoints", step)  # what has the name of one is a whole one
        if ended == 0:
            break
    assert killed >= 5
    run(SMALL, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", small)


@pytest.mark.parametrize("moment", range(1, 60, 4))
def test_killed_once_at_a_moment_of_writing_it_ends_as_if_never_stopped(small, tmp_path, moment):
    assert status(train_and_die, moment, SMALL, tmp_path / "run") == -signal.SIGKILL
    run(SMALL, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", small)


def test_killed_from_outside_it_ends_as_if_never_stopped(tmp_path):
    """BatchNorm's statistics, dropout and augmentation go on, too."""
    config = replace(DROPOUT, product="pr", angles=2)
    run(config, tmp_path / "whole")
    for wait in (0.5, 1.5, 1.0):
        started = process(resume_once, config, tmp_path / "run", 0.0)
        time.sleep(wait)
        os.kill(started.pid, signal.SIGKILL)
        started.join()
    run(config, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    angles = [(tmp_path / name / runs.ANGLES).read_text() for name in ("run", "whole")]
    assert angles[0] == angles[1]
    assert angles[0].count("\n") > 10
