"""The report on classifiers: what is averaged, what is said about it, and where it comes from."""

import json
import re
import statistics
from dataclasses import replace

import pytest
from made_runs import made_run, pairs
from report_text import found_in, text_of
from scipy import stats
from training_runs import CPU

from prproduct.classification import paper, report
from prproduct.classification.report.comparison import comparisons, groups
from prproduct.classification.report.summary import outcome, summary, verdict
from prproduct.classification.report.tables import cost
from prproduct.classification.training import ClassifierConfig, train
from prproduct.cli import main
from prproduct.lab import runs
from prproduct.lab.report.content import Table


def all_said(places):
    return text_of(report.sections(found_in(places)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    config = ClassifierConfig(arch="mlp-2-16", data="digits", epochs=2, angles=20)
    for product in ("p", "pr"):
        for seed in range(3):
            own = replace(config, product=product, seed=seed)
            train(own, folder / f"{product}-{seed}", hardware=CPU, tensorboard=False)
    return folder


def test_a_page_of_real_runs_has_their_numbers(trained, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["report", str(trained), "-o", str(tmp_path / "report.html")])
    assert end.value.code == 0
    assert "6 runs, 6 of them finished" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    errors = {
        product: [100 * runs.read(trained / f"{product}-{s}").of("end")[0]["last"]["test_error"] for s in range(3)]
        for product in ("p", "pr")
    }
    for values in errors.values():
        assert f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}" in page
    difference = statistics.mean(a - b for a, b in zip(errors["pr"], errors["p"], strict=True))
    assert f"{difference:+.2f}".replace("-", "−").replace("+0.00", "0.00") in page
    assert page.count("<svg") > 4 + 4, "four curves, and two layers with angles and shares"
    commit = runs.read(trained / "p-0").config["environment"]["commit"]
    assert commit is None or commit[:10] in page
    assert runs.read(trained / "p-0").config["data"]["fingerprint"] in page


def test_a_training_records_for_how_long_its_main_thread_had_the_cpu(trained):
    for epoch in runs.read(trained / "p-0").of("epoch"):
        assert 0 < epoch["time"]["cpu_seconds"] <= epoch["time"]["train_seconds"] + 0.01


def test_markdown_of_real_runs_has_the_same_tables(trained, tmp_path):
    report.write([trained], tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    for section in report.sections(found_in([trained])):
        for block in section.blocks:
            if isinstance(block, Table):
                assert f"| {' | '.join(block.header)} |".replace("_", "\\_") in text
    links = re.findall(r"!\[.*\]\(<(.*)>\)", text)
    assert links
    assert all((tmp_path / link).is_file() for link in links)


def test_means_deviations_and_the_paired_test_are_those_of_the_runs(tmp_path):
    p, pr = [10.0, 11.0, 12.5, 9.0], [9.4, 10.8, 12.0, 8.7]
    (group,) = pairs(tmp_path, {"p": p, "pr": pr})
    found = group.difference("pr", "last")
    assert group.sample("pr", "last").mean == pytest.approx(statistics.mean(pr))
    assert found.p_value == pytest.approx(stats.ttest_rel(pr, p).pvalue)
    text = all_said([tmp_path])
    assert "PR | 4 | 10.22 ± 1.47 | 10.22 ± 1.47" in text
    p_value = f"{stats.ttest_rel(pr, p).pvalue:.3f}"
    assert f"PR | 4 | −0.40 | {_interval(pr, p)} | {p_value} | {p_value} | 4 of 4 | −0.40" in text


def _interval(ours, base):
    found = stats.ttest_rel(ours, base).confidence_interval()
    return f"{found.low:+.2f} to {found.high:+.2f}".replace("-", "−")


def test_the_selected_epoch_stands_beside_the_last(tmp_path):
    made_run(tmp_path / "a", "p", 0, 0.10, selected=0.08)
    made_run(tmp_path / "b", "p", 0, 0.10, protocol="paper")
    text = all_said([tmp_path])
    assert "P | 1 | 10.00 | 8.00" in text
    assert "P | 1 | 10.00 | –" in text
    assert "8.00 (epoch 1)" in text


def test_options_that_decide_no_number_separate_no_runs(tmp_path):
    made_run(tmp_path / "a", "p", 0, 0.1, angles=0, log_every=50, limit_train=None)
    made_run(tmp_path / "b", "p", 1, 0.3, angles=5, log_every=1)
    (group,) = groups(found_in([tmp_path]))
    assert group.sample("p", "last").n == 2


@pytest.mark.parametrize("settings", [{"epochs": 4}, {"precision": "bf16"}, {"arch": "mlp-2-16"}, {"max_steps": 5}])
def test_runs_of_another_configuration_are_never_averaged_with_these(tmp_path, settings):
    common = {"precision": "32", "angles": 0}
    made_run(tmp_path / "a", "p", 0, 0.1, **common)
    made_run(tmp_path / "b", "p", 1, 0.3, **{**common, **settings})
    found = groups(found_in([tmp_path]))
    assert [group.sample("p", "last").n for group in found] == [1, 1]
    assert len({group.name for group in found}) == 2


def test_runs_on_other_data_of_the_same_name_are_another_group(tmp_path):
    made_run(tmp_path / "a", "p", 0)
    path = made_run(tmp_path / "b", "p", 1) / "config.json"
    path.write_text(path.read_text().replace("0123456789abcdef", "fedcba9876543210"))
    assert len(groups(found_in([tmp_path]))) == 2


def test_what_is_unfinished_or_diverged_is_listed_and_not_averaged(tmp_path):
    made_run(tmp_path / "a", "p", 0, 0.1)
    made_run(tmp_path / "b", "p", 1, 0.9, ended=None)
    made_run(tmp_path / "c", "p", 2, 0.9, ended="diverged")
    text = all_said([tmp_path])
    assert "P | 1 | 10.00 | 10.00" in text
    assert "unfinished: 2 of 3 epochs" in text
    assert "diverged at step 23 of epoch 3" in text
    assert "2 of 3 runs are left out" in text
    assert "1 of 2 runs is left out" in all_said([tmp_path / "a", tmp_path / "b"])


def test_the_same_training_twice_is_one_observation(tmp_path):
    made_run(tmp_path / "a", "p", 0, 0.1, ended=None)
    made_run(tmp_path / "b", "p", 0, 0.1)
    made_run(tmp_path / "c", "p", 0, 0.1)
    (group,) = groups(found_in([tmp_path]))
    assert [run.counts for run in group.runs] == [False, True, False]
    assert f"repeats {tmp_path / 'b'}" in group.runs[2].status


def test_one_seed_is_told_as_one_pair_and_not_as_a_win(tmp_path):
    found = pairs(tmp_path, {"p": [10.0], "pr": [5.0]})
    assert [outcome(comparison) for comparison in comparisons(found)] == ["open"]
    text = text_of([summary(found, comparisons(found))])
    assert "PR | 1 | −5.00 | – | – | – | 1 of 1 | −5.00" in text
    assert "PR compared with P: 5.00 points better (n = 1), not tested." in text


def test_unpaired_seeds_are_averaged_and_not_compared(tmp_path):
    made_run(tmp_path / "a", "p", 0, 0.1)
    made_run(tmp_path / "b", "pr", 1, 0.05)
    found = groups(found_in([tmp_path]))
    assert [verdict(comparison) for comparison in comparisons(found)] == ["no seed under both products"]
    text = all_said([tmp_path])
    assert "PR compared with P: no seed under both products, not tested." in text
    assert "PR | 0 | – | – | – | – | – | –" in text
    assert "PR | 1 | 5.00" in text


@pytest.mark.parametrize("product", ["p", "pr"])
def test_a_single_product_has_a_page_that_compares_nothing(tmp_path, product):
    made_run(tmp_path / "a", product, 0)
    assert "Nothing to compare: no finished runs of P and of another product" in all_said([tmp_path])


def test_unfinished_runs_alone_make_a_page_that_says_so(tmp_path):
    made_run(tmp_path / "runs" / "a", "p", 0, ended=None)
    made_run(tmp_path / "runs" / "b", "p", 1, ended="diverged")
    report.write([tmp_path / "runs"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "No run is finished" in page
    assert "unfinished: 2 of 3 epochs" in page


def test_a_run_without_epochs_or_records_is_listed(tmp_path):
    made_run(tmp_path / "a", "p", 0, epochs=0)
    (made_run(tmp_path / "b", "p", 1) / "metrics.jsonl").unlink()
    text = all_said([tmp_path])
    assert "finished without an epoch" in text
    assert "unfinished: 0 of 3 epochs" in text


def test_a_clear_difference_is_significant_and_a_noisy_one_is_not(tmp_path):
    clear = pairs(tmp_path / "a", {"p": [10, 11, 12, 13], "pr": [9.0, 10.1, 11.0, 12.1]})
    noisy = pairs(tmp_path / "b", {"p": [10, 11, 12, 13], "pr": [9.0, 12, 10.8, 13.2]})
    worse = pairs(tmp_path / "c", {"pr": [10, 11, 12, 13], "p": [9.0, 10.1, 11.0, 12.1]})
    said = [text_of([summary(found, comparisons(found))]) for found in (clear, noisy, worse)]
    assert "PR compared with P: 0.95 points better (n = 4), significant." in said[0]
    assert "points better (n = 4), not significant." in said[1]
    assert "PR compared with P: 0.95 points worse (n = 4), significant." in said[2]
    several = [*clear, *worse]
    headline = "PR compared with P: significantly better in 1 of 2 comparisons, significantly worse in 1."
    assert headline in text_of([summary(several, comparisons(several))])


def test_many_comparisons_are_judged_more_strictly_than_one(tmp_path):
    one = {"p": [10, 11, 12], "pr": [9.5, 10.2, 11.35]}
    alone = pairs(tmp_path / "a", one)
    others = {f"tempered:0.{n}": [10.1, 10.8, 12.3] for n in range(1, 9)}
    among = pairs(tmp_path / "b", {**one, **others})
    assert outcome(comparisons(alone)[0]) == "better"
    assert outcome(next(c for c in comparisons(among) if c.product == "pr")) == "open"


def test_equal_differences_have_no_test(tmp_path):
    found = pairs(tmp_path, {"p": [10, 11, 12], "pr": [9, 10, 11]})
    text = text_of([summary(found, comparisons(found))])
    assert "PR compared with P: 1.00 points better (n = 3), not tested." in text
    assert "PR | 3 | −1.00 | – | – | – | 3 of 3 | −1.00" in text


def test_the_cost_leaves_out_the_first_epoch_and_what_was_resumed(tmp_path):
    made_run(tmp_path / "a", "p", 0, epochs=5)
    folder = made_run(tmp_path / "b", "pr", 0, epochs=5)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[0]["time"] |= {"train_seconds": 300.0, "samples_per_second": 2.0}  # it compiled
    lines[2]["time"]["train_seconds"] = 0.03  # it was resumed near its end
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = text_of([cost(groups(found_in([tmp_path])))])
    assert "P | 4 | 2.00 | x86_64, cpu, 1 thread" in text
    assert "PR | 3 | 3.00 |" in text


def test_times_of_two_machines_are_not_averaged(tmp_path):
    made_run(tmp_path / "a", "pr", 1)
    path = made_run(tmp_path / "b", "pr", 0) / "config.json"
    path.write_text(path.read_text().replace('"threads": 1', '"threads": 8'))
    text = text_of([cost(groups(found_in([tmp_path])))])
    assert "PR | 2 | 3.00 | x86_64, cpu, 1 thread" in text
    assert "PR | 2 | 3.00 | x86_64, cpu, 8 threads" in text


def test_the_papers_averages_are_those_of_its_table():
    for data, average in paper.AVERAGES.items():
        differences = [row.difference for row in paper.TABLE_1 if row.data == data]
        assert len(differences) == 4
        assert statistics.mean(differences) == pytest.approx(average, abs=0.005)


def test_the_papers_table_stands_beside_ours_with_the_seeds_it_takes(tmp_path):
    pairs(tmp_path, {"p": [25, 26, 25.5], "pr": [24.8, 26.1, 25.2]}, arch="resnet8", data="cifar10", epochs=8)
    text = all_said([tmp_path])
    assert "ResNet110 | 6.23 | 5.97 | −0.26 | 28.08 | 27.88 | −0.20" in text
    assert "its averages |  |  | −0.27 |  |  | −0.16" in text
    assert "resnet8 on cifar10 | 3 | 0.21 (0.11 to 1.31) | −0.27 | 7 | 4 to 187" in text
    assert "8 of the recipe's 164 | 3, 3 | a tenth | last" in text


def test_the_gradient_study_stands_beside_ours(tmp_path):
    pairs(tmp_path, {"p": [12.0], "no-direction": [60.0], "r": [20.0]}, data="fashion-mnist")
    text = all_said([tmp_path])
    assert "P | 88.42 | 88.00 | 1 | −0.42" in text
    assert "no-direction | 38.59 | 40.00 | 1 | +1.41" in text
    assert "R | – | 80.00 | 1 | –" in text


def test_every_run_is_traceable(tmp_path):
    folder = made_run(tmp_path / "a", "p", 7, 0.1)
    text = all_said([tmp_path])
    assert f"P | 7 | finished | 10.00 | 10.00 (epoch 3) | 7.5 s | {folder} | aaaaaaaaaa |" in text
    assert "prproduct train classifier --product p --seed 7 | x86_64, cpu, 1 thread, torch 2.13.0" in text
    assert "data fingerprint 0123456789abcdef" in text
