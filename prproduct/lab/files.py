"""Writing files so that a stop at any moment, and any full or read-only disk, leaves what was there before."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prproduct.lab.errors import InputError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file when the system refuses to write it.

    >>> with writing(Path("runs/a")):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: runs/a: cannot be written (No space left on device)
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{error.filename or path}: cannot be written ({error.strerror or error})") from None


def write_durably(path: Path, content: bytes) -> None:
    """Write a new file, and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, content: bytes) -> None:
    """Give a file its content at once: readers and restarts see the old one or the new one."""
    temporary = path.with_name(f".{path.name}.writing")
    write_durably(temporary, content)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def as_json(value: Any) -> bytes:
    """Indented JSON, of finite numbers only."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise InputError(f"{path}: is no JSON, it is corrupt ({error})") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: is not what was written there, a JSON object")
    return value
