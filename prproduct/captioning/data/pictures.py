"""Finding and reading pictures in files, folders and zip archives.

A file is a picture by its content, whatever its name. Pillow's defaults would spoil some: photos of 108 megapixels are
refused as bombs, turned ones are not set upright, transparent pixels become black, and those of 16 bits white. For a
picture that cannot be read there is a reason, with what to do if that is known.
"""

from __future__ import annotations

import importlib
import io
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from prproduct.captioning.data.features import id_from_name
from prproduct.captioning.input_files import ImageId
from prproduct.lab.errors import InputError

# Names of pictures, readable or not. Other files are pictures if their content is one.
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"),
    *(".heic", ".heif", ".avif", ".jxl", ".jp2"),
    *(".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"),  # raw files of cameras
)
SMALLEST_SIDE = 8  # pixels
DRAFT_SIDE = 512  # pixels that a large JPEG has at least when it is decoded at a fraction of its size
MOST_PIXELS = 89_478_485  # decoded at once, 268 MB; Pillow's own limit
# Formats that Pillow recognizes in files that are no pictures.
_OTHER_FORMATS = ("BUFR", "EPS", "FITS", "GRIB", "HDF5", "MPEG", "TGA", "WMF")
_HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_AVIF = (b"avif", b"avis")


class Picture(NamedTuple):
    """A picture: the id of its image, and its file or archive with the member's name."""

    id: ImageId
    place: Path
    member: str | None = None

    @property
    def name(self) -> str:
        """The file name, without folders."""
        return Path(self.member or self.place).name

    def __str__(self) -> str:
        return str(self.place) if self.member is None else f"{self.place}/{self.member}"


class UnreadableError(Exception):
    """A picture cannot be read; the message is the reason."""


def find(places: Sequence[Path], ids: Mapping[str, ImageId] | None = None) -> list[Picture]:
    """The pictures in files, folders and archives, one per image id; with `ids`, only those whose file name is in it.

    >>> find([Path("nowhere.jpg")])
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: nowhere.jpg: no such file, folder or zip archive of pictures
    """
    pictures = list_all(places)
    if ids is not None:
        pictures = [picture._replace(id=ids[picture.name]) for picture in pictures if picture.name in ids]
        if not pictures:
            raise InputError(f"{', '.join(map(str, places))}: no pictures of the captions' images there")
    repeated = next((image for image, count in Counter(p.id for p in pictures).items() if count > 1), None)
    if repeated is not None:
        both = " and ".join(str(picture) for picture in pictures if picture.id == repeated)
        raise InputError(f"{both} are of the same image, {repeated}; give one of them")
    return pictures


def list_all(places: Sequence[Path], others: list[str] | None = None) -> list[Picture]:
    """All pictures in files, folders and archives; several may have the same name, and so the same id.

    The names of files in folders and archives that are no pictures are appended to `others`.
    """
    files = [found for place in places for found in _files(place, [] if others is None else others)]
    if not files:
        raise InputError(f"{', '.join(map(str, places))}: no pictures there")
    return [Picture(id_from_name(Path(member or file).stem), file, member) for file, member in files]


def in_batches(
    pictures: Iterable[Picture], size: int, unreadable: list[tuple[Picture, str]]
) -> Iterator[list[tuple[Picture, Image.Image]]]:
    """Read pictures in batches of `size`; those that cannot be read are appended to `unreadable`, with the reason."""
    batch: list[tuple[Picture, Image.Image]] = []
    with Reader() as reader:
        for picture in pictures:
            try:
                batch.append((picture, reader.read(picture)))
            except UnreadableError as error:
                unreadable.append((picture, str(error)))
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch


def _files(place: Path, others: list[str]) -> Iterator[tuple[Path, str | None]]:
    if place.is_dir():
        for file in sorted(place.rglob("*")):
            dangling = file.is_symlink() and not file.exists()  # named as unreadable, instead of skipped in silence
            if file.name.startswith(".") or not (file.is_file() or dangling):
                continue
            if file.suffix.lower() in SUFFIXES or _is_picture(partial(io.FileIO, file)):
                yield file, None
            else:
                others.append(str(file))
    elif not place.is_file():
        raise InputError(f"{place}: no such file, folder or zip archive of pictures")
    elif place.suffix.lower() == ".zip":
        try:
            with zipfile.ZipFile(place) as archive:
                names = [name for name in archive.namelist() if not name.endswith("/")]
                names = [name for name in names if not Path(name).name.startswith(".")]
                known = {
                    name
                    for name in names
                    if name.lower().endswith(SUFFIXES) or _is_picture(partial(archive.open, name))
                }
        except (OSError, zipfile.BadZipFile) as error:
            raise InputError(f"{place}: not a zip archive that can be read ({error})") from None
        yield from ((place, name) for name in names if name in known)
        others += [f"{place}/{name}" for name in names if name not in known]
    else:
        yield place, None  # given by the user, so any name is accepted


