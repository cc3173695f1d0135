"""Parsers of the data sets' file formats: idx, CIFAR's binary records, and CIFAR's pickles without executing them.

Each reader takes the contents of official files, which `locate.read` has compared with their checksums, and joins them.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = tuple[NDArray[np.uint8], NDArray[np.int64]]  # images (n, channels, rows, columns), labels (n,)
CIFAR_SHAPE = (3, 32, 32)


def read_idx(files: Sequence[bytes]) -> Pixels:
    """Read a file of images and a file of their labels, both of unsigned bytes (the format of MNIST)."""
    images, labels = files
    return _idx(images, axes=3)[:, None], _idx(labels, axes=1).astype(np.int64)


def _idx(content: bytes, axes: int) -> NDArray[np.uint8]:
    header = 4 + 4 * axes  # a magic number, then the length of each axis
    shape = struct.unpack(f">{axes}I", content[4:header])
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_cifar10_binary(files: Sequence[bytes]) -> Pixels:
    """Read records of one label byte and 3,072 pixels."""
    return _records(files, label_bytes=1)


def read_cifar100_binary(files: Sequence[bytes]) -> Pixels:
    """Read records of a coarse label, a fine label and 3,072 pixels; the fine label is returned."""
    return _records(files, label_bytes=2)


def _records(files: Sequence[bytes], label_bytes: int) -> Pixels:
    records = np.frombuffer(b"".join(files), np.uint8).reshape(-1, label_bytes + 3072)
    images = np.ascontiguousarray(records[:, label_bytes:]).reshape(-1, *CIFAR_SHAPE)
    return images, records[:, label_bytes - 1].astype(np.int64)


def read_cifar10_pickle(files: Sequence[bytes]) -> Pixels:
    """Read dictionaries with `data` and `labels`."""
    return _pickles(files, b"labels")


def read_cifar100_pickle(files: Sequence[bytes]) -> Pixels:
    """Read dictionaries with `data`, `fine_labels` and `coarse_labels`; the fine labels are returned."""
    return _pickles(files, b"fine_labels")


def _pickles(files: Sequence[bytes], label_key: bytes) -> Pixels:
    batches = [_Unpickler(io.BytesIO(content), encoding="bytes").load() for content in files]
    images = np.concatenate([_bytes_array(batch[b"data"]) for batch in batches])
    labels = np.concatenate([np.array(batch[label_key], np.int64) for batch in batches])
    return images.reshape(-1, *CIFAR_SHAPE), labels


class _Unpickled:
    """Stands for numpy's objects in a pickle, and keeps their state; the files have names that numpy is giving up."""

    def __init__(self, *arguments: Any) -> None:
        """Take the arguments of the constructors, of which the state tells all that is needed."""

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """An unpickler of dictionaries, lists, numbers, strings and arrays that resolves no other name."""

    def find_class(self, module: str, name: str) -> type[_Unpickled]:
        if f"{module}.{name}" not in ("numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype"):
            raise pickle.UnpicklingError(f"refused: the pickle asks for {module}.{name}, which no official file does")
        return _Unpickled


def _bytes_array(array: _Unpickled) -> NDArray[np.uint8]:
    _version, shape, _dtype, columns_first, content = array.state
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if columns_first else "C")
