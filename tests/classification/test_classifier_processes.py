"""Two processes over gloo: the losses of one process on the joined batch; stopped and refused together."""

import signal
from dataclasses import replace

import pytest
from training_runs import SMALL, assert_same_run, judged, metrics, run, train_together

from prproduct.lab import runs

pytestmark = pytest.mark.slow
# 1,298 images in batches of 201: shares of 100 and 101, and a last batch of 92.
UNEVEN = replace(SMALL, product="pr", batch_size=201, epochs=2, log_every=1, augment=True, clip_norm=1.0)


def numbers(folder, *events):
    return [
        value
        for record in metrics(folder)
        if record["event"] in events
        for name, value in record.items()
        if isinstance(value, float)
    ]


def test_two_processes_give_the_losses_of_one(tmp_path):
    run(UNEVEN, tmp_path / "one")
    assert train_together(2, UNEVEN, tmp_path / "two") == [0, 0]
    assert len(numbers(tmp_path / "one", "step")) == 14 * 4
    assert numbers(tmp_path / "two", "step", "epoch") == pytest.approx(
        numbers(tmp_path / "one", "step", "epoch"), rel=2e-5, abs=1e-9
    )
    assert runs.read(tmp_path / "two").config["environment"]["hardware"]["processes"] == 2


def test_two_processes_train_batch_normalisation_and_refuse_together(tmp_path):
    config = replace(SMALL, arch="resnet8", batch_size=649, epochs=1)
    assert train_together(2, config, tmp_path / "two") == [0, 0]
    said = runs.read(tmp_path / "two").of("end")[0]["last"]  # each judged half of the images, with the same statistics
    assert (said["test_loss"], said["test_error"]) == pytest.approx(judged(tmp_path / "two"), rel=1e-5)
    assert train_together(2, config, tmp_path / "two") == [1, 2]  # it is there already: an error, and a silent end
    assert train_together(2, config, tmp_path / "two", True) == [0, 0]


def test_two_processes_that_are_asked_to_stop_stop_behind_the_same_step_and_go_on(tmp_path):
    config = replace(UNEVEN, product="p", arch="resnet8")  # with BatchNorm, whose statistics are not shared
    assert train_together(2, config, tmp_path / "whole") == [0, 0]
    assert train_together(2, config, tmp_path / "stopped", stop_at=3) == [130, 130]
    assert not runs.read(tmp_path / "stopped").finished
    assert train_together(2, config, tmp_path / "stopped", True) == [0, 0]
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.parametrize("config", [replace(SMALL, batch_size=1), replace(SMALL, limit_train=1)])
def test_more_devices_than_a_batch_has_images_are_refused_by_one_of_them(tmp_path, config):
    assert train_together(2, config, tmp_path / "two") == [1, 2]  # an error, and a silent end


def test_a_process_that_is_killed_ends_the_others_in_one_line_and_the_run_goes_on(tmp_path):
    ended = train_together(2, UNEVEN, tmp_path / "two", stop_at=3, stop=signal.SIGKILL)
    assert ended == [2, -signal.SIGKILL]
    said = (tmp_path / "two" / "said").read_text()
    assert said.startswith("another process of this training has died ([")
    assert said.endswith(f"; resume with --resume --run-dir {tmp_path / 'two'}")
    assert "\n" not in said
    assert train_together(2, UNEVEN, tmp_path / "two", True) == [0, 0]
