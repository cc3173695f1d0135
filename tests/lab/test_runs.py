"""Run folders: what is opened, what is refused, and that nothing is overwritten."""

import json
import os
import threading
from pathlib import Path

import pytest

from prproduct.lab import checkpoints, runs
from prproduct.lab.checkpoints import Checkpoint
from prproduct.lab.errors import InputError
from prproduct.lab.files import check_writable
from prproduct.lab.recording import Recorder
from prproduct.lab.runs import Run

IDENTITY = {"task": "test", "config": {"seed": 0, "recipe": {"epochs": 3, "milestones": (1, 2)}}}


def opened(folder, identity=IDENTITY, **options):
    return Run.open(folder, identity, {"threads": 1}, **options)


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_a_restart_removes_results_and_records_where_it_ran(tmp_path):
    opened(tmp_path / "a").close()
    (tmp_path / "a" / "results").mkdir()
    (tmp_path / "a" / "results" / "scores_test.json").write_text("{}")
    Run.open(tmp_path / "a", IDENTITY, {"threads": 8}, restart=True).close()
    assert not (tmp_path / "a" / "results").exists()
    assert runs.read_config(tmp_path / "a").config["environment"] == {"threads": 8}


@pytest.mark.parametrize("mark", ["kept", "lost"])
def test_a_restart_with_other_options_removes_no_checkpoints(tmp_path, mark):
    run = opened(tmp_path / "a")
    checkpoints.save(tmp_path / "a" / "checkpoints", 5, Checkpoint({}, {}, {}))
    run.checkpointed()
    run.close()
    if mark == "lost":  # as by a copy without hidden files
        (tmp_path / "a" / ".checkpointed").unlink()
    with pytest.raises(InputError, match="belongs to another configuration"):
        opened(tmp_path / "a", {**IDENTITY, "task": "other"}, restart=True)
    assert checkpoints.steps(tmp_path / "a" / "checkpoints") == [5]


def test_a_run_is_made_and_opened_again_wherever_it_was_made(tmp_path):
    opened(tmp_path / "a" / "b").close()
    again = Run.open(tmp_path / "a" / "b", IDENTITY, {"threads": 8}, resume=True)
    again.append({"event": "step", "step": 1})
    again.close()
    record = runs.read(tmp_path / "a" / "b")
    assert record.config["config"] == json.loads(json.dumps(IDENTITY["config"]))
    assert record.config["environment"] == {"threads": 1}
    assert record.metrics == ({"event": "step", "step": 1},)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"task": "other"}, "task is 'test' there and 'other' here"),
        ({"config": {"seed": 1, "recipe": IDENTITY["config"]["recipe"]}}, "seed is 0 there and 1 here"),
        ({"config": {"seed": 0, "recipe": {"epochs": 4, "milestones": (1, 2)}}}, "recipe.epochs is 3 there and 4 here"),
        ({"config": {**IDENTITY["config"], "new": 1}}, "new is None there and 1 here"),
    ],
)
@pytest.mark.parametrize("resume", [True, False])
def test_a_folder_of_another_configuration_is_refused_and_left_alone(tmp_path, change, said, resume):
    opened(tmp_path / "a").close()
    before = content(tmp_path)
    with pytest.raises(InputError, match=f"belongs to another configuration: {said}; choose another folder"):
        opened(tmp_path / "a", {**IDENTITY, **change}, resume=resume)
    assert content(tmp_path) == before


def test_a_path_that_is_not_utf_8_is_recorded_in_the_configuration(tmp_path):
    folder = tmp_path / os.fsdecode(b"\xff")
    Run.open(folder, IDENTITY, {"places": {"data_dir": str(folder)}}).close()
    assert runs.read(folder).config["environment"]["places"] == {"data_dir": str(folder)}


def test_a_run_that_is_there_is_not_begun_again(tmp_path):
    opened(tmp_path / "a").close()
    with pytest.raises(InputError, match="holds this run already; give --resume"):
        opened(tmp_path / "a")


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    for resume in (True, False):
        with pytest.raises(InputError, match=r"is no run and not empty, it holds thesis\.tex"):
            opened(tmp_path, resume=resume)
        with pytest.raises(InputError, match="is a file"):
            opened(tmp_path / "thesis.tex", resume=resume)
    assert os.listdir(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        (b"", r"a/config\.json: "),
        (b"{", r"a/config\.json: "),
        (b"[]", r"a/config\.json: "),
        (b"\xff", r"a/config\.json: "),
        (b'{"format": 2}', "a: belongs to another configuration"),
    ],
)
def test_a_broken_configuration_is_named_and_refused(tmp_path, broken, line):
    opened(tmp_path / "a").close()
    (tmp_path / "a" / "config.json").write_bytes(broken)
    with pytest.raises(InputError, match=line) as refused:
        opened(tmp_path / "a", resume=True)
    assert "\n" not in str(refused.value)
    assert (tmp_path / "a" / "config.json").read_bytes() == broken


