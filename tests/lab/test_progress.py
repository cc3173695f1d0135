"""The progress that a terminal shows."""

import json
import re
from io import StringIO

import pytest
from rich.console import Console

from prproduct.classification.training import ClassifierConfig, train
from prproduct.lab.hardware import Hardware
from prproduct.lab.progress import TrainingProgress, note, progress_bar
from prproduct.lab.sweep import Ending, Job
from prproduct.lab.sweep import progress as sweeps

EPOCH = {"epoch": 4, "step": 8, "train_loss": 0.25, "test_error": 0.125, "time": {"samples_per_second": 1234.5}}


def shown(*, terminal):
    stream = StringIO()
    progress = TrainingProgress("images", Console(file=stream, force_terminal=terminal, width=150))
    progress.start("training", 6, 8)
    progress.step(100, 2.5)
    progress.step(100, 1.5)
    progress.epoch(EPOCH)
    progress.stop()
    return stream.getvalue()


def test_a_terminal_has_a_bar_with_speed_and_time_left_and_a_line_for_each_epoch():
    said = shown(terminal=True)
    assert "8/8" in said
    assert "loss 1.5000" in said
    assert "images/s" in said
    assert re.search(r"elapsed 0:00:0\d remaining 0:00:00", re.sub(r"\x1b\[[\d;?]*\w", "", said))
    assert "epoch 5: train loss 0.2500, test error 12.50 %, 1,234 images/s" in said


def test_a_file_has_the_lines_of_epochs_alone():
    assert shown(terminal=False) == "epoch 5: train loss 0.2500, test error 12.50 %, 1,234 images/s\n"


def test_what_is_printed_inside_of_a_bar_stays_on_stdout(monkeypatch, capsys):
    """As the captions of `prproduct caption … > FILE` from a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar("pictures", 8):
        print("photo.jpg\ta dog runs")
    assert capsys.readouterr().out == "photo.jpg\ta dog runs\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_of_a_command_is_on_stderr_if_that_is_a_terminal_and_reads_no_markup(terminal, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR" if terminal else "NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "150")
    with progress_bar("[red]first[/red]", 8) as update:
        update(advance=3)
        note("runs/[bold]a[/bold]: left out")
        update(description="[0] second", completed=7)
    said, printed = capsys.readouterr().err, "prproduct: runs/[bold]a[/bold]: left out\n"
    assert ("[0] second" in said and "7/8" in said and printed in said) if terminal else said == printed


def test_paths_with_brackets_are_shown_as_they_are():
    stream = StringIO()
    progress = TrainingProgress("images", Console(file=stream, force_terminal=False, width=150))
    progress.say("run folder runs/[red]a[/red]/[0]")
    assert stream.getvalue() == "run folder runs/[red]a[/red]/[0]\n"


def test_a_sweeps_bars_show_names_with_brackets_and_end_at_100_percent(tmp_path):
    stream = StringIO()
    progress = sweeps.SweepProgress(Console(file=stream, force_terminal=True, width=150))
    job = Job("[bold]a[/bold]", tmp_path / "a", print, 1)  # fewer steps than the run has recorded
    made_run = {"format": 1, "task": "test", "environment": {}}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text(json.dumps(made_run))
    (tmp_path / "a" / "metrics.jsonl").write_text('{"event": "step", "step": 700}\n')
    progress.begin([job], 0)
    progress.look([job])
    progress.settled(job, Ending("finished"))
    progress.stop()
    said = stream.getvalue()
    assert "[bold]a[/bold]" in said
    assert "100%" in said
    assert "700" not in said
    assert "70000%" not in said


def test_the_header_says_what_is_trained_where(tmp_path):
    stream = StringIO()
    config = ClassifierConfig(arch="mlp-2-8", data="digits", product="pr", epochs=1, batch_size=400, seed=3)
    train(
        config,
        tmp_path / "a",
        hardware=Hardware(accelerator="cpu", threads=2),
        tensorboard=False,
        progress=TrainingProgress("images", Console(file=stream, width=400)),
    )
    first, second, *_ = stream.getvalue().splitlines()
    assert first == (
        "mlp-2-8 with the product PR on digits, 1,298 training images, seed 3: 610 parameters, 1 epoch of 4 steps"
    )
    assert second == f"cpu, 2 CPU threads; run folder {tmp_path / 'a'}"
