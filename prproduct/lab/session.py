"""A training from the opening of its run's folder to the closing: what every task does around the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning_fabric import Fabric

from prproduct.lab import runs
from prproduct.lab.engine import Settings, Task, fit
from prproduct.lab.environment import environment
from prproduct.lab.hardware import Hardware, in_first, reproducible
from prproduct.lab.progress import Silent
from prproduct.lab.runs import Run
from prproduct.lab.stopping import StopSignals


def train_task(
    make: Callable[[Fabric], Task],
    folder: str | Path,
    identity: Mapping[str, Any],
    settings: Settings,
    *,
    resume: bool,
    hardware: Hardware | None = None,
    precision: str = "32",
    progress: Silent | None = None,
    summary: Callable[[], str],
) -> Path:
    """Train what `make` gives in the folder of the run of this identity, unless that is finished; the folder.

    With several devices, or under `torchrun`, every process calls it; the first one writes.
    """
    opened: list[Run] = []  # in the first process

    def open_run() -> bool:
        where = {**environment(), "hardware": {"device": str(fabric.device), "processes": fabric.world_size}}
        opened.append(Run.open(folder, identity, where, resume=resume))
        return runs.read(folder).finished

    with StopSignals() as stop:  # before there are other processes: a signal to the first must not leave them alone
        fabric = (hardware or Hardware()).start(precision)
        finished = in_first(fabric, open_run)
        try:
            if not finished:
                with reproducible(fabric):
                    fit(
                        make(fabric),
                        fabric,
                        opened[0] if opened else None,
                        stop,
                        settings,
                        progress if opened else None,
                    )
            if opened and progress:
                progress.say(summary())
        finally:
            for run in opened:
                run.close()
    return Path(folder)
