"""Training a captioner: both phases learn, resume to the bit, and refuse what does not fit together."""

import json
import shutil
import signal
import socket
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from small_dataset import NETWORK, RL, WIDTH, XE, InMemory, dataset, die_at_step, metrics, run, train_as, weights

from prproduct.captioning.configuration import CaptionerConfig
from prproduct.captioning.data.batches import CaptionBatches
from prproduct.captioning.dataset import CaptionDataset
from prproduct.captioning.inference import Search, config_of, generate_captions, load_captioner
from prproduct.captioning.losses import log_probabilities, targets_of
from prproduct.captioning.reproduce import Choice, pairs
from prproduct.captioning.training import CrossEntropyTask, ReinforceTask, read_start
from prproduct.lab import runs
from prproduct.lab.errors import InputError
from prproduct.lab.hardware import Hardware
from prproduct.probe import read_jsonl


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of each phase."""
    folder = tmp_path_factory.mktemp("captioner")
    run(replace(XE, angles=2), folder / "xe")
    run(replace(RL, angles=2), folder / "rl", start=folder / "xe")
    return folder


def in_other_processes(function, *arguments):
    """Exit statuses; children of a process that has loaded everything and used nothing are quickly there."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["prproduct.captioning.training", "lightning_fabric"])
    started = [context.Process(target=function, args=one) for one in arguments]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
    return [process.exitcode for process in started]


# What is learnt


@pytest.mark.slow
def test_cross_entropy_learns_captions_and_reinforce_raises_their_cider(tmp_path):
    small = dataset(images=160)
    wide = {"hidden": 32, "embedding": 32, "attention": 32, "dropout": 0.0}
    run(replace(XE, **wide, epochs=4, feedback_every=3, learning_rate=0.02), tmp_path / "xe", small)
    sampled = replace(RL, candidates="sample", epochs=3, learning_rate=3e-3)
    run(sampled, tmp_path / "rl", small, start=tmp_path / "xe")
    before, after = (
        [record["validation_cider"] for record in runs.read(tmp_path / phase).of("epoch")] for phase in ("xe", "rl")
    )
    assert before[0] < before[-1]
    assert after[-1] > before[-1] + 0.2
    rewards = [record["train_reward"] for record in runs.read(tmp_path / "rl").of("epoch")]
    assert rewards[-1] > rewards[0]


