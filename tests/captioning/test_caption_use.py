"""Captions for one's own pictures: right, complete, and refused in one line where impossible."""

import json
import shutil
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from painted_pictures import COLOURS, CONFIG, paint, tiny
from PIL import Image, ImageFile
from small_dataset import XE, InMemory, dataset, run

from prproduct.captioning import encoder
from prproduct.captioning.configuration import CaptionerConfig
from prproduct.captioning.data import features, grids, pictures, prepared
from prproduct.captioning.data.prepared import Described
from prproduct.captioning.data.vocabulary import build
from prproduct.captioning.dataset import CaptionDataset
from prproduct.captioning.use import command as use
from prproduct.captioning.world import World, is_true

pytestmark = pytest.mark.usefixtures("tiny_encoders")
HEIC = b"\x00\x00\x00\x18ftypheic" + bytes(40)
NO_HEIC = "a HEIC picture, which takes one more package: pip install 'prproduct[heic]'"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A run on features that do not say what made them."""
    return run(XE, tmp_path_factory.mktemp("elsewhere") / "run")


# Pictures


def test_own_pictures_get_the_right_captions_a_line_each(lab, caption, tmp_path):
    files = [paint(tmp_path / f"{colour}.jpg", colour, (40, 90)) for colour in COLOURS]
    assert caption(*files, "--run", lab / "pr") == (0, [f"{file}\tall {file.stem}" for file in files], [])


def test_after_ctrl_c_the_page_has_the_pictures_that_were_captioned(lab, caption, tmp_path, monkeypatch):
    files = [paint(tmp_path / f"{colour}.png", colour) for colour in COLOURS]
    monkeypatch.setattr(use, "_print", interrupted_at(files[2], use._print))
    status, out, err = caption(*files, "--run", lab / "pr", "-o", tmp_path / "page.html")
    assert (status, len(out)) == (130, 2)
    assert err[0] == f"prproduct: {tmp_path}/page.html: has the first 2 of 3 pictures"
    assert (tmp_path / "page.html").read_text().count("<article") == 2


def interrupted_at(file, show):
    def show_or_stop(captioned, labels):
        if captioned.picture.place == file:
            raise KeyboardInterrupt  # not by a signal, which processes in the background may ignore
        show(captioned, labels)

    return show_or_stop


def test_several_runs_are_told_apart_by_product_and_phase(lab, caption, tmp_path):
    file = paint(tmp_path / "x.png", "green")
    lines = [f"{file}\t{product}, cross-entropy\tall green" for product in ("p", "pr")]
    assert caption(file, "--run", lab / "p", "--run", lab / "pr") == (0, lines, [])


def test_unreadable_pictures_are_named_and_the_rest_go_on(lab, caption, tmp_path):
    paint(tmp_path / "b.png", "red")
    paint(tmp_path / "one pixel.png", "red", (1, 1))
    (tmp_path / "text.jpg").write_text("not a picture")
    (tmp_path / "cut.png").write_bytes((tmp_path / "b.png").read_bytes()[:50])
    (tmp_path / "empty.gif").touch()
    (tmp_path / "dangling.jpg").symlink_to(tmp_path / "gone.jpg")
    paint(tmp_path / "z.png", "blue")
    status, out, err = caption(tmp_path, "--run", lab / "pr", "-o", tmp_path / "page.html")
    assert status == 1
    assert out == [f"{tmp_path}/b.png\tall red", f"{tmp_path}/z.png\tall blue"]
    for line, name in zip(err, ("cut.png", "dangling.jpg", "empty.gif", "one pixel.png", "text.jpg"), strict=True):
        assert line.startswith(f"prproduct: {tmp_path}/{name}: cannot be read: ")
    assert "1×1 pixels" in err[3]
    written = (tmp_path / "page.html").read_text()
    assert all(name in written for name in ("cut.png", "one pixel.png", "not a picture of a known format"))


def test_a_folder_misses_no_picture_whatever_its_name_and_says_what_is_none(lab, caption, tmp_path, monkeypatch):
    """By content: JFIF, AVIF, no suffix and a wrong one; HEIC is named with what reads it, notes are named."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    pictures._register_heif.cache_clear()
    place = tmp_path / "photos"
    paint(place / "a.jpg", "red").rename(place / "a.jfif")
    paint(place / "b.avif", "green")
    paint(place / "c.png", "blue").rename(place / "c")
    paint(place / "d.png", "red").rename(place / "d.dat")
    (place / "e.heic").write_bytes(HEIC)
    (place / "f").write_bytes(HEIC)
    (place / "g.jxl").write_bytes(b"\xff\x0a" + bytes(40))
    (place / "notes.txt").write_text("not a picture")
    (place / "film.mpg").write_bytes(b"\x00\x00\x01\xb3" + bytes(40))
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as archive:
        for file in ("c", "notes.txt"):
            archive.write(place / file, f"in/{file}")
    status, out, err = caption(place, tmp_path / "more.zip", "--run", lab / "pr")
    colours = {"a.jfif": "red", "b.avif": "green", "c": "blue", "d.dat": "red"}
    assert out == [
        *(f"{place}/{name}\tall {colour}" for name, colour in colours.items()),
        f"{tmp_path}/more.zip/in/c\tall blue",
    ]
    assert status == 1
    assert err == [
        "prproduct: no pictures, and left out: film.mpg, notes.txt, notes.txt",
        *(f"prproduct: {place}/{name}: cannot be read: {NO_HEIC}" for name in ("e.heic", "f")),
        f"prproduct: {place}/g.jxl: cannot be read: a JPEG XL picture; save it as JPEG",
    ]


