"""Charts of the report on classifiers: curves over training, angles by layer, products in one order."""

import statistics

import pytest
from made_runs import STUDY, made_run, pairs
from report_text import found_in

from prproduct.classification import report
from prproduct.classification.report.comparison import comparisons
from prproduct.classification.report.curves import training
from prproduct.lab.report.content import charts, display, plain


def test_products_stand_in_the_same_order_everywhere(tmp_path):
    made = pairs(tmp_path, STUDY)
    order = ["p", "r", "pr", "no-length", "no-direction"]
    assert list(made[0].counted) == order
    assert [comparison.product for comparison in comparisons(made)] == order[1:]
    sections = {section.title: section for section in report.sections(found_in([tmp_path]))}
    rows = [plain(row[0]) for row in sections["mlp on digits: runs"].blocks[1].rows]
    assert list(dict.fromkeys(rows)) == [display(product) for product in order]
    curves = sections["mlp on digits: curves"].blocks[0]
    assert [line.product for line in curves.panels[0].lines] == order


def test_products_that_failed_do_not_set_the_scale_of_the_others(tmp_path):
    (group,) = pairs(tmp_path / "long", STUDY)
    chart = training(group)
    assert "of the products that learned, without R, no-direction." in plain(chart.caption)
    assert all(panel.limits is not None for panel in chart.panels)
    assert chart.panels[0].limits[1] < 10  # of a training that ends at 2.4 %
    (short,) = pairs(tmp_path / "short", STUDY, epochs=1)
    assert all(panel.limits is None for panel in training(short).panels)
    assert "learned" not in plain(training(short).caption)
    (fine,) = pairs(tmp_path / "fine", {"p": [2.0], "pr": [2.5]})
    assert all(panel.limits is None for panel in training(fine).panels)
    (guessing,) = pairs(tmp_path / "guessing", {"p": [89.8], "pr": [90.2]})
    assert all(panel.limits is None for panel in training(guessing).panels)


def test_layers_have_their_names_on_the_axis(tmp_path):
    made_run(tmp_path / "a", "p", 0, layers=("fc1", "fc2", "fc3", "fc"))
    found = {section.title: section for section in report.sections(found_in([tmp_path]))}
    depth, _ = charts([found["mlp on digits: angles"]])
    assert depth.panels[0].names == ("fc1", "fc2", "fc3", "fc")


def test_angles_are_drawn_for_each_layer_and_for_many_only_some_and_by_depth(tmp_path):
    layers = [f"layer{number}" for number in range(30)]
    made_run(tmp_path / "a", "p", 0, layers=layers)
    made_run(tmp_path / "b", "p", 1, layers=layers)
    found = report.sections(found_in([tmp_path]))
    (section,) = [section for section in found if section.title.endswith("angles")]
    depth, over_training = charts([section])
    assert depth.panels[0].lines[0].y == pytest.approx([0.3 + 0.1 * place - 0.06 + 0.005 for place in range(30)])
    titles = [panel.title for panel in over_training.panels]
    assert (len(titles), titles[0], titles[-1]) == (12, "layer0", "layer29")
    assert over_training.panels[0].lines[0].y == pytest.approx([0.305, 0.285, 0.265, 0.245])


def test_without_angles_there_is_no_section_on_them(tmp_path):
    made_run(tmp_path / "a", "p", 0)
    assert not [section for section in report.sections(found_in([tmp_path])) if "angles" in section.title]


def test_curves_are_means_over_seeds_with_their_deviation(tmp_path):
    pairs(tmp_path, {"p": [10, 14]}, epochs=2)
    (section,) = [section for section in report.sections(found_in([tmp_path])) if "curves" in section.title]
    (line,) = next(charts([section])).panels[0].lines
    assert line.x == (1, 2)
    assert line.y == pytest.approx([24, 12])
    assert line.high[1] - line.y[1] == pytest.approx(statistics.stdev([10, 14]))
