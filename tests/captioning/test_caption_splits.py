"""Captions for whole splits: the server's format, what does not fit a run, and the way to scores and a report."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from painted_pictures import COLOURS, paint, tiny

from prproduct import cli
from prproduct.captioning.data import grids, pictures, prepared
from prproduct.captioning.data.prepared import Described
from prproduct.captioning.data.vocabulary import build
from prproduct.captioning.use.command import targets_of
from prproduct.lab.errors import InputError

pytestmark = pytest.mark.usefixtures("tiny_encoders")


def test_a_split_is_written_as_the_server_wants_it(lab, caption, tmp_path):
    common = ("--split", "test", "--captions", lab / "captions", "--features", lab / "f.h5")
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
    lab, caption, tmp_path, monkeypatch, split
):
    """The captions of a whole test set take an hour."""
    shutil.copytree(lab / "pr", tmp_path / "run", ignore=shutil.ignore_patterns("results"))
    for module in ("results", "use.command"):
        monkeypatch.setattr(f"prproduct.captioning.{module}.generate_captions", lambda *a, **k: pytest.fail("searched"))
    own = ("--features", lab / "f.h5", *(("--captions", lab / "captions") if split == "test" else ()))
    (tmp_path / "file").touch()
    for target in (tmp_path / "file" / "out.json", tmp_path / "file" / "folder"):
        status, out, err = caption("--run", tmp_path / "run", "--split", split, *own, "-o", target)
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


def test_captions_of_a_split_have_as_many_words_as_training_has_unless_longest_says_another(lab, caption, tmp_path):
    shutil.copytree(lab / "pr", tmp_path / "run", ignore=shutil.ignore_patterns("results"))
    shutil.copytree(lab / "captions", tmp_path / "captions")
    described = tmp_path / "captions" / "captions.json"
    described.write_text(described.read_text().replace('"longest": 16', '"longest": 1'))
    target = tmp_path / "out.json"
    common = ("--run", tmp_path / "run", "--captions", tmp_path / "captions", "--features", lab / "f.h5", "-o", target)
    common = (*common, "--shortest", 1)  # else the empty caption would rank before one that is cut
    for split, options, texts in (
        ("test", (), {"all"}),
        ("all", (), {"all"}),
        ("test", ("--longest", 3), {f"all {colour}" for colour in COLOURS}),
    ):
        assert caption(*common, "--split", split, *options)[0] == 0
        assert {row["caption"] for row in json.loads(target.read_text())} == texts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--beams", 0), "0 beams; there must be at least 1"),
        (("--length-power", -1), "a length power of -1.0; it must be at least 0"),
        (("--shortest", 17), "captions of at least 17 words; it must be from 0 to 16"),
    ],
)
def test_an_impossible_search_is_refused_before_anything_is_loaded(caption, tmp_path, options, message):
    assert caption(tmp_path, "--run", tmp_path / "none", *options) == (2, [], [f"prproduct: {message}"])


def test_captioned_and_scored_a_run_has_a_row_in_the_report(lab, caption, tmp_path, capsys):
    shutil.copytree(lab / "pr", tmp_path / "run", ignore=shutil.ignore_patterns("results"))
    common = ("--split", "test", "--captions", lab / "captions", "--features", lab / "f.h5")
    page = tmp_path / "report.md"

    def call(*words):
        with pytest.raises(SystemExit) as end:
            cli.main([str(word) for word in words])
        assert end.value.code == 0, capsys.readouterr().err
        return page.read_text() if words[0] == "report" else ""

    status, out, _ = caption("--run", tmp_path / "run", *common)
    assert (status, out[1]) == (0, f"for their scores: prproduct score {lab}/captions {tmp_path}/run")
    unscored = call("report", tmp_path / "run", "-o", page)
    assert f"prproduct caption --run {tmp_path}/run --split test" in unscored
    assert f"prproduct score CAPTIONS {tmp_path}/run" in unscored
    call("score", lab / "captions", tmp_path / "run", "--metrics", "bleu,cider")
    kept = json.loads((tmp_path / "run" / "results" / "scores_test.json").read_text())
    assert kept["images"] == 3
    row = f"| PR | ours | 1 | {100 * kept['scores']['Bleu_1']:.1f} |"
    assert row in call("report", tmp_path / "run", "-o", page)
    assert caption("--run", tmp_path / "run", *common)[0] == 0
    assert json.loads((tmp_path / "run" / "results" / "scores_test.json").read_text()) == kept, "scored already"
    assert caption("--run", tmp_path / "run", *common, "--beams", 2)[0] == 0
    again = json.loads((tmp_path / "run" / "results" / "scores_test.json").read_text())
    assert (again["scores"], again["how"]["search"]["beams"]) == ({}, 2), "scores of other captions are gone"


def test_unusual_scores_are_not_kept_and_a_run_without_captions_says_what_to_do(lab, caption, tmp_path, capsys):
    shutil.copytree(lab / "p", tmp_path / "run", ignore=shutil.ignore_patterns("results"))

    def score(*options):
        with pytest.raises(SystemExit) as end:
            cli.main(["score", str(lab / "captions"), str(tmp_path / "run"), "--metrics", "bleu", *options])
        return end.value.code, capsys.readouterr().err

    status, err = score()
    assert (status, "caption them first: prproduct caption" in err) == (2, True)
    common = ("--split", "test", "--captions", lab / "captions", "--features", lab / "f.h5")
    assert caption("--run", tmp_path / "run", *common)[0] == 0
    status, err = score("--subset")
    assert (status, "left as it was" in err) == (0, True)
    assert json.loads((tmp_path / "run" / "results" / "scores_test.json").read_text())["scores"] == {}


def test_scores_against_other_references_are_printed_and_not_kept(lab, caption, tmp_path, capsys):
    """The report would print them as the run's."""
    shutil.copytree(lab / "p", tmp_path / "run", ignore=shutil.ignore_patterns("results"))
    common = ("--split", "test", "--captions", lab / "captions", "--features", lab / "f.h5")
    assert caption("--run", tmp_path / "run", *common)[0] == 0
    kept = tmp_path / "run" / "results" / "scores_test.json"

    def score(references):
        with pytest.raises(SystemExit) as end:
            cli.main(["score", str(references), str(tmp_path / "run"), "--metrics", "bleu", "--json"])
        said = capsys.readouterr()
        assert end.value.code == 0, said.err
        return json.loads(said.out)["scores"]["Bleu_1"], json.loads(kept.read_text())["scores"].get("Bleu_1"), said.err

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