def test_heic_is_read_where_pillow_heif_is_installed(lab, caption, tmp_path, monkeypatch):
    """By a stand-in for it, which takes a HEIC file for a red picture."""

    class Heic(ImageFile.ImageFile):
        format = "HEIF"

        def _open(self):
            self._mode, self._size = "RGB", (24, 16)

        def load(self):
            self.im = Image.new("RGB", self.size, COLOURS["red"]).im
            return super().load()

    def register_heif_opener():
        Image.register_open("HEIF", Heic, lambda start: start[4:12] == b"ftypheic")

    monkeypatch.setitem(sys.modules, "pillow_heif", SimpleNamespace(register_heif_opener=register_heif_opener))
    pictures._register_heif.cache_clear()
    (tmp_path / "photo.heic").write_bytes(HEIC)
    try:
        assert caption(tmp_path, "--run", lab / "pr") == (0, [f"{tmp_path}/photo.heic\tall red"], [])
    finally:
        pictures._register_heif.cache_clear()
        Image.ID.remove("HEIF")
        del Image.OPEN["HEIF"]


def test_a_photo_of_108_megapixels_is_read_and_a_png_of_as_many_is_named(lab, caption, tmp_path):
    Image.new("L", (12000, 9000), 128).save(tmp_path / "phone.jpg")
    Image.new("1", (12000, 9000)).save(tmp_path / "scan.png")
    limit = Image.MAX_IMAGE_PIXELS
    status, out, err = caption(tmp_path, "--run", lab / "pr")
    assert (status, len(out), Image.MAX_IMAGE_PIXELS) == (1, 1, limit)
    assert out[0].startswith(f"{tmp_path}/phone.jpg\t")
    assert err == [
        f"prproduct: {tmp_path}/scan.png: cannot be read: 12000×9000 pixels; more than 89 million are read of JPEGs "
        "alone: save it as JPEG, or smaller"
    ]


def test_more_pictures_than_a_batch_come_in_their_order(lab, caption):
    status, out, _ = caption(lab / "pictures", "--run", lab / "pr")
    numbers = sorted((str(number) for number in range(24)), key=lambda number: f"{number}.png")
    assert status == 0
    assert out == [f"{lab}/pictures/{n}.png\tall {list(COLOURS)[int(n) % 3]}" for n in numbers]


