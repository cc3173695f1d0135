"""Pictures: where they are found, what ids they get, and that every kind of pixel becomes RGB."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image
from small_pictures import content, picture

from prproduct.captioning.data import pictures
from prproduct.lab.errors import InputError


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


def test_a_damaged_file_in_an_archive_is_no_picture(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", content())
        archive.writestr("data.bin", bytes(range(256)) * 40)
        place = archive.getinfo("data.bin").header_offset + 30 + len("data.bin")
    damaged = bytearray((tmp_path / "a.zip").read_bytes())
    damaged[place : place + 8] = b"\xff" * 8
    (tmp_path / "a.zip").write_bytes(damaged)
    assert [picture.id for picture in pictures.find([tmp_path / "a.zip"])] == ["a"]


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
