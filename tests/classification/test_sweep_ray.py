"""A sweep on a local Ray cluster with two workers: one is killed in the middle, and all runs come out right."""

import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from sweep_jobs import Said, job, killed
from training_runs import SMALL, assert_same_run, run

from prproduct.lab import checkpoints, runs
from prproduct.lab.errors import InputError
from prproduct.lab.stopping import Stopped
from prproduct.lab.sweep import Plan, sweep

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'prproduct[ray]'")
pytestmark = pytest.mark.slow

PR = replace(SMALL, product="pr")


@pytest.fixture(scope="module")
def cluster():
    here = Path(__file__).parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{here}{os.pathsep}{here.parents[1]}")  # workers import the jobs by name
        patch.setenv("RAY_worker_niceness", "0")  # other tests run beside this one
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def open_workers(jobs=2):
    return Plan(ray=True).open(jobs)


def test_a_run_whose_worker_was_killed_ends_as_if_nothing_had_happened(cluster, tmp_path):
    wanted = [
        job(tmp_path / "killed", PR, 11, killed),
        job(tmp_path / "diverges", replace(PR, learning_rate=1e30)),
        job(tmp_path / "whole", PR),
    ]
    workers, said = open_workers(), Said()
    assert str(workers) == "Ray cluster of 2 CPUs and 0 GPUs, a run takes 1 and 0"
    dead, diverged, whole = sweep(wanted, workers, progress=said)
    assert (dead.finished, dead.attempts) == (True, 2)
    assert len(said.lines) == 1
    assert said.lines[0].startswith("killed: its worker died (")
    assert said.lines[0].endswith("; try 2 of 3")
    assert (diverged.finished, diverged.attempts) == (False, 1)
    assert "is NaN or infinite" in diverged.ending.why
    assert (whole.finished, whole.attempts) == (True, 1)
    run(PR, tmp_path / "undisturbed")
    assert_same_run(tmp_path / "killed", tmp_path / "undisturbed")
    assert_same_run(tmp_path / "whole", tmp_path / "undisturbed")


def test_a_driver_that_is_stopped_leaves_a_checkpoint_and_goes_on(cluster, tmp_path):
    long = replace(PR, epochs=60)  # some seconds: the driver sees the signal within half a second
    wanted = [job(tmp_path / "run", long), job(tmp_path / "waits", long)]
    place = tmp_path / "run" / runs.CHECKPOINTS

    def press():
        while not checkpoints.steps(place):
            time.sleep(0.005)
        signal.raise_signal(signal.SIGTERM)

    pressing = threading.Thread(target=press, daemon=True)
    pressing.start()
    with pytest.raises(Stopped):
        sweep(wanted, Plan(ray=True, workers=1).open(2))
    pressing.join()
    assert not (tmp_path / "waits").exists()
    assert not runs.read(tmp_path / "run").finished
    (result,) = sweep(wanted[:1], open_workers())
    assert result.finished
    run(long, tmp_path / "undisturbed")
    assert_same_run(tmp_path / "run", tmp_path / "undisturbed")


def test_runs_that_need_more_than_the_cluster_has_wait_and_it_is_said(cluster):
    workers = Plan(ray=True, threads=3, gpus_per_run=0.5).open(1)
    assert str(workers).endswith("a run takes 3 and 0.5: they wait until a machine with so many joins it")


def test_the_address_of_a_cluster_is_taken(cluster):
    Plan(ray=True).check(ray.get_runtime_context().gcs_address)


def test_a_cluster_that_is_not_there_is_one_line(monkeypatch):
    def unreachable(**given):
        raise ConnectionError(f"Failed to connect to {given['address']}\nmore")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", unreachable)
    with pytest.raises(InputError, match=r"^Ray at auto: cannot be reached \(Failed to connect to [^\n]*\)$"):
        Plan(ray=True).open(1, "auto")


def test_without_ray_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'prproduct\[ray\]'"):
        Plan(ray=True).open(1)