def test_odd_names_repeated_names_and_archives_each_get_a_line_and_a_figure(lab, caption, tmp_path):
    place = tmp_path / "été à la plage"
    odd = paint(place / "日本 & <b>1.png", "red")
    first, second, other = (paint(place / name, "blue") for name in ("a/x.png", "b/x.png", "b/X.jpg"))
    before = {file: file.read_bytes() for file in (odd, first, second, other)}
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as archive:
        archive.write(first, "deep/x.png")
    lines = [f"{place}/a/x.png\tall blue", f"{place}/b/X.jpg\tall blue", f"{place}/b/x.png\tall blue"]
    lines += [f"{odd}\tall red", f"{tmp_path}/more.zip/deep/x.png\tall blue"]
    for _ in range(2):  # into the folder of the pictures itself, whose figures are no pictures the next time
        found = caption(place, tmp_path / "more.zip", "--run", lab / "pr", "--attention", place / "a")
        assert found == (0, lines, [])
    figures = {path.name for path in (place / "a").iterdir()} - {"x.png"}
    names = {"x", "X-2", "x-3", "x-4", "日本 & <b>1"}
    assert figures == {f"{name}.attention.png" for name in names}
    assert all(file.read_bytes() == content for file, content in before.items())


def test_the_figure_of_a_picture_whose_name_leaves_no_room_for_an_ending_has_its_beginning(lab, caption, tmp_path):
    file = paint(tmp_path / f"{'長' * 83}.png", "red")
    assert caption(file, "--run", lab / "pr", "--attention", tmp_path / "figures") == (0, [f"{file}\tall red"], [])
    assert [path.name for path in (tmp_path / "figures").iterdir()] == [f"{'長' * 50}.attention.png"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("nothing", "nothing: no pictures there"), ("gone.jpg", "gone.jpg: no such file, folder or zip archive")],
)
def test_an_empty_folder_and_a_missing_file_are_one_line(lab, caption, tmp_path, name, message):
    (tmp_path / "nothing").mkdir()
    status, out, err = caption(tmp_path / name, "--run", lab / "pr")
    assert (status, out, len(err)) == (2, [], 1)
    assert message in err[0]


def test_a_picture_is_described_as_its_features_are_by_the_embedded_encoder(caption, tmp_path):
    draw = np.random.default_rng(0)
    described = []
    for number in range(4):
        noise = draw.integers(0, 255, (40, 60, 3), np.uint8)
        noise[:, : 15 * number] = (250, 200, 0)
        (tmp_path / "p").mkdir(exist_ok=True)
        Image.fromarray(noise).save(tmp_path / "p" / f"{number}.png")
        text = ("noise", "noise at the right", "noise and yellow", "mostly yellow")[number]
        described.append(
            Described(number, f"{number}.png", ("train", "train", "val", "test")[number], (text,), (text,))
        )
    prepared.write(tmp_path / "captions", described, build([one.tokens[0].split() for one in described], 1))
    grids.write(tmp_path / "f.h5", pictures.find([tmp_path / "p"]), encoder.load())
    what = CaptionDataset(prepared.read(tmp_path / "captions"), features.open(tmp_path / "f.h5"))
    run(CaptionerConfig(**{**vars(CONFIG), "epochs": 3}), tmp_path / "run", what)
    shown = caption(tmp_path / "p" / "0.png", tmp_path / "p" / "3.png", "--run", tmp_path / "run")
    target = tmp_path / "all.json"
    assert caption("--run", tmp_path / "run", "--split", "all", "--features", tmp_path / "f.h5", "-o", target)[0] == 0
    of_file = {one["image_id"]: one["caption"] for one in json.loads(target.read_text())}
    assert shown == (0, [f"{tmp_path}/p/{number}.png\t{of_file[number]}" for number in (0, 3)], [])


# What a run must know


