"""Find the files of a data set on disk, and read those whose checksums are the official ones."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from prproduct.classification.data.sources import LARGEST_ARCHIVE, LARGEST_FILE, File, Layout, Source
from prproduct.lab.errors import InputError
from prproduct.lab.files import check_file

SYSTEM = Path("/usr/share/datasets")  # of Debian's package dataset-fashion-mnist
_UNREADABLE = (OSError, EOFError, zlib.error, tarfile.TarError)  # what truncated and corrupt archives raise


class Found(NamedTuple):
    """The layout that was found, and the folder or archive that holds it."""

    layout: Layout
    place: Path


def cache() -> Path:
    """Return the folder of downloads: prproduct in $XDG_CACHE_HOME, or else in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "prproduct"


def roots(data_dir: str | Path | None = None) -> list[Path]:
    """Return the folders to search, in order: `data_dir`, $PRPRODUCT_DATA, the system's, the cache."""
    given = [Path(folder) for folder in (data_dir, os.environ.get("PRPRODUCT_DATA")) if folder]
    for folder in given:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder; give one that holds data sets (--data-dir or PRPRODUCT_DATA)")
    return [*given, SYSTEM, cache()]


def find(source: Source, data_dir: str | Path | None = None) -> Found | None:
    """Return the first place that holds all files of the data set in one of its layouts, without reading them."""
    for root in roots(data_dir):
        for layout, folder in _folders(source, root):
            if not _absent(layout, folder):
                return Found(layout, folder)
        for layout in source.layouts:
            if layout.archive and os.path.lexists(root / layout.archive):
                return Found(layout, root / layout.archive)
    return None


def find_absent(source: Source, data_dir: str | Path | None = None) -> Path | None:
    """Return the first missing file of a folder that holds others of the data set, or None without such a folder."""
    for root in roots(data_dir):
        for layout, folder in _folders(source, root):
            absent = _absent(layout, folder)
            if 0 < len(absent) < len(layout.train + layout.test):
                return folder / absent[0]
    return None


def read(found: Found, files: tuple[File, ...]) -> list[bytes]:
    """Return the content of `files`; InputError for one that is missing, unreadable, or has another checksum."""
    archived = found.place.name == found.layout.archive
    contents = _from_archive(found, files) if archived else _from_folder(found.place, files)
    for file, (path, content) in zip(files, contents.items(), strict=True):
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if md5 != file.md5:
            raise InputError(
                f"{path}: truncated, corrupt or another file: {len(content):,} bytes with md5 {md5}, "
                f"the official one has {file.md5}; replace or remove it"
            )
    return list(contents.values())


def _folders(source: Source, root: Path) -> Iterator[tuple[Layout, Path]]:
    """Yield the folders in `root` that may hold the data set, `root` itself among them if it has the name of one."""
    for layout in source.layouts:
        itself = [root] if root.resolve().name in layout.folders else []
        for folder in [*itself, *(root / name for name in layout.folders)]:
            yield layout, folder


def _absent(layout: Layout, folder: Path) -> list[str]:
    """Return the names of the files that the folder lacks."""
    return [file.name for file in layout.train + layout.test if not os.path.lexists(_stored(folder, file.name))]


def _stored(folder: Path, name: str) -> Path:
    """Return the path of a file, which may be compressed."""
    packed = folder / f"{name}.gz"
    return packed if os.path.lexists(packed) else folder / name


def _from_folder(folder: Path, files: tuple[File, ...]) -> dict[str, bytes]:
    contents = {}
    for file in files:
        path = _stored(folder, file.name)
        check_file(path, LARGEST_FILE)
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
                contents[str(path)] = stream.read(LARGEST_FILE + 1)
        except _UNREADABLE as error:
            raise InputError(f"{path}: cannot be read, it is truncated or corrupt ({error})") from None
        if len(contents[str(path)]) > LARGEST_FILE:
            raise InputError(
                f"{path}: unpacks to more than {LARGEST_FILE:,} bytes, as no official file does; remove it"
            )
    return contents


def _from_archive(found: Found, files: tuple[File, ...]) -> dict[str, bytes]:
    """Read files directly from the archive: nothing is extracted to disk, so nothing can be left there incomplete."""
    names = [f"{found.layout.folders[0]}/{file.name}" for file in files]
    contents: dict[str, bytes] = {}
    check_file(found.place, LARGEST_ARCHIVE)
    try:
        with tarfile.open(found.place, "r:gz") as archive:
            for member in archive:
                if member.size > LARGEST_FILE:
                    what = f"{member.name} in it has {member.size:,} bytes"
                    raise InputError(f"{found.place}: {what}, as no official file has; remove it")
                stored = archive.extractfile(member) if member.name in names and member.isfile() else None
                if stored:
                    contents[member.name] = stored.read()
    except _UNREADABLE as error:
        raise InputError(f"{found.place}: cannot be read, it is truncated or corrupt ({error})") from None
    if missing := [name for name in names if name not in contents]:
        raise InputError(f"{found.place}: holds no {missing[0]}; it is not the official archive")
    return {f"{found.place}/{name}": contents[name] for name in names}
