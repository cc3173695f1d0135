"""Files: checked for kind and size before they are read, replaced atomically and durably when they are written."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prproduct.lab.errors import InputError

_WRITING = ".writing"  # the ending of temporary files


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of writing into an InputError that names the file.

    >>> with writing(Path("runs/a")):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: runs/a: cannot be written (No space left on device)
    """
    try:
        yield
    except OSError as error:
        own = error.filename if error.filename and not str(error.filename).endswith(_WRITING) else path
        raise InputError(f"{own}: cannot be written ({error.strerror or error})") from None


def write_durably(path: Path, content: bytes) -> None:
    """Write a new file and fsync it."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacing(path: Path, folder: Path | None = None) -> Iterator[Path]:
    """Yield a path for a temporary file or folder to write; at the end it is synced to the disk and renamed to `path`.

    Readers and restarts see the old file or the new one, never a part. An exception removes the temporary one. It is in
    `folder`, which must be on the same file system; without it, beside `path`, whose folder is made if needed.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = (folder or path.parent) / f".{path.name}.{os.getpid()}{_WRITING}"
        try:
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
        finally:
            if temporary.is_dir():
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                temporary.unlink(missing_ok=True)


def replace_durably(path: Path, content: bytes) -> None:
    """Replace a file's content atomically and durably: readers see the old or the new one, after a crash too."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def sync(path: Path) -> None:
    """Fsync a file, or a folder, so that its new and renamed entries are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def as_json(value: Any) -> bytes:
    """Return indented JSON; ValueError for NaN and infinity.

    Bytes of a path that are not UTF-8 are surrogates in a string, and become JSON's escapes of them, as in `"\\udcff"`.
    """
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "backslashreplace")


def check_file(path: Path, most: int) -> int:
    """Return the size of a regular file of at most `most` bytes; InputError for a folder, a device, a larger file."""
    try:
        found = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    if stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path}: is a folder; it must be a file")
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path}: is a device or a pipe; it must be a regular file")
    if found.st_size > most:
        raise InputError(f"{path}: has {found.st_size:,} bytes, more than the {most:,} that it may have; it is corrupt")
    return found.st_size


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a file that passes `check_file`."""
    check_file(path, most)
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_json_value(path: Path, most: int = 16 << 20) -> Any:
    """Return the value in a JSON file of at most `most` bytes; InputError for anything else."""
    try:
        return json.loads(read_bytes(path, most))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested too deeply
        raise InputError(f"{path}: is not JSON, it is corrupt ({str(error).splitlines()[0]})") from None


def read_json(path: Path, most: int = 16 << 20) -> dict[str, Any]:
    """Return the object in a JSON file of at most `most` bytes; InputError for anything else."""
    value = read_json_value(path, most)
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds something else than a JSON object, it is corrupt")
    return value


def check_writable(folder: Path) -> None:
    """Raise InputError if files cannot be written to a folder, or to the nearest one above it that exists."""
    with writing(folder):
        nearest = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
        if not nearest.is_dir():
            raise InputError(f"{nearest}: is a file; give the name of a folder")
        with tempfile.TemporaryFile(dir=nearest, suffix=_WRITING) as file:
            file.write(bytes(4096))


def check_writable_file(path: Path) -> None:
    """Raise InputError if a file cannot be written to this place."""
    if not path.name or path.is_dir():
        raise InputError(f"{path}: is a folder; give the name of a file")
    check_writable(path.parent)
