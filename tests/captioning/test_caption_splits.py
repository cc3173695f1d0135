"""Captions for whole splits: the server's format, what does not fit a run, and the way to scores and a report."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from painted_pictures import COLOURS, paint, tiny

from prproduct.captioning.data import grids, pictures, prepared
from prproduct.captioning.data.prepared import Described
from prproduct.captioning.data.vocabulary import build
from prproduct.captioning.use.command import targets_of
from prproduct.lab.errors import InputError

pytestmark = pytest.mark.usefixtures("tiny_encoders")


@pytest.fixture
def run(lab, tmp_path):
    """The folder of a run without captions."""
    return shutil.copytree(lab / "pr", tmp_path / "run", ignore=shutil.ignore_patterns("results"))


@pytest.fixture
def common(lab):
    """Options for the captions of a run's test images."""
    return "--split", "test", "--captions", lab / "captions", "--features", lab / "f.h5"


def test_a_split_is_written_as_the_server_wants_it(lab, caption, common, tmp_path):
    status, out, _ = caption("--run", lab / "pr", *common, "-o", tmp_path / "captions_test_results.json")
    files = (lab / "pr" / "results" / "captions_test_results.json", tmp_path / "captions_test_results.json")
    assert (status, out) == (0, [f"{file}: captions of 3 images" for file in files])
    rows = [{"image_id": number, "caption": f"all {list(COLOURS)[number % 3]}"} for number in (21, 22, 23)]
    assert json.loads((tmp_path / "captions_test_results.json").read_text()) == rows
    assert caption("--run", lab / "p", "--run", lab / "pr", *common, "-o", tmp_path / "out")[0] == 0
    names = {f"captions_test_{product}-cross-entropy_results.json" for product in ("p", "pr")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names


def test_two_runs_are_never_written_to_the_same_file():
    with pytest.raises(InputError, match="the same file, pr-REINFORCE-a-1; give one run at a time"):
        targets_of(Path("out"), "test", ["pr, REINFORCE, a-1", "pr, REINFORCE, a_1"])


def test_images_that_nobody_described_are_captioned_from_their_features_alone(lab, caption, tmp_path):
    for number, colour in ((391895, "blue"), (7, "green")):
        paint(tmp_path / "unseen" / f"COCO_test2014_{number:012d}.png", colour)
    grids.write(tmp_path / "u.h5", pictures.find([tmp_path / "unseen"]), tiny("tiny"))
    target = tmp_path / "captions_test2014_pr_results.json"
    common = ("--run", lab / "pr", "--split", "all", "--features", tmp_path / "u.h5", "-o", target)
    assert caption(*common)[0] == 0
    rows = {one["image_id"]: one["caption"] for one in json.loads(target.read_text())}
    assert rows == {7: "all green", 391895: "all blue"}
    (tmp_path / "ids.txt").write_text("391895\n")
    assert caption(*common, "--ids", tmp_path / "ids.txt")[0] == 0
    assert json.loads(target.read_text()) == [{"image_id": 391895, "caption": "all blue"}]
    (tmp_path / "ids.txt").write_text("391895\n8\n")
    status, _, err = caption(*common, "--ids", tmp_path / "ids.txt")
    assert (status, err) == (
        2,
        [f"prproduct: {tmp_path}/ids.txt: images without features in {tmp_path}/u.h5: 8"],
    )


@pytest.mark.parametrize("split", ["test", "all"])
def test_a_place_that_cannot_be_written_is_named_before_anything_is_captioned(
    lab, run, caption, tmp_path, monkeypatch, split
):
    """The captions of a whole test set take an hour."""
    for module in ("results", "use.command"):
        monkeypatch.setattr(f"prproduct.captioning.{module}.generate_captions", lambda *a, **k: pytest.fail("searched"))
    own = ("--features", lab / "f.h5", *(("--captions", lab / "captions") if split == "test" else ()))
    (tmp_path / "file").touch()
    for target in (tmp_path / "file" / "out.json", tmp_path / "file" / "folder"):
        status, out, err = caption("--run", run, "--split", split, *own, "-o", target)
        assert (status, out, len(err)) == (2, [], 1)
        assert re.search(r"/file: is a file; give the|/file/folder: cannot be written", err[0])


def test_what_does_not_fit_the_run_is_refused_and_nothing_is_overwritten(lab, caption, tmp_path):
    target = tmp_path / "results.json"
    target.write_text("before")
    np.save(tmp_path / "7.npy", np.ones((4, 5), np.float32))
    other = [
        Described(7, "7.png", split, ("a cat",), ("a cat",))._replace(id=n) for n, split in enumerate(prepared.SPLITS)
    ]
    prepared.write(tmp_path / "captions", other, build([["a", "cat"]], 1))
    grids.write(tmp_path / "other.h5", pictures.find([lab / "pictures"]), tiny("other"))
    own = {"--captions": lab / "captions", "--features": lab / "f.h5", "--split": "test"}
    cases = [
        ({**own, "--captions": tmp_path / "captions"}, "was trained with another vocabulary"),
        ({**own, "--features": tmp_path}, "was trained with features of another width: 3, not 5"),
        ({"--split": "all", "--features": tmp_path}, "was trained with features of another width: 3, not 5"),
        ({**own, "--features": tmp_path / "other.h5"}, "was trained with features of another encoder: timm:tiny"),
    ]
    for options, message in cases:
        status, out, err = caption("--run", lab / "pr", *(w for pair in options.items() for w in pair), "-o", target)
        assert (status, out, len(err)) == (2, [], 1)
        assert message in err[0]
        assert target.read_text() == "before"


@pytest.mark.parametrize("data", [None, {}, {"vocabulary": "v", "words": 3}], ids=["none", "empty", "no width"])
def test_a_run_whose_configuration_does_not_describe_its_data_is_named(lab, caption, tmp_path, data):
    shutil.copytree(lab / "pr", tmp_path / "pr")
    path = tmp_path / "pr" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "data": data}))
    own = ("--captions", lab / "captions", "--features", lab / "f.h5", "--split", "test")
    status, _, err = caption("--run", tmp_path / "pr", *own)
    assert (status, len(err)) == (2, 1)
    assert "config.json: is not the configuration of a captioner's run (its data has no" in err[0]


