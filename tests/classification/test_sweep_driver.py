"""The driver of a sweep, with workers that only pretend: which job is next, which is tried again, what is reported."""

import io
import signal
import socket
from collections import deque
from dataclasses import replace

import pytest
from rich.console import Console
from sweep_jobs import Said, job
from training_runs import SMALL

from prproduct import cli
from prproduct.classification.data import load
from prproduct.lab import runs
from prproduct.lab.errors import InputError
from prproduct.lab.stopping import Stopped
from prproduct.lab.sweep import Ending, Job, Plan, sweep
from prproduct.lab.sweep.jobs import DIED, FAILED, FINISHED, REFUSED, STOPPED, attempt
from prproduct.lab.sweep.progress import SweepProgress, steps_done


class Pretended:
    """Workers whose jobs end as a script says, in the order in which they were started."""

    def __init__(self, script, places=2):
        self.script, self.places = {name: deque(endings) for name, endings in script.items()}, places
        self.running, self.started, self.asked, self.closed = [], [], False, False

    def room(self):
        return len(self.running) < self.places

    def start(self, job):
        assert self.room()
        self.started.append(job.name)
        self.running.append(job)

    def ended(self, seconds):
        job = self.running.pop(0)
        ending = self.script[job.name].popleft()
        return [(job, ending() if callable(ending) else ending)]

    def ask_to_stop(self):
        self.asked = True

    def close(self):
        self.closed = True


def jobs(tmp_path, *names):
    return [Job(name, tmp_path / name, print, steps=1) for name in names]


def finish(tmp_path, name):
    with_end = runs.Run.open(tmp_path / name, {}, {}, resume=True)
    with_end.append({"event": "end", "step": 1})
    with_end.close()
    return Ending(FINISHED)


def test_a_job_whose_worker_died_is_tried_again_before_others_and_not_more_often_than_said(tmp_path):
    dead = Ending(DIED, "SIGKILL")
    workers, said = Pretended({"a": [dead, dead, dead], "b": [Ending(FINISHED)], "c": [Ending(FINISHED)]}, 1), Said()
    results = sweep(jobs(tmp_path, "a", "b", "c"), workers, retries=2, progress=said)
    assert workers.started == ["a", "a", "a", "b", "c"]
    assert [(r.ending, r.attempts) for r in results] == [(dead, 3), (Ending(FINISHED), 1), (Ending(FINISHED), 1)]
    assert said.lines == ["a: SIGKILL; try 2 of 3", "a: SIGKILL; try 3 of 3"]
    assert workers.closed


def test_an_error_nobody_foresaw_is_tried_again_and_said_in_one_line(tmp_path):
    workers = Pretended({"a": [Ending(FAILED, "Traceback\nMemoryError: full"), Ending(FINISHED)]})
    said = Said()
    (result,) = sweep(jobs(tmp_path, "a"), workers, retries=1, progress=said)
    assert result.finished
    assert said.lines == ["a: MemoryError: full; try 2 of 2"]


def test_what_was_refused_is_not_tried_again_and_the_others_go_on(tmp_path):
    workers = Pretended({"a": [Ending(REFUSED, "diverged")], "b": [Ending(FINISHED)]})
    results = sweep(jobs(tmp_path, "a", "b"), workers)
    assert [r.finished for r in results] == [False, True]
    assert results[0].ending.why == "diverged"
    assert workers.started == ["a", "b"]


def test_finished_runs_are_not_started(tmp_path):
    finish(tmp_path, "a")
    workers = Pretended({"b": [Ending(FINISHED)]})
    results = sweep(jobs(tmp_path, "a", "b"), workers)
    assert workers.started == ["b"]
    assert [(r.finished, r.attempts) for r in results] == [(True, 0), (True, 1)]


def test_a_worker_that_died_behind_the_last_record_finished_its_run(tmp_path):
    workers = Pretended({"a": [lambda: finish(tmp_path, "a") and Ending(DIED, "SIGKILL")]})
    (result,) = sweep(jobs(tmp_path, "a"), workers)
    assert result.finished
    assert result.attempts == 1


def spoil(tmp_path, name):
    finish(tmp_path, name)
    (tmp_path / name / "metrics.jsonl").write_text("no record\n")
    return Ending(DIED, "SIGKILL")


def test_a_worker_that_died_and_left_unreadable_records_does_not_end_the_other_runs(tmp_path):
    workers = Pretended({"a": [lambda: spoil(tmp_path, "a")], "b": [Ending(FINISHED)]})
    first, second = sweep(jobs(tmp_path, "a", "b"), workers)
    assert (first.ending.how, first.attempts, second.finished) == (REFUSED, 1, True)
    assert "line 1: is not a record of a run" in first.ending.why


def test_a_run_whose_records_cannot_be_read_is_not_said_to_be_finished(tmp_path):
    spoil(tmp_path, "a")
    finish(tmp_path, "b")
    stream = io.StringIO()
    shown = SweepProgress(Console(file=stream, width=400))
    sweep(jobs(tmp_path, "a", "b", "c"), Pretended({"c": [Ending(FINISHED)]}), progress=shown)
    before, refused, finished = stream.getvalue().splitlines()
    assert before == "1 of 3 runs were finished before"
    assert refused.startswith("[2/3] a: refused: ")
    assert finished == "[3/3] c: finished"