def test_the_loss_is_the_mean_over_words_and_ends(tmp_path):
    run(replace(XE, batch_size=100, epochs=1, dropout=0.0), tmp_path / "xe")
    small = dataset()
    (batch,) = CaptionBatches(small.captions.of("train"), small.features, batch_size=100, captions=2, seed=0).epoch(0)
    torch.manual_seed(0)
    model = XE.resolved().build(len(small.captions.vocabulary), WIDTH).eval()
    expected = -log_probabilities(model(*batch.regions, batch.words), targets_of(batch.words)).sum() / batch.global_size
    assert batch.global_size == (batch.words != 0).sum() + len(batch.words)
    assert metrics(tmp_path / "xe")[0]["loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_every_image_comes_once_an_epoch_with_captions_of_its_own():
    small = dataset()
    train = small.captions.of("train")
    batches = CaptionBatches(train, small.features, batch_size=7, captions=3, seed=1)
    for epoch in range(2):
        seen = []
        for batch in batches.epoch(epoch):
            seen += batch.images.tolist()
            for row, captions in zip(batch.images.tolist(), batch.words.view(len(batch.images), 3, -1), strict=True):
                own = {tuple(caption) for caption in train[row].captions}
                taken = [tuple(caption[1:][caption[1:] != 0].tolist()) for caption in captions]
                assert set(taken) <= own
                assert len(set(taken)) == min(3, len(own))
        assert sorted(seen) == list(range(len(train)))
    orders = [torch.cat([batch.images for batch in batches.epoch(epoch)]) for epoch in (0, 1)]
    assert not torch.equal(*orders)


@pytest.mark.parametrize("baseline", ["greedy", "others"])
@pytest.mark.parametrize("candidates", ["sample", "beam"])
def test_the_gradient_of_reinforce_is_advantage_times_that_of_the_log_probability(finished, baseline, candidates):
    small = dataset()
    start = read_start(finished / "xe", "last", small)
    config = replace(RL, baseline=baseline, candidates=candidates).resolved(start.config)
    task = ReinforceTask(config, small, Hardware(accelerator="cpu").start(), start)
    batch = next(iter(task.batches(0, 0)))
    drawn = []
    whole = task._candidates
    task._candidates = lambda batch: drawn.append(whole(batch)) or drawn[0]
    torch.manual_seed(3)
    sums = task.sums(task.model, batch)
    sums["loss"].backward()
    candidates, guess = drawn[0]
    words = candidates.flatten(0, 1)
    rewards = task._reward(words, batch.images.repeat_interleave(3)).view(-1, 3)
    if baseline == "greedy":
        less = task._reward(guess, batch.images)[:, None]
    else:
        less = (rewards.sum(1, keepdim=True) - rewards) / 2
    assert float(sums["reward"]) == pytest.approx(float(rewards.sum()))
    memory = task.model.encode(*batch.regions)
    total, state = 0.0, task.model.begin(memory).repeat(3)
    last, going = torch.zeros(len(words), dtype=torch.long), torch.ones(len(words), dtype=torch.bool)
    for place in range(words.shape[1]):  # word by word
        step = task.model.step(last, state, memory)
        last, state = words[:, place], step.state
        taken = step.logits.log_softmax(-1)[torch.arange(len(words)), last]
        total = total - (taken * (rewards - less).flatten().float() * going).sum()
        going = going & (last != 0)
    expected = torch.autograd.grad(total, task.model.output.weight)[0]
    torch.testing.assert_close(task.model.output.weight.grad, expected, rtol=1e-4, atol=1e-5)


def test_reinforce_has_its_own_learning_rate_and_a_fresh_optimizer(finished):
    first = next(record for record in metrics(finished / "rl") if record["event"] == "step")
    assert first["learning_rate"] == RL.learning_rate
    start = read_start(finished / "xe", "last", dataset())
    task = ReinforceTask(RL.resolved(start.config), dataset(), Hardware(accelerator="cpu").start(), start)
    assert not task.optimizer.state
    for name, value in task.model.state_dict().items():
        assert torch.equal(value, weights(finished / "xe")[name])


def test_the_learning_rate_falls_as_a_cosine_over_all_steps(finished):
    rates = [record["learning_rate"] for record in metrics(finished / "xe") if record["event"] == "step"]
    steps = len(rates)
    expected = [0.01 * (0.05 + 0.95 * 0.5 * (1 + np.cos(np.pi * step / steps))) for step in range(steps)]
    assert rates == pytest.approx(expected)


def test_the_best_epoch_is_that_of_the_largest_validation_cider(finished):
    for phase in ("xe", "rl"):
        record = runs.read(finished / phase)
        found = [epoch["validation_cider"] for epoch in record.of("epoch")]
        assert record.of("end")[0]["selected"]["epoch"] == int(np.argmax(found))


def test_angles_of_both_phases_are_recorded_at_the_steps_of_training(finished):
    for phase in ("xe", "rl"):
        steps = {record.step for record in read_jsonl(finished / phase / "angles.jsonl")}
        last = runs.read(finished / phase).of("end")[0]["step"]
        assert steps == set(range(0, last, 2))


def test_the_time_of_the_reward_is_recorded_as_a_part_of_that_of_training(finished):
    for epoch in runs.read(finished / "rl").of("epoch"):
        assert 0 < epoch["time"]["reward_seconds"] < epoch["time"]["train_seconds"]


# Resuming and sharing


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "config"), [("xe", XE), ("rl", RL)])
def test_killed_and_resumed_it_ends_bit_identical(finished, tmp_path, phase, config):
    start = finished / "xe" if phase == "rl" else None
    config = replace(config, angles=2)
    assert in_other_processes(die_at_step, (5, config, tmp_path / "run", start)) == [-signal.SIGKILL]
    assert not runs.read(tmp_path / "run").finished
    run(config, tmp_path / "run", start=start, resume=True)
    assert metrics(tmp_path / "run") == metrics(finished / phase)
    assert (tmp_path / "run" / "angles.jsonl").read_text() == (finished / phase / "angles.jsonl").read_text()
    for name, value in weights(finished / phase).items():
        assert torch.equal(value, weights(tmp_path / "run")[name])


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one_on_the_joined_batch(tmp_path):
    config = replace(XE, dropout=0.0, feedback_limit=0.0)  # random numbers are each process's own
    run(config, tmp_path / "one")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shares = [(rank, 2, port, config, tmp_path / "two", None) for rank in range(2)]
    assert in_other_processes(train_as, *shares) == [0, 0]
    for one, two in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        for key in {"loss", "train_loss", "validation_loss", "validation_cider"} & one.keys():
            assert two[key] == pytest.approx(one[key], rel=1e-4)