def test_captions_of_a_split_have_as_many_words_as_training_has_unless_longest_says_another(
    lab, run, caption, tmp_path
):
    shutil.copytree(lab / "captions", tmp_path / "captions")
    described = tmp_path / "captions" / "captions.json"
    described.write_text(described.read_text().replace('"longest": 16', '"longest": 1'))
    target = tmp_path / "out.json"
    common = ("--run", run, "--captions", tmp_path / "captions", "--features", lab / "f.h5", "-o", target)
    common = (*common, "--shortest", 1)  # else the empty caption would rank before one that is cut
    for split, options, texts in (
        ("test", (), {"all"}),
        ("all", (), {"all"}),
        ("test", ("--longest", 3), {f"all {colour}" for colour in COLOURS}),
    ):
        assert caption(*common, "--split", split, *options)[0] == 0
        assert {row["caption"] for row in json.loads(target.read_text())} == texts


def test_captioned_and_scored_a_run_has_a_row_in_the_report(lab, run, common, command, tmp_path):
    page = tmp_path / "report.md"
    file = run / "results" / "scores_test.json"

    def report():
        assert command("report", run, "-o", page)[0] == 0
        return page.read_text()

    status, out, _ = command("caption", "--run", run, *common)
    assert (status, out.splitlines()[1]) == (0, f"for their scores: prproduct score {lab}/captions {run}")
    unscored = report()
    assert f"prproduct caption --run {run} --split test" in unscored
    assert f"prproduct score CAPTIONS {run}" in unscored
    assert command("score", lab / "captions", run, "--metrics", "bleu,cider")[0] == 0
    kept = json.loads(file.read_text())
    assert kept["images"] == 3
    assert f"| PR | ours | 1 | {100 * kept['scores']['Bleu_1']:.1f} |" in report()
    assert command("caption", "--run", run, *common)[0] == 0
    assert json.loads(file.read_text()) == kept, "scored already"
    assert command("caption", "--run", run, *common, "--beams", 2)[0] == 0
    again = json.loads(file.read_text())
    assert (again["scores"], again["how"]["search"]["beams"]) == ({}, 2), "scores of other captions are gone"


