"""Files of a run that are not what they should be: one line that names the file, nothing changed, others reported."""

import json
import os

import pytest
from made_runs import made_run
from test_train_command import QUICK, interrupted, typed

from prproduct.cli import main
from prproduct.lab.errors import InputError

DEEP = "[" * 100_000 + "]" * 100_000


def replaced(path, how):
    """Put something else in a file's place."""
    if path.is_dir():
        path.rename(path.with_name("moved"))
    else:
        path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "not UTF-8":
        path.write_bytes(b'{"event": "epoch", "step": 1, "what": "\xff\xfe"}\n')
    elif how == "deep":
        path.write_text(f'{{"event": "step", "a": {DEEP}}}\n')
    elif how == "wrong keys":
        path.write_text('{"event": 5, "step": "x", "format": 1, "task": 3, "config": [], "state": {}, "sha256": {}}\n')
    elif how == "large number":
        path.write_text(f'{{"event": "step", "step": {"9" * 10_000}}}\n')
    elif how == "sparse":
        path.touch()
        os.truncate(path, 100 << 30)
    elif how == "device":
        path.symlink_to("/dev/zero")
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "dangling":
        path.symlink_to("/nowhere/at/all")


HOWS = ["folder", "not UTF-8", "deep", "wrong keys", "large number", "sparse", "device", "pipe", "dangling"]
STEP = "checkpoints/step-00000003"


def listing(folder):
    """Names, kinds and sizes of all that a folder holds; some of it must not be read."""
    found = sorted(path for path in folder.rglob("*") if path.name != ".lock")
    return [(str(path), path.lstat().st_mode, path.lstat().st_size, path.lstat().st_mtime_ns) for path in found]


@pytest.mark.parametrize(
    "name",
    ["config.json", "metrics.jsonl", "angles.jsonl", "checkpoints", f"{STEP}/state.json", f"{STEP}/model.safetensors"],
)
def test_a_bad_file_in_a_run_is_one_line_and_nothing_is_changed(capsys, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    interrupted(capsys, monkeypatch, *QUICK, "--angles", "1", "--log-every", "1", "--run", "whole", "--no-tensorboard")
    for how in HOWS:
        if name == "checkpoints" and how == "folder":
            continue
        folder = tmp_path / how
        os.system(f"cp -r whole '{how}'")
        replaced(folder / name, how)
        before = listing(folder)
        status, said = typed(capsys, "--resume", "--run-dir", how, "--no-tensorboard")
        assert status == 2, (how, said)
        assert said.count("\n") == 1, (how, said)
        assert name.split("/")[-1] in said or "belongs to another" in said or "is no run" in said, (how, said)
        assert listing(folder) == before, how


def reported(capsys, folder):
    """The page on the runs in a folder, what the command prints, and the lines of its warnings."""
    with pytest.raises(SystemExit) as end:
        main(["report", str(folder), "-o", str(folder.parent / "report.html")])
    said = capsys.readouterr()
    assert end.value.code == 0
    return (folder.parent / "report.html").read_text(), said.out, said.err.splitlines()


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "angles.jsonl"])
def test_bad_files_do_not_end_a_report_and_are_named_on_the_page(capsys, tmp_path, name):
    """One run for each way in which a file can be bad, beside one that is whole; a page takes seconds."""
    made_run(tmp_path / "runs" / "whole", "p", 100, layers=("fc",))
    for seed, how in enumerate(HOWS):
        replaced(made_run(tmp_path / "runs" / how, "p", seed, layers=("fc",)) / name, how)
    page, out, warned = reported(capsys, tmp_path / "runs")
    assert "1 run, 1 of them finished; 9 could not be read" in out
    assert "1 run, 1 of them finished; 9 could not be read" in page
    assert len(warned) == 9
    assert all(f"{how}/{name}" in page for how in HOWS)


def test_records_and_configurations_of_wrong_types_do_not_end_a_report(capsys, tmp_path):
    made_run(tmp_path / "runs" / "good", "p", 100)
    records = [
        ("test_error", "0.1"),
        ("test_error", [1]),
        ("time", None),
        ("time", {"train_seconds": "x"}),
        ("epoch", {}),
    ]
    for seed, (key, value) in enumerate(records):
        path = made_run(tmp_path / "runs" / f"records-{seed}", "p", seed) / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines[0][key] = value
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    configurations = [
        {"environment": []},
        {"environment": {"versions": 3}},
        {"environment": {"commit": 5}},
        {"data": {}},
        {"config": {"seed": "x"}},
        {
            "config": {
                **json.loads((tmp_path / "runs" / "good" / "config.json").read_text())["config"],
                "data": "cifar10",
                "arch": "vgg",
            }
        },
        {"task": ["classifier"]},
    ]
    for seed, change in enumerate(configurations):
        path = made_run(tmp_path / "runs" / f"config-{seed}", "p", seed) / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    page, out, warned = reported(capsys, tmp_path / "runs")
    assert "1 run, 1 of them finished; 12 could not be read" in out
    assert len(warned) == 12
    for name in (*(f"records-{n}" for n in range(5)), *(f"config-{n}" for n in range(7))):
        assert str(tmp_path / "runs" / name) in page


def test_huge_numbers_are_refused_in_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, line in (
        (["--seed", 10**30], "seed is 1000000000000000000000000000000, it must be from 0 to"),
        (["--seed", -1], "seed is -1"),
        (["--checkpoint-minutes", "nan"], "checkpoint_minutes is nan"),
        (["--checkpoint-minutes", "-1"], "checkpoint_minutes is -1.0"),
        (["--threads", "0"], "threads is 0, it must be from 1"),
        (["--threads", 10**9], "threads is 1000000000, it must be from 1"),
        (["--max-steps", "0"], "max_steps is 0"),
        (["--limit-train", "0"], "limit_train is 0"),
    ):
        status, said = typed(capsys, *QUICK, *words)
        assert status == 2
        assert line in said
        assert said.count("\n") == 1
    assert not (tmp_path / "runs").exists()
    assert typed(capsys, *QUICK, "--seed", 2**63 - 1, "--limit-train", 10**30, "--max-steps", "1")[0] == 0


@pytest.mark.parametrize("target", ["/proc/report.html", "/sys/kernel/report.html"])
def test_a_report_that_cannot_be_written_is_refused_before_runs_are_read(tmp_path, target):
    from prproduct.classification import report

    with pytest.raises(InputError, match="cannot be written"):
        report.write([tmp_path / "nothing"], target)
