"""Pictures to features: what is found, what is refused, and that a stop at any moment loses nothing."""

import io
import json
import os
import signal
import subprocess
import sys
import time
import types
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from prproduct import cli
from prproduct.captioning import encoder as encoders
from prproduct.captioning.data import commands, features, grids, pictures, prepared
from prproduct.captioning.data.prepared import Described
from prproduct.captioning.data.vocabulary import Vocabulary
from prproduct.captioning.encoder import Encoder
from prproduct.lab.errors import InputError


def small_encoder(seed=0, size=16):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Conv2d(3, 5, 4, stride=4), nn.ReLU())
    return Encoder("small", size, (127.0,) * 3, (128.0,) * 3, network, network)


def picture(number=0, size=(24, 20)):
    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels)


def content(number=0, form="PNG", **how):
    file = io.BytesIO()
    picture(number).save(file, form, **how)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path):
    """Ten pictures."""
    (tmp_path / "pictures").mkdir()
    for number in range(10):
        (tmp_path / "pictures" / f"{number}.png").write_bytes(content(number))
    return tmp_path / "pictures"


def run(*words):
    with pytest.raises(SystemExit) as end:
        cli.main([str(word) for word in words])
    return end.value.code


def contents(path):
    with h5py.File(path) as file:
        return {name: file[name][()].tobytes() for name in file}, dict(file.attrs)


# pictures


def test_files_folders_and_archives_are_found_with_the_ids_of_their_names(tmp_path, folder):
    (folder / "deep").mkdir()
    (folder / "deep" / "COCO_val2014_000000391895.JPG").write_bytes(content(form="JPEG"))
    (folder / "notes.txt").write_text("no picture")
    (folder / ".hidden.png").write_bytes(content())
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as archive:
        archive.writestr("images/1000268201_693b08cb0e.jpg", content(form="JPEG"))
        archive.writestr("__MACOSX/._1000268201_693b08cb0e.jpg", b"")
        archive.writestr("readme.md", "no picture")
    (tmp_path / "named.dat").write_bytes(content())
    found = pictures.find([folder, tmp_path / "more.zip", tmp_path / "named.dat"])
    assert {p.id for p in found} == {*range(10), 391895, "1000268201_693b08cb0e", "named"}


@pytest.mark.parametrize("name", ["nowhere", "nowhere.zip", "empty", "broken.zip"])
def test_a_place_without_pictures_is_named(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.zip").write_bytes(b"PK no archive")
    with pytest.raises(InputError, match=name):
        pictures.find([tmp_path / name])


def test_two_pictures_of_one_image_are_refused(folder):
    (folder / "003.jpg").write_bytes(content(form="JPEG"))
    with pytest.raises(InputError, match=r"003\.jpg and .*3\.png are of the same image, 3"):
        pictures.find([folder])


def test_a_picture_is_turned_as_the_camera_was_held_and_transparency_is_white(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = pictures.open_picture(io.BytesIO(content(form="JPEG", exif=exif)))
    assert turned.size == (20, 24)
    clear = io.BytesIO()
    Image.new("RGBA", (9, 9), (200, 0, 0, 0)).save(clear, "PNG")
    assert pictures.open_picture(clear).getpixel((4, 4)) == (255, 255, 255)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "CMYK"])
def test_every_kind_of_pixel_becomes_rgb(mode):
    file = io.BytesIO()
    picture().convert(mode).save(file, "TIFF")
    read = pictures.open_picture(file)
    assert read.mode == "RGB"
    expected = picture().convert(mode).convert("RGBA").convert("RGB") if mode == "LA" else picture().convert(mode)
    assert np.array_equal(np.asarray(read), np.asarray(expected.convert("RGB")))


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bits_a_pixel_are_not_all_white(form):
    file = io.BytesIO()
    Image.fromarray(np.linspace(0, 65535, 400).astype(np.uint16).reshape(20, 20)).save(file, form)
    values = np.asarray(pictures.open_picture(file))[..., 0].ravel()
    assert np.abs(values - np.linspace(0, 255, 400)).max() < 1.01


def test_pixels_of_floating_point_are_refused():
    file = io.BytesIO()
    Image.new("F", (20, 20), 0.5).save(file, "TIFF")
    with pytest.raises(pictures.UnreadableError, match="floating point"):
        pictures.open_picture(file)


# encoders


