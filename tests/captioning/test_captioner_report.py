"""The report on captioners: what is averaged, what is said about it, and where it comes from."""

import io
import json
import re
import shutil
import statistics
from dataclasses import fields, replace

import pytest
from made_captioners import DATA, made_run
from PIL import Image
from report_text import found_in, text_of
from scipy import stats
from small_dataset import RL, XE, dataset
from small_dataset import run as train_small

from prproduct import reporting
from prproduct.captioning import paper, report
from prproduct.captioning.configuration import UNUSED, CaptionerConfig
from prproduct.captioning.dataset import CaptionDataset
from prproduct.captioning.metrics.score import Evaluation
from prproduct.captioning.report.runs import comparisons, groups
from prproduct.captioning.report.scores import COLUMNS, Column
from prproduct.captioning.report.training import PARTS, endings, series, share, step_seconds
from prproduct.captioning.results import add_scores, examples_file, read_examples, write_results
from prproduct.lab.errors import InputError
from prproduct.lab.report.content import Card, charts, plain
from prproduct.lab.runs import Record


def all_said(places):
    return text_of(report.sections(found_in(places))).replace("\u00a0", " ")


def both_phases(folder, ciders, **settings):
    """Runs of both phases for each product and seed; CIDEr in percent, that of REINFORCE is 10 more."""
    for product, values in ciders.items():
        for seed, cider in enumerate(values):
            place = folder / f"{product.replace(':', '')}-{seed}"
            made_run(place / "xe", "xe", product, seed, cider / 100, **settings)
            made_run(place / "rl", "rl", product, seed, cider / 100 + 0.1)
    return groups(found_in([folder]))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder, what = tmp_path_factory.mktemp("runs"), dataset()
    for product in ("p", "pr"):
        xe = train_small(replace(XE, product=product, epochs=1, angles=1), folder / product / "xe", what)
        rl = train_small(replace(RL, product=product, epochs=1, angles=1), folder / product / "rl", what, start=xe)
        for place in (xe, rl):
            write_results(place, what, metrics=("bleu", "rouge-l", "cider"))
    return folder


def test_a_page_of_real_runs_has_their_scores_captions_and_all_parts_of_the_appendix(trained, tmp_path, command):
    status, out, _ = command("report", trained, "-o", tmp_path / "report.html")
    assert (status, "4 runs, 4 of them finished" in out) == (0, True)
    page = (tmp_path / "report.html").read_text()
    (group,) = groups(found_in([trained]))
    assert [stage.phase for stage in group.stages] == ["xe", "rl"], "REINFORCE did not find its cross-entropy"
    for stage in group.stages:
        assert set(series(stage)) >= set(PARTS), "a part that the appendix plots was not recorded"
        for product in ("p", "pr"):
            scores = report.scores_of(trained / product / stage.phase)["scores"]
            assert f'<td class="r">{100 * scores["ROUGE_L"]:.1f}</td>' in page
    references = [text for one in read_examples(examples_file(trained / "p" / "xe", "test")) for text in one.references]
    assert references
    assert all(reference in page for reference in references)
    assert page.count("<svg") >= 3 + 6 + 2 * (len(PARTS) + 3)
    assert "METEOR, SPICE: it was not asked for" in page


def test_captions_of_other_images_are_not_taken_for_the_stored_ones(trained, tmp_path):
    folder, (captions, features) = shutil.copytree(trained / "p" / "xe", tmp_path / "run"), dataset()
    images = tuple(image._replace(references=image.references[:1]) for image in captions.images)
    other = CaptionDataset(replace(captions, images=images), features)
    before = write_results(folder, dataset(), metrics=("bleu", "rouge-l", "cider"))
    assert before == report.scores_of(trained / "p" / "xe"), "the same images were captioned again"
    after = write_results(folder, other, metrics=("cider",))
    assert after["how"]["data"]["captions"] == other.captions.fingerprint
    assert after["metrics"] == ["cider"], "scores of other images were kept"


