"""A run is a folder: its configuration, its records and its checkpoints (docs/runs.md).

`config.json` is written once. `metrics.jsonl` and `angles.jsonl` are append-only; a resumed run first truncates them to
their length at its checkpoint, so that they end as if it had not been stopped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from prproduct.lab.errors import InputError
from prproduct.lab.files import as_json, check_file, read_json, replace_durably, writing
from prproduct.lab.record_files import ANGLES, LARGEST, METRICS, RecordFile, angles_mark, read_metrics

FORMAT = 1
CONFIG, CHECKPOINTS, TENSORBOARD = "config.json", "checkpoints", "tensorboard"
RESULTS = "results"  # what was made with the weights: captions and their scores
# Options that change what is recorded or shown but no number of the training: not part of a run's identity.
HARMLESS = ("angles", "log_every")
_LOCK = ".lock"
_CHECKPOINTED = ".checkpointed"  # exists once a checkpoint was written


class Run:
    """The folder of a run, locked for training by one process."""

    def __init__(self, folder: Path, identity: Mapping[str, Any], lock: FileLock) -> None:
        self.folder, self.identity, self._lock = folder, json.loads(json.dumps(identity)), lock
        self._covered = 0  # bytes of angles.jsonl covered by checksums in metrics.jsonl
        self._follow()

    @classmethod
    def open(
        cls,
        folder: str | Path,
        identity: Mapping[str, Any],
        environment: Mapping[str, Any],
        *,
        resume: bool = False,
        restart: bool = False,
    ) -> Run:
        """Create the folder of a new run, or with `resume` open that of a run with the same identity.

        The identity, a JSON object, is everything that determines the numbers; the environment is recorded only. With
        `resume` a folder that does not exist is created. With `restart` the records, checkpoints and results of the
        run are removed, and a run of another identity is replaced if it never had a checkpoint.
        """
        folder = Path(folder)
        path = folder / CONFIG
        with writing(folder):
            if folder.exists() and not folder.is_dir():
                raise InputError(f"{folder}: is a file; a run is a folder")
            if path.exists():
                # The mark is hidden: it is lost where a run is copied without hidden files.
                if not restart or (folder / _CHECKPOINTED).exists() or any((folder / CHECKPOINTS).glob("step-*")):
                    refuse_another(folder, identity)
                if not resume and not restart:
                    raise InputError(
                        f"{folder}: holds this run already; give --resume to go on, --restart to train it from the "
                        "start, or another folder"
                    )
            elif others := _visible(folder):
                raise InputError(f"{folder}: is no run and not empty, it holds {others[0]}; choose another folder")
            folder.mkdir(parents=True, exist_ok=True)
            lock = _locked(folder)
            if restart:
                _remove_results(folder)
            if restart or not path.exists():
                replace_durably(path, as_json({"format": FORMAT, **identity, "environment": dict(environment)}))
        return cls(folder, identity, lock)

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl and fsync it.

        The line ends with a checksum of the file up to it. If angles were recorded since the last line, it also has the
        length and the checksum of angles.jsonl.
        """
        self._angles.read_on()
        if self._angles.bytes > self._covered:
            self._covered = self._angles.bytes
            record = {**record, "angles": {"bytes": self._angles.bytes, "checksum": self._angles.checksum()}}
        body = json.dumps(record, ensure_ascii=False, allow_nan=False)
        self._metrics.append(f'{body[:-1]}, "checksum": "{self._metrics.checksum(body.encode())}"}}\n'.encode())

    def records(self) -> dict[str, dict[str, Any]]:
        """Fsync both record files, and return their lengths and checksums for a checkpoint."""
        found = {}
        for file in (self._metrics, self._angles):
            file.append()
            file.read_on()
            found[file.path.name] = {"bytes": file.bytes, "checksum": file.checksum()}
        return found

    def check(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise InputError if the record files do not start with their content at a checkpoint. Writes nothing."""
        for name in (METRICS, ANGLES):
            path, known = self.folder / name, records.get(name, {"bytes": 0})
            size = check_file(path, LARGEST[name]) if os.path.lexists(path) else 0
            if size < known["bytes"]:
                raise InputError(
                    f"{path}: has {size} bytes, at the last checkpoint it had {known['bytes']}; records are lost; "
                    "bring the file back, or give --restart to train from the start"
                )
            found = RecordFile(path)
            found.read_on(known["bytes"])
            if known["bytes"] and found.checksum() != known["checksum"]:
                raise InputError(
                    f"{path}: was changed since the last checkpoint was written; bring the file back, or give "
                    "--restart to train from the start"
                )

    def cut(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Check the record files, and truncate them to their length at a checkpoint."""
        self.check(records)
        for name in (METRICS, ANGLES):
            path, length = self.folder / name, records.get(name, {"bytes": 0})["bytes"]
            if path.exists() and path.stat().st_size > length:
                with writing(path):
                    os.truncate(path, length)
        self._follow()

    def checkpointed(self) -> None:
        """Note that a checkpoint was written."""
        with writing(self.folder):
            (self.folder / _CHECKPOINTED).touch()

    def refuse_lost_checkpoints(self) -> None:
        """Raise InputError for a run that had checkpoints and has none now: it must not start again silently."""
        place = self.folder / CHECKPOINTS
        if place.is_dir() or not os.path.lexists(place):
            later = any(record.get("epoch", 0) > 0 for record in read(self.folder).metrics)
            if not later and not (self.folder / _CHECKPOINTED).exists():
                return
            what = "the run had checkpoints, and none is there"
        else:
            what = "is a link that leads nowhere" if place.is_symlink() else "is not a folder"
        raise InputError(f"{place}: {what}; bring them back, or give --restart to train from the start")

    def _follow(self) -> None:
        """Compute the checksums of the files so far."""
        self._metrics, self._angles = (RecordFile(self.folder / name) for name in (METRICS, ANGLES))
        marks = [mark["bytes"] for line in read_metrics(self._metrics) if (mark := angles_mark(line))]
        self._covered = marks[-1] if marks else 0


@dataclass(frozen=True)
class Record:
    """The content of a run's folder, for reports and sweeps.

    >>> record = Record(Path("runs/a"), {"config": {"seed": 0}}, ({"event": "step", "step": 1, "loss": 2.5},))
    >>> record.of("step")[0]["loss"], record.finished
    (2.5, False)
    """

    folder: Path
    config: Mapping[str, Any]  # all of config.json
    metrics: tuple[Mapping[str, Any], ...]

    def of(self, event: str) -> list[Mapping[str, Any]]:
        """Return the records of an event, in order."""
        return [record for record in self.metrics if record["event"] == event]

    @property
    def finished(self) -> bool:
        """True if it was trained to the end."""
        return bool(self.of("end"))

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that determines the run's numbers."""
        return {key: value for key, value in self.config.items() if key not in ("format", "environment")}


def read(folder: str | Path) -> Record:
    """Read a run, also while it is being trained: an incomplete last line is left out.

    InputError for a line that does not match its checksum.
    """
    folder = Path(folder)
    if not os.path.lexists(folder / CONFIG):
        raise InputError(f"{folder / CONFIG}: no such file; give the folder of a run")
    return Record(folder, read_json(folder / CONFIG), tuple(read_metrics(RecordFile(folder / METRICS))))


def folder_name(product: str) -> str:
    """Return the name of a product in the names of folders.

    >>> folder_name("tempered:0.5")
    'tempered-0.5'
    """
    return product.replace(":", "-")


def read_config(folder: str | Path) -> Record:
    """Read a run without its records, which may be unreadable."""
    return Record(Path(folder), read_json(Path(folder) / CONFIG), ())


def refuse_another(folder: str | Path, identity: Mapping[str, Any]) -> None:
    """Raise InputError, naming the difference, if the folder holds a run of another identity."""
    path = Path(folder) / CONFIG
    if not path.exists():
        return
    there = {key: value for key, value in read_json(path).items() if key != "environment"}
    if differs := difference(there, {"format": FORMAT, **identity}):
        raise InputError(f"{path.parent}: belongs to another configuration: {differs}; choose another folder")


def difference(there: Any, here: Mapping[str, Any]) -> str | None:
    """Return the first setting in which two identities differ, in words; None if only `HARMLESS` options differ.

    >>> difference({"config": {"seed": 0, "angles": 5}}, {"config": {"seed": 1, "angles": 0}})
    'seed is 0 there and 1 here'
    """
    old, new = _flat(there), _flat(json.loads(json.dumps(here)))
    for key in sorted(old.keys() | new.keys()):
        if key.rsplit(".", 1)[-1] not in HARMLESS and old.get(key) != new.get(key):
            return f"{key.removeprefix('config.')} is {old.get(key)!r} there and {new.get(key)!r} here"
    return None


def _remove_results(folder: Path) -> None:
    """Remove what a training writes and what was made with its weights.

    The mark of checkpoints is the last, so that an interruption is noticed.
    """
    for name in (RESULTS, CHECKPOINTS, TENSORBOARD, METRICS, ANGLES, _CHECKPOINTED):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _visible(folder: Path) -> list[str]:
    """Return the names in a folder that do not begin with a dot, as prproduct's temporary names do."""
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
    """Return nested objects as one, with dots in the keys."""
    if not isinstance(value, dict):
        return {prefix: value}
    return {
        key: leaf for name, inner in value.items() for key, leaf in _flat(inner, f"{prefix}.{name}".lstrip(".")).items()
    }
