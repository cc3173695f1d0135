"""Resuming: everything is read and checked before the first byte changes, and the folder knows its options."""

import json
import re
import shutil
from dataclasses import replace

import pytest
from test_train_command import QUICK, content, interrupted, typed
from training_runs import SMALL, assert_same_run, metrics, run

from prproduct import cli
from prproduct.classification.training import load_model
from prproduct.lab import checkpoints, runs
from prproduct.lab.errors import InputError
from prproduct.lab.report.files import angles_of


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PRPRODUCT_DATA", raising=False)


@pytest.fixture
def stopped(capsys, tmp_path, monkeypatch):
    """A run that was stopped after its third step, with records of steps and angles."""
    interrupted(capsys, monkeypatch, *QUICK, "--angles", "1", "--log-every", "1", "--run", "a")
    return tmp_path / "a"


def refused(capsys, folder, *words):
    """What a refused --resume says, in one line; the folder stays as it is."""
    before = content(folder)
    status, said = typed(capsys, "--run-dir", folder, "--resume", *words)
    assert status == 2
    assert said.count("\n") == 1, said
    assert content(folder) == before
    return said


def lose(folder, how):
    if how == "removed":
        shutil.rmtree(folder / "checkpoints")
    elif how == "emptied":
        shutil.rmtree(folder / "checkpoints" / "step-00000003")
    else:
        shutil.rmtree(folder / "checkpoints")
        (folder / "checkpoints").symlink_to("/mnt/unmounted")


@pytest.mark.parametrize("how", ["removed", "emptied", "a dangling link"])
def test_a_run_that_lost_its_checkpoints_keeps_its_records_and_begins_again_only_when_told(capsys, stopped, how):
    lose(stopped, how)
    said = refused(capsys, stopped)
    assert "checkpoints: " in said
    assert "give --restart to train from the start" in said
    status, _ = typed(capsys, "--run-dir", stopped, "--restart")
    assert status == 0
    status, _ = typed(capsys, *QUICK, "--angles", "1", "--log-every", "1", "--run", "whole")
    assert_same_run(stopped, "whole")


def test_a_run_without_a_marker_whose_records_are_of_later_epochs_had_checkpoints(capsys, tmp_path):
    run(SMALL, tmp_path / "a")
    lines = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "a" / "metrics.jsonl").write_text("".join(lines[:-1]))  # it had not ended yet
    (tmp_path / "a" / ".checkpointed").unlink()
    shutil.rmtree(tmp_path / "a" / "checkpoints")
    assert "the run had checkpoints, and none is there" in refused(capsys, tmp_path / "a")


def test_a_checkpoint_of_another_product_is_refused_by_name(capsys, stopped, monkeypatch):
    interrupted(capsys, monkeypatch, *QUICK, "--product", "p", "--run", "b")
    shutil.rmtree(stopped / "checkpoints")
    shutil.copytree("b/checkpoints", stopped / "checkpoints")
    said = refused(capsys, stopped)
    assert "step-00000003: is a checkpoint of another run: product is 'p' there and 'pr' here" in said
    with pytest.raises(InputError, match="of another run"):
        load_model(stopped)


@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_a_checkpoint_of_another_network_is_refused_before_the_records_are_cut(capsys, stopped, monkeypatch, part):
    """One of an older version, which does not say what run it is of."""
    interrupted(capsys, monkeypatch, *QUICK[2:], "--arch", "mlp-3-9", "--run", "b")
    place = stopped / "checkpoints"
    own, other = checkpoints.load(place, 3), checkpoints.load(stopped.parent / "b" / "checkpoints", 3)
    state = {key: value for key, value in own.state.items() if key != "run"}
    mixed = (other.model, own.optimizer) if part == "model" else (own.model, other.optimizer)
    checkpoints.save(place, 3, checkpoints.Checkpoint(*mixed, state))
    assert "step-00000003: does not fit this run (" in refused(capsys, stopped)


@pytest.mark.parametrize("name", ["metrics.jsonl", "angles.jsonl"])
def test_a_changed_digit_in_the_records_is_noticed(capsys, stopped, name):
    text = (stopped / name).read_text()
    place = re.search(r": \d\.\d\d\d", text).end() - 1
    digit = "1" if text[place] != "1" else "2"
    (stopped / name).write_text(text[:place] + digit + text[place + 1 :])
    assert f"{name}" in (said := refused(capsys, stopped))
    assert "changed since" in said


def test_a_changed_digit_in_the_records_of_a_finished_run_is_noticed_by_readers(tmp_path):
    run(replace(SMALL, product="pr", angles=5), tmp_path / "a")
    assert len(angles_of(runs.read(tmp_path / "a"))) == 10
    path = tmp_path / "a" / "angles.jsonl"
    text = path.read_text()
    path.write_text(text.replace("0.", "1.", 1))
    with pytest.raises(InputError, match=r"angles\.jsonl, bytes 0 to \d+: were changed"):
        angles_of(runs.read(tmp_path / "a"))
    path = tmp_path / "a" / "metrics.jsonl"
    text = path.read_text()
    for place in (text.index("0."), text.rindex("test_error") + len('test_error": ')):
        digit = "5" if text[place] != "5" else "6"
        path.write_text(text[:place] + digit + text[place + 1 :])
        with pytest.raises(InputError, match=r"metrics\.jsonl, line \d+: it or a line before it was changed"):
            runs.read(tmp_path / "a")
    path.write_text("".join(text.splitlines(keepends=True)[1:]))
    with pytest.raises(InputError, match="line 1: it or a line before it"):
        runs.read(tmp_path / "a")


