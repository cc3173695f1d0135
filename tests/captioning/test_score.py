"""`prproduct score`: the files it reads, what it prints, and how it refuses."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from prproduct.captioning.input_files import raise_for_images
from prproduct.captioning.metrics import Frequencies, bleu, cider_d, evaluate, rouge_l
from prproduct.captioning.metrics.files import read_references
from prproduct.lab.errors import InputError

COCO = {
    "images": [{"id": 7}, {"id": 3}],
    "annotations": [
        {"image_id": 3, "caption": "Two dogs run."},
        {"image_id": 7, "caption": "A cat sits on a mat."},
        {"image_id": 7, "caption": "The cat sat"},
    ],
}
RESULTS = [{"image_id": 3, "caption": "dogs run"}, {"image_id": 7, "caption": "a cat sat on a mat"}]
KARPATHY = {
    "images": [
        {
            "cocoid": 7,
            "imgid": 0,
            "split": "test",
            "sentences": [{"raw": "A cat sits on a mat."}, {"raw": "The cat sat"}],
        },
        {"cocoid": 3, "imgid": 1, "split": "test", "sentences": [{"tokens": ["two", "dogs", "run"]}]},
        {"cocoid": 9, "imgid": 2, "split": "val", "sentences": [{"raw": "x"}]},
    ]
}
REFERENCES, CANDIDATES = [["a cat sits on a mat", "the cat sat"], ["two dogs run"]], ["a cat sat on a mat", "dogs run"]
OWN = ["--metrics", "bleu,rouge-l,cider"]


@pytest.fixture
def run(tmp_path, command, monkeypatch):
    """Runs the command on two files, given by their content, and returns its status, output and error."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(references, results, *options, suffix=".json"):
        paths = [tmp_path / f"references{suffix}", tmp_path / f"results{suffix}"]
        for path, content in zip(paths, (references, results), strict=True):
            if content is not None:
                path.write_text(content if isinstance(content, str) else json.dumps(content))
        return command("score", *paths, *options)

    return run


def assert_scores_are_right(out):
    expected = {f"Bleu_{n}": score.total for n, score in enumerate(bleu(REFERENCES, CANDIDATES), 1)}
    expected |= {"ROUGE_L": rouge_l(REFERENCES, CANDIDATES).total, "CIDEr": cider_d(REFERENCES, CANDIDATES).total}
    summary = json.loads(out)
    assert summary["scores"] == pytest.approx(expected, abs=1e-12)
    assert (summary["images"], summary["tokenizer"], summary["failures"]) == (2, "python", {})


def test_cocos_formats_are_read(run):
    status, out, _ = run(COCO, RESULTS, *OWN, "--json")
    assert status == 0
    assert_scores_are_right(out)


def test_karpathys_format_is_read(run):
    status, out, _ = run(KARPATHY, RESULTS, *OWN, "--json")
    assert status == 0
    assert_scores_are_right(out)


def test_plain_text_is_read(run):
    references = "A cat sits on a mat.\tThe cat sat\nTwo dogs run.\n"
    status, out, _ = run(references, "a cat sat on a mat\ndogs run", *OWN, "--json", suffix=".txt")
    assert status == 0
    assert_scores_are_right(out)


def test_an_empty_caption_is_scored_and_not_refused(run):
    status, out, _ = run("a cat\na dog\n", "a cat\n\n", *OWN, "--json", suffix=".txt")
    assert status == 0
    assert json.loads(out)["scores"]["ROUGE_L"] == pytest.approx(0.5)


def test_the_table_has_a_row_a_metric(run):
    status, out, _ = run(COCO, RESULTS, *OWN)
    assert status == 0
    assert all(name in out for name in ("BLEU-1", "BLEU-4", "ROUGE-L", "CIDEr", "2 images"))
    _, out, _ = run(COCO, RESULTS[:1], *OWN, "--subset")
    assert out.split()[-2:] == ["1", "image"]


def test_scores_of_each_image_go_to_a_file(run, tmp_path):
    status, _, _ = run(COCO, RESULTS, *OWN, "--per-image", str(tmp_path / "each.json"))
    rows = json.loads((tmp_path / "each.json").read_text())
    assert status == 0
    assert [(row["image_id"], row["caption"]) for row in rows] == [(7, "a cat sat on a mat"), (3, "dogs run")]
    np.testing.assert_allclose([row["CIDEr"] for row in rows], cider_d(REFERENCES, CANDIDATES).each, atol=1e-12)


