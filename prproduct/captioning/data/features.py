"""The regions of images as vectors, in whatever files they lie.

    a folder of <id>.npz        an array `feat`, or `z`
    a folder of <id>.npy
    TSV, a file or a folder     image_id, image_w, image_h, num_boxes, boxes, features (float32 in base64)
    one HDF5 file               data sets `<id>_features`, or `<id>`

An image's regions may also be a grid (rows, columns, width), or a single vector. Whatever is missing or broken stops
with the image's id: nothing is ever put in its place.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prproduct.captioning.metrics.fields import ImageId
from prproduct.captioning.metrics.frequencies import DAMAGED
from prproduct.lab.errors import InputError

SAMPLED = 8  # images whose values go into a fingerprint; all of COCO's are 20 GB and more
BESIDE = ("_boxes", "_cls_prob")  # what HDF5 files have beside features
TSV_FIELDS = 6
LAYOUTS = "give a folder of .npz or .npy files, a .tsv file or a folder of them, or an HDF5 file"
_COCO_NAME = re.compile(r"COCO_[A-Za-z]+\d*_0*(\d+)")


def id_of(stem: str) -> ImageId:
    """The image that a file is of, by its name without suffix.

    >>> id_of("COCO_val2014_000000391895"), id_of("000000391895"), id_of("1000268201_693b08cb0e")
    (391895, 391895, '1000268201_693b08cb0e')
    """
    coco = _COCO_NAME.fullmatch(stem)
    number = coco.group(1) if coco else stem
    return int(number) if number.isdecimal() and number.isascii() else stem


def key_of(image: ImageId) -> ImageId:
    """What an image goes by: 7 and "7" are one, as they are one name of a file.

    >>> key_of("7"), key_of(7), key_of("a")
    (7, 7, 'a')
    """
    return id_of(image) if isinstance(image, str) else image


class MadeBy(NamedTuple):
    """An encoder's name, and the fingerprint of its weights and of how it prepares pictures."""

    name: str
    fingerprint: str


class Features(ABC):
    """Features of many images; safe to hand to other processes, forked or not, which open files of their own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not self._places:
            raise InputError(f"{path}: no features in it; {LAYOUTS}")

    @property
    @abstractmethod
    def _places(self) -> dict[ImageId, Any]:
        """Where each image's features are."""

    @abstractmethod
    def _read(self, place: Any) -> NDArray[Any]:
        """The features that lie at a place."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_open"}

    @cached_property
    def ids(self) -> tuple[ImageId, ...]:
        """The images that there are features of; a number where the name is one."""
        return tuple(self._places)

    @property
    def encoder(self) -> MadeBy | None:
        """What made them of pictures; None where the files do not say."""
        return None

    def __contains__(self, image: ImageId) -> bool:
        return key_of(image) in self._places

    @cached_property
    def width(self) -> int:
        """The length of a region's vector."""
        return self._array(self.ids[0]).shape[1]

    def of(self, image: ImageId) -> NDArray[np.float32]:
        """The features (regions, width) of an image."""
        array = self._array(image)
        if array.shape[1] != self.width:
            raise InputError(f"{self.path}: image {image} has features of width {array.shape[1]}, others {self.width}")
        return array

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits of all ids and of the values of a few images, the same in every layout."""
        ordered = sorted(self.ids, key=str)
        digest = hashlib.sha256(f"{self.width} {ordered}".encode())
        for place in np.linspace(0, len(ordered) - 1, SAMPLED).astype(int):
            digest.update(self.of(ordered[place]).tobytes())
        return digest.hexdigest()[:16]

    def _array(self, image: ImageId) -> NDArray[np.float32]:
        try:
            place = self._places[key_of(image)]
        except KeyError:
            raise InputError(f"{self.path}: no features of image {image}; it has {len(self.ids):,} images") from None
        try:
            array = self._read(place)
            if array.ndim < 1 or array.size == 0 or array.dtype.kind not in "fiu":
                raise ValueError(f"an array of {array.dtype} and shape {array.shape}, not regions of numbers")
            array = array.reshape(-1, array.shape[-1]).astype(np.float32)
            if not np.isfinite(array).all():
                raise ValueError("values that are not finite")
        except (OSError, TypeError, AttributeError, *DAMAGED) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"{self.path}: features of image {image} cannot be read: {reason}") from None
        return array


class ArrayFolder(Features):
    """A folder with a NumPy file for each image."""

    @cached_property
    def _places(self) -> dict[ImageId, str]:
        names = sorted(entry.name for entry in os.scandir(self.path) if entry.name.endswith((".npz", ".npy")))
        return _unique(self.path, [(id_of(name[:-4]), name) for name in names])

    def _read(self, place: str) -> NDArray[Any]:
        with (self.path / place).open("rb") as file:
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return content
            name = next((name for name in ("feat", "z") if name in content), None)
            if name is None:
                raise ValueError(f"{place} has no array 'feat' or 'z', but {', '.join(content) or 'none'}")
            return content[name]


class Hdf5(Features):
    """An HDF5 file with a data set for each image."""

    _open: tuple[int, Any] | None = None  # the process that opened the file, and the file

    @cached_property
    def _places(self) -> dict[ImageId, str]:
        names = list(self._file)
        named = [name for name in names if name.endswith("_features")]
        named = named or [name for name in names if not name.endswith(BESIDE)]
        return _unique(self.path, [(id_of(name.removesuffix("_features")), name) for name in named])

    @property
    def _file(self) -> Any:
        """Opened once in each process: a handle that was inherited over a fork shares its state with the parent's."""
        import h5py

        if self._open is None or self._open[0] != os.getpid():
            self._open = os.getpid(), h5py.File(self.path, "r")
        return self._open[1]

    def _read(self, place: str) -> NDArray[Any]:
        return self._file[place][()]

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    @property
    def attributes(self) -> dict[str, Any]:
        """What the file says about itself, such as the encoder that made it."""
        return dict(self._file.attrs)

    @property
    def encoder(self) -> MadeBy | None:
        said = self.attributes
        return (
            MadeBy(str(said["encoder"]), str(said["fingerprint"]))
            if {"encoder", "fingerprint"} <= said.keys()
            else None
        )


