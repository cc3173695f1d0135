"""The record files of a run, metrics.jsonl and angles.jsonl, and the checksums that tell later changes of them.

Both are append-only. A line of metrics.jsonl ends with a checksum of the file up to it, and has the length and the
checksum of angles.jsonl if angles were recorded since the line before.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prproduct.lab.errors import InputError
from prproduct.lab.files import check_file, read_bytes, writing

METRICS, ANGLES = "metrics.jsonl", "angles.jsonl"
LARGEST = {METRICS: 256 << 20, ANGLES: 4 << 30}  # bytes; a hundred times what the longest runs of the paper need
_CHECKSUM = re.compile(rb', "checksum": "([0-9a-f]{16})"}$')


class RecordFile:
    """An append-only file: its path, and the number and the checksum of the bytes that were read or appended so far."""

    def __init__(self, path: Path) -> None:
        self.path, self.bytes, self._sha256 = path, 0, hashlib.sha256()

    def append(self, content: bytes = b"") -> None:
        """Append to the file, and fsync it."""
        with writing(self.path), self.path.open("ab") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        self.count(content)

    def count(self, content: bytes) -> None:
        """Add what follows in the file to the number and the checksum."""
        self.bytes += len(content)
        self._sha256.update(content)

    def read_on(self, until: int | None = None) -> None:
        """Read what was appended to the file since, or up to the length `until`."""
        if not self.path.exists():
            return
        try:
            with self.path.open("rb") as file:
                file.seek(self.bytes)
                while block := file.read(1 << 20 if until is None else min(1 << 20, until - self.bytes)):
                    self.count(block)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be read ({error.strerror or error})") from None

    def checksum(self, more: bytes = b"") -> str:
        """Return the checksum of what was read, followed by `more`."""
        whole = self._sha256.copy()
        whole.update(more)
        return whole.hexdigest()[:16]


def read_metrics(file: RecordFile) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl, each compared with its checksum; `file` counts all whole lines then."""
    path = file.path
    content = read_bytes(path, LARGEST[METRICS]) if os.path.lexists(path) else b""
    records = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            record = json.loads(line)
            known = isinstance(record["event"], str) and isinstance(record.get("step", 0), int)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            known = False
        if not known:
            raise InputError(f"{path}, line {number}: is not a record of a run; the file is corrupt")
        if ends := _CHECKSUM.search(line):
            if file.checksum(line[: ends.start()] + b"}") != ends[1].decode():
                raise InputError(f"{path}, line {number}: it or a line before it was changed since it was written")
            del record["checksum"]
        file.count(line + b"\n")
        records.append(record)
    return records


def check_angles(folder: Path, metrics: Sequence[Mapping[str, Any]]) -> None:
    """Raise InputError if the angles.jsonl in a folder does not match its checksums in the records of metrics.jsonl."""
    path = folder / ANGLES
    size, so_far = check_file(path, LARGEST[ANGLES]), RecordFile(path)
    for line in metrics:
        mark = angles_mark(line)
        if mark is None:
            continue
        if size < mark["bytes"]:
            raise InputError(f"{path}: has {size} bytes, of which {mark['bytes']} were written; records are lost")
        before = so_far.bytes
        so_far.read_on(mark["bytes"])
        if so_far.checksum() != mark.get("checksum"):
            raise InputError(f"{path}, bytes {before} to {so_far.bytes}: were changed since they were written")


def angles_mark(line: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the size and checksum of angles.jsonl that a record of metrics.jsonl has, if it has them."""
    mark = line.get("angles")
    return mark if isinstance(mark, dict) and isinstance(mark.get("bytes"), int) else None
