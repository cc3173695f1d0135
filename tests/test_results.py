"""The tables in docs/results are those that its records give."""

import json
import runpy
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[1] / "docs" / "results"


@pytest.fixture(scope="module")
def tables():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(RESULTS)  # as for `python docs/results/tables.py`
        return runpy.run_path(str(RESULTS / "tables.py"))


def test_the_pages_show_the_numbers_of_the_records(tables):
    for page, shown in tables["pages"]().items():
        text = (RESULTS / page).read_text()
        for table in shown:
            assert table.count("\n") >= 2, "no study has runs"
            assert table in text, f"{page} is older than the records; run docs/results/tables.py"


def test_tables_are_replaced_from_top_to_bottom(tables):
    header = "| n |\n| --- |\n"
    page = f"{header}| 1 |\n\nbetween\n\n{header}| 2 |\n\nafter"
    first, second = f"{header}| 3 |\n| 4 |", f"{header}| 5 |"
    assert tables["with_tables"](page, [first]) == f"{first}\n\nbetween\n\n{header}| 2 |\n\nafter"
    assert tables["with_tables"](page, [first, second]) == f"{first}\n\nbetween\n\n{second}\n\nafter"


def test_no_record_names_a_folder_of_the_machine_it_ran_on():
    for path in RESULTS.rglob("config.json"):
        environment = json.loads(path.read_text())["environment"]
        words = [environment["command"], *environment.get("places", {}).values()]
        assert not [word for text in words for word in text.split() if word.startswith("/")], path


def test_captions_of_the_data_set_are_not_kept():
    assert not [
        path for path in RESULTS.rglob("*.json") if path.name.startswith(("captions", "examples", "vocabulary"))
    ]


def test_runs_without_recorded_angles_are_kept(tmp_path):
    keep = runpy.run_path(str(RESULTS / "keep_runs.py"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"config": {"seed": 0}}')
    for name in ("metrics.jsonl", "angles.jsonl"):
        (tmp_path / "run" / name).touch()
    keep["keep"](tmp_path / "run", tmp_path / "kept")
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"config.json", "metrics.jsonl"}


def test_angles_at_the_end_are_means_over_the_last_recorded_steps(tmp_path):
    keep = runpy.run_path(str(RESULTS / "keep_runs.py"))
    lines = [
        {"step": step, "layer": "lstm", "part": part, "min_sin": 0.0, "sample_min_sin": step + offset, "mean_sin": 1.0}
        for step in (0, 10, 20, 30, 40)
        for part, offset in (("hidden", 0.0), ("", 100.0))
    ]
    (tmp_path / "angles.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = keep["angles_at_end"](tmp_path / "angles.jsonl")
    assert {name: values["sample_min_sin"] for name, values in found.items()} == {"lstm.hidden": 25.0, "lstm": 125.0}
