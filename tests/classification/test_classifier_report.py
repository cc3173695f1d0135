"""The report on classifiers: what is averaged, what is said about it, and where it comes from."""

import json
import re
import statistics
from dataclasses import replace

import pytest
from made_runs import STUDY, made_run, pairs
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
from prproduct.lab.report.content import Table, plain


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
    assert f"PR | last epoch | 4 | −0.40 | {_interval(pr, p)} | {stats.ttest_rel(pr, p).pvalue:.3f}" in text


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
    assert "PR compared with P: 5.00 points better (n = 1). One pair of runs does not tell chance from effect." in text


def test_unpaired_seeds_are_averaged_and_not_compared(tmp_path):
    made_run(tmp_path / "a", "p", 0, 0.1)
    made_run(tmp_path / "b", "pr", 1, 0.05)
    found = groups(found_in([tmp_path]))
    assert [verdict(comparison) for comparison in comparisons(found)] == ["no seed under both products"]
    text = all_said([tmp_path])
    assert "No seed is finished under both" in text
    assert "PR | 1 | 5.00" in text


@pytest.mark.parametrize(
    ("product", "line"), [("pr", "no run of the inner product P is finished"), ("p", "no product")]
)
def test_a_single_product_has_a_page_that_compares_nothing(tmp_path, product, line):
    made_run(tmp_path / "a", product, 0)
    assert line in all_said([tmp_path])


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
    headlines = [text_of([summary(found, comparisons(found))]) for found in (clear, noisy, worse)]
    assert "0.95 points better (n = 4). The difference is significant (p" in headlines[0]
    assert "points better (n = 4). The difference is not significant (p" in headlines[1]
    assert "The smallest difference detectable with 80 % power in 4 such pairs: " in headlines[1]
    assert "0.95 points worse (n = 4). The difference is significant (p" in headlines[2]


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
    assert "1.00 points better (n = 3). It is the same in every pair, so that there is no spread to test it by." in text


def test_a_large_difference_is_stated_by_its_size_and_guessing_is_called_not_learning(tmp_path):
    found = pairs(tmp_path, STUDY)
    text = text_of([summary(found, comparisons(found))])
    assert "no-direction, mlp on digits: 70.80 points worse (n = 2). Test error 73.00 % (n = 2), P's 2.20 %" in text
    assert "A difference of this size needs no test (p" in text
    assert "R did not learn under this recipe: its error is that of guessing." in text
    assert "no difference shown" not in text


def test_a_difference_that_some_failed_seeds_make_is_tested(tmp_path):
    found = pairs(tmp_path, {"p": [2.0, 2.2, 2.1], "pr": [2.1, 90.0, 89.0]})
    text = text_of([summary(found, comparisons(found))])
    assert "58.27 points worse (n = 3). The difference is not significant (p = 0.18)." in text
    assert "needs no test" not in text


@pytest.mark.parametrize("pr", [[90.7, 90.9], [89.9, 90.4]])
def test_products_that_all_guess_are_tested(tmp_path, pr):
    found = pairs(tmp_path, {"p": [90.6, 90.7] if pr[0] > 90 else [89.5, 89.6], "pr": pr})
    text = text_of([summary(found, comparisons(found))])
    assert "The difference is not significant (p" in text


def test_products_that_learned_as_little_as_p_are_tested(tmp_path):
    found = pairs(tmp_path, {"p": [60.0, 60.5], "pr": [21.0, 21.5], "tempered:0.5": [60.2, 60.4]})
    text = text_of([summary(found, comparisons(found))])
    assert "0.05 points worse (n = 2). Test error 60.30 % (n = 2), P's 60.25 % (n = 2). The difference is not" in text


@pytest.mark.parametrize("errors", [(90.0, 90.0, 90.0), (89.85, 89.75, 90.05)])
def test_the_study_of_gradients_answers_nothing_where_nothing_learned(tmp_path, errors):
    found = pairs(
        tmp_path, {name: [error] for name, error in zip(("p", "no-length", "no-direction"), errors, strict=True)}
    )
    assert "of the gradient" not in plain(summary(found, comparisons(found)).blocks[0].text)


def test_the_study_of_gradients_answers_its_question_in_the_first_sentence(tmp_path):
    found = pairs(tmp_path, STUDY)
    first = plain(summary(found, comparisons(found)).blocks[0].text).replace("\u00a0", " ")
    assert first == (
        "The direction gradient does the learning: for mlp on digits, the test error is 73.00 % (n = 2) without the "
        "direction gradient, 2.23 % (n = 2) without the length gradient, and 2.20 % (n = 2) with both."
    )


@pytest.mark.parametrize(
    ("no_length", "no_direction", "answer"),
    [
        (2.9, 4.0, "Either part of the gradient learns without the other"),
        (80.0, 3.0, "The length gradient does the learning"),
        (80.0, 80.5, "Neither part of the gradient learns without the other"),
    ],
)
def test_a_part_of_the_gradient_does_the_learning_only_where_the_other_does_not_learn(
    tmp_path, no_length, no_direction, answer
):
    found = pairs(tmp_path, {"p": [2.0], "no-length": [no_length], "no-direction": [no_direction]})
    assert plain(summary(found, comparisons(found)).blocks[0].text).startswith(answer)


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


def test_a_training_is_called_the_full_recipe_only_if_all_of_it_is(tmp_path):
    full = {"arch": "resnet8", "data": "cifar10", "epochs": 164}
    pairs(tmp_path / "full", {"p": [25.0], "pr": [24.0]}, normalisation="widespread", **full)
    pairs(tmp_path / "short", {"p": [25.0], "pr": [24.0]}, limit_train=5000, max_steps=30, **full)
    pairs(
        tmp_path / "other", {"p": [25.0], "pr": [24.0]}, normalisation="true", clip_norm=1.0, precision="bf16", **full
    )
    text = all_said([tmp_path])
    assert "| 164, the full recipe | 1, 1" in text
    assert "| 164; limit_train 5000; max_steps 30 | 1, 1" in text
    assert "| 164; clip_norm 1.0; precision bf16; normalisation true | 1, 1" in text


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
