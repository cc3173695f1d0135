"""A sweep on two processes, in which everything happens that can; and how cores and GPUs are divided."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from sweep_jobs import Said, asked_to_stop, breaks, job, killed
from training_runs import SMALL, assert_same_run, run

from prproduct.lab.errors import InputError
from prproduct.lab.record_files import ANGLES
from prproduct.lab.sweep import Plan, plan, sweep
from prproduct.lab.sweep.pool import Pool

PR = replace(SMALL, product="pr", angles=4)


def content(folder):
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """One sweep for several tests: starting a process takes seconds."""
    here = tmp_path_factory.mktemp("sweep")
    run(SMALL, here / "finished")
    before = content(here / "finished")
    wanted = [
        job(here / "killed", PR, 11, killed),
        job(here / "diverges", replace(PR, learning_rate=1e30)),
        job(here / "finished"),
        job(here / "stopped", PR, 5, asked_to_stop),
        job(here / "breaks", PR, 5, breaks),
        job(here / "another", PR),
        job(here / "whole", PR),
    ]
    wanted[5].folder.mkdir()
    (wanted[5].folder / "letter.txt").write_text("mine")
    said = Said()
    results = sweep(wanted, Pool(places=2, threads=1), progress=said)
    return SimpleNamespace(
        here=here, before=before, said=said.lines, results={result.job.name: result for result in results}
    )


@pytest.mark.slow
def test_a_run_whose_process_was_killed_ends_as_if_nothing_had_happened(swept):
    assert swept.results["killed"].attempts == 2
    assert "killed: its worker died (SIGKILL, as when memory is full); try 2 of 3" in swept.said
    run(PR, swept.here / "undisturbed")
    assert_same_run(swept.here / "killed", swept.here / "undisturbed")
    assert_same_run(swept.here / "whole", swept.here / "undisturbed")
    angles = [(swept.here / name / ANGLES).read_text() for name in ("killed", "undisturbed")]
    assert angles[0] == angles[1]


@pytest.mark.slow
def test_a_run_that_diverges_is_reported_and_not_tried_again(swept):
    result = swept.results["diverges"]
    assert not result.finished
    assert result.attempts == 1
    assert "is NaN or infinite" in result.ending.why


@pytest.mark.slow
def test_a_finished_run_is_not_touched(swept):
    assert swept.results["finished"].attempts == 0
    assert content(swept.here / "finished") == swept.before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stopped", "breaks"])
def test_a_worker_that_was_asked_to_stop_or_failed_is_tried_again_from_its_checkpoint(swept, name):
    assert swept.results[name].finished
    assert swept.results[name].attempts == 2
    assert_same_run(swept.here / name, swept.here / "whole")


@pytest.mark.slow
def test_an_error_that_the_user_can_mend_is_reported_and_the_rest_goes_on(swept):
    assert swept.results["another"].attempts == 1
    assert "is no run and not empty, it holds letter.txt" in swept.results["another"].ending.why
    assert (swept.here / "another" / "letter.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("given", "jobs", "places", "threads"),
    [
        (Plan(), 100, 8, 1),
        (Plan(), 3, 3, 2),
        (Plan(), 1, 1, 8),
        (Plan(workers=4), 2, 4, 2),
        (Plan(workers=20), 100, 20, 1),
        (Plan(threads=4), 100, 2, 4),
        (Plan(threads=100), 100, 1, 100),
    ],
)
def test_the_cores_are_divided_among_the_workers(monkeypatch, given, jobs, places, threads):
    monkeypatch.setattr(plan, "cores", lambda: 8)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    pool = given.open(jobs)
    assert (pool.places, pool.threads, pool.gpus) == (places, threads, [""] * places)


@pytest.mark.parametrize(
    ("share", "gpus"), [(None, ["0", "1"]), (1, ["0", "1"]), (0.5, ["0", "1", "0", "1"]), (0, [""] * 8)]
)
def test_each_worker_sees_its_gpu_alone(monkeypatch, share, gpus):
    monkeypatch.setattr(plan, "cores", lambda: 8)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert Plan(gpus_per_run=share).open(100).gpus == gpus


@pytest.mark.parametrize("share", [1, 0.5])
def test_workers_get_the_gpus_that_the_user_allows(monkeypatch, share):
    monkeypatch.setattr(plan, "cores", lambda: 8)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-8932f937,-1,0")  # CUDA ignores what stands behind -1
    assert Plan(gpus_per_run=share).open(100).gpus == ["3", "GPU-8932f937"] * int(1 / share)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"workers": 0}, "workers is 0, it must be at least 1"),
        ({"threads": 0}, "threads is 0, it must be from 1 to 1024"),
        ({"retries": -1}, "retries is -1, it must be at least 0"),
        ({"gpus_per_run": 2}, "gpus_per_run is 2, it must be from 0 to 1: a run has one device"),
        ({"gpus_per_run": 1}, "gpus_per_run is 1, but there is no GPU here"),
    ],
)
def test_a_plan_that_cannot_be_is_one_line(monkeypatch, given, line):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(InputError, match=line):
        Plan(**given).open(1)


def test_an_address_without_ray_is_noticed():
    with pytest.raises(InputError, match=r"10\.0\.0\.1:6379: is taken for the address of a Ray cluster"):
        Plan().open(1, "10.0.0.1:6379")