@pytest.mark.slow
def test_both_phases_take_a_few_steps_and_are_resumed_by_their_folders_alone(tmp_path, monkeypatch, command):
    network = ["--hidden", 8, "--embedding", 8, "--attention", 8, "--accelerator", "cpu"]
    look = ["--limit-train", 40, "--batch-size", 10, "--threads", 1, "--no-tensorboard"]
    sums, taken = CrossEntropyTask.sums, []

    def typed(*words):
        return command("train", "captioner", "--quiet", *words)[0]

    def pressed(self, model, batch):
        taken.append(batch)
        if len(taken) == 2:
            signal.raise_signal(signal.SIGINT)
        return sums(self, model, batch)

    monkeypatch.setattr(CrossEntropyTask, "sums", pressed)
    assert typed(*network, *look, "--max-steps", "3", "--product", "p", "--run-dir", tmp_path / "xe") == 130
    assert typed("--resume", "--run-dir", tmp_path / "xe") == 0
    record = runs.read(tmp_path / "xe")
    assert record.of("end")[0]["step"] == 3
    assert record.config["config"]["limit_train"] == 40
    rl = ["--phase", "rl", "--start", tmp_path / "xe", "--samples", "2", "--max-steps", "1"]
    assert typed(*look, *rl, "--accelerator", "cpu", "--run-dir", tmp_path / "rl") == 0
    (tmp_path / "rl" / "metrics.jsonl").unlink()
    assert typed("--resume", "--run-dir", tmp_path / "rl") == 2  # records are lost
    assert typed("--restart", "--run-dir", tmp_path / "rl", "--log-every", "1") == 0
    assert [line["step"] for line in runs.read(tmp_path / "rl").of("step")] == [1]


# Use


def test_a_trained_captioner_describes_images_with_where_each_word_looked(finished):
    small, model = dataset(), load_captioner(finished / "xe")
    found = list(
        generate_captions(model, small.captions.vocabulary, small.features, [3, 1], Search(beams=2, longest=5))
    )
    assert [one.image for one in found] == [3, 1]
    for one in found:
        assert one.caption == " ".join(one.words)
        assert len(one.words) <= 5
        assert "UNK" not in one.words
        assert one.attention.shape == (len(one.words), len(small.features.of(one.image)))
        np.testing.assert_allclose(one.attention.sum(1), 1, rtol=1e-5)


# Refusals


def test_what_does_not_fit_is_refused_in_one_line_and_nothing_is_written(finished, tmp_path):
    wide = dataset(width=WIDTH + 1)
    fewer = dataset(images=6)
    captions, features = dataset()
    first, *others = captions.images
    moved = replace(captions, images=(first._replace(split="test"), *others))
    cases = [
        (RL, {}, "phase rl needs a run of cross-entropy: give --start"),
        (XE, {"start": finished / "xe"}, "phase xe starts from no other run: leave out --start"),
        (RL, {"start": finished / "rl"}, "is of REINFORCE itself"),
        (RL, {"start": finished}, "no such file; give the folder of a run"),
        (RL, {"start": finished / "xe", "what": wide}, "features of another width: 6, not 7; give its own .--captions"),
        (RL, {"start": finished / "xe", "what": fewer}, "another vocabulary"),
        (RL, {"start": finished / "xe", "what": CaptionDataset(moved, features)}, "was trained on other captions: .*"),
        (RL, {"start": finished / "xe", "start_from": "first"}, "choose last or best"),
        (replace(RL, hidden=9), {"start": finished / "xe"}, "hidden is 9, in the run it starts from 8; leave it out"),
        (replace(RL, dropout=0.0), {"start": finished / "xe"}, "dropout is 0.0, in the run it starts from 0.3"),
        (replace(RL, feedback_step=0.1), {"start": finished / "xe"}, "feedback_step has no effect in phase rl"),
        (replace(XE, samples=3), {}, "samples has no effect in phase xe; leave it out"),
        (XE, {"start_from": "best"}, "--from best is an epoch of the run that REINFORCE starts from: give --start"),
    ]
    for config, options, message in cases:
        with pytest.raises(InputError, match=message) as refused:
            run(config, tmp_path / "run", **options)
        assert "\n" not in str(refused.value)
        assert not (tmp_path / "run").exists()