def _is_picture(open_: Callable[[], IO[bytes]]) -> bool:
    """True if the content is a picture, also in a format that needs another package; False if it cannot be read."""
    _register_heif()
    try:
        with open_() as stream:
            start = stream.read(16)
            stream.seek(0)
            try:
                with warnings.catch_warnings(), _without_limit():
                    warnings.simplefilter("ignore")
                    with Image.open(stream) as image:
                        return image.format not in _OTHER_FORMATS
            except Exception:  # Pillow's readers raise many types on damaged files
                return bool(_how_to_read(start))
    except (OSError, RuntimeError, NotImplementedError, EOFError, zlib.error, zipfile.BadZipFile):
        return False  # no permission, or a member of an archive that is encrypted, damaged or packed in an unknown way


def _how_to_read(content: bytes) -> str:
    """How to read a picture that Pillow cannot open, by its first bytes; "" if it is no picture."""
    brand = content[8:12] if content[4:8] == b"ftyp" else b""
    if brand in _HEIC:
        return "a HEIC picture, which takes one more package: pip install 'prproduct[heic]'"
    if brand in _AVIF:
        return "an AVIF picture, which takes a newer Pillow: pip install 'pillow>=11.3'"
    if brand == b"crx ":
        return "a camera's raw file; export it as JPEG"
    if content[:2] == b"\xff\x0a" or content[4:8] == b"JXL ":
        return "a JPEG XL picture; save it as JPEG"
    return ""


@lru_cache
def _register_heif() -> None:
    """Register HEIC with Pillow, if pillow-heif is installed (the extra `heic`)."""
    with suppress(ImportError):
        importlib.import_module("pillow_heif").register_heif_opener()


@contextmanager
def _without_limit() -> Iterator[None]:
    """Let Pillow open a picture of any size; opening does not decode it."""
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


class Reader(ExitStack):
    """Reads pictures inside a `with` block; each archive is opened once."""

    def __init__(self) -> None:
        super().__init__()
        self._archives: dict[Path, zipfile.ZipFile] = {}

    def read(self, picture: Picture) -> Image.Image:
        """The picture in RGB, upright; raises `UnreadableError` with the reason."""
        content = b""
        try:
            content = self._content(picture)
            return open_picture(io.BytesIO(content))
        except UnreadableError:
            raise
        except Exception as error:  # Pillow's readers raise many types on damaged files
            unknown = _how_to_read(content) or "not a picture of a known format"
            reason = unknown if "cannot identify" in str(error) else str(error)
            raise UnreadableError(" ".join(reason.split()) or type(error).__name__) from None

    def _content(self, picture: Picture) -> bytes:
        if picture.member is None:
            return picture.place.read_bytes()
        if picture.place not in self._archives:
            self._archives[picture.place] = self.enter_context(zipfile.ZipFile(picture.place))
        return self._archives[picture.place].read(picture.member)


def open_picture(content: io.BytesIO) -> Image.Image:
    """Decode a picture to RGB, rotated by its EXIF orientation, on white if it is transparent.

    Large JPEGs are decoded at a fraction of their size, not below `DRAFT_SIDE` pixels per side; the limit on pixels is
    for the decoded size.
    """
    _register_heif()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as damaged EXIF data of an intact picture
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with _without_limit():
            image = Image.open(content)
        with image:
            if min(image.size) < SMALLEST_SIDE:
                raise UnreadableError(
                    f"{image.width}×{image.height} pixels; at least {SMALLEST_SIDE} a side are needed"
                )
            full_size = image.size
            image.draft("RGB", (DRAFT_SIDE, DRAFT_SIDE))
            if image.width * image.height > MOST_PIXELS:
                raise UnreadableError(
                    f"{full_size[0]}×{full_size[1]} pixels; more than {MOST_PIXELS // 10**6} million are read of JPEGs "
                    "alone: save it as JPEG, or smaller"
                )
            image.load()
            upright = _eight_bits(ImageOps.exif_transpose(image))
            if upright.has_transparency_data:
                upright = upright.convert("RGBA")
                upright = Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright)
            return upright.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit pixels to 8 bits: Pillow's conversion clips them at 255, which makes the picture white."""
    if image.mode == "F":
        raise UnreadableError("pixels of floating point; save it with 8 or 16 bits a pixel")
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).astype(np.int64).clip(0, 0xFFFF) >> 8).astype(np.uint8))
