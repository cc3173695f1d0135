"""One process: the same seed gives the same run, products share all but their gradient, the rate is the recipe's."""

import itertools
import math
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from training_runs import DROPOUT, SMALL, assert_same_run, judged, last, run, weights

from prproduct.classification import training
from prproduct.classification.data import TrainingBatches
from prproduct.classification.recipes import learning_rate
from prproduct.classification.training import ClassifierConfig, load_model
from prproduct.lab import checkpoints, runs
from prproduct.lab.errors import InputError


@pytest.mark.parametrize("config", [replace(SMALL, product="pr"), replace(DROPOUT, epochs=1)], ids=["pr", "dropout"])
def test_the_same_seed_gives_the_same_weights_to_the_bit(config, tmp_path):
    before = torch.get_rng_state()
    run(config, tmp_path / "a")
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(3)
    run(config, tmp_path / "b")
    assert_same_run(tmp_path / "b", tmp_path / "a")


def test_another_seed_gives_another_run(tmp_path):
    run(SMALL, tmp_path / "a")
    run(replace(SMALL, seed=1), tmp_path / "b")
    assert last(tmp_path / "a")["model"] != last(tmp_path / "b")["model"]


def test_products_share_initial_weights_batches_and_augmentation(tmp_path, monkeypatch):
    seen = {}

    class Seen(TrainingBatches):
        def epoch(self, epoch, start_step=0):
            for batch in super().epoch(epoch, start_step):
                batches.append((batch.images.clone(), batch.labels.clone()))
                yield batch

    class Initial(training.Classification):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            initial.update({name: value.clone() for name, value in self.model.state_dict().items()})

    monkeypatch.setattr(training, "TrainingBatches", Seen)
    monkeypatch.setattr(training, "Classification", Initial)
    for product in ("p", "pr", "no-length"):
        batches, initial = [], {}
        run(replace(SMALL, product=product, epochs=1, augment=True), tmp_path / product)
        seen[product] = batches, initial
    for product in ("pr", "no-length"):
        for (images, labels), (others, theirs) in zip(seen["p"][0], seen[product][0], strict=True):
            assert torch.equal(images, others)
            assert torch.equal(labels, theirs)
        assert all(torch.equal(value, seen[product][1][name]) for name, value in seen["p"][1].items())
        assert last(tmp_path / "p")["model"] != last(tmp_path / product)["model"]


def test_the_learning_rate_of_every_step_is_the_recipes(tmp_path, monkeypatch):
    used = []

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            used.append(self.param_groups[0]["lr"])
            return super().step(closure)

    monkeypatch.setattr(training, "SGD", Watched)
    config = ClassifierConfig(arch="resnet8", data="digits", product="p", epochs=4, batch_size=700, protocol="paper")
    assert config.recipe.milestones == (2, 3)
    run(config, tmp_path / "a")
    steps = 3  # 1,442 images
    assert used == [learning_rate(config.recipe, epoch) for epoch in range(4) for _ in range(steps)]
    assert used == pytest.approx([0.01] * 3 + [0.1] * 3 + [0.01] * 3 + [0.001] * 3)
    assert [record["learning_rate"] for record in runs.read(tmp_path / "a").of("epoch")] == used[::steps]


def test_the_records_say_what_an_evaluation_by_hand_says(tmp_path):
    run(replace(SMALL, learning_rate=0.1, batch_size=50), tmp_path / "a")
    record = runs.read(tmp_path / "a")
    assert record.finished
    assert [found["step"] for found in record.of("step")] == list(range(2, 79, 2))
    for which, recorded in (("last", "last"), ("best", "selected")):
        loss, error = judged(tmp_path / "a", which)
        assert record.of("end")[0][recorded]["test_error"] == pytest.approx(error, abs=1e-12)
        assert record.of("end")[0][recorded]["test_loss"] == pytest.approx(loss, rel=1e-5)
    epochs = record.of("epoch")
    assert record.of("end")[0]["selected"]["epoch"] == min(epochs, key=lambda e: e["validation_error"])["epoch"]
    assert epochs[-1]["test_error"] < 0.5 < epochs[0]["train_error"]  # it learns


def with_validation_errors(monkeypatch, *errors):
    """Let the epochs end with these errors."""
    evaluate, left = training.Classification.evaluate, iter(errors)

    def evaluated(self, model):
        return {**evaluate(self, model), "validation_error": next(left)}

    monkeypatch.setattr(training.Classification, "evaluate", evaluated)


def test_the_first_of_equally_good_epochs_is_chosen_and_its_checkpoint_kept(tmp_path, monkeypatch):
    with_validation_errors(monkeypatch, 0.5, 0.25, 0.25)
    run(SMALL, tmp_path / "a")
    assert runs.read(tmp_path / "a").of("end")[0]["selected"]["epoch"] == 1
    assert checkpoints.steps(tmp_path / "a" / "checkpoints") == [14, 21]


