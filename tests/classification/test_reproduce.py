"""`prproduct reproduce`: which runs a study has, where they lie, and what is printed and written in the end."""

import re
from pathlib import Path

import pytest
from made_runs import made_run
from report_text import found_in
from rich.console import Console

from prproduct import cli
from prproduct.classification import reproduce_command, studies
from prproduct.classification.data import load
from prproduct.classification.studies import Choice, configs, jobs, run_folder
from prproduct.classification.training import ClassifierConfig, train
from prproduct.lab import runs
from prproduct.lab.errors import InputError
from prproduct.lab.hardware import Hardware
from prproduct.lab.report.content import number
from prproduct.lab.sweep import Plan
from prproduct.lab.sweep.jobs import REFUSED, Ending, attempt

TINY = ["--data", "digits", "--arch", "mlp-2-8", "--epochs", "2", "--batch-size", "400", "--accelerator", "cpu"]


class Here:
    """Workers that train in this very process."""

    def __init__(self):
        self.done = []

    def room(self):
        return not self.done

    def start(self, job):
        self.done.append((job, attempt(job)))

    def ended(self, seconds):
        return [self.done.pop()] if self.done else []

    def ask_to_stop(self):
        pass

    def close(self):
        pass


@pytest.fixture(autouse=True)
def pages(tmp_path, monkeypatch):
    """No data sets but digits, no other processes, and the pages that were asked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.delenv("PRPRODUCT_DATA", raising=False)
    monkeypatch.setattr("prproduct.classification.data.locate.SYSTEM", tmp_path / "nothing")
    monkeypatch.setattr(Plan, "open", lambda self, count, address: Here())
    written = []
    monkeypatch.setattr(reproduce_command, "write", lambda folders, target: written.append((folders, target)))
    return written


def typed(capsys, *words):
    with pytest.raises(SystemExit) as end:
        cli.main(["reproduce", *map(str, words)])
    streams = capsys.readouterr()
    return end.value.code, streams.out, streams.err


def test_the_small_cifar_runs_are_those_of_the_train_command():
    wanted = configs("cifar", Choice(scale="small"))
    alone = ClassifierConfig(arch="resnet8", data="cifar10", product="p", seed=0, epochs=8, angles=88)
    assert wanted[0] == alone
    assert str(run_folder(wanted[0])) == "cifar10/resnet8/p/seed-0"
    assert [(c.arch, c.product, c.seed, c.recipe.epochs) for c in wanted] == [
        ("resnet8", product, seed, 8) for seed in (0, 1, 2) for product in ("p", "pr")
    ]


def test_the_paper_s_table_is_four_nets_on_two_data_sets_with_their_own_recipes():
    assert {part.seeds for part in studies.STUDIES["cifar"]["paper"]} == {3}
    wanted = configs("cifar", Choice(scale="paper", seeds=1))
    assert len({run_folder(config) for config in wanted}) == 4 * 2 * 2
    assert {(config.arch, config.recipe.epochs) for config in wanted} == {
        ("resnet110", 164),
        ("preresnet110", 164),
        ("wrn-28-10", 200),
        ("densenet-bc-100-12", 300),
    }


@pytest.mark.parametrize(("scale", "seeds", "epochs"), [("small", 5, 10), ("paper", 10, 10), ("quick", 2, 2)])
def test_the_study_of_gradients_has_five_products_under_the_same_seeds(monkeypatch, scale, seeds, epochs):
    monkeypatch.setattr(studies, "find", lambda source, data_dir: "found")
    wanted = configs("gradients", Choice(scale=scale))
    assert {(c.product, c.seed) for c in wanted} == {
        (product, seed) for product in ("p", "no-length", "no-direction", "r", "pr") for seed in range(seeds)
    }
    assert {(c.arch, c.data, c.recipe.epochs) for c in wanted} == {("mlp", "fashion-mnist", epochs)}
    assert all(c.angles for c in wanted)


def test_a_quick_look_takes_digits_where_fashion_mnist_is_not_at_hand_and_nothing_else_does():
    assert {c.data for c in configs("gradients", Choice())} == {"digits"}
    assert {c.data for c in configs("gradients", Choice(scale="small"))} == {"fashion-mnist"}
    assert {c.data for c in configs("gradients", Choice(data=("fashion-mnist",)))} == {"fashion-mnist"}


def test_what_is_chosen_replaces_what_the_scale_says_and_keeps_the_rest():
    choice = Choice(scale="small", arch=("densenet-bc-16-12", "resnet14"), data=("cifar100",), product=("pr-w",))
    wanted = configs("cifar", choice)
    assert [(c.arch, c.data, c.product, c.seed, c.epochs) for c in wanted] == [
        *(("densenet-bc-16-12", "cifar100", "pr-w", seed, 8) for seed in range(3)),
        *(("resnet14", "cifar100", "pr-w", seed, 8) for seed in range(3)),
    ]
    other = configs("gradients", Choice(seeds=1, epochs=3, batch_size=64, optimizer="adam", learning_rate=1e-3))
    assert [(c.epochs, c.recipe.batch_size, c.recipe.optimizer, c.recipe.learning_rate) for c in other] == [
        (3, 64, "adam", 1e-3)
    ] * 5
    assert {c.angles for c in configs("gradients", Choice(angles=0))} == {0}
    fast = configs("cifar", Choice(compile=True, channels_last=True))
    assert {(c.compile, c.channels_last) for c in fast} == {(True, True)}


def test_it_trains_prints_the_table_and_writes_the_page(capsys, tmp_path, pages):
    words = ["gradients", *TINY, "--product", "p", "--product", "tempered:0.5", "--seeds", "2", "-o", "study"]
    status, out, err = typed(capsys, *words)
    assert status == 0, err
    assert "4 runs in study" in err
    assert "[4/4] digits/mlp-2-8/tempered-0.5/seed-1: finished" in err
    place = tmp_path / "study" / "digits" / "mlp-2-8"
    folders = [place / product / f"seed-{seed}" for seed in (0, 1) for product in ("p", "tempered-0.5")]
    assert pages == [(folders, Path("study/report.html"))]
    assert "the page with curves and angles: study/report.html" in out
    rows = rows_in(out)
    assert "mlp-2-8 on digits: test error in %" in out
    assert [row[:2] for row in rows] == [["P", "2"], ["tempered:0.5", "2"]]
    ends = [runs.read(folder).of("end")[0]["last"]["test_error"] for folder in folders]
    assert rows[0][2].startswith(f"{50 * (ends[0] + ends[2]):.2f} ± ")
    difference = 50 * (ends[1] - ends[0] + ends[3] - ends[2])
    assert rows[1][4].startswith(f"{number(difference, sign=True)} ± ")

    before = {path: path.read_bytes() for path in (tmp_path / "study").rglob("*") if path.is_file()}
    status, again, err = typed(capsys, *words)
    assert (status, again) == (0, out)
    assert "4 of 4 runs were finished before" in err
    assert {path: path.read_bytes() for path in (tmp_path / "study").rglob("*") if path.is_file()} == before


def test_runs_made_by_the_train_command_are_found_finished(capsys, tmp_path):
    config = ClassifierConfig(arch="mlp-2-8", data="digits", product="p", epochs=2, batch_size=400, angles=10)
    folder = tmp_path / "runs" / "gradients" / run_folder(config)
    train(config, folder, hardware=Hardware(accelerator="cpu"), tensorboard=False)
    status, _, err = typed(capsys, "gradients", *TINY, "--product", "p", "--seeds", "1")
    assert status == 0
    assert "1 of 1 runs were finished before" in err


def test_a_run_that_is_refused_is_named_and_the_status_is_one_while_the_others_are_in_the_table(capsys, pages):
    words = ["gradients", *TINY, "--seeds", "1", "-o", "study", "--quiet"]
    assert typed(capsys, *words, "--product", "p")[0] == 0
    broken = Path("study/digits/mlp-2-8/pr/seed-0")
    broken.mkdir(parents=True)
    (broken / "letter.txt").write_text("mine")
    status, out, err = typed(capsys, *words, "--product", "p", "--product", "pr")
    assert status == 1
    assert "prproduct: 1 of 2 runs did not finish:\nprproduct: digits/mlp-2-8/pr/seed-0: " in err
    assert "holds letter.txt" in err
    assert len(pages[-1][0]) == 1
    assert "mlp-2-8" in out


def test_the_page_lists_runs_that_did_not_finish(capsys, tmp_path, pages, monkeypatch):
    class Diverging(Here):
        def start(self, job):
            if "/p/" in job.name:
                return super().start(job)
            if "seed-0" in job.name:  # the other one never began
                job.folder.mkdir(parents=True)
                (job.folder / "config.json").touch()
            return self.done.append((job, Ending(REFUSED, "diverged")))

    monkeypatch.setattr(Plan, "open", lambda self, count, address: Diverging())
    words = ["gradients", *TINY, "--seeds", "2", "--product", "p", "--product", "pr", "-o", "study", "--quiet"]
    assert typed(capsys, *words)[0] == 1
    place = tmp_path / "study" / "digits" / "mlp-2-8"
    assert {path.relative_to(place).as_posix() for path in pages[-1][0]} == {"p/seed-0", "p/seed-1", "pr/seed-0"}


def test_when_nothing_finished_there_is_no_table_and_no_page(capsys, pages):
    status, out, err = typed(capsys, "gradients", *TINY, "--seeds", "1", "--product", "pr", "--learning-rate", "1e30")
    assert status == 1
    assert re.search(r"digits/mlp-2-8/pr/seed-0: the loss of step \d+ is NaN or infinite", err)
    assert (out, pages) == ("", [])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--scale", "huge"], "scale 'huge' is not known; there are quick, small, paper"),
        (["--seeds", "0"], "seeds is 0, it must be at least 1"),
        (["--product", "q"], "unknown product 'q'"),
        (["--product", "p", "--product", "p"], "product is given twice"),
        (["--product", "tempered:.5", "--product", "tempered:0.5"], "product is given twice"),
        (["--arch", "vgg"], "no network is named 'vgg'"),
        (["--data", "imagenet"], "no data set is named 'imagenet'"),
        (["--epochs", "0"], "epochs is 0"),
        (["--workers", "0"], "workers is 0"),
        (["--retries", "-1"], "retries is -1"),
        (["--data-dir", "nowhere"], "nowhere: no such folder"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_makes_no_folder(capsys, tmp_path, words, line):
    status, out, err = typed(capsys, "gradients", *words, "-o", "study")
    assert status == 2
    assert line in err
    assert (out, err.count("\n")) == ("", 1)
    assert not (tmp_path / "study").exists()


def test_a_folder_with_a_run_of_another_configuration_is_refused_before_anything_is_trained(tmp_path):
    wanted = configs("gradients", Choice(seeds=2, epochs=3))
    last = tmp_path / run_folder(wanted[-1])
    runs.Run.open(last, ClassifierConfig(**{**vars(wanted[-1]), "epochs": 4}).identity(load("digits")), {}).close()
    with pytest.raises(InputError, match=r"seed-1: belongs to another configuration: recipe.epochs is 4 there and 3"):
        jobs(wanted, tmp_path)


def test_a_job_knows_how_many_steps_its_run_has(tmp_path):
    (job,) = jobs([ClassifierConfig(arch="mlp-2-8", epochs=2, batch_size=400)], tmp_path, accelerator="cpu")
    job.train()
    assert job.finished
    assert runs.read(job.folder).of("end")[0]["step"] == job.steps


def rows_of(folder):
    console = Console(width=80)
    with console.capture() as shown:
        console.print(*reproduce_command.tables(found_in([folder])))
    return rows_in(shown.get())


def rows_in(shown):
    """The cells behind each line of dashes, up to an empty line."""
    cells, inside = [], False
    for line in shown.splitlines():
        inside = (inside or "───" in line) and bool(line.strip())
        if inside and "───" not in line:
            cells.append(re.split(r"\s{2,}", line.strip()))
    return cells


def test_differences_are_taken_between_runs_of_the_same_seed_alone(tmp_path):
    made_run(tmp_path / "a", "p", 0, 0.10, selected=0.12)
    made_run(tmp_path / "b", "p", 1, 0.30, selected=0.20)
    made_run(tmp_path / "c", "pr", 1, 0.25, selected=0.22)
    assert rows_of(tmp_path) == [
        ["P", "2", "20.00 ± 14.14", "16.00 ± 5.66"],
        ["PR", "1", "25.00", "22.00", "−5.00", "+2.00"],
    ]


def test_without_p_or_without_a_selected_epoch_the_cells_are_empty(tmp_path):
    for seed in (0, 1):
        made_run(tmp_path / str(seed), "pr", seed, 0.1 + 0.1 * seed, protocol="paper")
    assert rows_of(tmp_path) == [["PR", "2", "15.00 ± 7.07"]]


def test_the_study_of_gradients_fits_in_80_columns(tmp_path):
    for name in ("p", "no-length", "no-direction", "r", "pr"):
        for seed in (0, 1):
            error = 0.1 + 0.8 * (name == "r") * seed
            made_run(tmp_path / f"{name}-{seed}", name, seed, error, selected=0.1)
    rows = rows_of(tmp_path)
    assert [row[0] for row in rows] == ["P", "R", "PR", "no-length", "no-direction"]
    assert rows[1] == ["R", "2", "50.00 ± 56.57", "10.00 ± 0.00", "+40.00 ± 56.57", "0.00 ± 0.00"]


@pytest.mark.parametrize(
    ("words", "ray", "address"),
    [
        ([], False, None),
        (["--ray"], True, None),
        (["--ray", "10.0.0.1:6379"], True, "10.0.0.1:6379"),
        (["--ray", "--gpus-per-run", "0.5"], True, None),
    ],
)
def test_the_address_of_a_cluster_may_be_left_out(capsys, monkeypatch, words, ray, address):
    opened = []
    monkeypatch.setattr(Plan, "open", lambda self, count, address: opened.append((self.ray, address)) or Here())
    assert typed(capsys, "gradients", *TINY, "--seeds", "1", "--product", "p", *words)[0] == 0
    assert opened == [(ray, address)]
