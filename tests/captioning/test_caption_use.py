"""Captions for one's own pictures and for whole splits: right, complete, and refused in one line where impossible."""

import base64
import io
import json
import re
import shutil
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from painted_pictures import COLOURS, CONFIG, paint, prepare, tiny
from PIL import Image, ImageFile
from small_dataset import XE, InMemory, dataset, run

from prproduct import cli
from prproduct.captioning import encoder
from prproduct.captioning.configuration import CaptionerConfig
from prproduct.captioning.data import features, grids, pictures, prepared
from prproduct.captioning.data.prepared import Described
from prproduct.captioning.data.vocabulary import build
from prproduct.captioning.dataset import CaptionDataset
from prproduct.captioning.inference import GeneratedCaption
from prproduct.captioning.use import attention, page
from prproduct.captioning.use.command import targets_of
from prproduct.captioning.use.pictures import CaptionedPicture
from prproduct.captioning.world import World
from prproduct.lab.errors import InputError

HEIC = b"\x00\x00\x00\x18ftypheic" + bytes(40)
NO_HEIC = "a HEIC picture, which takes one more package: pip install 'prproduct[heic]'"


@pytest.fixture(autouse=True)
def tiny_encoders(monkeypatch):
    monkeypatch.setitem(encoder.LIBRARIES, "timm", tiny)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A folder with pictures, captions, features and a run of each of two products."""
    folder = tmp_path_factory.mktemp("lab")
    what = prepare(folder)
    for product in ("p", "pr"):
        run(CaptionerConfig(**{**vars(CONFIG), "product": product}), folder / product, what)
    return folder


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A run on features that do not say what made them."""
    return run(XE, tmp_path_factory.mktemp("elsewhere") / "run")


@pytest.fixture
def caption(capsys):
    """Calls the command: exit status, lines of stdout, lines of stderr."""

    def call(*words):
        with pytest.raises(SystemExit) as end:
            cli.main(["caption", *map(str, words)])
        said = capsys.readouterr()
        return end.value.code, said.out.splitlines(), said.err.splitlines()

    return call


# Pictures


def test_own_pictures_get_the_right_captions_a_line_each(lab, caption, tmp_path):
    files = [paint(tmp_path / f"{colour}.jpg", colour, (40, 90)) for colour in COLOURS]
    assert caption(*files, "--run", lab / "pr") == (0, [f"{file}\tall {file.stem}" for file in files], [])


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
    paint(tmp_path / "z.png", "blue")
    status, out, err = caption(tmp_path, "--run", lab / "pr", "-o", tmp_path / "page.html")
    assert status == 1
    assert out == [f"{tmp_path}/b.png\tall red", f"{tmp_path}/z.png\tall blue"]
    for line, name in zip(err, ("cut.png", "empty.gif", "one pixel.png", "text.jpg"), strict=True):
        assert line.startswith(f"prproduct: {tmp_path}/{name}: cannot be read: ")
    assert "1×1 pixels" in err[2]
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
    # into the folder of the pictures itself
    found = caption(place, tmp_path / "more.zip", "--run", lab / "pr", "--attention", place / "a")
    assert found == (0, lines, [])
    figures = {path.name for path in (place / "a").iterdir()} - {"x.png"}
    names = {"x", "X-2", "x-3", "x-4", "日本 & <b>1"}
    assert figures == {f"{name}.attention.png" for name in names}
    assert all(file.read_bytes() == content for file, content in before.items())


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


# What is drawn


def described(words, where, regions=4):
    """Each word looks at one region."""
    weights = np.zeros((len(words), regions), np.float32)
    weights[np.arange(len(words)), where] = 1
    return GeneratedCaption(0, " ".join(words), -1.0, tuple(words), weights)


def test_the_most_attended_region_stays_clear_and_grey_covers_the_rest():
    grey = Image.new("RGB", (80, 40), (200, 200, 200))
    for where, (x, y) in enumerate([(10, 5), (70, 5), (10, 35), (70, 35)]):
        (overlay,) = attention.overlays(described(["dog"], [where]).attention)
        seen = np.asarray(attention.covered(grey, overlay))[..., 0]
        assert seen[y, x] == 200
        assert (seen[39 - y, 79 - x], seen[y, 79 - x]) == (119, 119)
    flat = attention.overlays(np.full((1, 9), 1 / 9, np.float32))[0]
    assert np.array_equal(np.asarray(attention.covered(grey, flat)), np.asarray(grey))


