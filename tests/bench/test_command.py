"""The command: its table, JSON, picture, and one line for what a user can mend."""

import json

import pytest
import torch
from torch import nn

from prproduct import cli
from prproduct.bench import cases, command
from prproduct.bench.cases import Case
from prproduct.bench.machine import Machine
from prproduct.bench.plot import save
from prproduct.bench.results import Report, Row, Settings, remarks
from prproduct.bench.timing import AGAIN, NATIVE, OURS, REFERENCE

TINY = [
    Case("linear", "Linear 4×5→3", lambda: nn.Linear(5, 3), (4, 5), 1.1),
    Case("conv", "Conv2d 3→2", lambda: nn.Conv2d(3, 2, 3), (2, 3, 5, 5), 1.1, 1.05),
]


@pytest.fixture(autouse=True)
def _tiny_cases(monkeypatch):
    monkeypatch.setattr(cases, "CASES", TINY)
    monkeypatch.setattr(
        cases,
        "SWEEPS",
        {"features": ("features", [Case("linear", "n", TINY[0].build, (n, 5), size=n) for n in (1, 2)])},
    )
    monkeypatch.setattr(command, "Budget", lambda rounds: command_budget(rounds))


def command_budget(rounds):
    from prproduct.bench.timing import Budget

    return Budget(rounds=rounds, seconds=0.0, most=rounds, warm_up=0, reference_rounds=1)


def status_of(*words):
    with pytest.raises(SystemExit) as end:
        cli.main(["bench", "--repeats", "2", *words])
    return end.value.code


def row(name="a layer", ours=(1.0, 1.0, 1.0), size=None, **changes):
    seconds = {NATIVE: [1.0] * len(ours), AGAIN: [1.0] * len(ours), OURS: list(ours), REFERENCE: [9.0]}
    values = {"group": "g", "name": name, "path": "compiled", "seconds": seconds, "target": 1.1}
    values |= {"saved_native": 100, "saved_ours": 101, "without_reference": None, "size": size}
    return Row(**values | changes)


MACHINE = Machine("2.0", "a CPU", 2, 0.1, "abc")


def test_the_table_names_every_case_and_where_it_was_measured(capsys):
    assert status_of() == 0
    out = capsys.readouterr().out
    assert all(
        text in out
        for text in ("Linear 4×5→3", "Conv2d 3→2", "C++", torch.__version__, "load average", "float32", "thread")
    )


def test_only_leaves_the_others_out(capsys):
    assert status_of("--only", "conv", "--no-reference") == 0
    out = capsys.readouterr().out
    assert "Linear" not in out
    assert "no literal formula" not in out  # it was the user who left it out


def test_json_on_stdout_is_the_whole_run_and_comes_back_equal(capsys):
    assert status_of("--json", "--only", "linear") == 0
    text = capsys.readouterr().out
    data = json.loads(text)
    assert [len(data["rows"][0]["seconds"][name]) for name in (NATIVE, AGAIN, OURS, REFERENCE)] == [2, 2, 2, 1]
    assert Report.from_json(text).to_json() == text.rstrip("\n")


def test_dtype_product_and_threads_reach_the_layers(capsys):
    before = torch.get_num_threads()
    arguments = ["--dtype", "bfloat16", "--product", "tempered:0.5", "--threads", "1", "--only", "linear", "--json"]
    assert status_of(*arguments) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["rows"][0]["saved_native"] == 2 * 4 * 5  # bytes of the input
    assert data["settings"]["product"] == "tempered:0.5"
    assert data["settings"]["threads"] == 1
    assert torch.get_num_threads() == before


