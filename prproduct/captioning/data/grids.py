"""Encoding pictures to one HDF5 file of features, so that a killed process can be continued.

An HDF5 file whose process is killed while writing may be unreadable. So features are written in parts, each a small
file that is written atomically, in a folder beside the file. At the end the parts are joined and the folder removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from prproduct.captioning.data.features import SUFFIX, id_from_name, normalized_id
from prproduct.captioning.data.pictures import Picture, in_batches
from prproduct.captioning.encoder import Encoder
from prproduct.captioning.input_files import DAMAGED, ImageId
from prproduct.lab.checks import check_known
from prproduct.lab.errors import InputError
from prproduct.lab.files import check_writable_file, replacing, writing

FORMAT = "prproduct grid features 1"
BATCH, PART = 16, 128  # pictures
# float16 halves the file: 1.0 GB for Flickr8k and 15 GB for COCO instead of 2.0 and 31. The embedded encoder's values
# are from 0 to 6, with a rounding error of at most 0.05 %.
DTYPES = {"float16": np.float16, "float32": np.float32}


@dataclass(frozen=True)
class Outcome:
    """The result of `write`."""

    written: int  # images in the file, or in its parts if it was stopped
    known: int  # of the pictures, those whose ids were in the file before
    unreadable: tuple[tuple[Picture, str], ...]  # with the reason
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
    """Encode the pictures that are not in `path` or its parts yet; `progress` is called with the number finished.

    `stop` is called after each batch; when it returns True, the features so far are written to a part.
    """
    check_known("dtype", dtype, DTYPES)
    check_writable_file(path)
    attributes = {
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
        written = _written_images(path, parts, attributes)
        left = [picture for picture in pictures if normalized_id(picture.id) not in written]
        unreadable: list[tuple[Picture, str]] = []
        pending: dict[ImageId, NDArray[Any]] = {}
        known = finished = len(pictures) - len(left)
        stopped = False
        progress(finished)
        for batch in in_batches(left, BATCH, unreadable):
            arrays = encoder([image for _, image in batch])
            for (picture, _), array in zip(batch, arrays, strict=True):
                pending[normalized_id(picture.id)] = _rounded(picture, array, dtype)
            finished += len(batch)
            progress(finished + len(unreadable))
            stopped = stop()
            if len(pending) >= PART or stopped:
                written |= _write_part(parts, pending, attributes)
                pending = {}
            if stopped:
                return Outcome(len(written), known, tuple(unreadable), stopped)
        if pending:
            written |= _write_part(parts, pending, attributes)
        if not written:
            reasons = [f"; {picture}: {reason}" for picture, reason in unreadable[:1]]
            raise InputError(f"{path}: none of {len(pictures)} pictures can be read{''.join(reasons)}")
        _join(path, parts, attributes)
    return Outcome(len(written), known, tuple(unreadable), stopped)


def _rounded(picture: Picture, array: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        rounded = array.astype(DTYPES[dtype])
    if not np.isfinite(rounded).all():
        raise InputError(f"{picture}: features up to {np.abs(array).max():.3g}, which {dtype} cannot hold; try float32")
    return rounded


@contextmanager
def _locked(parts: Path) -> Iterator[None]:
    """Allow one process at a time; the folder is removed at the end if no part is left in it."""
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


def _written_images(path: Path, parts: Path, attributes: Mapping[str, Any]) -> set[ImageId]:
    """The images of the file and its parts; raises InputError if one was written with other attributes."""
    found: set[ImageId] = set()
    for file in filter(Path.exists, [path, *_parts(parts)]):
        try:
            with h5py.File(file, "r") as content:
                there, names = dict(content.attrs), list(content)
        except (OSError, *DAMAGED):
            raise InputError(f"{file}: not an HDF5 file of features; choose another place") from None
        for name, value in attributes.items():
            if there.get(name) != value:
                advice = "choose another file" if file == path else f"go on as before, or remove {parts}"
                raise InputError(f"{file}: has {name} {there.get(name, 'nothing')}, not {value}; {advice}")
        found.update(id_from_name(name.removesuffix(SUFFIX)) for name in names)
    return found


def _write_part(parts: Path, features: Mapping[ImageId, NDArray[Any]], attributes: Mapping[str, Any]) -> set[ImageId]:
    number = 1 + max((int(part.stem) for part in _parts(parts)), default=0)
    with _new_file(parts / f"{number:06d}.h5", parts, attributes) as file:
        for image, array in features.items():
            file.create_dataset(f"{image}{SUFFIX}", data=array)
    return set(features)


def _join(path: Path, parts: Path, attributes: Mapping[str, Any]) -> None:
    """Replace the file by one with its own features and those of the parts, then remove the parts."""
    sources = [file for file in [path, *_parts(parts)] if file.exists()]
    if sources != [path]:
        with _new_file(path, parts, attributes) as joined:
            for source in sources:
                with h5py.File(source, "r") as file:
                    for name in file:
                        if name not in joined:
                            file.copy(name, joined)
    for part in _parts(parts):
        part.unlink()


@contextmanager
def _new_file(path: Path, parts: Path, attributes: Mapping[str, Any]) -> Iterator[Any]:
    """An HDF5 file that is written inside `parts`, and renamed to `path` when it is complete."""
    with replacing(path, parts) as temporary, h5py.File(temporary, "w") as file:
        file.attrs.update(attributes)
        yield file
