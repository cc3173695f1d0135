"""Pictures in files, folders and zip archives, and the images that they are of."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from prproduct.captioning.data.features import id_of
from prproduct.captioning.metrics.fields import ImageId
from prproduct.lab.errors import InputError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
SMALLEST_SIDE = 8  # pixels; less shows nothing


class Picture(NamedTuple):
    """A file, or a member of an archive, and the id of its image."""

    id: ImageId
    place: Path
    member: str | None = None

    @property
    def name(self) -> str:
        """Of the file, without folders."""
        return Path(self.member or self.place).name

    def __str__(self) -> str:
        return str(self.place) if self.member is None else f"{self.place}/{self.member}"


class UnreadableError(Exception):
    """Why a picture cannot be shown."""


def find(places: Sequence[Path], ids: Mapping[str, ImageId] | None = None) -> list[Picture]:
    """The pictures in files, folders and archives; with `ids`, those whose file name is a key of it.

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


def list_all(places: Sequence[Path]) -> list[Picture]:
    """All pictures in files, folders and archives; several may have one name, and so one id."""
    files = [found for place in places for found in _files(place)]
    if not files:
        raise InputError(f"{', '.join(map(str, places))}: no pictures there")
    return [Picture(id_of(Path(member or file).stem), file, member) for file, member in files]


def in_batches(
    pictures: Iterable[Picture], size: int, unreadable: list[tuple[Picture, str]]
) -> Iterator[list[tuple[Picture, Image.Image]]]:
    """What pictures show, so many at a time; those that cannot be read go to `unreadable`, with the reason."""
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


def _files(place: Path) -> Iterator[tuple[Path, str | None]]:
    if place.is_dir():
        for file in sorted(place.rglob("*")):
            if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file():
                yield file, None
    elif not place.is_file():
        raise InputError(f"{place}: no such file, folder or zip archive of pictures")
    elif place.suffix.lower() == ".zip":
        try:
            with zipfile.ZipFile(place) as archive:
                names = archive.namelist()
        except (OSError, zipfile.BadZipFile) as error:
            raise InputError(f"{place}: not a zip archive that can be read ({error})") from None
        for name in names:
            if name.lower().endswith(SUFFIXES) and not Path(name).name.startswith("."):
                yield place, name
    else:
        yield place, None  # named by somebody, so it is tried whatever its name


class Reader:
    """Reads pictures, with each archive opened once, within a `with` block."""

    def __init__(self) -> None:
        self._archives: dict[Path, zipfile.ZipFile] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def read(self, picture: Picture) -> Image.Image:
        """The picture as it is seen, in RGB; raises `UnreadableError` with the reason."""
        try:
            return open_picture(io.BytesIO(self._content(picture)))
        except UnreadableError:
            raise
        except Exception as error:  # Pillow's readers fail in many ways on what somebody else wrote
            reason = "not a picture of a known format" if "cannot identify" in str(error) else str(error)
            raise UnreadableError(" ".join(reason.split()) or type(error).__name__) from None

    def _content(self, picture: Picture) -> bytes:
        if picture.member is None:
            return picture.place.read_bytes()
        if picture.place not in self._archives:
            self._archives[picture.place] = self._stack.enter_context(zipfile.ZipFile(picture.place))
        return self._archives[picture.place].read(picture.member)


def open_picture(content: io.BytesIO, least: int = 512) -> Image.Image:
    """Decoded, turned as the camera was held, without transparency.

    JPEGs of many megapixels are decoded at a fraction of their size, not below `least` pixels a side.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of damaged EXIF data and the like, beside a picture that is whole
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(content) as image:
            if min(image.size) < SMALLEST_SIDE:
                raise UnreadableError(
                    f"{image.width}×{image.height} pixels; at least {SMALLEST_SIDE} a side are needed"
                )
            image.draft("RGB", (least, least))
            image.load()
            turned = _eight_bits(ImageOps.exif_transpose(image))
            if turned.has_transparency_data:
                turned = turned.convert("RGBA")
                turned = Image.alpha_composite(Image.new("RGBA", turned.size, "white"), turned)
            return turned.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Pillow cuts 16 bits off at 255, so that such a picture would be white."""
    if image.mode == "F":
        raise UnreadableError("pixels of floating point; save it with 8 or 16 bits a pixel")
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).astype(np.int64).clip(0, 0xFFFF) >> 8).astype(np.uint8))
