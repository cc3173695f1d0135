"""The driver of a sweep is stopped or killed, as a user does it, and started again."""

import os
import signal
import time
from pathlib import Path

import pytest
from training_runs import assert_same_run, process, run

from prproduct import cli
from prproduct.classification import reproduce_command
from prproduct.classification.training import ClassifierConfig
from prproduct.lab import checkpoints, runs

CONFIG = ClassifierConfig(arch="mlp-2-8", data="digits", product="p", epochs=60, batch_size=1298, angles=10)
WORDS = ["reproduce", "gradients", "--data", "digits", "--arch", "mlp-2-8", "--product", "p", "--epochs", "60"]
WORDS += ["--batch-size", "1298", "--seeds", "2", "--threads", "1", "--accelerator", "cpu", "-o"]


def drive(folder, workers):
    os.setpgid(0, 0)  # as a shell does
    cli.main([*WORDS, str(folder), "--workers", str(workers)])


def children(parent):
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, above, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            if int(above) == parent and state != "Z":
                found.append(entry)
    return found


def wait_for(condition, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.005)


def places(folder):
    return [folder / "digits" / "mlp-2-8" / "p" / f"seed-{seed}" for seed in (0, 1)]


def steps(folder):
    return [checkpoints.steps(place / runs.CHECKPOINTS) for place in places(folder)]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_stopped_by_ctrl_c_and_by_sigkill_and_started_again_it_ends_as_if_nothing_had_happened(
    tmp_path, capsys, monkeypatch, request
):
    folder = tmp_path / "sweep"
    for number, workers in ((signal.SIGINT, 2), (signal.SIGKILL, 1)):
        before = steps(folder)
        driver = process(drive, folder, workers)
        request.addfinalizer(driver.kill)
        wait_for(lambda before=before: steps(folder) != before)
        left = children(driver.pid)
        assert left
        if number == signal.SIGINT:
            os.killpg(driver.pid, number)  # as a terminal does: the workers must not take it for a second one
        else:
            os.kill(driver.pid, number)
        driver.join()
        assert driver.exitcode == (-number if number == signal.SIGKILL else 130)
        wait_for(lambda left=left: not any(worker.exists() for worker in left), 600 if number == signal.SIGKILL else 5)
        for place, found in zip(places(folder), steps(folder), strict=True):
            records = runs.read(place).metrics if found else ()
            assert not records or records[-1]["step"] <= found[-1], "the last step has no checkpoint"
    assert not all(runs.read(place).finished for place in places(folder) if place.exists())

    written = []
    monkeypatch.setattr(reproduce_command, "write", lambda *given: written.append(given))
    with pytest.raises(SystemExit) as end:
        cli.main([*WORDS, str(folder), "--workers", "1"])
    assert end.value.code == 0
    assert written == [(places(folder), folder / "report.html")]
    assert "[2/2]" in capsys.readouterr().err
    run(CONFIG, tmp_path / "whole")
    assert_same_run(places(folder)[0], tmp_path / "whole")
