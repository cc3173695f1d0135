"""Pictures to a file of features: what is written, what is refused, and that a stop at any moment loses nothing."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from small_pictures import content, small_encoder

from prproduct.captioning.data import commands, features, grids, pictures, prepared
from prproduct.captioning.data.prepared import Described
from prproduct.captioning.data.vocabulary import Vocabulary
from prproduct.captioning.encoder import Encoder
from prproduct.lab.errors import InputError


def contents(path):
    with h5py.File(path) as file:
        return {name: file[name][()].tobytes() for name in file}, dict(file.attrs)


# the file


def test_features_of_all_pictures_with_the_encoder_in_the_files_attributes(tmp_path, folder):
    encoder = small_encoder()
    outcome = grids.write(tmp_path / "f.h5", pictures.find([folder]), encoder)
    assert outcome == grids.Outcome(10, 0, (), False)
    opened = features.open(tmp_path / "f.h5")
    assert sorted(opened.ids) == [*range(10)]
    assert opened.attributes["encoder"] == "small"
    assert opened.attributes["image_size"] == 16
    assert opened.attributes["fingerprint"] == encoder.fingerprint
    expected = encoder([Image.open(folder / "3.png")])[0]
    assert np.array_equal(opened.of(3), expected.astype(np.float16).astype(np.float32))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.h5", "pictures"]
    assert grids.write(tmp_path / "f.h5", pictures.find([folder]), encoder).known == 10


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
    assert stopped == grids.Outcome(3 * stop_after, 0, (), True)
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
        "from prproduct.captioning.data import grids, pictures\nfrom small_pictures import small_encoder\n"
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


def test_unreadable_pictures_are_named_and_the_others_written(tmp_path, folder, small, command):
    broken(folder)
    status, _, err = command("data", "features", folder, "-o", tmp_path / "f.h5")
    error = err.splitlines()
    assert status == 1
    assert sorted(line.split(":")[1].strip() for line in error) == sorted(
        str(folder / name) for name in ("text.jpg", "empty.png", "cut.jpg", "dot.png")
    )
    assert any("1×1 pixels; at least 8 a side" in line for line in error)
    assert sorted(features.open(tmp_path / "f.h5").ids) == [*range(10)]


def test_where_no_picture_can_be_read_nothing_is_written(tmp_path, small, command):
    (tmp_path / "a.jpg").write_text("no picture")
    status, _, err = command("data", "features", tmp_path / "a.jpg", "-o", tmp_path / "f.h5")
    assert (status, "none of 1 pictures can be read" in err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jpg"]


def test_captions_tell_the_ids_of_file_names(tmp_path, folder, small, command):
    words = Vocabulary(("a", "UNK"))
    images = [Described(f"id-{n}", f"{n}.png", "train", ("A",), ("a",)) for n in (2, 3, 77)]
    prepared.write(tmp_path / "c", images, words)
    status, _, err = command("data", "features", folder, "-o", tmp_path / "f.h5", "--captions", tmp_path / "c")
    assert (status, "no pictures of 1 of the captions' images: id-77" in err) == (0, True)
    assert sorted(features.open(tmp_path / "f.h5").ids) == ["id-2", "id-3"]


def test_file_names_of_captions_may_have_a_folder_and_are_not_mixed_up(tmp_path, folder, small, command):
    images = [Described(f"id-{number}", f"train/{number}.png", "train", ("a",), ("a",)) for number in (2, 3)]
    words = "data", "features", folder, "-o", tmp_path / "f.h5", "--captions"
    prepared.write(tmp_path / "captions", images, Vocabulary(("a", "UNK")))
    assert command(*words, tmp_path / "captions")[0] == 0
    assert sorted(features.open(tmp_path / "f.h5").ids) == ["id-2", "id-3"]
    images.append(Described("other", "val/2.png", "val", ("a",), ("a",)))
    prepared.write(tmp_path / "both", images, Vocabulary(("a", "UNK")))
    status, _, err = command(*words, tmp_path / "both")
    assert (status, "images id-2 and other have one file name, '2.png'" in err) == (2, True)


def test_ctrl_c_stops_behind_a_batch_and_the_same_command_goes_on(tmp_path, folder, small, monkeypatch, command):
    monkeypatch.setattr(grids, "BATCH", 2)
    batches = iter(range(100))
    network = small_encoder().network
    stopping = Encoder("small", 16, (127.0,) * 3, (128.0,) * 3, network, lambda x: _interrupt(batches, network(x)))
    monkeypatch.setattr(commands, "load", lambda name: stopping)
    status, _, err = command("data", "features", folder, "-o", tmp_path / "f.h5")
    assert (status, "stopped with 4 images done; the same command goes on" in err) == (130, True)
    assert command("data", "features", folder, "-o", tmp_path / "f.h5")[0] == 0
    assert len(features.open(tmp_path / "f.h5").ids) == 10


def _interrupt(batches, output):
    if next(batches) == 1:
        signal.raise_signal(signal.SIGINT)
    return output