def test_a_batch_of_one_image_is_refused_under_batch_norm(tmp_path):
    config = replace(XE, batch_norm=True, batch_size=19, epochs=1)  # of 20 images
    with pytest.raises(InputError, match="batches of 19 of 20 images leave a single one to a process"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run(replace(config, batch_size=18), tmp_path / "run")


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_an_image_without_features_stops_before_anything_is_trained(tmp_path, split):
    small = dataset()
    image = small.captions.of(split)[-1].id
    arrays = {known: array for known, array in small.features.arrays.items() if known != image}
    with pytest.raises(InputError, match=f"no features of 1 of 40 images, the first of them image {image} of {split}"):
        run(XE, tmp_path / "run", CaptionDataset(small.captions, InMemory(arrays)))
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_resumed_with_other_captions_or_features(finished):
    small = dataset()
    other = CaptionDataset(small.captions, InMemory(small.features.arrays, fingerprint="other"))
    for what in (other, dataset(seed=5)):
        with pytest.raises(InputError, match="belongs to another configuration"):
            run(replace(XE, angles=2), finished / "xe", what, resume=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"phase": "both"}, "phase 'both' is not known"),
        ({"product": "q"}, "unknown product 'q'"),
        ({"hidden": 0}, "hidden is 0"),
        ({"dropout": 1.5}, "dropout is 1.5, it must be from 0 to 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"clip_value": float("nan")}, "clip_value is nan"),
        ({"phase": "rl", "baseline": "others", "samples": 1}, "needs at least 2 samples"),
        ({"baseline": "mean"}, "baseline 'mean' is not known; there are greedy, others"),
        ({"candidates": "best"}, "candidates 'best' is not known; there are beam, sample"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        CaptionerConfig(**options)


def test_each_way_of_reinforce_has_the_candidates_and_the_baseline_of_its_name():
    found = [CaptionerConfig(phase="rl", **given).resolved() for given in ({}, {"candidates": "sample"})]
    assert [(one.candidates, one.samples, one.baseline) for one in found] == [
        ("beam", 5, "others"),
        ("sample", 1, "greedy"),
    ]
    for scale in ("quick", "small", "paper"):
        for _, rl in pairs(Choice(scale=scale)):
            assert (rl.resolved().candidates, rl.resolved().samples, rl.resolved().baseline) == ("beam", 5, "others")


def test_a_run_that_is_older_than_an_option_is_read(finished, tmp_path):
    shutil.copytree(finished / "xe", tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    del config["config"]["final_rate"]
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    assert config_of(runs.read(tmp_path / "run")).final_rate == 0.05


def test_a_run_with_an_option_that_is_not_known_is_refused_by_its_name(finished, tmp_path):
    shutil.copytree(finished / "xe", tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    config["config"]["momentum"] = 0.9
    path.write_text(json.dumps(config))
    with pytest.raises(InputError, match=f"{path}: is not the configuration of a captioner's run .*'momentum'"):
        config_of(runs.read(tmp_path / "run"))


def test_the_same_seed_gives_every_product_the_same_weights():
    built = []
    for product in ("p", "r", "pr"):
        torch.manual_seed(0)
        built.append(CaptionerConfig(product=product, **NETWORK).resolved().build(9, 4).state_dict())
    for other in built[1:]:
        assert all(torch.equal(value, other[name]) for name, value in built[0].items())