def test_a_run_without_captions_says_what_to_do(lab, run, command):
    status, _, err = command("score", lab / "captions", run, "--metrics", "bleu")
    assert (status, "caption them first: prproduct caption" in err) == (2, True)


def test_scores_of_a_subset_or_against_other_references_are_printed_and_not_kept(lab, run, common, command, tmp_path):
    """The report would print them as the run's."""
    assert command("caption", "--run", run, *common)[0] == 0

    def score(references, *options):
        status, out, err = command("score", references, run, "--metrics", "bleu", "--json", *options)
        assert status == 0, err
        stored = json.loads((run / "results" / "scores_test.json").read_text())["scores"].get("Bleu_1")
        return json.loads(out)["scores"]["Bleu_1"], stored, err

    _, stored, err = score(lab / "captions", "--subset")
    assert (stored, "left as it was" in err) == (None, True)
    right, stored, _ = score(lab / "captions")
    assert stored == right
    others = {"annotations": [{"image_id": number, "caption": "all cats"} for number in (21, 22, 23)]}
    (tmp_path / "others.json").write_text(json.dumps(others))
    described = [Described(number, f"{number}.png", "test", ("all cats",), ("all cats",)) for number in (21, 22, 23)]
    described.append(Described(1, "1.png", "train", ("all cats",), ("all cats",)))
    prepared.write(tmp_path / "others", described, build([["all", "cats"]], 1))
    for references in (tmp_path / "others.json", tmp_path / "others"):
        wrong, stored, err = score(references)
        assert wrong < right == stored
        assert "left as it was: it has scores against the run's own captions" in err


def test_test_images_that_nobody_described_are_captioned_and_not_scored(lab, run, common, command, tmp_path):
    assert command("caption", "--run", run, *common)[0] == 0
    captions = json.loads((run / "results" / "captions_test_results.json").read_text())
    said_of = {entry["image_id"]: entry["caption"] for entry in captions}
    vocabulary = prepared.read(lab / "captions").vocabulary
    described = [Described(1, "1.png", "train", ("all red",), ("all red",))]
    described += [Described(number, f"{number}.png", "test", (), ()) for number in (21, 22)]

    def score(name, *texts):
        prepared.write(tmp_path / name, [*described, Described(23, "23.png", "test", texts, texts)], vocabulary)
        return command("score", tmp_path / name, run, "--metrics", "bleu", "--json")

    status, out, err = score("one", said_of[23])
    assert status == 0, err
    assert (json.loads(out)["images"], json.loads(out)["scores"]["Bleu_1"]) == (1, pytest.approx(1.0))
    line = f"prproduct: {tmp_path}/none: no image of the split test has references to score with\n"
    assert score("none") == (2, "", line)


def test_a_run_whose_scores_file_is_missing_is_named_before_anything_is_scored(lab, run, common, command, monkeypatch):
    """METEOR takes minutes, and its score would have nowhere to go."""
    assert command("caption", "--run", run, *common)[0] == 0
    (run / "results" / "scores_test.json").unlink()
    monkeypatch.setattr("prproduct.captioning.metrics.score.evaluate", lambda *arguments: pytest.fail("scored"))
    assert command("score", lab / "captions", run)[0] == 2