def test_test_images_that_nobody_described_are_captioned_and_not_scored(lab, caption, tmp_path, capsys):
    shutil.copytree(lab / "p", tmp_path / "run", ignore=shutil.ignore_patterns("results"))
    common = ("--split", "test", "--captions", lab / "captions", "--features", lab / "f.h5")
    assert caption("--run", tmp_path / "run", *common)[0] == 0
    captions = json.loads((tmp_path / "run" / "results" / "captions_test_results.json").read_text())
    said_of = {entry["image_id"]: entry["caption"] for entry in captions}
    vocabulary = prepared.read(lab / "captions").vocabulary
    described = [Described(1, "1.png", "train", ("all red",), ("all red",))]
    described += [Described(number, f"{number}.png", "test", (), ()) for number in (21, 22)]

    def score(name, *more):
        prepared.write(tmp_path / name, [*described, *more], vocabulary)
        with pytest.raises(SystemExit) as end:
            cli.main(["score", str(tmp_path / name), str(tmp_path / "run"), "--metrics", "bleu", "--json"])
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    status, out, err = score("one", Described(23, "23.png", "test", (said_of[23],), (said_of[23],)))
    assert status == 0, err
    assert (json.loads(out)["images"], json.loads(out)["scores"]["Bleu_1"]) == (1, pytest.approx(1.0))
    status, _, err = score("none", Described(23, "23.png", "test", (), ()))
    assert (status, err) == (
        2,
        f"prproduct: {tmp_path}/none: no image of the split test has references to score with\n",
    )


def test_a_run_whose_scores_file_is_missing_is_named_before_anything_is_scored(lab, caption, tmp_path, monkeypatch):
    """METEOR takes minutes, and its score would have nowhere to go."""
    shutil.copytree(lab / "p", tmp_path / "run", ignore=shutil.ignore_patterns("results"))
    common = ("--split", "test", "--captions", lab / "captions", "--features", lab / "f.h5")
    assert caption("--run", tmp_path / "run", *common)[0] == 0
    (tmp_path / "run" / "results" / "scores_test.json").unlink()
    monkeypatch.setattr("prproduct.captioning.metrics.score.evaluate", lambda *arguments: pytest.fail("scored"))
    with pytest.raises(SystemExit) as end:
        cli.main(["score", str(lab / "captions"), str(tmp_path / "run")])
    assert end.value.code == 2
