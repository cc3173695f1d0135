"""A run is a folder: its configuration, its records and its checkpoints (docs/runs.md).

`config.json` says what is trained, and never changes. `metrics.jsonl` and `angles.jsonl` only grow; a resumed run first
cuts them to what they were at its checkpoint, so that they end as if it had never been stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from prproduct.lab.errors import InputError
from prproduct.lab.files import as_json, read_json, replace_durably, writing

FORMAT = 1
CONFIG, METRICS, ANGLES, CHECKPOINTS, TENSORBOARD = (
    "config.json",
    "metrics.jsonl",
    "angles.jsonl",
    "checkpoints",
    "tensorboard",
)
_LOCK = ".lock"


class Run:
    """A run's folder, open for training; one process at a time."""

    def __init__(self, folder: Path, lock: FileLock) -> None:
        self.folder, self._lock = folder, lock

    @classmethod
    def open(
        cls, folder: str | Path, identity: Mapping[str, Any], environment: Mapping[str, Any], *, resume: bool = False
    ) -> Run:
        """Make the folder of a new run, or with `resume` open one of the same identity.

        The identity, a JSON object, is everything that decides the numbers; the environment is where they came to be.
        With `resume` and nothing there, the run begins: whoever is stopped before the first byte resumes as well.
        """
        folder = Path(folder)
        path = folder / CONFIG
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: is a file; a run is a folder")
        if path.exists():
            refuse_another(folder, identity)
            if not resume:
                raise InputError(f"{folder}: holds this run already; give --resume to go on, or another folder")
        elif others := _visible(folder):
            raise InputError(f"{folder}: is no run and not empty, it holds {others[0]}; choose another folder")
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            run = cls(folder, _locked(folder))
            if not path.exists():
                replace_durably(path, as_json({"format": FORMAT, **identity, "environment": dict(environment)}))
        return run

    def close(self) -> None:
        """Let other processes have it."""
        self._lock.release()

    def append(self, record: Mapping[str, Any], file: str = METRICS) -> None:
        """Add a line to the records, and wait until it is on the disk."""
        line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
        path = self.folder / file
        with writing(path), path.open("a", encoding="utf-8") as stream:
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())

    def lengths(self) -> dict[str, int]:
        """How long the growing files are, for a checkpoint; so much of them is on the disk."""
        lengths = {}
        for name in (METRICS, ANGLES):
            path = self.folder / name
            with writing(path), path.open("ab") as stream:
                os.fsync(stream.fileno())
                lengths[name] = stream.tell()
        return lengths

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Cut the growing files to what they were at a checkpoint; lost lines cannot be made up for."""
        for name in (METRICS, ANGLES):
            path, length = self.folder / name, lengths.get(name, 0)
            size = path.stat().st_size if path.exists() else 0
            if size < length:
                raise InputError(f"{path}: has {size} bytes, at the last checkpoint it had {length}; records are lost")
            if size > length:
                with writing(path):
                    os.truncate(path, length)


@dataclass(frozen=True)
class Record:
    """What a run's folder says, for reports and sweeps.

    >>> record = Record(Path("runs/a"), {"config": {"seed": 0}}, ({"event": "step", "step": 1, "loss": 2.5},))
    >>> record.of("step")[0]["loss"], record.finished
    (2.5, False)
    """

    folder: Path
    config: Mapping[str, Any]  # all of config.json
    metrics: tuple[Mapping[str, Any], ...]

    def of(self, event: str) -> list[Mapping[str, Any]]:
        """The records of one kind of event, in order."""
        return [record for record in self.metrics if record["event"] == event]

    @property
    def finished(self) -> bool:
        """Whether it was trained to the end."""
        return bool(self.of("end"))


def read(folder: str | Path) -> Record:
    """Read a run, also one that is being trained: a last line without its end is left out."""
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        raise InputError(f"{folder / CONFIG}: no such file; give the folder of a run")
    config, path = read_json(folder / CONFIG), folder / METRICS
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    records = []
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            record = json.loads(line)
            record["event"]
        except (ValueError, TypeError, KeyError):
            raise InputError(f"{path}, line {number}: is not a record of a run") from None
        records.append(record)
    return Record(folder, config, tuple(records))


def refuse_another(folder: str | Path, identity: Mapping[str, Any]) -> None:
    """Name what differs if the folder holds a run of another identity; a folder without a run is no other's."""
    path = Path(folder) / CONFIG
    if not path.exists():
        return
    there, here = _flat(read_json(path)), _flat({"format": FORMAT, **json.loads(json.dumps(identity))})
    there = {key: value for key, value in there.items() if not key.startswith("environment.")}
    for key in sorted(there.keys() | here.keys()):
        if there.get(key) != here.get(key):
            raise InputError(
                f"{path.parent}: belongs to another configuration: {key.removeprefix('config.')} is "
                f"{there.get(key)!r} there and {here.get(key)!r} here; choose another folder"
            )


def _visible(folder: Path) -> list[str]:
    """What somebody put there; our own names of unfinished things begin with a dot."""
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return [name for name in names if not name.startswith(".")]


def _locked(folder: Path) -> FileLock:
    lock = FileLock(folder / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(f"{folder}: is being trained by another process") from None
    return lock


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested objects as one, with dots in its keys."""
    if not isinstance(value, dict):
        return {prefix: value}
    return {
        key: leaf for name, inner in value.items() for key, leaf in _flat(inner, f"{prefix}.{name}".lstrip(".")).items()
    }
