"""What becomes of records: JSONL gives them back as they were, TensorBoard and the figure show their numbers."""

import json
import math
import sys

import pytest
import torch
from expected_angles import BINS
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import prproduct as pr


def test_a_file_that_cannot_be_written_is_an_error_before_the_first_step(tmp_path):
    with pytest.raises(IsADirectoryError):
        pr.AngleProbe(nn.Linear(2, 2), jsonl=tmp_path)


def test_jsonl_holds_the_records_and_is_appended_to(tmp_path):
    path = tmp_path / "angles.jsonl"
    net = nn.Linear(2, 2)
    records = []
    for _ in range(2):
        with pr.AngleProbe(net, jsonl=path) as probe:
            net(torch.randn(3, 2)).sum().backward()
            net(torch.empty(0, 2))
        records += probe.records
    assert pr.probe.read_jsonl(path) == records
    first = json.loads(path.read_text().splitlines()[0])
    assert (first["layer"], first["step"], first["min_sin"]) == ("Linear", 0, records[0].min_sin)
    with path.open("a") as file:
        file.write('{"step": 1}\n')
    with pytest.raises(ValueError, match=r"angles.jsonl, line 5: not a record of an AngleProbe"):
        pr.probe.read_jsonl(path)


@pytest.mark.parametrize("factor", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_stops_neither_training_nor_its_writers(factor, tmp_path):
    path, net = tmp_path / "angles.jsonl", nn.Sequential(nn.Linear(4, 3))
    with SummaryWriter(tmp_path) as writer, pr.AngleProbe(net, jsonl=path, writer=writer) as probe:
        for scale in (1.0, factor, 1.0):
            (net(torch.ones(2, 4)).sum() * scale).backward()
    assert [math.isfinite(record.gradient_norm) for record in probe.records] == [True, False, True]
    assert repr(pr.probe.read_jsonl(path)) == repr(probe.records)  # NaN is not equal to itself
    events = EventAccumulator(str(tmp_path)).Reload()
    for scalar in ("length_norm", "gradient_norm", "direction_share", "min_sin"):
        values = [event.value for event in events.Scalars(f"angles/0/{scalar}")]
        assert values == pytest.approx([getattr(record, scalar) for record in probe.records], nan_ok=True)
    assert pr.probe.plot({"P": path}, "gradient_norm").axes


def test_every_number_of_a_record_comes_back_from_its_file(tmp_path):
    odd = (math.nan, math.inf, -math.inf, None, 0.0, 5e-324, 1.7e308)
    angles = dict.fromkeys(("min_sin", "mean_sin", "max_sin", "max_cos", "sample_min_sin"), 0.5)
    records = [
        pr.probe.AngleRecord(1, True, "nan", "inf", "pr", 1, 2, 0, **{**angles, name: number}, histogram=(0, 2))
        for name in angles
        for number in odd
    ]
    records += [
        pr.probe.AngleRecord(
            1, False, "é", "", "p", 1, 2, 0, **angles, histogram=(2,), length_norm=length, direction_norm=direction
        )
        for length in odd
        for direction in odd
    ]
    pr.probe.write_jsonl(records, tmp_path / "records.jsonl")
    found = pr.probe.read_jsonl(tmp_path / "records.jsonl")
    assert repr(found) == repr(records)
    for record in found:
        assert (record.gradient_norm is None) == (record.length_norm is None or record.direction_norm is None)
        assert record.direction_share is None or not record.direction_share > 1

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    for line in (tmp_path / "records.jsonl").read_text(encoding="utf-8").splitlines():
        json.loads(line, parse_constant=refuse)


def test_tensorboard_gets_scalars_and_histograms(tmp_path):
    net = nn.Sequential(nn.Linear(4, 8), nn.LSTM(8, 3))
    with SummaryWriter(tmp_path) as writer, pr.AngleProbe(net, every=3, writer=writer) as probe:
        for _ in range(4):
            net(torch.randn(5, 2, 4))[0].sum().backward()
        net.eval()
        net(torch.randn(5, 2, 4))
    events = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0}).Reload()
    tags = events.Tags()
    assert "angles/1/hidden_l0/direction_share" in tags["scalars"]
    assert "angles/eval/0/min_sin" in tags["scalars"]
    assert "angles/eval/0/direction_share" not in tags["scalars"]
    scalars = events.Scalars("angles/0/sample_min_sin")
    assert [event.step for event in scalars] == [0, 3]
    by_step = [record for record in probe.records if record.layer == "0" and record.training]
    assert [event.value for event in scalars] == pytest.approx([record.sample_min_sin for record in by_step])
    histogram = events.Histograms("angles/0/sin")[0].histogram_value
    assert histogram.num == by_step[0].pairs
    assert (histogram.min, histogram.max) == (by_step[0].min_sin, by_step[0].max_sin)
    assert list(histogram.bucket) == list(by_step[0].histogram)
    assert list(histogram.bucket_limit) == pytest.approx([bin / BINS for bin in range(1, BINS + 1)])


def run(product: str) -> list:
    torch.manual_seed(0)
    net = nn.Sequential(pr.nn.LSTM(3, 4, product=product))
    with pr.AngleProbe(net, every=2) as probe:
        for _ in range(6):
            net(torch.randn(5, 2, 3))[0].sum().backward()
        net.eval()
        net(torch.randn(5, 2, 3))
    return probe.records


def test_the_figure_has_a_panel_for_each_product_and_a_line_for_each_run(tmp_path):
    runs = {"P": run("p"), "PR": run("pr")}
    figure = pr.probe.plot(runs, path=tmp_path / "angles.png")
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == ["0/input_l0", "0/hidden_l0"]
    line = panels[1].get_lines()[1]
    assert line.get_label() == "PR"
    hidden = [r for r in runs["PR"] if r.part == "hidden_l0" and r.training]
    assert line.get_xydata().tolist() == [[r.step, r.sample_min_sin] for r in hidden]
    assert (tmp_path / "angles.png").stat().st_size > 10_000
    chosen = pr.probe.plot(runs, "direction_share", names=["0/hidden_l0"])
    assert [axes.get_title() for axes in chosen.axes] == ["0/hidden_l0"]


def test_the_figure_reads_files_and_says_what_is_missing(tmp_path):
    records = run("pr")
    pr.probe.write_jsonl(records, tmp_path / "pr.jsonl")
    assert pr.probe.plot({"PR": tmp_path / "pr.jsonl"}).axes
    with pytest.raises(ValueError, match=r"no statistic is named 'min'; there are min_sin, mean_sin"):
        pr.probe.plot({"PR": records}, "min")
    with pytest.raises(ValueError, match=r"no run has values of sample_min_sin for 7"):
        pr.probe.plot({"PR": records}, names=["7"])
    with pytest.raises(ValueError, match=r"no run has values of sample_min_sin for any layer"):
        pr.probe.plot({})


def test_without_matplotlib_the_figure_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs matplotlib: pip install 'prproduct\[plot\]'"):
        pr.probe.plot({"PR": []})