def test_a_subset_is_scored_when_asked(run):
    status, out, _ = run(COCO, RESULTS[:1], *OWN, "--json", "--subset")
    assert (status, json.loads(out)["images"]) == (0, 1)


def test_saved_frequencies_serve(run, tmp_path):
    Frequencies({("cat",): 5, ("dogs",): 1}, 100).save(tmp_path / "f.npz")
    status, out, _ = run(COCO, RESULTS, "--metrics", "cider", "--json", "--frequencies", str(tmp_path / "f.npz"))
    expected = cider_d(REFERENCES, CANDIDATES, Frequencies({("cat",): 5, ("dogs",): 1}, 100)).total
    assert (status, json.loads(out)["scores"]["CIDEr"]) == (0, pytest.approx(expected, abs=1e-12))


def test_frequencies_of_token_ids_are_refused_for_words(run, tmp_path):
    """CIDEr would come out all the same, and mean nothing."""
    Frequencies.of([["1 2 0"], ["3 0"]]).save(tmp_path / "ids.npz")
    status, out, error = run(COCO, RESULTS, "--metrics", "cider", "--frequencies", str(tmp_path / "ids.npz"))
    assert (status, out) == (2, "")
    assert "of token ids, where captions are words" in error


def changed(content, **values):
    return {**content, **values}


def sentence(entry):
    return {"images": [{"cocoid": 7, "split": "test", "sentences": [entry]}]}


@pytest.mark.parametrize(
    ("references", "results", "options", "line"),
    [
        (None, RESULTS, [], "references.json: cannot be read .No such file"),
        (COCO, "", [], "results.json: is not JSON"),
        (COCO, "[{]", [], "results.json: is not JSON.* line 1 column 3"),
        (COCO, "[" * 100_000, [], "results.json: .*JSON"),
        (COCO, COCO, [], "results.json: not COCO's results"),
        (RESULTS, RESULTS, [], "references.json: a list of results"),
        (RESULTS, COCO, [], "references.json: a list of results, .* the references come first"),
        ({"a": 1}, RESULTS, [], "references.json: neither"),
        (COCO, [], [], "results.json: no captions"),
        (COCO, [1], [], "results.json: expected a list of objects"),
        (COCO, [{"caption": "a"}], [], "results.json: an entry without 'image_id'"),
        (COCO, [{"image_id": 3}], [], "results.json: an entry without 'caption'"),
        (COCO, [{"image_id": 3, "caption": None}], [], "results.json: an entry without 'caption'"),
        (COCO, [*RESULTS, RESULTS[0]], [], "results.json: more than one caption of images: 3$"),
        (COCO, [*RESULTS, changed(RESULTS[0], image_id="7")], [], "images that the references do not have: '7'$"),
        (COCO, [*RESULTS, changed(RESULTS[0], image_id=8)], [], "images that the references do not have: 8$"),
        (COCO, [changed(RESULTS[0], image_id=3.0)], [], "without 'image_id', a whole number or a string: .* 3.0"),
        (COCO, '[{"image_id": ' + "1" * 5000 + "}]", [], "results.json: is not JSON.* digits"),
        (COCO, [changed(RESULTS[0], caption="half \ud83d")], [], r"a lone surrogate\) in 'half \\ud83d'"),
        (sentence({"tokens": ["\ud83d"]}), RESULTS, [], r"a lone surrogate\) in '\\ud83d'"),
        (changed(COCO, images=COCO["images"] * 2), RESULTS, [], "references.json: images listed more than once: 3, 7"),
        ({"images": KARPATHY["images"] * 2}, RESULTS, [], "references.json: images listed more than once: 3, 7"),
        (sentence({}), RESULTS, [], "references.json: an entry without 'tokens'"),
        (sentence({"tokens": None}), RESULTS, [], "an entry without 'tokens'"),
        (sentence({"tokens": "a cat"}), RESULTS, [], "an entry without 'tokens', a list of strings"),
        (COCO, RESULTS[:1], [], "results.json: no caption of images that have references: 7 .*--subset"),
        (changed(COCO, images=[{"id": 1}]), RESULTS, [], "images without a reference: 1"),
        (changed(COCO, annotations=COCO["annotations"][1:]), RESULTS, [], "images without a reference: 3"),
        (KARPATHY, RESULTS, ["--split", "train"], "no image of split 'train'; there are test, val"),
        (COCO, RESULTS, ["--metrics", "bleu,blue"], "no metric 'blue'; there are bleu, meteor"),
        (COCO, RESULTS, ["--metrics", ","], "no metrics"),
        (COCO, RESULTS, ["--tokenizer", "perl"], "no tokenizer 'perl'; there are python, java"),
        (COCO, RESULTS, ["--frequencies", "nowhere.npz"], "nowhere.npz: no such file"),
        (COCO, RESULTS, [*OWN, "--per-image", "/dev/null/each.json"], "/dev/null: is a file; give"),
    ],
)  # fmt: skip
def test_what_cannot_be_scored_is_one_line_and_a_status(run, references, results, options, line):
    status, out, error = run(references, results, *options)
    assert (status, out) == (2, "")
    assert error.count("\n") == 1
    assert re.search(line, error.strip()), error