def test_a_run_on_features_of_unknown_origin_cannot_caption_pictures_and_says_what_to_do(elsewhere, caption, tmp_path):
    file = paint(tmp_path / "x.png", "red")
    for options, message in (
        ((), "--features FILE --split all -o FILE"),
        (("--encoder", "timm:tiny"), "was trained with features of another width: 6; timm:tiny gives 3"),
        (("--encoder", "vgg"), "encoder 'vgg' is not known"),
    ):
        status, out, err = caption(file, "--run", elsewhere, *options)
        assert (status, out, len(err)) == (2, [], 1)
        assert message in err[0]


def test_a_run_on_the_world_says_how_its_pictures_are_captioned(caption, command, tmp_path, monkeypatch):
    monkeypatch.setattr(World.__init__, "__defaults__", (6, 2, 2, 0))  # those of the command's own world
    world = World()
    run(XE, tmp_path / "run", CaptionDataset(world.captions, world.features))
    status, out, err = caption(paint(tmp_path / "x.png", "red"), "--run", tmp_path / "run")
    assert (status, out, len(err)) == (2, [], 1)
    assert "--captions world --split test -o FILE" in err[0]
    target = tmp_path / "captions_test_results.json"
    words = ("--captions", "world", "--split", "test", "-o", target)
    assert caption("--run", tmp_path / "run", *words)[0] == 0
    captions = {row["image_id"]: row["caption"] for row in json.loads(target.read_text())}
    assert len(captions) == len(world.captions.of("test"))
    image = world.captions.of("test")[0]
    captions[image.id] = image.references[0]
    rows = [{"image_id": image, "caption": text} for image, text in captions.items()]
    (tmp_path / "run" / "results" / "captions_test_results.json").write_text(json.dumps(rows))
    assert command("score", "world", tmp_path / "run", "--metrics", "bleu")[0] == 0
    scores = json.loads((tmp_path / "run" / "results" / "scores_test.json").read_text())["scores"]
    true = [is_true(world.scene(image), text) for image, text in captions.items()]
    assert scores["true"] == np.mean(true) > 0


def test_an_encoder_may_be_named_where_the_run_does_not_know_it_and_only_there(lab, caption, tmp_path):
    held = features.open(lab / "f.h5")
    unnamed = InMemory({image: held.of(image) for image in held.ids})
    run(CONFIG, tmp_path / "run", CaptionDataset(prepared.read(lab / "captions"), unnamed))
    file = paint(tmp_path / "x.png", "blue")
    found = caption(file, "--run", tmp_path / "run", "--encoder", "timm:tiny")
    assert found == (0, [f"{file}\tall blue"], [])
    status, _, err = caption(file, "--run", lab / "pr", "--encoder", "timm:other")
    assert (status, "was trained on features of timm:tiny, not of timm:other" in err[0]) == (2, True)


def test_an_encoder_of_other_weights_or_preparation_under_the_same_name_is_refused(lab, caption, tmp_path, monkeypatch):
    monkeypatch.setitem(encoder.LIBRARIES, "timm", lambda name: tiny(name, mean=100.0))
    status, out, err = caption(paint(tmp_path / "x.png", "red"), "--run", lab / "pr")
    assert (status, out, len(err)) == (2, [], 1)
    assert "with other weights or preparation" in err[0]


