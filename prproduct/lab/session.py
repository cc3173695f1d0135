"""`train_task`: starts the processes, opens the folder of a run, runs the training loop, and closes the folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed

from prproduct.lab import runs
from prproduct.lab.engine import Settings, Task, TrainingLoop
from prproduct.lab.environment import environment
from prproduct.lab.errors import InputError
from prproduct.lab.files import replace_durably
from prproduct.lab.hardware import Hardware, gathered, in_all, in_first, reproducible, threads_set
from prproduct.lab.progress import NoTrainingProgress
from prproduct.lab.runs import Run
from prproduct.lab.stopping import StopSignals

if TYPE_CHECKING:
    from lightning_fabric import Fabric

_GONE = (
    "closed by peer",
    "closed by remote peer",
    "connection reset",
    "broken pipe",
    "socket closed",
    "closed the connection",
    "connection was likely closed",
    "remote process exit",
)


def train_task(
    make: Callable[[Fabric], Task],
    folder: str | Path,
    identity: Mapping[str, Any],
    settings: Settings,
    *,
    resume: bool,
    restart: bool = False,
    places: Mapping[str, Path | str | None] | None = None,
    files: Mapping[str, bytes] | None = None,
    hardware: Hardware | None = None,
    precision: str = "32",
    progress: NoTrainingProgress | None = None,
    summary: Callable[[], str],
) -> Path:
    """Train the task that `make` returns, unless its run is finished, and return the run's folder.

    `make` raises InputError for what cannot be trained, before anything is written. `places` are the paths of its data
    by the names of the command's options, recorded for `--resume`; `files` are stored in the run's folder by name. With
    several devices, or under `torchrun`, every process calls this function; only the first one writes.
    """
    opened: list[Run] = []  # in the first process

    def open_run() -> bool:
        where = {
            **environment(),
            "hardware": {"device": str(fabric.device), "processes": fabric.world_size},
            "places": {name: _absolute(place) for name, place in (places or {}).items() if place is not None},
        }
        run = Run.open(folder, identity, where, resume=resume, restart=restart)
        opened.append(run)
        for name, content in (files or {}).items():
            if restart or not (run.folder / name).exists():
                replace_durably(run.folder / name, content)
        return runs.read(folder).finished

    hardware = hardware or Hardware()
    connected_before = torch.distributed.is_available() and torch.distributed.is_initialized()
    # Signal handlers first: a signal while processes are being started must not orphan them.
    with StopSignals() as stop, threads_set(hardware.threads):
        fabric = hardware.start(precision)
        try:
            with reproducible(fabric), _one_line_for_a_dead_process(fabric, folder):
                _check_same_in_all(fabric, identity)
                task = in_all(fabric, lambda: make(fabric))
                if not in_first(fabric, open_run):
                    run = opened[0] if opened else None
                    shown = progress if opened and progress else NoTrainingProgress()
                    TrainingLoop(task, fabric, run, settings, shown, stop).train()
            if opened and progress:
                progress.say(summary())
            if fabric.world_size > 1 and not connected_before:
                torch.distributed.destroy_process_group()  # else gloo's threads may abort the process as it exits
        finally:
            for run in opened:
                run.close()
    return Path(folder)


@contextmanager
def _one_line_for_a_dead_process(fabric: Fabric, folder: str | Path) -> Iterator[None]:
    """Turn the error of a lost connection to another process into one line, shown by the first process."""
    try:
        yield
    except (RuntimeError, torch.distributed.DistError) as error:
        lost = _lost_connection(error)
        if fabric.world_size == 1 or lost is None:
            raise
        if not fabric.is_global_zero:
            raise SystemExit(1) from None
        raise InputError(
            f"another process of this training has died ({lost}); resume with --resume --run-dir {folder}"
        ) from None


def _lost_connection(error: Exception) -> str | None:
    """Return the line in which gloo, NCCL or torch's TCPStore says that the other side is gone, or None."""
    return next((line for line in str(error).splitlines() if any(words in line.lower() for words in _GONE)), None)


def _check_same_in_all(fabric: Fabric, identity: Mapping[str, Any]) -> None:
    """Raise InputError if processes were given different options: those of --resume come from a folder."""
    if len(set(gathered(fabric, [json.dumps(identity, sort_keys=True)]))) > 1:
        if not fabric.is_global_zero:
            raise SystemExit(2)
        raise InputError(
            "the processes of this training have different options; where they do not all see the run's folder, give "
            "all options with --resume, too"
        )


def _absolute(place: Path | str) -> str:
    """Return an absolute path; a string, such as the name of an embedded data set, unchanged."""
    return str(place.absolute()) if isinstance(place, Path) else place