def test_many_missing_images_are_counted_and_not_all_listed(run):
    many = {"annotations": [{"image_id": i, "caption": "a"} for i in range(100)]}
    _, _, error = run(many, RESULTS)
    assert "and 93 more" in error


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ("b.txt", "give two .json files, or two of plain text"),
        ("runs", "runs: not the folder of a run"),
        ("latin.txt", "latin.txt: not UTF-8 (byte 3)"),
    ],
)
def test_results_of_another_kind_are_named(tmp_path, command, results, message):
    (tmp_path / "runs").mkdir()
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    references = "latin.txt" if results == "latin.txt" else "a.json"
    status, out, err = command("score", tmp_path / references, tmp_path / results)
    assert (status, out, message in err) == (2, "", True)


def test_without_java_the_others_are_still_reported(run, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    status, out, error = run(COCO, RESULTS)
    assert status == 0, "nobody asked for METEOR in particular"
    assert "BLEU-1" in out
    assert "no meteor: METEOR needs Java: install" in error
    assert "no spice: SPICE needs" in error
    for metrics in ("bleu,meteor", "bleu,meteor,rouge-l,cider,spice"):
        status, out, _ = run(COCO, RESULTS, "--metrics", metrics)
        assert status == 1, "somebody did"
        assert "BLEU-1" in out


def test_one_image_is_scored():
    scores = evaluate([["A cat."]], ["a cat"], ["bleu", "rouge-l", "cider"]).scores
    assert scores["ROUGE_L"].total == 1
    assert scores["CIDEr"].total == 0


DATA = Path(os.environ["PRPRODUCT_DATA"]) / "coco" if "PRPRODUCT_DATA" in os.environ else None


@pytest.mark.skipif(DATA is None or not DATA.exists(), reason="PRPRODUCT_DATA names no folder with coco/")
class TestOracle:
    def scores(self, run, *options):
        references, results = ((DATA / f"fakecap_{kind}.json").read_text() for kind in ("references", "results"))
        return json.loads(run(references, results, "--json", *options)[1])["scores"]

    def test_the_published_scores_come_out(self, run):
        known = json.loads((DATA / "fakecap_scores.json").read_text())
        scores = self.scores(run, *OWN)
        assert {name: round(score, 3) for name, score in scores.items()} == {n: known["published"][n] for n in scores}
        assert scores == pytest.approx({name: known[name] for name in scores}, abs=6e-6)

    @pytest.mark.skipif(shutil.which("java") is None, reason="no Java: apt-get install default-jre-headless")
    def test_the_published_meteor_comes_out_of_the_original_tokenizer(self, run):
        known = json.loads((DATA / "fakecap_scores.json").read_text())
        scores = self.scores(run, "--tokenizer", "java", "--metrics", "meteor,cider")
        assert scores == pytest.approx({"METEOR": known["METEOR"], "CIDEr": known["CIDEr"]}, abs=1e-6)


def test_the_training_split_of_karpathys_format_has_the_images_of_restval(tmp_path):
    entry = {"cocoid": 1, "split": "train", "sentences": [{"raw": "a cat"}]}
    file = tmp_path / "k.json"
    file.write_text(json.dumps({"images": [entry, {**entry, "cocoid": 2, "split": "restval"}]}))
    assert read_references(file, "train") == {1: ["a cat"], 2: ["a cat"]}


def test_a_wrong_list_is_not_printed_whole():
    with pytest.raises(InputError) as error:
        raise_for_images(Path("ids.txt"), "unknown images", ["x" * 10_000])
    assert len(str(error.value)) < 200