def test_a_run_has_one_trainer_at_a_time(tmp_path):
    first = opened(tmp_path / "a")
    with pytest.raises(InputError, match="is being trained by another process"):
        opened(tmp_path / "a", resume=True)
    first.close()
    opened(tmp_path / "a", resume=True).close()


@pytest.mark.parametrize("place", ["/proc/prproduct-run", "/sys/kernel/prproduct-run", "/dev/null/run"])
def test_a_folder_that_cannot_be_made_is_one_line(place):
    with pytest.raises(InputError, match=f"{place.rsplit('/', 1)[0]}.*cannot be written") as refused:
        opened(place)
    assert "\n" not in str(refused.value)


def test_a_disk_that_is_full_is_one_line(tmp_path):
    run = opened(tmp_path / "a")
    (tmp_path / "a" / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"metrics\.jsonl: cannot be written \(No space left on device\)$"):
        run.append({"event": "step"})
    run.close()


def test_records_are_cut_to_a_checkpoints_lengths_and_lost_ones_are_noticed(tmp_path):
    run = opened(tmp_path / "a")
    run.append({"event": "step", "step": 1})
    lengths = run.records()
    run.append({"event": "step", "step": 2})
    (tmp_path / "a" / "angles.jsonl").write_text("{}\n")
    run.cut(lengths)
    assert [record["step"] for record in runs.read(tmp_path / "a").metrics] == [1]
    assert (tmp_path / "a" / "angles.jsonl").read_text() == ""
    run.cut({})
    with pytest.raises(InputError, match=r"metrics\.jsonl: has 0 bytes, at the last checkpoint it had \d+"):
        run.cut(lengths)
    run.close()


def test_a_line_that_is_being_written_is_left_out_and_a_broken_one_is_named(tmp_path):
    run = opened(tmp_path / "a")
    run.append({"event": "step", "step": 1})
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
        file.write('{"event": "st')
    assert len(runs.read(tmp_path / "a").metrics) == 1
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 2: is not a record"):
        runs.read(tmp_path / "a")
    with pytest.raises(InputError, match="give the folder of a run"):
        runs.read(tmp_path / "b")
    run.close()


def test_numbers_that_json_has_not_are_not_written(tmp_path):
    run = opened(tmp_path / "a")
    with pytest.raises(ValueError, match="JSON"):
        run.append({"event": "step", "loss": float("nan")})
    assert not (tmp_path / "a" / "metrics.jsonl").exists()
    run.close()


def test_a_disk_that_is_full_is_one_line_from_tensorboards_thread_too(tmp_path, capsys):
    run = opened(tmp_path / "a")
    recorder = Recorder(run, 0, tensorboard=True)
    thread = recorder._board.file_writer.event_writer._async_writer._worker
    thread._next_flush_time = 0  # it flushes now, and not in two minutes

    def full():
        raise OSError(28, "No space left on device")

    thread._record_writer.flush = full
    with pytest.raises(InputError, match=r"tensorboard: cannot be written \(No space left on device\)$"):  # noqa: PT012
        for step in range(1000):
            recorder.add("step", {"step": step, "loss": 1.0})
            thread._next_flush_time = 0
        recorder.close()
    thread.join(10)
    recorder._board = None
    recorder.close()
    assert capsys.readouterr().err == ""
    assert threading.excepthook is not recorder._in_a_thread
    run.close()


def test_a_recorder_that_cannot_write_leaves_the_handling_of_errors_in_threads(tmp_path):
    run, before = opened(tmp_path / "a"), threading.excepthook
    (tmp_path / "a" / "tensorboard").touch()
    with pytest.raises(InputError, match=r"tensorboard: cannot be written"):
        Recorder(run, 0, tensorboard=True)
    assert threading.excepthook is before
    run.close()


def test_checking_a_folder_leaves_nothing_there(tmp_path):
    check_writable(tmp_path / "a" / "b")
    check_writable(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file: is a file; give the name of a folder"):
        check_writable(tmp_path / "file" / "b")
    assert os.listdir(tmp_path) == ["file"]
    with pytest.raises(InputError, match=r"^/proc/a.*: cannot be written"):
        check_writable(Path("/proc/a/b"))
    with pytest.raises(InputError, match=r"^/proc: cannot be written"):  # not the name of a temporary file
        check_writable(Path("/proc"))


def test_checking_a_folder_makes_none_which_another_run_of_a_sweep_would_remove(tmp_path, monkeypatch):
    monkeypatch.setattr("os.mkdir", None)
    check_writable(tmp_path / "mlp" / "pr" / "seed-0")


def test_a_record_whose_note_on_the_angles_is_not_whole_is_passed_over(tmp_path):
    opened(tmp_path / "a").close()
    (tmp_path / "a" / "metrics.jsonl").write_text('{"event": "step", "angles": {}}\n')
    opened(tmp_path / "a", resume=True).close()
    assert len(runs.read(tmp_path / "a").metrics) == 1
