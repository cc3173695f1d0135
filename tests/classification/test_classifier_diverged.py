"""A loss that is not finite ends the run: the step and the layer are named, and the last good checkpoint is kept."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch
from training_runs import SMALL, assert_same_run, run, weights

from prproduct.classification import training
from prproduct.lab import checkpoints, runs
from prproduct.lab.nonfinite import DivergedError

NET = replace(SMALL, arch="mlp-3-8")
STEPS = 7  # in an epoch


def break_at(monkeypatch, step, how):
    """Do something to the task in front of a step, counted from 0."""
    sums, taken = training.Classification.sums, []

    def broken(self, model, batch):
        if model.training:
            if len(taken) >= step:  # also in the second look at it
                batch = how(self, batch) or batch
            taken.append(step)
        return sums(self, model, batch)

    monkeypatch.setattr(training.Classification, "sums", broken)


def a_layer_gives_nan(task, batch):
    task.model.fc2.register_forward_hook(lambda layer, args, output: output * math.nan)


def the_data_are_infinite(task, batch):
    images = batch.images.clone()
    images[3] = math.inf
    return batch._replace(images=images)


def a_weight_is_nan(task, batch):
    task.model.fc2.weight.data[1, 1] = math.nan


def the_backward_gives_nan(task, batch):
    task.model.fc1.weight.register_hook(lambda gradient: gradient * math.nan)


@pytest.mark.parametrize(
    ("how", "where"),
    [
        (a_layer_gives_nan, r"in layer fc2 \(Linear\)"),
        (the_data_are_infinite, r"in the data: the input of layer flatten \(Flatten\)"),
        (a_weight_is_nan, r"in the weight fc2\.weight, at the step before"),
    ],
)
def test_the_step_and_the_layer_are_named_and_the_checkpoint_is_kept(tmp_path, monkeypatch, how, where):
    break_at(monkeypatch, STEPS + 3, how)
    with pytest.raises(DivergedError) as end:
        run(NET, tmp_path / "a")
    said = str(end.value)
    assert re.search(f"the loss of step 11 is NaN or infinite; it began {where}; ", said)
    assert "the checkpoint of step 7 is kept" in said
    assert "\n" not in said
    assert checkpoints.steps(tmp_path / "a" / "checkpoints") == [7]
    assert all(torch.isfinite(value).all() for value in weights(tmp_path / "a").values())
    record = runs.read(tmp_path / "a")
    assert record.of("diverged")[0]["step"] == 11
    assert not record.finished


def test_the_angles_of_the_step_leave_out_the_forward_that_looks_for_the_layer(tmp_path, monkeypatch):
    break_at(monkeypatch, STEPS + 3, a_layer_gives_nan)
    with pytest.raises(DivergedError):
        run(replace(NET, angles=1), tmp_path / "a")
    records = [json.loads(line) for line in (tmp_path / "a" / "angles.jsonl").read_text().splitlines()]
    assert [(record["step"], record["calls"]) for record in records if record["step"] >= STEPS + 2] == [
        (step, 1) for step in (STEPS + 2, STEPS + 3) for _ in ("fc1", "fc2", "fc3")
    ]


def test_a_rate_that_is_too_large_ends_so_and_again_when_resumed(tmp_path):
    config = replace(NET, learning_rate=1e30, product="pr")
    for resume in (False, True):
        with pytest.raises(DivergedError, match="no checkpoint yet; try a smaller learning rate in another folder"):
            run(config, tmp_path / "a", resume=resume)
        assert len(runs.read(tmp_path / "a").of("diverged")) == 1
    run(NET, tmp_path / "a", restart=True)
    assert runs.read(tmp_path / "a").finished


def test_weights_that_an_update_spoilt_are_not_saved(tmp_path, monkeypatch):
    break_at(
        monkeypatch, 2 * STEPS - 1, the_backward_gives_nan
    )  # the last step before a checkpoint, its loss is finite
    with pytest.raises(DivergedError, match=r"the update of step 14 .* in the weight fc1\.weight"):
        run(NET, tmp_path / "a")
    assert checkpoints.steps(tmp_path / "a" / "checkpoints") == [7]


def test_a_gradient_that_is_not_finite_is_noticed_where_gradients_are_clipped(tmp_path, monkeypatch):
    break_at(monkeypatch, 9, the_backward_gives_nan)
    with pytest.raises(DivergedError, match="the gradient of step 10 is NaN or infinite; it began in the backward"):
        run(replace(NET, clip_norm=1.0), tmp_path / "a")


def test_a_run_that_diverged_by_an_accident_resumes_to_what_it_would_have_been(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        break_at(patch, STEPS + 3, the_data_are_infinite)
        with pytest.raises(DivergedError):
            run(NET, tmp_path / "a")
    run(NET, tmp_path / "a", resume=True)
    run(NET, tmp_path / "whole")
    assert_same_run(tmp_path / "a", tmp_path / "whole")
