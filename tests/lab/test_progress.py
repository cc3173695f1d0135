"""The progress that a terminal shows."""

from io import StringIO

from rich.console import Console

from prproduct.lab.progress import Terminal

EPOCH = {"epoch": 4, "step": 8, "train_loss": 0.25, "test_error": 0.125, "time": {"samples_per_second": 1234.5}}


def shown(*, terminal):
    stream = StringIO()
    progress = Terminal("images", Console(file=stream, force_terminal=terminal, width=150))
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
    assert "left" in said
    assert "epoch 5: train loss 0.2500, test error 12.50 %, 1,234 images/s" in said


def test_a_file_has_the_lines_of_epochs_alone():
    assert shown(terminal=False) == "epoch 5: train loss 0.2500, test error 12.50 %, 1,234 images/s\n"