def test_compile_puts_inductor_on_both_sides(capsys):
    assert status_of("--compile", "--only", "linear", "--no-reference", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["rows"][0]["path"] == "inductor"
    assert data["rows"][0]["saved_ours"] is None


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_picture_is_written_whole_and_alone(tmp_path, capsys, suffix):
    if suffix == "svg":
        assert status_of("--plot", str(tmp_path / "a.svg")) == 0
    else:
        save(Report(MACHINE, Settings(), [row()]), tmp_path / f"a.{suffix}")
    assert [path.name for path in tmp_path.iterdir()] == [f"a.{suffix}"]
    assert (tmp_path / f"a.{suffix}").stat().st_size > 2000


def test_the_picture_of_a_run_names_its_cases_and_of_a_sweep_its_sizes(tmp_path):
    save(Report(MACHINE, Settings(), [row(), row("another")]), tmp_path / "a.svg")
    assert "another" in (tmp_path / "a.svg").read_text()
    rows = [row(size=size, target=None) for size in (4, 512)]
    save(Report(MACHINE, Settings(sweep="features"), rows), tmp_path / "b.svg")
    assert "512" in (tmp_path / "b.svg").read_text()


def test_a_sweep_measures_its_sizes(capsys):
    assert status_of("--sweep", "features", "--json") == 0
    assert [r["size"] for r in json.loads(capsys.readouterr().out)["rows"]] == [1, 2]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "gru"], "--only gru: no case is called so"),
        (["--dtype", "int8"], "--dtype int8: unknown"),
        (["--device", "gpu"], "--device gpu: unknown"),
        (["--device", "mps"], "--device mps: times are taken on cpu and cuda only"),
        (["--device", "cuda:99"], "--device cuda:99: torch finds"),
        (["--memory", "little"], "--memory little: unknown"),
        (["--threads", "0"], "--threads 0: this machine takes 1 to"),
        (["--threads", "100000"], "--threads 100000: this machine takes 1 to"),
        (["--repeats", "1"], "--repeats 1: a spread needs at least 2"),
        (["--product", "q"], "--product q: unknown product"),
        (["--sweep", "colours"], "--sweep colours: unknown; there are features"),
        (["--sweep", "features", "--only", "linear"], "give one of them"),
        (["--plot", "nowhere/at/all.png"], "there is no folder nowhere/at"),
        (["--plot", "picture.docx"], "unknown kind of picture"),
        (["--plot", "picture"], "unknown kind of picture"),
    ],
)
def test_what_a_user_can_mend_is_one_line_before_anything_is_measured(monkeypatch, capsys, words, says):
    def refuse(*arguments):
        raise AssertionError("measured")

    monkeypatch.setattr(command, "measure", refuse)
    assert status_of(*words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert says in captured.err


def test_a_folder_is_no_picture(tmp_path, capsys):
    (tmp_path / "a.png").mkdir()
    assert status_of("--plot", str(tmp_path / "a.png")) == 2
    assert "is a folder; give the name of a file" in capsys.readouterr().err


def test_rows_that_are_done_are_shown_when_the_user_stops(monkeypatch, capsys):
    measure = command.measure

    def stop_at_the_second(case, *arguments):
        if case is TINY[1]:
            raise KeyboardInterrupt
        return measure(case, *arguments)

    monkeypatch.setattr(command, "measure", stop_at_the_second)
    assert status_of() == 130
    out = capsys.readouterr().out
    assert "Linear 4×5→3" in out
    assert "Conv2d" not in out


def test_remarks_say_which_rows_cannot_be_judged_and_why():
    noisy = row("shaken", ours=(0.5, 1.0, 2.0))
    lines = remarks(Report(MACHINE, Settings(), [row(), noisy, row("close", ours=(1.09, 1.1, 1.12))]))
    assert lines[0] == "? shaken: the ratio spreads by ± 0.75"
    assert lines[1].startswith("? close: 1.10 is too near to its target")
    assert lines[2].startswith("2 of 3 rows cannot be judged")
    assert remarks(Report(MACHINE, Settings(), [row()])) == []


def test_remarks_say_where_the_literal_formula_did_not_run():
    large = row(without_reference="too large")
    assert remarks(Report(MACHINE, Settings(), [large])) == ["– no literal formula for a layer: too large"]


def test_remarks_say_that_other_programs_were_running():
    busy = Machine("2.0", "a CPU", 2, 3.0, None)
    assert remarks(Report(busy, Settings(), [row()])) == [
        "Other programs were running: load average 3.0 when this began"
    ]
