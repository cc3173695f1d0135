"""Ready captioners: made from runs, small, with their card, and used without --run."""

import json
import shutil
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from painted_pictures import CONFIG, paint
from small_dataset import run

from prproduct.captioning import ready
from prproduct.captioning.data import features, prepared
from prproduct.captioning.dataset import CaptionDataset
from prproduct.captioning.inference import load_captioner
from prproduct.captioning.results import write_results
from prproduct.lab.errors import InputError

pytestmark = pytest.mark.usefixtures("tiny_encoders")
LICENCE = "for research only"


@pytest.fixture(scope="module")
def scored(lab, tmp_path_factory):
    """Runs of three products with their scores."""
    folder = tmp_path_factory.mktemp("scored")
    what = CaptionDataset(prepared.read(lab / "captions"), features.open(lab / "f.h5"))
    for product in ("p", "pr"):
        shutil.copytree(lab / product, folder / product, ignore=shutil.ignore_patterns("results"))
    run(replace(CONFIG, product="r", epochs=1), folder / "r", what)
    for product in ("p", "pr", "r"):
        write_results(folder / product, what, metrics=("bleu", "cider"))
    return folder


@pytest.fixture
def bundled(scored, tmp_path, monkeypatch):
    """A folder of ready captioners in the place of the package's."""
    for product in ("pr", "p", "r"):
        ready.save(*ready.make(scored / product, "Colours", LICENCE), tmp_path / "ready")
    monkeypatch.setattr("prproduct.captioning.use.command.open_ready", lambda: ready.open_ready(tmp_path / "ready"))
    return tmp_path / "ready"


def test_a_photo_is_captioned_without_a_run_by_all_ready_captioners_side_by_side(bundled, caption, tmp_path):
    photo, page = paint(tmp_path / "photo.jpg", "green", (90, 60)), tmp_path / "page.html"
    status, out, err = caption(photo, "-o", page)
    labels = [f"{product}, cross-entropy" for product in ("p", "r", "pr")]
    assert (status, err) == (0, [])
    assert [line.split("\t")[1] for line in out] == labels
    assert out[0] == f"{photo}\tp, cross-entropy\tall green"
    shown = page.read_text()
    assert shown.count("<article") == 1
    assert all(f'<dt class="label">{product}, cross-entropy</dt>' in shown for product in ("P", "R", "PR"))
    assert "Colours, seed 0, CIDEr" in shown
    assert LICENCE in shown


def test_a_card_has_data_recipe_scores_seed_and_licence_and_no_path(bundled, scored):
    for product in ("p", "r", "pr"):
        text = (bundled / f"{product}.json").read_text()
        card = json.loads(text)
        found = json.loads((scored / product / "results" / "scores_test.json").read_text())
        assert (card["data_name"], card["licence"], card["trained"]["seed"]) == ("Colours", LICENCE, 0)
        assert card["config"]["learning_rate"] == CONFIG.learning_rate
        assert card["scores"]["CIDEr"] == found["scores"]["CIDEr"]
        assert card["scores"]["search"]["beams"] == 5
        assert str(scored) not in text


def test_weights_are_those_of_the_run_in_float16(bundled, scored):
    kept = safetensors.torch.load_file(bundled / "pr.safetensors")
    whole = load_captioner(scored / "pr").state_dict()
    assert kept.keys() == whole.keys()
    assert all(kept[name].dtype == torch.float16 for name in kept)
    (captioner,) = [one for one in ready.open_ready(bundled) if one.label.startswith("pr,")]
    for name, value in captioner.model.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, whole[name].half().float())