def test_the_embedded_encoder_gives_a_grid_row_by_row_and_is_always_the_same():
    encoder = encoders.load()
    black, half = Image.new("RGB", (300, 200)), Image.new("RGB", (300, 200))
    half.paste(picture(1, (300, 40)), (0, 160))  # the lowest fifth
    both = encoder([black, half])
    assert both.shape == (2, 49, 1280)
    assert both.dtype == np.float32
    assert both.min() >= 0
    assert both.max() <= 6
    changed = np.abs(both[1] - both[0]).sum(1).reshape(7, 7).sum(1)  # by rows of the grid
    assert changed[6] > 5 * changed[0]
    assert np.allclose(encoder([half])[0], both[1], atol=1e-4)
    assert encoder.fingerprint == encoders.load().fingerprint


def test_another_weight_or_size_is_another_fingerprint():
    assert len({small_encoder().fingerprint, small_encoder(1).fingerprint, small_encoder(size=24).fingerprint}) == 3


class Net(nn.Module):
    """A stand-in for a network of a library."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward_features(self, x):
        return self.body(x)

    def forward(self, x):
        return self.head(nn.functional.adaptive_avg_pool2d(self.forward_features(x), 1).flatten(1))


def stand_in_for_timm(monkeypatch, network):
    data = types.SimpleNamespace(
        resolve_model_data_config=lambda model: {
            "input_size": (3, 32, 32),
            "mean": (0.5, 0.4, 0.3),
            "std": (0.2, 0.2, 0.2),
        }
    )
    module = types.ModuleType("timm")
    module.__dict__.update(
        data=data, is_model=lambda name: name == "net", create_model=lambda name, pretrained: network, __version__="1"
    )
    monkeypatch.setitem(sys.modules, "timm", module)


def test_a_network_of_timm_gives_its_last_map_with_its_own_normalisation(monkeypatch):
    network = Net().eval()
    stand_in_for_timm(monkeypatch, network)
    encoder = encoders.load("timm:net")
    gray = Image.new("RGB", (50, 40), (255, 0, 51))
    pixels = torch.tensor([(1 - 0.5) / 0.2, -0.4 / 0.2, (0.2 - 0.3) / 0.2]).reshape(1, 3, 1, 1).expand(1, 3, 32, 32)
    expected = network.body(pixels).flatten(2).transpose(1, 2)
    assert np.allclose(encoder([gray]), expected.detach().numpy(), atol=1e-5)
    assert encoder([gray]).shape == (1, 15 * 15, 4)
    with pytest.raises(InputError, match="'timm:other' is not known to timm"):
        encoders.load("timm:other")


class Tokens(nn.Module):
    """A transformer: its features are a list of tokens."""

    def __init__(self):
        super().__init__()
        self.patches, self.block = nn.Conv2d(3, 4, 8, stride=8), nn.Linear(4, 4)

    def forward_features(self, x):
        return self.block(self.patches(x).flatten(2).transpose(1, 2))

    def forward(self, x):
        return self.forward_features(x).mean(1)


def test_a_transformer_of_timm_is_refused(monkeypatch):
    stand_in_for_timm(monkeypatch, Tokens())
    with pytest.raises(InputError, match="choose a convolutional network"):
        encoders.load("timm:net")


def stand_in_for_torchvision(monkeypatch, network):
    class Weights:
        class DEFAULT:
            @staticmethod
            def transforms():
                return types.SimpleNamespace(crop_size=[32], mean=[0.5, 0.4, 0.3], std=[0.2, 0.2, 0.2])

    models = types.SimpleNamespace(
        list_models=lambda: ["net"],
        get_model_weights=lambda name: Weights,
        get_model=lambda name, weights: network,
    )
    module = types.ModuleType("torchvision")
    module.__dict__.update(models=models)
    monkeypatch.setitem(sys.modules, "torchvision", module)


def test_a_network_of_torchvision_gives_the_map_before_pooling_and_a_transformer_is_refused(monkeypatch):
    network = Net().eval()
    stand_in_for_torchvision(monkeypatch, network)
    encoder = encoders.load("torchvision:net")
    black = Image.new("RGB", (50, 40))
    pixels = torch.tensor([-0.5 / 0.2, -0.4 / 0.2, -0.3 / 0.2]).reshape(1, 3, 1, 1).expand(1, 3, 32, 32)
    expected = network.body(pixels).flatten(2).transpose(1, 2)
    assert np.allclose(encoder([black]), expected.detach().numpy(), atol=1e-5)
    stand_in_for_torchvision(monkeypatch, Tokens())
    with pytest.raises(InputError, match="choose a convolutional network"):
        encoders.load("torchvision:net")


def test_a_library_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InputError, match="needs timm: pip install timm"):
        encoders.load("timm:resnet50")


# the file


def test_features_of_all_pictures_with_the_encoder_in_the_files_attributes(tmp_path, folder):
    encoder = small_encoder()
    outcome = grids.write(tmp_path / "f.h5", pictures.find([folder]), encoder)
    assert outcome == grids.Outcome(10, (), False)
    opened = features.open(tmp_path / "f.h5")
    assert sorted(opened.ids) == [*range(10)]
    assert opened.attributes["encoder"] == "small"
    assert opened.attributes["image_size"] == 16
    assert opened.attributes["fingerprint"] == encoder.fingerprint
    expected = encoder([Image.open(folder / "3.png")])[0]
    assert np.array_equal(opened.of(3), expected.astype(np.float16).astype(np.float32))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.h5", "pictures"]


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_stopped_and_gone_on_with_it_is_the_same_file(tmp_path, folder, monkeypatch, stop_after):
    monkeypatch.setattr(grids, "BATCH", 3)
    monkeypatch.setattr(grids, "PART", 4)
    found = pictures.find([folder])
    grids.write(tmp_path / "whole.h5", found, small_encoder())
    seen = []
    stopped = grids.write(
        tmp_path / "f.h5", found, small_encoder(), progress=seen.append, stop=lambda: len(seen) > stop_after
    )
    assert stopped == grids.Outcome(3 * stop_after, (), True)
    assert not (tmp_path / "f.h5").exists()
    assert grids.write(tmp_path / "f.h5", found, small_encoder(), progress=seen.append).written == 10
    assert seen == [0, *range(3, 3 * stop_after + 1, 3), *range(3 * stop_after, 10, 3), 10]
    assert contents(tmp_path / "f.h5") == contents(tmp_path / "whole.h5")


@pytest.mark.slow
def test_a_killed_process_leaves_whole_parts_that_are_gone_on_with(tmp_path, folder):
    script = tmp_path / "run.py"
    script.write_text(
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent)]}\n"
        "import time\nfrom pathlib import Path\n"
        "from test_grid_features import grids, pictures, small_encoder\n"
        "grids.BATCH, grids.PART = 1, 2\n"
        f"found = pictures.find([Path({str(folder)!r})])\n"
        "wait = lambda finished: time.sleep(600 * (finished == 5))\n"
        f"grids.write(Path({str(tmp_path / 'f.h5')!r}), found, small_encoder(), progress=wait)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen([sys.executable, str(script)], env=environment)
    parts = tmp_path / "f.h5.parts"
    deadline = time.monotonic() + 120
    while len(list(parts.glob("*.h5"))) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    (parts / ".000009.h5.writing").write_bytes(b"half")
    seen = []
    grids.write(tmp_path / "f.h5", pictures.find([folder]), small_encoder(), progress=seen.append)
    assert seen[0] == 4  # the fifth was in no part yet
    grids.write(tmp_path / "whole.h5", pictures.find([folder]), small_encoder())
    assert contents(tmp_path / "f.h5") == contents(tmp_path / "whole.h5")
    assert not parts.exists()


def test_more_pictures_are_added_to_a_file_that_is_there(tmp_path, folder):
    found = pictures.find([folder])
    grids.write(tmp_path / "f.h5", found[:4], small_encoder())
    first = contents(tmp_path / "f.h5")[0]
    grids.write(tmp_path / "f.h5", found, small_encoder())
    both = contents(tmp_path / "f.h5")[0]
    assert len(both) == 10
    assert {name: both[name] for name in first} == first


@pytest.mark.parametrize("stopped", [False, True])
def test_another_encoder_or_type_does_not_go_on(tmp_path, folder, stopped):
    found = pictures.find([folder])
    grids.write(tmp_path / "f.h5", found, small_encoder(), stop=lambda: stopped)
    before = {path.name: path.read_bytes() for path in tmp_path.rglob("*.h5")}
    with pytest.raises(InputError, match=r"has fingerprint .*, not "):
        grids.write(tmp_path / "f.h5", found, small_encoder(seed=1))
    with pytest.raises(InputError, match="has dtype float16, not float32"):
        grids.write(tmp_path / "f.h5", found, small_encoder(), "float32")
    assert {path.name: path.read_bytes() for path in tmp_path.rglob("*.h5")} == before


def test_a_file_of_something_else_is_not_touched(tmp_path, folder):
    (tmp_path / "f.h5").write_text("my novel")
    with pytest.raises(InputError, match="not an HDF5 file of features"):
        grids.write(tmp_path / "f.h5", pictures.find([folder]), small_encoder())
    assert (tmp_path / "f.h5").read_text() == "my novel"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.h5", "pictures"]


def test_values_that_float16_cannot_hold_are_refused(tmp_path, folder):
    encoder = small_encoder()
    with torch.no_grad():
        encoder.network[0].bias += 1e5
    with pytest.raises(InputError, match="float16 cannot hold; try float32"):
        grids.write(tmp_path / "f.h5", pictures.find([folder]), encoder)
    grids.write(tmp_path / "g.h5", pictures.find([folder]), encoder, "float32")
    assert features.open(tmp_path / "g.h5").of(0).max() > 65504


def test_two_processes_do_not_write_one_file(tmp_path, folder):
    found = pictures.find([folder])
    again = []

    def second(finished):
        with pytest.raises(InputError, match="another process is writing"):
            grids.write(tmp_path / "f.h5", found, small_encoder())
        again.append(finished)

    assert grids.write(tmp_path / "f.h5", found, small_encoder(), progress=second).written == 10
    assert again


# the command


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(commands, "load", lambda name: small_encoder())


def broken(folder):
    (folder / "text.jpg").write_text("no picture")
    (folder / "empty.png").write_bytes(b"")
    (folder / "cut.jpg").write_bytes(content(form="JPEG")[:300])
    dot = io.BytesIO()
    Image.new("RGB", (1, 1)).save(dot, "PNG")
    (folder / "dot.png").write_bytes(dot.getvalue())


def test_unreadable_pictures_are_named_and_the_others_written(tmp_path, folder, small, capsys):
    broken(folder)
    assert run("data", "features", folder, "-o", tmp_path / "f.h5") == 1
    error = capsys.readouterr().err.splitlines()
    assert sorted(line.split(":")[1].strip() for line in error) == sorted(
        str(folder / name) for name in ("text.jpg", "empty.png", "cut.jpg", "dot.png")
    )
    assert any("1×1 pixels; at least 8 a side" in line for line in error)
    assert sorted(features.open(tmp_path / "f.h5").ids) == [*range(10)]


def test_where_no_picture_can_be_read_nothing_is_written(tmp_path, small, capsys):
    (tmp_path / "a.jpg").write_text("no picture")
    assert run("data", "features", tmp_path / "a.jpg", "-o", tmp_path / "f.h5") == 2
    assert "none of 1 pictures can be read" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.jpg"]


def test_captions_tell_the_ids_of_file_names(tmp_path, folder, small, capsys):
    words = Vocabulary(("a", "UNK"))
    images = [Described(f"id-{n}", f"{n}.png", "train", ("A",), ("a",)) for n in (2, 3, 77)]
    prepared.write(tmp_path / "c", images, words)
    assert run("data", "features", folder, "-o", tmp_path / "f.h5", "--captions", tmp_path / "c") == 0
    assert sorted(features.open(tmp_path / "f.h5").ids) == ["id-2", "id-3"]
    assert "no pictures of 1 of the captions' images: id-77" in capsys.readouterr().err


def test_ctrl_c_stops_behind_a_batch_and_the_same_command_goes_on(tmp_path, folder, small, monkeypatch, capsys):
    monkeypatch.setattr(grids, "BATCH", 2)
    batches = iter(range(100))
    network = small_encoder().network
    stopping = Encoder("small", 16, (127.0,) * 3, (128.0,) * 3, network, lambda x: _interrupt(batches, network(x)))
    monkeypatch.setattr(commands, "load", lambda name: stopping)
    assert run("data", "features", folder, "-o", tmp_path / "f.h5") == 130
    assert "stopped with 4 images done; the same command goes on" in capsys.readouterr().err
    assert run("data", "features", folder, "-o", tmp_path / "f.h5") == 0
    assert len(features.open(tmp_path / "f.h5").ids) == 10


def _interrupt(batches, output):
    if next(batches) == 1:
        signal.raise_signal(signal.SIGINT)
    return output


DATA = Path(os.environ["PRPRODUCT_DATA"]) / "flickr8k" if "PRPRODUCT_DATA" in os.environ else None


@pytest.mark.skipif(DATA is None or not DATA.exists(), reason="PRPRODUCT_DATA names no folder with flickr8k/")
def test_the_embedded_encoder_tells_dogs_from_other_pictures():
    """Its ImageNet classes 151 to 268 are dogs."""
    listed = json.loads((DATA / "dataset_flickr8k.json").read_text())["images"]
    dogs = {i["filename"]: sum("dog" in s["tokens"] for s in i["sentences"]) for i in listed}
    chosen = [[name for name, said in dogs.items() if said == times][:8] for times in (5, 0)]
    encoder = encoders.load()
    shares = []
    with pictures.Reader() as reader:
        for names in chosen:
            read = [reader.read(pictures.Picture(0, DATA / "images.zip", name)) for name in names]
            vectors = torch.from_numpy(encoder(read)).mean(1)
            shares.append(encoder.network._fc(vectors).softmax(1)[:, 151:269].sum(1).mean().item())
    assert shares[0] > 0.6
    assert shares[1] < 0.15