def test_a_run_without_its_vocabulary_takes_that_of_the_captions(lab, caption, tmp_path):
    shutil.copytree(lab / "pr", tmp_path / "run")
    words, file = tmp_path / "run" / "vocabulary.json", paint(tmp_path / "x.png", "red")
    for content, message in (
        (None, "keeps no vocabulary; give --captions"),
        (b"{}", "not a JSON list of words; give --captions"),
        (b"[]", "run/vocabulary.json: a vocabulary with UNK 0 times; it must be there once; give --captions"),
        (b'["all", "UNK"]', "was trained with another vocabulary"),
    ):
        words.unlink()
        if content:
            words.write_bytes(content)
        else:
            assert not words.exists()
        status, _, err = caption(file, "--run", tmp_path / "run")
        assert (status, len(err)) == (2, 1)
        assert message in err[0]
        found = caption(file, "--run", tmp_path / "run", "--captions", lab / "captions")
        assert found == (0, [f"{file}\tall red"], [])
        words.touch()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--split", "test"], "Give --run"),
        (["--run", "RUN"], "give either pictures, or --split"),
        (["x.png", "--run", "RUN", "--split", "test"], "give either pictures, or --split"),
        (["x.png", "--run", "RUN", "--features", "f.h5"], "--features and --ids go with --split"),
        (["x.png", "--run", "RUN", "-o", "x.png"], "x.png: is no page"),
        (["x.png", "--run", "RUN", "--attention", "x.png"], "x.png: is a file; give the name of a folder"),
        (["x.png", "--run", "RUN", "--run", "RUN"], "given twice"),
        (["x.png", "--run", "RUN", "--epoch", "first"], "choose last or best"),
        (["x.png", "--epoch", "last"], "--captions and --epoch go with --run"),
        (["x.png", "--captions", "C"], "--captions and --epoch go with --run"),
        (["x.png", "--run", "none", "--beams", "0"], "0 beams; there must be at least 1"),
        (["x.png", "--run", "none", "--length-power", "-1"], "a length power of -1.0; it must be from 0 to 10"),
        (["x.png", "--run", "none", "--shortest", "17"], "captions of at least 17 words; it must be from 0 to 16"),
        (["x.png", "--run", "."], "give the folder of a run"),
        (["--run", "RUN", "--split", "test"], "needs --captions"),
        (["--run", "RUN", "--split", "all", "--features", "F"], "Give -o"),
        (["--run", "RUN", "--split", "all", "-o", "o.json"], "needs --features"),
        (["x.png", "--run", "RUN", "--captions", "world"], "was trained with another vocabulary"),
        (
            ["--run", "RUN", "--split", "all", "--features", "F", "-o", "o.json", "--captions", "world"],
            "was trained with another vocabulary",
        ),
        (["--run", "RUN", "--split", "val", "-o", "o.json"], "needs --captions"),
        (["--run", "RUN", "--split", "val", "-o", "o.json", "--ids", "ids"], "--ids goes with --split all"),
        (["--run", "RUN", "--split", "all", "--features", "F", "-o", "page.html"], "neither a .json file nor a folder"),
        (
            ["--run", "RUN", "--split", "dev", "--captions", "C", "--features", "F", "-o", "o"],
            "split 'dev' is not known",
        ),
        (["--run", "RUN", "--split", "all", "-o", "o", "--attention", "a"], "go with pictures, not with --split"),
        (["--run", "RUN", "--run", "P", "--split", "all", "--features", "F", "-o", "o.json"], "one file for 2 runs"),
    ],
)
def test_options_that_do_not_go_together_are_one_line_and_write_nothing(
    lab, caption, tmp_path, monkeypatch, words, message
):
    monkeypatch.chdir(tmp_path)
    paint(Path("x.png"), "red")
    before = Path("x.png").read_bytes()
    real = {"RUN": lab / "pr", "P": lab / "p", "F": lab / "f.h5", "C": lab / "captions"}
    status, out, err = caption(*(real.get(word, word) for word in words))
    assert (status, out, len(err)) == (2, [], 1)
    assert message in err[0]
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"]
    assert Path("x.png").read_bytes() == before


def test_a_run_keeps_its_vocabulary_and_says_by_which_encoder_its_features_were_made(lab, elsewhere):
    kept = prepared.read_vocabulary(lab / "pr" / "vocabulary.json")
    config = json.loads((lab / "pr" / "config.json").read_text())["data"]
    assert kept.fingerprint == config["vocabulary"]
    assert (config["encoder"], config["encoder_fingerprint"]) == ("timm:tiny", tiny("tiny").fingerprint)
    assert json.loads((elsewhere / "config.json").read_text())["data"]["encoder"] is None
    assert prepared.read_vocabulary(elsewhere / "vocabulary.json").words == dataset().captions.vocabulary.words