def test_a_run_that_somebody_else_stopped_is_tried_again(tmp_path):
    workers = Pretended({"a": [Ending(STOPPED), Ending(FINISHED)]})
    (result,) = sweep(jobs(tmp_path, "a"), workers)
    assert result.finished
    assert result.attempts == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_running_ones_and_starts_no_other(tmp_path, number):
    def pressed():
        signal.raise_signal(number)
        return Ending(FINISHED)

    workers, said = Pretended({"a": [pressed], "b": [Ending(STOPPED)], "c": []}), Said()
    with pytest.raises(Stopped, match="the same command goes on"):
        sweep(jobs(tmp_path, "a", "b", "c"), workers, progress=said)
    assert workers.started == ["a", "b"]
    assert workers.asked
    assert workers.closed
    assert said.lines == ["stopping; runs that write their checkpoints: 1", "stopped; the same command goes on"]


@pytest.fixture
def ctrl_c():
    """Python's own handling of it, also where the tests run in the background, and it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_ctrl_c_does_not_wait(tmp_path):
    def pressed():
        signal.raise_signal(signal.SIGINT)
        return Ending(FINISHED)

    workers = Pretended({"a": [pressed], "b": [pressed], "c": []})
    with pytest.raises(KeyboardInterrupt) as end:
        sweep(jobs(tmp_path, "a", "b", "c"), workers)
    assert not isinstance(end.value, Stopped)
    assert workers.closed


def test_two_runs_of_one_folder_or_name_are_refused(tmp_path):
    (one,) = jobs(tmp_path, "a")
    with pytest.raises(InputError, match="the same folder"):
        sweep([one, replace(one, name="b")], Pretended({}))
    with pytest.raises(InputError, match="the same name"):
        sweep([one, replace(one, folder=tmp_path / "b")], Pretended({}))


def test_no_jobs_are_no_work(tmp_path):
    assert sweep([], Pretended({})) == []


def test_a_run_that_another_process_trains_is_refused_in_one_line(tmp_path):
    """Two drivers on one folder do no harm."""
    other = runs.Run.open(tmp_path / "a", SMALL.identity(load("digits")), {})
    ending = attempt(job(tmp_path / "a"))
    other.close()
    assert ending == Ending(REFUSED, f"{tmp_path / 'a'}: is being trained by another process")


def on_a_terminal(tmp_path, script):
    """What the driver shows where stderr is a terminal."""
    stream = io.StringIO()
    shown = SweepProgress(Console(file=stream, force_terminal=True, width=120))
    sweep(jobs(tmp_path, *script), Pretended(script, places=1), progress=shown, retries=1)
    return stream.getvalue()


def test_a_terminal_shows_how_far_each_run_and_all_of_them_are(tmp_path):
    begun = runs.Run.open(tmp_path / "begun", {}, {})
    begun.append({"event": "step", "step": 1})
    begun.close()
    shown = on_a_terminal(tmp_path, {"begun": [Ending(DIED, "SIGKILL"), Ending(FINISHED)], "b": [Ending(FINISHED)]})
    assert "begun: SIGKILL; try 2 of 2" in shown
    assert "[1/2] begun: finished" in shown
    assert "[2/2] b: finished" in shown
    assert "all runs" in shown
    assert "2 of 2 runs" in shown


def test_progress_is_read_from_the_records_of_a_run(tmp_path):
    (one,) = jobs(tmp_path, "a")
    assert steps_done(one) == 0
    run = runs.Run.open(tmp_path / "a", {}, {})
    assert steps_done(one) == 0
    run.append({"event": "step", "step": 50})
    run.append({"event": "epoch", "step": 63})
    run.close()
    assert steps_done(one) == 63
    assert steps_done(Job("b", tmp_path / "b", print, steps=1, earlier=(tmp_path / "a",))) == 63


def test_a_ray_cluster_that_is_not_there_is_one_line_before_anything_starts(tmp_path, capsys, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"  # nobody listens
    for words in ([address], [f"ray://{address}"]):
        with pytest.raises(SystemExit) as end:
            cli.main(["reproduce", "gradients", "--data", "digits", "-o", str(tmp_path / "a"), "--ray", *words])
        assert end.value.code == 2
        said = capsys.readouterr().err
        assert f"Ray at {words[0]}: cannot be reached" in said
        assert said.count("\n") == 1
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InputError, match="cannot be reached"):
        Plan(ray=True).open(1)
    assert not (tmp_path / "a").exists()


def test_an_output_folder_that_cannot_be_written_is_refused_before_anything_starts(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["reproduce", "gradients", "--data", "digits", "-o", "/proc/runs"])
    assert end.value.code == 2
    assert capsys.readouterr().err == "prproduct: /proc/runs: cannot be written (No such file or directory)\n"
