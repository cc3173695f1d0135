"""`prproduct train captioner`: a stopped run is resumed by its folder alone; a first look takes a few steps."""

import signal

import pytest

from prproduct.captioning import training
from prproduct.lab import runs

NETWORK = ["--hidden", "8", "--embedding", "8", "--attention", "8", "--accelerator", "cpu", "--quiet"]
LOOK = ["--limit-train", "40", "--batch-size", "10", "--threads", "1", "--no-tensorboard"]


@pytest.mark.slow
def test_both_phases_take_a_few_steps_and_are_resumed_by_their_folders_alone(tmp_path, monkeypatch, command):
    def typed(*words):
        return command("train", "captioner", *words)[0]

    sums, taken = training.CrossEntropyTask.sums, []

    def pressed(self, model, batch):
        taken.append(batch)
        if len(taken) == 2:
            signal.raise_signal(signal.SIGINT)
        return sums(self, model, batch)

    monkeypatch.setattr(training.CrossEntropyTask, "sums", pressed)
    assert typed(*NETWORK, *LOOK, "--max-steps", "3", "--product", "p", "--run-dir", tmp_path / "xe") == 130
    assert typed("--resume", "--run-dir", tmp_path / "xe", "--quiet") == 0
    record = runs.read(tmp_path / "xe")
    assert record.of("end")[0]["step"] == 3
    assert record.config["config"]["limit_train"] == 40
    rl = ["--phase", "rl", "--start", tmp_path / "xe", "--samples", "2", "--max-steps", "1"]
    assert typed(*LOOK, *rl, "--quiet", "--accelerator", "cpu", "--run-dir", tmp_path / "rl") == 0
    (tmp_path / "rl" / "metrics.jsonl").unlink()
    assert typed("--resume", "--run-dir", tmp_path / "rl", "--quiet") == 2  # records are lost
    assert typed("--restart", "--run-dir", tmp_path / "rl", "--quiet", "--log-every", "1") == 0
    assert [line["step"] for line in runs.read(tmp_path / "rl").of("step")] == [1]