def test_what_makes_no_ready_captioner_is_one_line(scored, tmp_path, monkeypatch):
    shutil.copytree(scored / "p", tmp_path / "unscored", ignore=shutil.ignore_patterns("results"))
    with pytest.raises(InputError, match="its test captions are not scored"):
        ready.make(tmp_path / "unscored", "Colours", LICENCE)
    with pytest.raises(InputError, match="the scores are of another epoch than the last one"):
        ready.make(scored / "p", "Colours", LICENCE, "last")
    shutil.copytree(scored / "p", tmp_path / "odd")
    file = tmp_path / "odd" / "results" / "scores_test.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "how": None}))
    with pytest.raises(InputError, match=r"scores_test\.json: not the scores of captions"):
        ready.make(tmp_path / "odd", "Colours", LICENCE)
    monkeypatch.setattr(ready, "LARGEST", 1000)
    with pytest.raises(InputError, match="MB of weights in float16, where 0 are allowed; train a smaller network"):
        ready.make(scored / "p", "Colours", LICENCE)


def test_a_damaged_bundle_is_named(bundled, caption, tmp_path):
    photo = paint(tmp_path / "photo.jpg", "red")
    weights, card = (bundled / "p.safetensors").read_bytes(), (bundled / "p.json").read_text()
    for file, content, message in (
        ("p.safetensors", weights[:100], "p.safetensors: not the weights of its card"),
        ("p.json", card.replace('"all"', '"none"'), "p.json: its words are not those it was trained with"),
        ("p.json", "{}", "p.json: not the card of a captioner ('format')"),
        ("p.json", card.replace('"trained"', '"made"'), "p.json: not the card of a captioner ('trained')"),
    ):
        (bundled / file).write_bytes(content if isinstance(content, bytes) else content.encode())
        status, out, err = caption(photo)
        assert (status, out, len(err)) == (2, [], 1)
        assert message in err[0]
        (bundled / "p.safetensors").write_bytes(weights)
        (bundled / "p.json").write_text(card)


def test_without_a_ready_captioner_it_says_to_give_a_run(caption, tmp_path, monkeypatch):
    monkeypatch.setattr("prproduct.captioning.use.command.open_ready", lambda: ready.open_ready(tmp_path))
    status, _, err = caption(paint(tmp_path / "x.jpg", "red"))
    assert (status, err) == (
        2,
        [
            "prproduct: whose captions? Give --run, the folder of a captioner's run: this installation has no ready "
            "captioner"
        ],
    )


def test_captioners_in_the_package_are_small_and_complete():
    cards = list(ready.PLACE.glob("*.json"))
    assert len(cards) == 3
    for card in cards:
        assert card.with_suffix(".safetensors").stat().st_size <= ready.LARGEST
        assert json.loads(card.read_text())["licence"]


def test_the_command_makes_a_bundle_of_runs(scored, tmp_path, command):
    options = ["--data", "Colours", "--licence", LICENCE, "-o", tmp_path / "r"]
    status, out, _ = command("bundle", scored / "p", scored / "pr", *options)
    assert (status, "Colours, seed 0, CIDEr" in out) == (0, True)
    files = {path.name for path in (tmp_path / "r").iterdir()}
    assert files == {"p.json", "p.safetensors", "pr.json", "pr.safetensors"}


@pytest.mark.parametrize(
    ("product", "without", "message"),
    [("pr", "results", "its test captions are not scored"), ("p", "", "more than one run of product p; give one")],
)
def test_a_run_that_cannot_be_bundled_keeps_all_from_being_written(
    scored, tmp_path, command, product, without, message
):
    shutil.copytree(scored / product, tmp_path / "another", ignore=shutil.ignore_patterns(without))
    options = ["--data", "Colours", "--licence", LICENCE, "-o", tmp_path / "r"]
    status, _, err = command("bundle", scored / "p", tmp_path / "another", *options)
    assert (status, message in err) == (2, True)
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_the_captioners_of_the_package_caption_a_photo_and_say_what_they_were_trained_on(caption, tmp_path):
    photo, page = paint(tmp_path / "photo.jpg", "green", (90, 60)), tmp_path / "page.html"
    status, out, err = caption(photo, "-o", page)
    assert (status, err) == (0, [])
    assert [line.split("\t")[1] for line in out] == [f"{product}, REINFORCE" for product in ("p", "r", "pr")]
    assert all(len(line.split("\t")[2].split()) > 2 for line in out)
    assert page.read_text().count("research use only") == 3