def test_a_figure_has_a_tile_for_each_word_below_its_neighbours():
    white = Image.new("RGB", (60, 60), (255, 255, 255))
    said = described(["a"] * 8, [0] * 8)
    figure = np.asarray(attention.draw(white, [("pr", said)]))[..., 0]
    step, row = attention.TILE + attention.GAP, attention.TILE + attention.LINE + attention.GAP
    top = 2 * attention.GAP + attention.LINE
    for tile in range(12):
        x, y = attention.GAP + tile % 6 * step + attention.TILE - 5, top + tile // 6 * row + attention.TILE - 5
        assert (figure[y, x] < 130) == (0 < tile < 9), tile  # the first is the picture itself
    assert figure.shape == (top + 2 * row + attention.GAP, attention.WIDTH)


@pytest.mark.parametrize("size", [(8, 4000), (4000, 8), (8, 8)])
def test_figures_and_cards_of_the_oddest_pictures_without_a_word(size):
    image = Image.new("RGB", size)
    image.thumbnail((640, 640))
    nothing = described([], [])
    assert attention.draw(image, [("pr", nothing), ("p", nothing)]).height > 2 * attention.LINE
    card = page.card("x", CaptionedPicture(None, image, (nothing,)), ["pr"])
    assert "(no words)" in page.page([card], [], [])


def test_regions_that_are_no_grid_are_not_drawn():
    with pytest.raises(InputError, match="attention over 5 regions, which are no square grid"):
        attention.overlays(np.ones((1, 5), np.float32))


class Elements(HTMLParser):
    """The texts, and the attributes of all elements."""

    def __init__(self, text):
        super().__init__()
        self.text, self.elements = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_self_contained_and_escapes_names(lab, caption, tmp_path):
    file = paint(tmp_path / "<img src=x onerror=1>&\"'.png", "red", (900, 600))
    output = tmp_path / "deep" / "page.html"
    assert caption(file, "--run", lab / "p", "--run", lab / "pr", "-o", output)[0] == 0
    content = output.read_text()
    found = Elements(content)
    tags = [tag for tag, _ in found.elements]
    assert tags.count("img") == 1 + 2 * 2  # the picture, and the overlays of two words of two captions
    assert not re.search(r"https?://|<script|<link", content)
    assert all(text in found.text for text in ("p, cross-entropy", "pr, cross-entropy", "all", "red", file.name))
    sources = [attributes["src"] for tag, attributes in found.elements if tag == "img"]
    sizes = [Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))).size for source in sources]
    assert sizes == [(640, 427), *[(2, 2)] * 4]
    assert next(a["alt"] for tag, a in found.elements if tag == "img") == file.name
    assert next(a["title"] for tag, a in found.elements if tag == "h2") == str(file)


# Whole splits


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


def test_a_run_on_the_world_says_how_its_pictures_are_captioned(caption, tmp_path):
    world = World(train=6, val=2, test=2)
    run(XE, tmp_path / "run", CaptionDataset(world.captions, world.features))
    status, out, err = caption(paint(tmp_path / "x.png", "red"), "--run", tmp_path / "run")
    assert (status, out, len(err)) == (2, [], 1)
    assert "--captions world --split test -o FILE" in err[0]
    target = tmp_path / "captions_test_results.json"
    words = ("--captions", "world", "--split", "test", "-o", target)
    assert caption("--run", tmp_path / "run", *words)[0] == 0
    assert len(json.loads(target.read_text())) == len(World().captions.of("test"))


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
        (["x.png", "--run", "RUN", "--attention", "x.png"], "x.png: is a file; --attention takes a folder"),
        (["x.png", "--run", "RUN", "--run", "RUN"], "given twice"),
        (["x.png", "--run", "RUN", "--epoch", "first"], "choose last or best"),
        (["x.png", "--epoch", "last"], "--captions and --epoch go with --run"),
        (["x.png", "--captions", "C"], "--captions and --epoch go with --run"),
        (["x.png", "--run", "RUN", "--beams", "0"], "at least 1"),
        (["x.png", "--run", "."], "give the folder of a run"),
        (["--run", "RUN", "--split", "test"], "needs --captions"),
        (["--run", "RUN", "--split", "all", "--features", "F"], "Give -o"),
        (["--run", "RUN", "--split", "all", "-o", "o.json"], "needs --features"),
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
