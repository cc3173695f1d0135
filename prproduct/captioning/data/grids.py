"""Pictures to one HDF5 file of features, in steps that survive being stopped anywhere.

An HDF5 file that is being written when its process is killed may be lost whole. So features are written in parts, each
a file of its own that is there whole or not at all, in a folder beside the file. At the end the parts become the file,
and the folder goes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from prproduct.captioning.data.features import Hdf5, key_of
from prproduct.captioning.data.pictures import Picture, in_batches
from prproduct.captioning.encoder import Encoder
from prproduct.captioning.metrics.fields import ImageId
from prproduct.lab.errors import InputError
from prproduct.lab.files import sync_folder, writing

FORMAT = "prproduct grid features 1"
BATCH, PART = 16, 128  # pictures
# Half the bytes: 1.0 GB for Flickr8k and 15 GB for COCO, in place of 2.0 and 31. Values go from 0 to 6 in the embedded
# encoder, and are rounded by 0.05 % at most.
DTYPES = {"float16": np.float16, "float32": np.float32}


@dataclass(frozen=True)
class Outcome:
    """What became of pictures."""

    written: int  # images in the file, or in its parts where this was stopped
    unreadable: tuple[tuple[Picture, str], ...]  # and why
    stopped: bool


def write(
    path: Path,
    pictures: Sequence[Picture],
    encoder: Encoder,
    dtype: str = "float16",
    *,
    progress: Callable[[int], None] = lambda finished: None,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Encode the pictures that `path` and its parts do not have yet; `progress` is told how many are finished."""
    if dtype not in DTYPES:
        raise InputError(f"features of {dtype!r}; choose {' or '.join(DTYPES)}")
    says = {
        "format": FORMAT,
        "encoder": encoder.name,
        "image_size": encoder.image_size,
        "fingerprint": encoder.fingerprint,
        "dtype": dtype,
    }
    parts = path.with_name(f"{path.name}.parts")
    unwritable = next((picture.id for picture in pictures if "/" in str(picture.id)), None)
    if unwritable is not None:
        raise InputError(f"image {unwritable!r}: HDF5 takes no / in a name; give the image another id")
    with writing(path), _locked(parts):
        there = _there(path, parts, says)
        left = [picture for picture in pictures if key_of(picture.id) not in there]
        unreadable: list[tuple[Picture, str]] = []
        pending: dict[ImageId, NDArray[Any]] = {}
        finished, stopped = len(pictures) - len(left), False
        progress(finished)
        for batch in in_batches(left, BATCH, unreadable):
            arrays = encoder([image for _, image in batch])
            for (picture, _), array in zip(batch, arrays, strict=True):
                pending[key_of(picture.id)] = _rounded(picture, array, dtype)
            finished += len(batch)
            progress(finished + len(unreadable))
            stopped = stop()
            if len(pending) >= PART or stopped:
                there |= _write_part(parts, pending, says)
                pending = {}
            if stopped:
                return Outcome(len(there), tuple(unreadable), stopped)
        if pending:
            there |= _write_part(parts, pending, says)
        if not there:
            raise InputError(f"{path}: none of {len(pictures)} pictures can be read; {_first(unreadable)}")
        _join(path, parts, says)
    return Outcome(len(there), tuple(unreadable), stopped)


def _rounded(picture: Picture, array: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        rounded = array.astype(DTYPES[dtype])
    if not np.isfinite(rounded).all():
        raise InputError(f"{picture}: features up to {np.abs(array).max():.3g}, which {dtype} cannot hold; try float32")
    return rounded


@contextmanager
def _locked(parts: Path) -> Iterator[None]:
    """One process at a time; the folder goes when nothing is left in it."""
    parts.mkdir(parents=True, exist_ok=True)
    lock = FileLock(parts / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"{parts}: another process is writing there; wait for it, or stop it") from None
    try:
        yield
    finally:
        lock.release()
        if not _parts(parts):
            shutil.rmtree(parts, ignore_errors=True)


def _parts(parts: Path) -> list[Path]:
    return sorted(parts.glob("[0-9]*.h5"))


def _there(path: Path, parts: Path, says: Mapping[str, Any]) -> set[ImageId]:
    """The images that have been written, by the same encoder in the same way."""
    found: set[ImageId] = set()
    for file in [path, *_parts(parts)]:
        if file.exists():
            try:
                features = Hdf5(file)
            except OSError:
                raise InputError(f"{file}: not an HDF5 file of features; choose another place") from None
            for name, value in says.items():
                other = features.attributes.get(name, "nothing")
                if other != value:
                    advice = "choose another file" if file == path else f"go on as before, or remove {parts}"
                    raise InputError(f"{file}: has {name} {other}, not {value}; {advice}")
            found.update(features.ids)
            features.close()
    return found


def _write_part(parts: Path, features: Mapping[ImageId, NDArray[Any]], says: Mapping[str, Any]) -> set[ImageId]:
    number = 1 + max((int(part.stem) for part in _parts(parts)), default=0)
    with _replacing(parts / f"{number:06d}.h5", says) as file:
        for image, array in features.items():
            file.create_dataset(f"{image}_features", data=array)
    return set(features)


def _join(path: Path, parts: Path, says: Mapping[str, Any]) -> None:
    sources = [file for file in [path, *_parts(parts)] if file.exists()]
    if sources != [path]:
        with _replacing(path, says) as joined:
            for source in sources:
                with h5py.File(source, "r") as file:
                    for name in file:
                        if name not in joined:
                            file.copy(name, joined)
    for part in _parts(parts):
        part.unlink()


@contextmanager
def _replacing(path: Path, says: Mapping[str, Any]) -> Iterator[Any]:
    """A new HDF5 file that takes its name when it is whole and on the disk."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        with h5py.File(temporary, "w") as file:
            file.attrs.update(says)
            yield file
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _first(unreadable: Sequence[tuple[Picture, str]]) -> str:
    return f"{unreadable[0][0]}: {unreadable[0][1]}" if unreadable else "there are none"
