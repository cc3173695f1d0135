"""`prproduct train classifier`, as typed."""

import re
import signal
from dataclasses import fields

import pytest
import torch
from training_runs import SMALL, run

from prproduct import cli
from prproduct.classification import training
from prproduct.classification.data import load
from prproduct.classification.training import ClassifierConfig
from prproduct.lab import runs

QUICK = ["--arch", "mlp-2-8", "--epochs", "2", "--batch-size", "400", "--accelerator", "cpu"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PRPRODUCT_DATA", raising=False)


def typed(capsys, *words):
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "classifier", *map(str, words)])
    streams = capsys.readouterr()
    return end.value.code, streams.err


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_trains_says_so_and_goes_on_when_asked(capsys, tmp_path):
    status, said = typed(capsys, *QUICK, "--product", "p", "--seed", "3", "--angles", "2", "--milestones", "1")
    assert status == 0
    folder = tmp_path / "runs" / "digits-mlp-2-8-p-3"
    assert re.search(
        r"epoch 2: train loss \d\.\d+, train error .* %, validation error .* %, test error .* %, .* images/s", said
    )
    assert re.search(r"runs/digits-mlp-2-8-p-3: finished, test error .* chosen by validation", said)
    config = runs.read(folder).config
    assert config["config"]["recipe"]["milestones"] == [1]
    assert config["data"]["fingerprint"].startswith("69328ca6")
    assert config["environment"]["versions"]["torch"] == torch.__version__
    assert (folder / "angles.jsonl").stat().st_size
    assert list((folder / "tensorboard").iterdir())
    before = content(folder)
    status, said = typed(
        capsys, *QUICK, "--product", "p", "--seed", "3", "--angles", "2", "--milestones", "1", "--resume"
    )
    assert status == 0
    assert "finished" in said
    assert content(folder) == before


def test_the_default_folder_names_a_product_as_the_folders_of_studies_do(capsys, tmp_path):
    assert typed(capsys, *QUICK, "--product", "tempered:.50", "--max-steps", "1")[0] == 0  # a product has one name
    assert [folder.name for folder in (tmp_path / "runs").iterdir()] == ["digits-mlp-2-8-tempered-0.5-0"]


def test_every_field_of_the_configuration_is_an_option(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        cli.main(["train", "classifier", "--help"])
    shown = capsys.readouterr().out
    for field in fields(ClassifierConfig):
        assert f"--{field.name.replace('_', '-')}" in shown


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--arch", "resnet21"], "resnet21: depth 21 is not 6n"),
        (["--arch", "vgg"], "no network is named 'vgg'"),
        (["--data", "imagenet"], "no data set is named 'imagenet'"),
        (["--product", "q"], "unknown product 'q'"),
        (["--product", "tempered:2"], "the power of tempered"),
        (["--epochs", "0"], "epochs is 0"),
        (["--batch-size", "0"], "batch_size is 0"),
        (["--learning-rate", "nan"], "learning_rate is nan"),
        (["--clip-norm", "nan"], "clip_norm is nan"),
        (["--clip-norm", "inf"], "clip_norm is inf"),
        (["--precision", "8"], "precision '8' is not known; there are 32, bf16, 16"),
        (["--precision", "16"], "precision 16 needs a CUDA device"),
        (["--devices", "0"], "devices is 0"),
        (["--devices", "99999", "--accelerator", "cpu"], "devices is 99999: a CPU takes one process"),
        (["--accelerator", "tpu"], "accelerator 'tpu' is not known"),
        (["--protocol", "test"], "protocol 'test' is not known"),
        (["--normalisation", "widespread"], "normalisation 'widespread' is for cifar10"),
        (["--run", "/proc/nothing"], "/proc/nothing: cannot be written"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_makes_no_folder(capsys, tmp_path, words, line):
    status, said = typed(capsys, *QUICK, *words)
    assert status == 2
    assert said.startswith("prproduct: ")
    assert line in said
    assert said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_one_line(capsys):
    status, said = typed(capsys, *QUICK, "--accelerator", "cuda")
    assert status == 2
    assert said.startswith("prproduct: accelerator cuda with 1 device is not available here (")
    assert said.endswith("); choose another --accelerator or fewer --devices\n")
    assert "Fabric" not in said
    assert said.count("\n") == 1


def test_resume_and_restart_together_remove_nothing(capsys, tmp_path):
    run(SMALL, tmp_path / "a")
    before = content(tmp_path / "a")
    status, said = typed(capsys, "--run-dir", "a", "--resume", "--restart")
    assert (status, said) == (2, "prproduct: --resume goes on with a run and --restart removes it: give one of them\n")
    assert content(tmp_path / "a") == before


def test_a_folder_of_another_run_is_left_alone(capsys, tmp_path):
    run(SMALL, tmp_path / "a")
    before = content(tmp_path / "a")
    for words in (["--seed", "1"], ["--seed", "1", "--resume"], ["--seed", "1", "--restart"], []):
        status, said = typed(capsys, *QUICK, *words, "--run", "a")
        assert status == 2
        assert "belongs to another configuration" in said
        assert said.count("\n") == 1
    assert content(tmp_path / "a") == before


def interrupted(capsys, monkeypatch, *words):
    """Typed, and Ctrl-C pressed in the third step."""
    sums = training.Classification.sums
    taken = []

    def pressed(self, model, batch):
        taken.append(batch)
        if len(taken) == 3:
            signal.raise_signal(signal.SIGINT)
        return sums(self, model, batch)

    with monkeypatch.context() as patch:
        patch.setattr(training.Classification, "sums", pressed)
        return typed(capsys, *words)


def test_ctrl_c_leaves_a_run_that_goes_on(capsys, tmp_path, monkeypatch):
    status, said = interrupted(capsys, monkeypatch, *QUICK, "--run", "a")
    assert status == 130
    assert "stopped after step 3; resume with --resume --run-dir a" in said
    status, said = typed(capsys, *QUICK, "--run", "a", "--resume")
    assert status == 0
    assert "resuming after step 3" in said
    assert runs.read(tmp_path / "a").finished


def test_the_configuration_of_a_run_makes_the_same_run_again(tmp_path):
    run(SMALL, tmp_path / "a")
    again = training.config_of(runs.read(tmp_path / "a"))
    assert again.identity(load("digits")) == SMALL.identity(load("digits"))
