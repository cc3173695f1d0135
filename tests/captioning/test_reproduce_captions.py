"""`prproduct reproduce captions`: from nothing to a table and a page, and nothing trained twice."""

import json
import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from PIL import Image
from small_dataset import dataset

from prproduct.captioning import reproduce as study
from prproduct.captioning.dataset import CaptionDataset
from prproduct.captioning.metrics import score
from prproduct.captioning.metrics.ngram_metrics import Score
from prproduct.captioning.results import captions_file, scores_file
from prproduct.lab import runs
from prproduct.lab.errors import InputError
from prproduct.lab.sweep import Ending, Result
from prproduct.lab.sweep.jobs import FINISHED
from prproduct.lab.sweep.progress import steps_done

NETWORK = {"hidden": 8, "embedding": 8, "attention": 8, "dropout": 0.0}
TINY = study.Scale(
    ("p", "pr"), 1, NETWORK, {"epochs": 2, "batch_size": 7, "angles": 3}, {"epochs": 1, "batch_size": 7, "angles": 3}
)


def test_options_replace_what_the_scale_says_and_reach_cross_entropy():
    (xe, rl), *others = study.pairs(
        study.Choice(scale="small", product=("r",), learning_rate=2e-3, batch_norm=True, xe_epochs=7)
    )
    assert others == []
    assert (xe.product, xe.epochs, xe.learning_rate, xe.batch_norm) == ("r", 7, 2e-3, True)
    assert (rl.epochs, rl.learning_rate) == (1, None), "REINFORCE keeps its own rate, and the network of its start"
    assert xe.hidden == study.pairs(study.Choice(scale="small"))[0][0].hidden


@pytest.fixture
def small_study(monkeypatch):
    """The command on a small data set, in this process, without Java; the names of the jobs that were trained."""
    trained = []

    def inline(jobs, workers, **options):
        workers.close()
        for job in jobs:
            if not job.finished:
                trained.append(job.name)
                job.train()
        return [Result(job, Ending(FINISHED), 1) for job in jobs]

    monkeypatch.setitem(study.SCALES, "quick", TINY)
    monkeypatch.setattr(study, "sweep", inline)
    monkeypatch.setattr(study, "open_dataset", lambda captions, source: dataset())
    monkeypatch.setattr(score, "Meteor", lambda: nullcontext(FakeMeteor()))
    return trained


@pytest.fixture
def reproduce(command, small_study):
    """Calls the command on the small data set: exit status, stdout, stderr."""
    return partial(command, "reproduce", "captions", "--captions", "small", "--workers", 1, "--quiet", "-o")


@pytest.mark.slow
def test_both_phases_of_each_product_are_trained_captioned_scored_and_shown(reproduce, tmp_path):
    status, shown, _ = reproduce(tmp_path)
    assert status == 0
    images = len(dataset().captions.of("test"))
    for product in ("p", "pr"):
        for phase in ("xe", "rl"):
            folder = tmp_path / product / "seed-0" / phase
            assert runs.read(folder).finished
            assert len(json.loads(captions_file(folder, "test").read_text())) == images
            scored = json.loads(scores_file(folder, "test").read_text())
            assert {"Bleu_4", "ROUGE_L", "CIDEr"} <= scored["scores"].keys()
    assert "CIDEr" in shown
    assert "report.html" in shown.replace("\n", "")
    assert "CIDEr" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_what_is_finished_is_neither_trained_nor_scored_again(reproduce, small_study, tmp_path):
    assert reproduce(tmp_path)[0] == 0
    written = scores_file(tmp_path / "pr" / "seed-0" / "rl", "test").stat().st_mtime_ns
    assert reproduce(tmp_path)[0] == 0
    assert small_study == ["p/seed-0", "pr/seed-0"]
    assert scores_file(tmp_path / "pr" / "seed-0" / "rl", "test").stat().st_mtime_ns == written


@pytest.mark.slow
def test_the_steps_of_a_job_are_those_that_both_phases_record(reproduce, tmp_path):
    assert reproduce(tmp_path)[0] == 0
    images = len(dataset().captions.of("train"))
    for job in study.jobs(study.Choice(), tmp_path, "small", None, images):
        assert job.steps == steps_done(job) == (2 + 1) * math.ceil(images / 7)


@pytest.mark.slow
def test_a_metric_that_failed_is_named_and_computed_when_it_can_be(reproduce, tmp_path, monkeypatch):
    def no_meteor():
        raise InputError("METEOR needs Java")

    file = scores_file(tmp_path / "pr" / "seed-0" / "rl", "test")
    monkeypatch.setattr(score, "Meteor", no_meteor)
    status, _, err = reproduce(tmp_path)
    said = [line for line in err.splitlines() if "METEOR" in line]
    line = "prproduct: no meteor: METEOR needs Java; the same command computes it when that is mended"
    assert (status, said) == (0, [line])
    assert json.loads(file.read_text())["failures"]["meteor"] == "METEOR needs Java"
    captions = captions_file(file.parent.parent, "test").stat().st_mtime_ns
    monkeypatch.setattr(score, "Meteor", lambda: nullcontext(FakeMeteor()))
    assert reproduce(tmp_path)[0] == 0
    found = json.loads(file.read_text())
    assert found["scores"]["METEOR"] == 0.25
    assert "meteor" not in found["failures"]
    assert captions_file(file.parent.parent, "test").stat().st_mtime_ns == captions, "captioned again"
    monkeypatch.setattr(score, "Meteor", no_meteor)
    assert reproduce(tmp_path)[0] == 0
    assert json.loads(file.read_text())["scores"]["METEOR"] == 0.25


class FakeMeteor:
    def score(self, references, candidates, progress):
        return Score(0.25, np.full(len(candidates), 0.25))


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_missing_split_is_refused_before_anything_is_trained(reproduce, small_study, tmp_path, monkeypatch, split):
    captions, features = dataset()
    left = replace(captions, images=tuple(image for image in captions.images if image.split != split))
    monkeypatch.setattr(study, "open_dataset", lambda *_: CaptionDataset(left, features))
    status, _, err = reproduce(tmp_path)
    assert (status, f"small: no images of the split {split}" in err, small_study) == (2, True, [])


def test_pictures_of_other_images_are_refused_before_anything_is_trained(reproduce, small_study, tmp_path):
    Image.new("RGB", (9, 9)).save(tmp_path / "another.png")
    status, _, err = reproduce(tmp_path / "runs", "--pictures", tmp_path)
    assert (status, "no pictures of the captions' images there" in err, small_study) == (2, True, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scale", "huge"], "scale 'huge' is not known"),
        (["--seeds", "0"], "seeds is 0"),
        (["--product", "tempered:.5", "--product", "tempered:0.5"], "product is given twice"),
        (["--threads", "3000000000"], "threads is 3000000000, it must be from 1 to 1024"),
        (["--captions", "world", "--features", "f.h5"], "the world has features of its own"),
        (["--captions", "nowhere"], "features of the images are needed"),
        (["--pictures", "nowhere.zip"], "nowhere.zip: no such file, folder or zip archive"),
    ],
)
def test_what_a_user_can_mend_is_one_line(arguments, message, tmp_path, command):
    status, _, said = command("reproduce", "captions", "-o", tmp_path / "runs", *arguments)
    assert (status, len(said.splitlines())) == (2, 1)
    assert message in said
    assert not (tmp_path / "runs").exists()
