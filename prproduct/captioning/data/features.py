"""Reading the features of images, one vector per region, in the file formats that are in use.

    a folder of <id>.npz        an array `feat`, or `z`
    a folder of <id>.npy
    TSV, a file or a folder     image_id, image_w, image_h, num_boxes, boxes, features (float32 in base64)
    one HDF5 file               data sets `<id>_features`, or `<id>`

The features of an image are (regions, width); a grid (rows, columns, width) or a single vector is reshaped to it.
Missing or broken features raise an InputError with the image's id; they are never replaced by something else.
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

from prproduct.captioning.input_files import DAMAGED, ImageId
from prproduct.lab.errors import InputError

SAMPLED = 8  # images whose values are part of a fingerprint; reading all of COCO would be 20 GB and more
SUFFIX = "_features"  # of HDF5 data sets
OTHER_DATASETS = ("_boxes", "_cls_prob")  # suffixes of HDF5 data sets that are not features
TSV_FIELDS = 6
LAYOUTS = "give a folder of .npz or .npy files, a .tsv file or a folder of them, or an HDF5 file"
_COCO_NAME = re.compile(r"COCO_[A-Za-z]+\d*_0*(\d+)")


def id_from_name(stem: str) -> ImageId:
    """The image id in a file name without suffix: COCO's number, any other number, or the name itself.

    >>> id_from_name("COCO_val2014_000000391895"), id_from_name("000000391895"), id_from_name("1000268201_693b08cb0e")
    (391895, 391895, '1000268201_693b08cb0e')
    """
    coco = _COCO_NAME.fullmatch(stem)
    number = coco.group(1) if coco else stem
    return int(number) if number.isdecimal() and number.isascii() else stem


def normalized_id(image: ImageId) -> ImageId:
    """An image id in the form that features are stored under: "7" becomes 7, since file names do not distinguish them.

    >>> normalized_id("7"), normalized_id(7), normalized_id("a")
    (7, 7, 'a')
    """
    return id_from_name(image) if isinstance(image, str) else image


class EncoderId(NamedTuple):
    """An encoder's name, and the fingerprint of its weights and its preprocessing."""

    name: str
    fingerprint: str


class Features(ABC):
    """Features of many images. It can be passed to other processes, forked or not: each opens the files itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not self._locations:
            raise InputError(f"{path}: no features in it; {LAYOUTS}")

    @property
    @abstractmethod
    def _locations(self) -> dict[ImageId, Any]:
        """The location of each image's features, in a form that `_read` understands."""

    @abstractmethod
    def _read(self, location: Any) -> NDArray[Any]:
        """The features at a location."""

    @cached_property
    def ids(self) -> tuple[ImageId, ...]:
        """Ids of all images."""
        return tuple(self._locations)

    @property
    def encoder(self) -> EncoderId | None:
        """The encoder that computed the features; None if the files do not name it."""
        return None

    def __contains__(self, image: ImageId) -> bool:
        return normalized_id(image) in self._locations

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
        """Sixteen hexadecimal digits of all ids and the values of a few images; the same in every file format."""
        ordered = sorted(self.ids, key=str)
        digest = hashlib.sha256(f"{self.width} {ordered}".encode())
        for index in np.linspace(0, len(ordered) - 1, SAMPLED).astype(int):
            digest.update(self.of(ordered[index]).tobytes())
        return digest.hexdigest()[:16]

    def _array(self, image: ImageId) -> NDArray[np.float32]:
        try:
            location = self._locations[normalized_id(image)]
        except KeyError:
            raise InputError(f"{self.path}: no features of image {image}; it has {len(self.ids):,} images") from None
        try:
            array = self._read(location)
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
    """A folder with one NumPy file per image."""

    @cached_property
    def _locations(self) -> dict[ImageId, str]:
        names = sorted(entry.name for entry in os.scandir(self.path) if entry.name.endswith((".npz", ".npy")))
        return _unique(self.path, [(id_from_name(name[:-4]), name) for name in names])

    def _read(self, location: str) -> NDArray[Any]:
        with (self.path / location).open("rb") as file:
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return content
            name = next((name for name in ("feat", "z") if name in content), None)
            if name is None:
                raise ValueError(f"{location} has no array 'feat' or 'z', but {', '.join(content) or 'none'}")
            return content[name]


class Hdf5(Features):
    """An HDF5 file with one data set per image."""

    _open: tuple[int, Any] | None = None  # the process that opened the file, and the file

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_open"}

    @cached_property
    def _locations(self) -> dict[ImageId, str]:
        names = list(self._file)
        named = [name for name in names if name.endswith(SUFFIX)]
        named = named or [name for name in names if not name.endswith(OTHER_DATASETS)]
        return _unique(self.path, [(id_from_name(name.removesuffix(SUFFIX)), name) for name in named])

    @property
    def _file(self) -> Any:
        """The file, opened once in each process: a handle inherited over a fork shares its state with the parent."""
        import h5py

        if self._open is None or self._open[0] != os.getpid():
            self._open = os.getpid(), h5py.File(self.path, "r")
        return self._open[1]

    def _read(self, location: str) -> NDArray[Any]:
        return self._file[location][()]

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the file, such as the encoder."""
        try:
            return dict(self._file.attrs)
        except (OSError, *DAMAGED) as error:
            raise InputError(f"{self.path}: its attributes cannot be read ({' '.join(str(error).split())})") from None

    @property
    def encoder(self) -> EncoderId | None:
        attributes = self.attributes
        return (
            EncoderId(str(attributes["encoder"]), str(attributes["fingerprint"]))
            if {"encoder", "fingerprint"} <= attributes.keys()
            else None
        )


class Tsv(Features):
    """TSV files with one line per image. If an image has two lines, as in some published files, the first is used."""

    def __init__(self, path: Path, tables: list[Path]) -> None:
        self.tables = tables
        super().__init__(path)

    @cached_property
    def _locations(self) -> dict[ImageId, tuple[int, int, int]]:
        """File number, first byte and length of each image's line; the files are read once completely to find them."""
        locations: dict[ImageId, tuple[int, int, int]] = {}
        for number, table in enumerate(self.tables):
            start = 0
            with table.open("rb") as lines:
                for line in lines:
                    if line.strip():
                        name = line[:100].split(b"\t", 1)[0].decode("utf-8", "replace")
                        locations.setdefault(id_from_name(name), (number, start, len(line)))
                    start += len(line)
        return locations

    def _read(self, location: tuple[int, int, int]) -> NDArray[Any]:
        number, start, length = location
        with self.tables[number].open("rb") as table:
            table.seek(start)
            fields = table.read(length).rstrip(b"\r\n").split(b"\t")
        if len(fields) != TSV_FIELDS:
            raise ValueError(f"{len(fields)} fields at byte {start} of {self.tables[number].name}, not {TSV_FIELDS}")
        return np.frombuffer(base64.b64decode(fields[5], validate=True), "<f4").reshape(int(fields[3]), -1)


def open(path: str | Path) -> Features:
    """Open the features at a path, in any of the formats of this module.

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
    except InputError:
        raise
    except (OSError, *DAMAGED) as error:
        reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
        raise InputError(f"{path}: cannot be read as features ({reason}); {LAYOUTS}") from None


def _unique(path: Path, locations: list[tuple[ImageId, str]]) -> dict[ImageId, str]:
    """`locations` as a dict; raises InputError if two are of the same image."""
    found: dict[ImageId, str] = {}
    for image, name in locations:
        if found.setdefault(image, name) != name:
            raise InputError(f"{path}: {found[image]} and {name} are both of image {image}; keep one of them")
    return found
