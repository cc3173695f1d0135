"""Folders of a report on classifiers: which are runs, what is refused in one line, and no name is markup."""

import json

import pytest
from made_runs import made_run
from report_text import found_in

from prproduct.classification import report
from prproduct.cli import main
from prproduct.lab.errors import InputError


def test_names_of_folders_are_never_markup(tmp_path):
    name = "<img src=x onerror=alert(1)>|`$&'\""
    made_run(tmp_path / name / "a", "p", 0, layers=("<b>$x$</b>",))
    report.write([tmp_path / name], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<img" not in page
    assert "&lt;img src=x" in page
    assert "<b>" not in page


def test_runs_are_found_once_and_nothing_inside_of_them(tmp_path):
    made_run(tmp_path / "deep" / "er" / "a", "p", 0)
    made_run(tmp_path / "deep" / "er" / "a" / "checkpoints" / "b", "p", 1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "somebody else\'s"}')
    found = found_in([tmp_path, tmp_path / "deep", tmp_path / "deep" / "er" / "a"])
    assert [record.folder.name for record in found] == ["a"]


def test_runs_behind_links_are_found_and_links_that_lead_back_end(tmp_path):
    made_run(tmp_path / "real" / "a", "p", 0)
    (tmp_path / "real" / "a" / "back").symlink_to(tmp_path)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a").symlink_to(tmp_path / "real" / "a")
    (tmp_path / "links" / "round").symlink_to(tmp_path / "links")
    assert [record.folder.name for record in found_in([tmp_path / "links"])] == ["a"]
    assert len(found_in([tmp_path])) == 1


def broken(folder, name, content):
    made_run(folder, "p", 0, layers=("fc",))
    (folder / name).write_text(content)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda folder: None, "run: no such folder"),
        (lambda folder: folder.touch(), "run: is a file; give the folder of a run"),
        (lambda folder: folder.mkdir(), "there is no run in it"),
        (lambda folder: broken(folder, "config.json", '{"a": 1}'), "is not that of a run, it has no format"),
        (lambda folder: broken(folder, "config.json", "{"), "is not JSON"),
        (lambda folder: broken(folder, "metrics.jsonl", "x\n"), "line 1: is not a record of a run"),
        (lambda folder: broken(folder, "metrics.jsonl", '{"event": "epoch"}\n'), "an epoch's record has no epoch"),
        (lambda folder: broken(folder, "angles.jsonl", "x\n"), "line 1: not a record of an AngleProbe"),
    ],
)
def test_what_is_no_run_is_one_line_and_writes_nothing(tmp_path, capsys, make, line):
    make(tmp_path / "run")
    with pytest.raises(SystemExit) as end:
        main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "report.html")])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("format", 2, "has format 2, this version of prproduct reads 1"),
        ("task", "painter", "its task is 'painter'; there are reports for classifier"),
        ("config", {"seed": 0}, "is not that of a classifier's run"),
    ],
)
def test_a_run_of_another_kind_is_one_line(tmp_path, capsys, key, value, line):
    path = made_run(tmp_path / "run", "p", 0) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "report.html")])
    assert line in capsys.readouterr().err


def test_a_classifiers_report_refuses_another_task(tmp_path):
    path = made_run(tmp_path / "run", "p", 0) / "config.json"
    path.write_text(path.read_text().replace('"classifier"', '"captioner"'))
    with pytest.raises(InputError, match="is a run of a captioner"):
        report.write([tmp_path / "run"], tmp_path / "report.html")


def test_several_tasks_share_a_page_and_their_headings_say_whose_they_are(tmp_path, monkeypatch):
    from prproduct import reporting

    made_run(tmp_path / "a", "p", 0)
    path = made_run(tmp_path / "b", "p", 0) / "config.json"
    path.write_text(path.read_text().replace('"classifier"', '"captioner"'))
    monkeypatch.setitem(reporting.TASKS, "captioner", "prproduct.classification.report")
    _, sections = reporting.content(found_in([tmp_path]))
    titles = [section.title for section in sections if section.level == 2]
    assert titles.count("Classifiers: summary") == titles.count("Captioners: summary") == 1