def test_resume_needs_only_the_folder(capsys, stopped):
    status, said = typed(capsys, "--run-dir", stopped, "--resume")
    assert status == 0
    assert "resuming after step 3" in said
    typed(capsys, *QUICK, "--angles", "1", "--log-every", "1", "--run", "whole")
    assert_same_run(stopped, "whole")
    assert (stopped / "angles.jsonl").read_bytes() == (stopped.parent / "whole" / "angles.jsonl").read_bytes()


@pytest.mark.parametrize("what", ["classifier", "captioner"])
def test_resume_of_a_folder_without_a_run_trains_nothing(capsys, tmp_path, what):
    words = ["train", what, "--run-dir", "mistyped", "--resume", "--max-steps", "1", "--quiet"]
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert (end.value.code, capsys.readouterr().err) == (
        2,
        "prproduct: mistyped: there is no run to resume; leave out --resume to start one\n",
    )
    assert not (tmp_path / "mistyped").exists()


def test_options_that_disagree_with_the_folder_are_refused_by_name(capsys, stopped):
    for words, line in (
        (["--seed", "5"], "seed is 0 there and 5 here"),
        (["--product", "p"], "product is 'pr' there and 'p' here"),
        (["--epochs", "9"], "recipe.epochs is 2 there and 9 here"),
        (["--max-steps", "5"], "max_steps is None there and 5 here"),
    ):
        assert f"belongs to another configuration: {line}" in refused(capsys, stopped, *words)


def test_harmless_options_do_not_block_a_resume(capsys, stopped):
    harmless = ["--angles", "0", "--log-every", "4", "--checkpoint-minutes", "1", "--threads", "1", "--quiet"]
    status, _ = typed(capsys, "--run-dir", stopped, "--resume", "--no-tensorboard", *harmless)
    assert status == 0
    assert runs.read(stopped).finished
    assert [record["step"] for record in metrics(stopped) if record["event"] == "step"] == [1, 2, 3, 4, 8]


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("task", "a/config.json: is not the configuration of a classifier's run ('task')"),
        ("config", "a/config.json: is not the configuration of a classifier's run ('config')"),
        ("data", "a: belongs to another configuration: data.fingerprint is None there"),
    ],
)
def test_a_configuration_with_wrong_keys_is_named(capsys, stopped, key, line):
    config = json.loads((stopped / "config.json").read_text())
    del config[key]
    (stopped / "config.json").write_text(json.dumps(config))
    assert line in refused(capsys, stopped)
    config["config"] = {"recipe": 3, "seed": "x"}
    (stopped / "config.json").write_text(json.dumps(config))
    assert "config.json: is not the configuration of a classifier's run" in refused(capsys, stopped)


def test_max_steps_ends_in_the_middle_of_an_epoch_and_resumes(capsys, monkeypatch, tmp_path):
    words = [*QUICK, "--max-steps", "5", "--log-every", "1"]
    interrupted(capsys, monkeypatch, *words, "--run", "a")
    assert typed(capsys, "--run-dir", "a", "--resume")[0] == 0
    assert typed(capsys, *words, "--run", "whole")[0] == 0
    assert_same_run(tmp_path / "a", tmp_path / "whole")
    record = runs.read("a")
    assert record.of("end")[0]["step"] == 5
    assert [epoch["step"] for epoch in record.of("epoch")] == [4, 5]
    assert checkpoints.steps(tmp_path / "a" / "checkpoints")[-1] == 5


def test_restart_with_another_length_has_the_recipe_of_that_length(capsys, tmp_path):
    net, short = ["--arch", "resnet8", "--batch-size", "400", "--limit-train", "400"], ["--accelerator", "cpu"]
    for run_name, words in (("a", ["--epochs", "2", "--learning-rate", "0.3"]), ("new", ["--epochs", "5"])):
        typed(capsys, *net, *words, *short, "--max-steps", "1", "--run", run_name)
    shutil.rmtree("a/checkpoints")
    (tmp_path / "a" / ".checkpointed").unlink()  # as if it had ended in its first minutes
    assert runs.read("a").config["config"]["recipe"]["milestones"] == [1, 1]
    status, said = typed(capsys, "--run-dir", "a", "--restart", "--epochs", "5", *short)
    assert status == 0, said
    own, new = (runs.read(folder).config["config"]["recipe"] for folder in ("a", "new"))
    assert own == {**new, "learning_rate": 0.3}


def test_limit_train_takes_the_first_images(capsys, tmp_path):
    status, said = typed(capsys, *QUICK, "--limit-train", "100", "--epochs", "1", "--run", "a", "--threads", "1")
    assert status == 0
    assert "100 training images" in said
    assert runs.read("a").of("end")[0]["step"] == 1
    assert runs.read("a").config["environment"]["threads"] == 1