class Tsv(Features):
    """Tables with a line for each image. Where two lines have the same image, as some files do, the first counts."""

    _open: list[NDArray[np.uint8]] | None = None  # mapped into memory, which any process may read

    def __init__(self, path: Path, tables: list[Path]) -> None:
        self.tables = tables
        super().__init__(path)

    @cached_property
    def _places(self) -> dict[ImageId, tuple[int, int, int]]:
        """Table, first byte and length of each image's line; the tables are read once from end to end for it."""
        places: dict[ImageId, tuple[int, int, int]] = {}
        for number, table in enumerate(self.tables):
            start = 0
            with table.open("rb") as lines:
                for line in lines:
                    if line.strip():
                        name = line[:100].split(b"\t", 1)[0].decode("utf-8", "replace")
                        places.setdefault(id_of(name), (number, start, len(line)))
                    start += len(line)
        return places

    def _read(self, place: tuple[int, int, int]) -> NDArray[Any]:
        number, start, length = place
        if self._open is None:
            self._open = [np.memmap(table, np.uint8, "r") for table in self.tables]
        fields = self._open[number][start : start + length].tobytes().rstrip(b"\r\n").split(b"\t")
        if len(fields) != TSV_FIELDS:
            raise ValueError(f"{len(fields)} fields at byte {start} of {self.tables[number].name}, not {TSV_FIELDS}")
        return np.frombuffer(base64.b64decode(fields[5], validate=True), "<f4").reshape(int(fields[3]), -1)


def open(path: str | Path) -> Features:
    """The features at a path, of any layout.

    >>> open("nowhere")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: nowhere: no such file or folder of features
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder of features")
    try:
        if path.is_dir():
            tables = sorted(file for file in path.iterdir() if ".tsv" in file.suffixes)
            return Tsv(path, tables) if tables else ArrayFolder(path)
        if ".tsv" in path.suffixes:
            return Tsv(path, [path])
        return Hdf5(path)
    except OSError as error:
        reason = " ".join((error.strerror or str(error)).split())
        raise InputError(f"{path}: cannot be read as features ({reason}); {LAYOUTS}") from None


def _unique(path: Path, places: list[tuple[ImageId, str]]) -> dict[ImageId, str]:
    found = dict(places)
    if len(found) < len(places):
        seen: dict[ImageId, str] = {}
        for image, name in places:
            if image in seen:
                raise InputError(f"{path}: {seen[image]} and {name} are both of image {image}; keep one of them")
            seen[image] = name
    return found
