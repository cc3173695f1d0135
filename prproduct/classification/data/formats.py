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
            batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
            pixels, classes = _bytes_array(batch[b"data"]), np.array(batch[label_key], np.int64)
            images.append(pixels.reshape(len(classes), *CIFAR_SHAPE))
            labels.append(classes)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        except Exception as error:  # a broken pickle may raise anything
            raise InputError(f"{path}: not a batch of CIFAR images ({type(error).__name__}: {error})") from None
    return np.concatenate(images), np.concatenate(labels)


class _Unpickled:
    """Stands for numpy's objects in a pickle, and keeps what would make them: numpy itself could be made to crash."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """An unpickler of dictionaries, lists, numbers, strings and arrays that resolves no other name."""

    def find_class(self, module: str, name: str) -> type[_Unpickled]:
        if f"{module}.{name}" not in ("numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype"):
            raise InputError(f"refused: the pickle asks for {module}.{name}, which no official file does")
        return _Unpickled


def _bytes_array(array: _Unpickled) -> NDArray[np.uint8]:
    _version, shape, dtype, columns_first, content = array.state
    if dtype.arguments[0] not in (b"u1", b"|u1"):
        raise InputError(f"an array of {dtype.arguments[0]!r}, not of bytes")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if columns_first else "C")
