"""Parsers of the data sets' file formats: idx, CIFAR's binary records, and CIFAR's pickles without executing them.

Each reader takes {path: content}, concatenates the files in order and returns `Pixels`; its errors name the path.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prproduct.lab.errors import InputError

Pixels = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images (n, channels, rows, columns), labels (n,)
CIFAR_SHAPE = (3, 32, 32)


def read_idx(files: Mapping[str, bytes]) -> Pixels:
    """Read a file of images and a file of their labels, both of unsigned bytes (the format of MNIST)."""
    (image_path, images), (label_path, labels) = files.items()
    pixels, classes = _idx(image_path, images, axes=3), _idx(label_path, labels, axes=1)
    if len(pixels) != len(classes):
        raise InputError(f"{label_path}: {len(classes):,} labels for the {len(pixels):,} images of {image_path}")
    return pixels[:, None], classes.astype(np.int64)


def _idx(path: str, content: bytes, axes: int) -> NDArray[np.uint8]:
    header = 4 + 4 * axes
    magic = 0x0800 + axes  # 08: unsigned bytes
    if len(content) < header or struct.unpack(">I", content[:4])[0] != magic:
        raise InputError(f"{path}: not an idx file of unsigned bytes with {axes} axes")
    shape = struct.unpack(f">{axes}I", content[4:header])
    if len(content) - header != np.prod(shape, dtype=object):
        raise InputError(f"{path}: {len(content) - header:,} bytes of data, its header says {shape}: truncated?")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_cifar10_binary(files: Mapping[str, bytes]) -> Pixels:
    """Read records of one label byte and 3,072 pixels."""
    return _records(files, label_bytes=1)


def read_cifar100_binary(files: Mapping[str, bytes]) -> Pixels:
    """Read records of a coarse label, a fine label and 3,072 pixels; the fine label is returned."""
    return _records(files, label_bytes=2)


def _records(files: Mapping[str, bytes], label_bytes: int) -> Pixels:
    width = label_bytes + 3072
    for path, content in files.items():
        if len(content) % width:
            raise InputError(f"{path}: {len(content):,} bytes are not whole records of {width:,}: truncated?")
    records = np.frombuffer(b"".join(files.values()), np.uint8).reshape(-1, width)
    images = np.ascontiguousarray(records[:, label_bytes:]).reshape(-1, *CIFAR_SHAPE)
    return images, records[:, label_bytes - 1].astype(np.int64)


def read_cifar10_pickle(files: Mapping[str, bytes]) -> Pixels:
    """Read dictionaries with `data` and `labels`."""
    return _pickles(files, b"labels")


def read_cifar100_pickle(files: Mapping[str, bytes]) -> Pixels:
    """Read dictionaries with `data`, `fine_labels` and `coarse_labels`; the fine labels are returned."""
    return _pickles(files, b"fine_labels")


def _pickles(files: Mapping[str, bytes], label_key: bytes) -> Pixels:
    images, labels = [], []
    for path, content in files.items():
        try:
            batch = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
            pixels, classes = batch[b"data"].values, np.array(batch[label_key], np.int64)
            images.append(pixels.reshape(len(classes), *CIFAR_SHAPE))
            labels.append(classes)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        except Exception as error:  # a broken pickle may raise anything
            raise InputError(f"{path}: not a batch of CIFAR images ({type(error).__name__}: {error})") from None
    return np.concatenate(images), np.concatenate(labels)


class _Array:
    """Stands for an ndarray in a pickle; numpy's own class warns of the old module names in these files."""

    values: NDArray[np.uint8]

    def __setstate__(self, state: tuple[int, tuple[int, ...], Any, bool, bytes]) -> None:
        _version, shape, kind, columns_first, content = state
        if kind is not _UINT8 or not isinstance(content, bytes):
            raise InputError("an array of something else than bytes")
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if columns_first else "C")


class _Kind:
    """Stands for a dtype in a pickle; its state carries no information for bytes."""

    def __setstate__(self, state: object) -> None:
        pass


_UINT8 = _Kind()


def _dtype(code: bytes, *_: object) -> _Kind:
    if code not in (b"u1", b"|u1"):
        raise InputError(f"an array of {code!r}, not of bytes")
    return _UINT8


def _reconstruct(*_: object) -> _Array:
    return _Array()


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler of dictionaries, lists, numbers, strings and arrays of bytes that resolves no other name."""

    KNOWN: Mapping[tuple[str, str], object] = {
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.KNOWN:
            raise InputError(f"refused: the pickle asks for {module}.{name}, which no official file does")
        return self.KNOWN[module, name]