def test_scores_of_other_captions_are_not_compared(tmp_path):
    both_phases(tmp_path, {"p": [40.0, 42.0], "pr": [41.0, 44.0]})
    for seed in (0, 1):
        path = tmp_path / f"pr-{seed}" / "xe" / "results" / "scores_test.json"
        content = json.loads(path.read_text())
        content["how"]["data"] = {**DATA, "captions": "b" * 16}
        path.write_text(json.dumps(content))
    found = comparisons(groups(found_in([tmp_path])))
    assert [one.scored.stage.phase for one in found] == ["rl"]
    assert f"other captions {'b' * 16}" in all_said([tmp_path])


def test_one_corrupt_run_is_named_on_the_page_and_the_others_are_shown(tmp_path):
    both_phases(tmp_path / "runs", {"p": [40.0], "pr": [41.0]})
    made_run(tmp_path / "runs" / "broken", "xe", "r")
    (tmp_path / "runs" / "broken" / "results" / "scores_test.json").write_text('{"scores": 3}')
    made_run(tmp_path / "runs" / "cut", "xe", "r", 1)
    (tmp_path / "runs" / "cut" / "config.json").write_text("{")
    made_run(tmp_path / "runs" / "examples", "xe", "r", 2)
    (tmp_path / "runs" / "examples" / "results" / "examples_test.json").write_text("")
    path = made_run(tmp_path / "runs" / "older", "rl", "r", 3) / "config.json"
    config = json.loads(path.read_text())
    del config["config"]["samples"]
    path.write_text(json.dumps(config))
    report.write([tmp_path / "runs"], tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    assert "4 runs, 4 of them finished; 4 could not be read" in text
    assert "examples_test.json: is not JSON" in text
    assert "older: its records or its configuration are not a run's (KeyError: 'samples')" in text
    assert "scores_test.json: not the scores of captions" in text
    assert "cut/config.json: is not JSON" in text
    with pytest.raises(InputError, match="is not JSON"):
        report.write([tmp_path / "runs" / "cut"], tmp_path / "report.md")


def test_reinforce_without_a_record_of_its_candidates_drew_them(tmp_path):
    for product in ("p", "pr"):
        path = made_run(tmp_path / product, "rl", product) / "config.json"
        config = json.loads(path.read_text())
        del config["config"]["candidates"]
        path.write_text(json.dumps(config))
    assert re.search(rf"REINFORCE rewards \|.*\| {config['config']['samples']} drawn", all_said([tmp_path]))


def test_markdown_has_the_same_tables_and_its_charts(trained, tmp_path):
    report.write([trained], tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    found = report.sections(found_in([trained]))
    assert len(list((tmp_path / "report-figures").glob("*.svg"))) == len(list(charts(found)))
    assert "| product |  | n | B1 | B2 | B3 | B4 | METEOR | ROUGE-L | CIDEr | SPICE |" in text


def test_means_deviations_and_the_paired_test_are_those_of_the_runs(tmp_path):
    p, pr = [40.0, 41.0, 42.5, 39.0], [40.6, 41.2, 43.0, 39.2]
    (group,) = both_phases(tmp_path, {"p": p, "pr": pr})
    text = all_said([tmp_path])
    mean, deviation = statistics.mean(pr), statistics.stdev(pr)
    assert f"| 25.0 ± 0.0 | {mean:.1f} ± {deviation:.1f} | –" in text
    assert f"| 25.0 ± 0.0 | {mean + 10:.1f} ± {deviation:.1f} | –" in text
    found = comparisons([group])
    expected = stats.ttest_rel(pr, p).pvalue
    assert [one.difference.p_value for one in found] == pytest.approx([expected] * 2)
    assert [one.adjusted for one in found] == pytest.approx([2 * expected] * 2), "Holm over both phases"
    assert expected < 0.05 < 2 * expected, "significant alone, not as one of two"
    assert "PR compared with P: significantly better in 0 of 2 comparisons, significantly worse in 0." in text
    assert stats.ttest_rel(pr, p).confidence_interval() == pytest.approx((0.0, 0.7), abs=0.05)
    size = "0.4 points better (n = 4); 95 % interval 0.0 to +0.7"
    assert f"PR, cross-entropy: {size}, p (Holm) {2 * expected:.2g}: not significant." in text


def test_a_lower_cider_is_called_worse(tmp_path):
    both_phases(tmp_path, {"p": [50.0, 51.0, 52.0], "pr": [40.0, 41.1, 42.0]})
    text = all_said([tmp_path])
    assert "significantly better in 0 of 2 comparisons, significantly worse in 2." in text
    assert text.count("points worse (n = 3); 95 % interval") == 2


def test_one_seed_is_not_called_a_result(tmp_path):
    both_phases(tmp_path, {"p": [40.0], "pr": [45.0]})
    text = all_said([tmp_path])
    assert "PR, cross-entropy: 5.0 points better (n = 1); not tested, which takes at least two pairs" in text


def test_the_papers_numbers_stand_below_ours_phase_by_phase(tmp_path):
    both_phases(tmp_path, {"p": [40.0], "r": [30.0], "pr": [45.0]})
    lines = all_said([tmp_path]).splitlines()
    for phase, at in (("xe", 0), ("rl", 1)):
        heading = [n for n, line in enumerate(lines) if line.endswith("1,000 test images, 5 beams, best epoch")][at]
        for place, product in enumerate(("p", "r", "pr")):
            row = " | ".join(f"{value:.1f}" for value in paper.TABLE_2[phase][product])
            assert lines[heading + 2 + 2 * place] == f" | paper |  | {row}"
    assert " | paper |  | +0.1 | 0.0 | +0.1 | +0.1 | +0.2 | +0.1 | +1.1 | 0.0" in lines, "PR − P behind REINFORCE"


def test_a_metric_that_the_paper_lacks_is_a_column_behind_the_papers(tmp_path, monkeypatch):
    assert tuple(COLUMNS)[: len(paper.METRICS)] == paper.METRICS, "the paper's numbers stand below ours by their place"
    monkeypatch.setitem(COLUMNS, "another", Column("Bleu_1", "bleu"))
    both_phases(tmp_path, {"p": [40.0], "pr": [45.0]})
    lines = all_said([tmp_path]).splitlines()
    assert any(line.endswith("| CIDEr | SPICE | another") for line in lines)
    assert any(line.startswith("PR | ours | 1 | 20.0 ") and line.endswith("| 45.0 | – | 20.0") for line in lines)
    assert any(line.startswith(" | paper |  | 76.8 ") and line.endswith(" | 116.1 | 21.1 | ") for line in lines)
    assert any(line.startswith(" | paper |  | +0.1 ") and line.endswith(" | +1.1 | 0.0 | ") for line in lines)


def test_a_metric_that_could_not_be_computed_is_a_dash_with_its_reason(tmp_path):
    both_phases(tmp_path, {"p": [40.0]})
    text = all_said([tmp_path])
    assert "No SPICE: SPICE needs two jars that are not there" in text
    assert "| 40.0 | –" in text


@pytest.mark.parametrize(
    "other",
    [{"learning_rate": 0.1}, {"epochs": 4}, {"hidden": 9}, {"data": {**DATA, "captions": "d" * 16}}, {"beams": 1}],
)
def test_runs_of_another_configuration_or_search_are_never_averaged_with_these(tmp_path, other):
    made_run(tmp_path / "a", "xe", "p", 0, 0.4)
    made_run(tmp_path / "b", "xe", "p", 1, 0.8, **other)
    text = all_said([tmp_path])
    assert "40.0 | –" in text
    assert "80.0 | –" in text
    assert "60.0 ±" not in text


def test_options_that_a_phase_does_not_use_tell_no_runs_apart(tmp_path):
    made_run(tmp_path / "a", "xe", "p", 0, 0.4)
    made_run(tmp_path / "b", "xe", "p", 1, 0.8, samples=9)
    assert "60.0 ± 28.3" in all_said([tmp_path])
    assert {name for names in UNUSED.values() for name in names} <= {field.name for field in fields(CaptionerConfig)}


def test_reinforce_that_goes_on_from_another_product_stands_apart(tmp_path):
    made_run(tmp_path / "a", "rl", "pr", 0, 0.4)
    made_run(tmp_path / "b", "rl", "pr", 1, 0.8, start={"product": "p"})
    text = all_said([tmp_path])
    assert "(start product p)" in text
    assert "60.0 ±" not in text


@pytest.mark.parametrize(
    ("ended", "status"), [(None, "unfinished: 2 of 3 epochs"), ("diverged", "diverged at step 23")]
)
def test_unfinished_runs_are_listed_and_in_no_average(tmp_path, ended, status):
    made_run(tmp_path / "a", "xe", "pr", 0, 0.4)
    made_run(tmp_path / "b", "xe", "pr", 1, 0.8, ended=ended)
    made_run(tmp_path / "c", "xe", "pr", 0, 0.6)
    text = all_said([tmp_path])
    assert "2 of 3 runs are left out of every average" in text
    assert status in text
    assert f"repeats {tmp_path / 'a'}" in text
    assert "PR | ours | 1 | 20.0 | 21.0 | 22.0 | 23.0 | 24.0 | 25.0 | 40.0 | –" in text


def test_nothing_finished_is_a_page_that_says_so(tmp_path):
    made_run(tmp_path / "a", ended=None)
    text = all_said([tmp_path])
    assert "No run is finished" in text
    assert "unfinished: 2 of 3 epochs" in text


def test_finished_runs_without_scores_are_named_and_their_curves_drawn(tmp_path):
    made_run(tmp_path / "a", cider=None)
    assert "No run has scored test captions yet" in all_said([tmp_path])
    assert len(list(charts(report.sections(found_in([tmp_path]))))) == 1
    made_run(tmp_path / "b", seed=1)
    assert f"{tmp_path / 'a'}: finished, but its test captions are not scored" in all_said([tmp_path])


def test_rewards_are_drawn_for_reinforce_only(tmp_path):
    made_run(tmp_path / "xe", "xe", "p")
    made_run(tmp_path / "rl", "rl", "p")
    xe, rl = charts(report.sections(found_in([tmp_path])))
    assert not any("reward" in panel.title for panel in xe.panels)
    reward = next(panel for panel in rl.panels if panel.title.startswith("reward"))
    assert reward.lines[0].y == pytest.approx((40.0, 50.0, 60.0))
    advantage = next(panel for panel in rl.panels if panel.title.startswith("|reward − baseline|"))
    assert advantage.lines[0].y == pytest.approx((5.0, 5.0, 5.0))


def test_the_share_of_true_captions_is_in_the_table(tmp_path):
    for product, before, after in (("p", 0.84, 0.59), ("pr", 0.9, 0.95)):
        made_run(tmp_path / f"{product}-xe", "xe", product, true=before)
        made_run(tmp_path / f"{product}-rl", "rl", product, true=after)
    text = all_said([tmp_path])
    assert "| CIDEr | SPICE | true" in text
    assert "| 50.0 | – | 59.0" in text
    assert "| +36.0" in text, "PR − P behind REINFORCE"


def test_angles_are_compared_over_the_seeds_that_both_have(tmp_path):
    made_run(tmp_path / "xe-0", "xe", "pr", 0, angles=0.1)
    made_run(tmp_path / "xe-1", "xe", "pr", 1, angles=0.6)
    made_run(tmp_path / "p-0", "xe", "p", 0, angles=0.2)
    assert "output layer | 0.303 | 0.452 | –" in all_said([tmp_path]), "above P on average, not in seed 0"


def test_time_of_recording_angles_is_not_taken_for_that_of_the_product(tmp_path):
    made_run(tmp_path / "pr", "xe", "pr", seconds=3.0, angles=0.4)
    made_run(tmp_path / "pr1", "xe", "pr", 1, seconds=1.5)
    text = all_said([tmp_path])
    assert "PR | 1 | 33.0 s | 1.5 s | 300 ms | – | – | x86_64, cpu, 1 thread, angles every 5 steps" in text
    assert "PR | 1 | 16.5 s | 1.5 s | 150 ms | – | – | x86_64, cpu, 1 thread" in text


def test_angles_at_the_end_are_compared_part_by_part_in_both_phases(tmp_path):
    for phase in ("xe", "rl"):
        made_run(tmp_path / f"p-{phase}", phase, "p", angles=0.3)
        made_run(tmp_path / f"pr-{phase}", phase, "pr", angles=0.2 if phase == "xe" else 0.4)
    (group,) = groups(found_in([tmp_path]))
    xe, rl = group.stages
    assert endings(series(xe), "output")["p"][0] == pytest.approx(0.3 + 0.08 + 0.001 * 22.5)
    text = all_said([tmp_path])
    assert "output layer | 0.403 | 0.303 | –" in text
    assert "output layer | 0.403 | 0.502 | PR" in text
    assert set(series(rl)) >= set(PARTS)


def test_a_steps_time_leaves_out_the_first_epoch_and_the_rewards_share_is_of_training(tmp_path):
    both_phases(tmp_path, {"p": [40.0]}, seconds=1.0)
    made_run(tmp_path / "pr", "xe", "pr", 0, 0.4, seconds=1.25)
    (group,) = groups(found_in([tmp_path]))
    xe, rl = group.stages
    assert step_seconds([xe.counted["pr"][0]]) == pytest.approx(0.125), "10 steps in 1.25 s; the first took 9 ×"
    assert share([rl.counted["p"][0]], "reward_seconds") == pytest.approx(0.02)
    assert "PR | 1 | 13.8 s | 1.5 s | 125 ms | – | –" in all_said([tmp_path])


def test_examples_show_what_people_wrote_and_every_product_before_and_after(tmp_path):
    both_phases(tmp_path / "runs", {"p": [40.0], "pr": [45.0]})
    Image.new("RGB", (900, 600), "red").save(tmp_path / "dog.jpg")
    (tmp_path / "cat.jpg").write_bytes(b"no picture")
    found = report.sections(found_in([tmp_path / "runs"]), tmp_path)
    dog, cat = (block for section in found for block in section.blocks if isinstance(block, Card))
    labels = ["people", "people", "P, cross-entropy", "PR, cross-entropy", "P, REINFORCE", "PR, REINFORCE"]
    assert [label for label, _ in dog.lines] == labels
    assert plain(dog.lines[-1][1]) == "pr rl says dog"
    assert plain(cat.lines[-1][1]) == "(no word)"
    assert dog.picture is not None
    assert cat.picture is None
    assert "No picture of cat.jpg: not a picture" in text_of(found)
    for name in ("report.html", "report.md"):
        report.write([tmp_path / "runs"], tmp_path / name, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 1
    assert "One &lt;b&gt;dog&lt;/b&gt; | runs" in page
    (picture,) = (tmp_path / "report-figures").glob("*.jpg")
    with Image.open(picture) as shown:
        assert shown.size == (360, 240)


def test_images_of_two_data_sets_with_the_same_id_each_have_their_own_picture(tmp_path):
    """Karpathy's files of Flickr8k and Flickr30k both count images from 0."""
    for name, colour in (("a", "red"), ("b", "blue")):
        run = made_run(tmp_path / "runs" / name, data={**DATA, "captions": name})
        examples = [{"image_id": 7, "file": f"{name}.png", "references": ["A dog."]}]
        examples_file(run, "test").write_text(json.dumps(examples))
        Image.new("RGB", (9, 9), colour).save(tmp_path / f"{name}.png")
    found = report.sections(found_in([tmp_path / "runs"]), tmp_path)
    cards = [block for section in found for block in section.blocks if isinstance(block, Card)]
    shown = {card.title: Image.open(io.BytesIO(card.picture)).getpixel((4, 4)) for card in cards}
    assert shown["a.png (7)"][0] > 200 > 50 > shown["a.png (7)"][2]
    assert shown["b.png (7)"][2] > 200 > 50 > shown["b.png (7)"][0]


def test_what_differs_from_the_paper_is_listed(tmp_path):
    both_phases(tmp_path, {"p": [40.0]})
    text = all_said([tmp_path])
    assert "words | 9,487 | 100" in text
    assert "Compared with the paper" in text
    for row in (
        "learning rate | 5e-4, in REINFORCE 5e-5 (2e-5) | 0.0005, in REINFORCE 5e-05",
        "its decay | cosine (by epoch) | cosine by step, to 5 % of it",
        "dropout | not stated (0.3, not on words) | 0.3, also on words",
        "dropout in REINFORCE | not stated (0.3) | none",
        "loss of REINFORCE | not stated (mean over words) | mean over captions",
        "REINFORCE rewards | the 5 best of a beam search (one drawn) | the 5 best of a beam search",
        "… compared with the reward of | not stated (the greedy caption's) | the mean of the image's others",
        "layers into the Language LSTM | one of v̂ and h¹, in its figure (one each) | one for v̂ and one for h¹",
        "search for validation captions | not stated (5 beams) | the likeliest words",
        "epoch that is tested | not stated | best validation CIDEr",
    ):
        assert row in text
    assert "captions | COCO, Karpathy's split | world" in text


def _scores_text(**changed):
    known = {"how": {"search": {}}, "images": 1, "metrics": ["cider"], "scores": {"CIDEr": 0.5}, "failures": {}}
    return json.dumps(known | changed)


def test_the_papers_table_is_whole():
    assert all(len(row) == len(paper.METRICS) for rows in paper.TABLE_2.values() for row in rows.values())
    # What its text says: PR is at least as good as P and R everywhere.
    for rows in paper.TABLE_2.values():
        assert all(best >= max(p, r) for p, r, best in zip(rows["p"], rows["r"], rows["pr"], strict=True))
        for row in rows.values():
            assert list(row[:4]) == sorted(row[:4], reverse=True), "longer n-grams match less often"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("results/scores_test.json", "[]", "scores_test.json"),
        (
            "results/scores_test.json",
            _scores_text(scores={"CIDEr": "high"}),
            "CIDEr is wrong; remove it and caption again",
        ),
        ("results/scores_test.json", _scores_text(how={}), "how is wrong"),
        ("results/scores_test.json", '{"scores": {}}', "not the scores of captions"),
        ("results/captions_test_results.json", '{"a": 1}', "captions_test_results.json"),
        ("results/examples_test.json", '[{"image_id": 7, "file": "a"}]', "without 'references'"),
        ("angles.jsonl", "{}\n", "angles.jsonl, line 1"),
        ("metrics.jsonl", '{"event": "epoch", "epoch": 0, "step": 1}\n', "has no train_loss"),
    ],
)
def test_a_broken_file_of_a_run_is_named_and_no_page_written(tmp_path, file, content, message):
    made_run(tmp_path / "a", angles=0.3)
    (tmp_path / "a" / file).write_text(content)
    with pytest.raises(InputError, match=message):
        report.write([tmp_path / "a"], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_scores_that_are_not_there_are_an_error_that_names_the_file(tmp_path):
    made_run(tmp_path / "a", cider=None)
    with pytest.raises(InputError, match=r"a/results/scores_test\.json: no such file"):
        report.scores_of(tmp_path / "a")


def test_scores_are_added_to_no_file_that_a_report_refuses(tmp_path):
    made_run(tmp_path / "a")
    path = tmp_path / "a" / "results" / "scores_test.json"
    path.write_text(_scores_text(how={}))  # as captioning leaves it that is stopped while it replaces captions
    before = path.read_text()
    with pytest.raises(InputError, match=r"how is wrong; remove it and caption again"):
        add_scores(tmp_path / "a", "test", {7: "A dog."}, Evaluation(), ["cider"])
    assert path.read_text() == before


def test_runs_of_another_task_are_refused(tmp_path):
    path = made_run(tmp_path / "a") / "config.json"
    path.write_text(path.read_text().replace('"task": "captioner"', '"task": "classifier"'))
    with pytest.raises(InputError, match="is a run of a classifier, not of a captioner"):
        report.write([tmp_path / "a"], tmp_path / "report.html")


def test_pictures_without_a_captioner_are_refused(tmp_path):
    classifier = Record(tmp_path, {"task": "classifier"}, ())
    with pytest.raises(InputError, match="no run is of a captioner; leave out --pictures"):
        reporting.content([classifier], pictures=tmp_path)


@pytest.mark.parametrize(
    ("places", "name"),
    [
        ({"captions": "/data/flickr8k"}, "flickr8k"),
        ({"captions": "/data/flickr8k/captions"}, "flickr8k"),
        ({"captions": "captions"}, "captions"),
        ({"captions": "world"}, "world"),
        ({}, f"captions {DATA['captions']}"),
    ],
)
def test_captions_are_called_what_their_folder_is_called(tmp_path, places, name):
    made_run(tmp_path / "a", places=places)
    (group,) = groups(found_in([tmp_path]))
    assert group.captions == name