def test_a_judgement_that_is_not_finite_is_recorded_as_null_and_never_chosen(tmp_path, monkeypatch):
    with_validation_errors(monkeypatch, math.nan, 0.5, math.inf)
    run(SMALL, tmp_path / "a")
    record = runs.read(tmp_path / "a")
    assert [epoch["validation_error"] for epoch in record.of("epoch")] == [None, 0.5, None]
    assert record.of("end")[0]["selected"]["epoch"] == 1


def test_the_papers_protocol_chooses_no_epoch_and_says_so(tmp_path):
    run(replace(SMALL, protocol="paper", epochs=1), tmp_path / "a")
    record = runs.read(tmp_path / "a")
    assert record.config["config"]["protocol"] == "paper"
    assert record.of("end")[0]["selected"] is None
    assert "validation_error" not in record.of("epoch")[0]
    with pytest.raises(InputError, match="no epoch was chosen by validation; take the last"):
        load_model(tmp_path / "a", "best")
    with pytest.raises(InputError, match="'selected' epoch: choose last or best"):
        load_model(tmp_path / "a", "selected")


def test_a_finished_run_is_left_as_it_is(tmp_path):
    run(SMALL, tmp_path / "a")
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    run(SMALL, tmp_path / "a", resume=True)
    assert {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()} == before


def test_gradients_are_clipped_to_the_norm(tmp_path):
    run(replace(SMALL, clip_norm=1e-3, learning_rate=1.0, momentum=0.0, epochs=1, log_every=1), tmp_path / "a")
    run(replace(SMALL, learning_rate=1e-12, epochs=1), tmp_path / "still")
    moved, still = weights(tmp_path / "a"), weights(tmp_path / "still")
    moved = sum((moved[name] - still[name]).square().sum() for name in still)
    assert 0 < moved.sqrt() <= 7 * 1.001e-3  # 7 steps
    assert all(record["gradient_norm"] > 1e-3 for record in runs.read(tmp_path / "a").of("step"))


@pytest.mark.parametrize(
    "change", [{"channels_last": True}, {"precision": "bf16"}, {"optimizer": "adam"}, {"clip_norm": 1.0}]
)
def test_layouts_precisions_and_optimizers_train_and_resume(change, tmp_path, monkeypatch):
    arch = "mlp-2-8" if "precision" in change else "resnet8"  # convolutions in bf16 take seconds on a CPU
    config = replace(SMALL, arch=arch, batch_size=700, epochs=2, **change)
    run(config, tmp_path / "whole")
    assert math.isfinite(runs.read(tmp_path / "whole").of("end")[0]["last"]["test_loss"])
    with monkeypatch.context() as patch:
        interrupt_at(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "stopped")
    run(config, tmp_path / "stopped", resume=True)
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", [0, 6, 9])  # the first, the last of an epoch, one in the middle of one
def test_a_run_that_is_asked_to_stop_ends_after_its_step_and_goes_on_from_there(step, number, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(patch, step, number)
        with pytest.raises(KeyboardInterrupt, match=f"after step {step + 1}; resume with --resume --run-dir "):
            run(SMALL, tmp_path / "stopped")
    assert checkpoints.steps(tmp_path / "stopped" / "checkpoints")[-1] == step + 1
    assert not runs.read(tmp_path / "stopped").finished
    run(SMALL, tmp_path / "stopped", resume=True)
    run(SMALL, tmp_path / "whole")
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def test_a_run_killed_while_a_checkpoint_of_the_same_step_is_replaced_resumes(tmp_path, monkeypatch):
    rename = Path.rename

    def killed(path, target):
        if path.name == ".writing-step-00000007" and next(written) == 1:  # that after the evaluation
            raise KeyboardInterrupt
        return rename(path, target)

    written = itertools.count()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            run(SMALL, tmp_path / "stopped", checkpoint_minutes=0.0)
    run(SMALL, tmp_path / "stopped", resume=True)
    run(SMALL, tmp_path / "whole")
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def interrupt_at(patch, step, number=signal.SIGINT):
    sums = training.Classification.sums
    taken = itertools.count()

    def interrupted(self, model, batch):
        if model.training and next(taken) == step:
            signal.raise_signal(number)
        return sums(self, model, batch)

    patch.setattr(training.Classification, "sums", interrupted)


def test_angles_are_recorded_every_k_steps_and_change_nothing(tmp_path):
    from prproduct.probe import read_jsonl

    run(replace(SMALL, angles=5), tmp_path / "watched")
    run(SMALL, tmp_path / "plain")
    records = read_jsonl(tmp_path / "watched" / "angles.jsonl")
    assert [(record.step, record.layer) for record in records] == [
        (s, n) for s in range(0, 21, 5) for n in ("fc1", "fc")
    ]
    assert all(record.training and record.direction_norm is not None for record in records)
    assert last(tmp_path / "watched")["model"] == last(tmp_path / "plain")["model"]
