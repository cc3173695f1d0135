"""Killed at any moment and resumed, a run ends as if nothing had happened: weights, optimizer, records."""

import random
import signal

import pytest
from training_runs import DROPOUT, SMALL, assert_same_run, run, status, train_and_die, train_with_little_space

from prproduct.lab import checkpoints


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small") / "whole"
    run(SMALL, folder)
    return folder


@pytest.mark.slow
def test_killed_again_and_again_at_moments_of_writing_it_ends_as_if_never_stopped(small, tmp_path):
    """Each process dies a bit later than the one before, in the middle of config, records or checkpoints."""
    killed = 0
    for moment in random.Random(0).sample(range(1, 60), 8):
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


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(1, 60, 4))
def test_killed_once_at_a_moment_of_writing_it_ends_as_if_never_stopped(small, tmp_path, moment):
    assert status(train_and_die, moment, SMALL, tmp_path / "run") == -signal.SIGKILL
    run(SMALL, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", small)


@pytest.mark.slow
@pytest.mark.parametrize("moment", [37, 61])
def test_dropout_batch_statistics_and_augmentation_go_on_in_the_middle_of_an_epoch(tmp_path, moment):
    run(DROPOUT, tmp_path / "whole")
    assert status(train_and_die, moment, DROPOUT, tmp_path / "run", 0.0) == -signal.SIGKILL
    assert checkpoints.steps(tmp_path / "run" / "checkpoints")[-1] % 3  # steps in an epoch
    run(DROPOUT, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("file", ["config.json", "metrics.jsonl", "checkpoints/step-00000021/model.safetensors"])
def test_a_disk_that_is_full_ends_it_in_one_line_and_it_goes_on_when_there_is_room(small, tmp_path, file):
    room = (small / file).stat().st_size - 100
    assert status(train_with_little_space, SMALL, tmp_path / "run", room) == 3
    run(SMALL, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", small)
