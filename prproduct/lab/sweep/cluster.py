"""Sweep workers as tasks of a Ray cluster, whose machines must all see the folder of the runs under the same path."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

import torch

from prproduct.lab.errors import InputError
from prproduct.lab.sweep.jobs import DIED, FAILED, STOPPED, Ending, Job, attempt


class Cluster:
    """As many jobs at once as the cluster has CPUs and GPUs for, now and when it grows; at most `places`.

    If the program is connected to a cluster already, that connection is used and left open.
    """

    def __init__(self, address: str | None, *, threads: int, gpus: float | None = None, places: int | None = None):
        self._ray, self._ours = _connected(address)
        has = self._ray.cluster_resources()
        self.threads, self.places = threads, places
        self.gpus = float(has.get("GPU", 0) > 0) if gpus is None else gpus
        # Without Ray's own retries: `sweep` knows which errors are worth another attempt.
        options = {"num_cpus": threads, "num_gpus": self.gpus, "max_retries": 0}
        self._attempt = self._ray.remote(**options)(_attempt_in_worker)
        self._running: dict[Any, Job] = {}

    def __str__(self) -> str:
        has = self._ray.cluster_resources()
        line = f"Ray cluster of {has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs"
        line += f", a run takes {self.threads} and {self.gpus:g}"
        return line if self._fitting() else f"{line}: they wait until a machine with so many joins it"

    def room(self) -> bool:
        most = max(1, self._fitting())  # at least one is queued, so that a cluster can grow
        return len(self._running) < (most if self.places is None else min(most, self.places))

    def start(self, job: Job) -> None:
        self._running[self._attempt.remote(job, self.threads, sys.argv)] = job

    def ended(self, seconds: float) -> list[tuple[Job, Ending]]:
        if not self._running:
            return []
        done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        return [(self._running.pop(reference), self._ending(reference)) for reference in done]

    def ask_to_stop(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference)  # raises KeyboardInterrupt in the worker

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running = {}
        if self._ours:
            self._ray.shutdown()

    def _fitting(self) -> int:
        has = self._ray.cluster_resources()
        by_gpus = [int(has.get("GPU", 0) / self.gpus)] if self.gpus else []
        return min(int(has.get("CPU", 0) / self.threads), *by_gpus, sys.maxsize)

    def _ending(self, reference: Any) -> Ending:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.TaskCancelledError:
            return Ending(STOPPED)
        except errors.RayTaskError as error:  # before `attempt` was called: prproduct may be missing on that machine
            return Ending(FAILED, str(error).strip())
        except errors.RayError as error:
            said = str(error).strip().splitlines() or [""]
            return Ending(DIED, f"its worker died ({type(error).__name__}: {said[0]})")


def _attempt_in_worker(job: Job, threads: int, command: Sequence[str]) -> Ending:
    sys.argv = list(command)  # recorded in config.json
    torch.set_num_threads(threads)
    return attempt(job)


def _connected(address: str | None) -> tuple[Any, bool]:
    """Return the ray module, connected, and True if this call connected it.

    The cluster is that of `address`, of $RAY_ADDRESS, of this machine, or else a new one on this machine.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage statistics
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError("--ray needs ray, which is not installed: pip install 'prproduct[ray]'") from None
    if ray.is_initialized():
        return ray, False
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"Ray at {address or 'this machine'}: cannot be reached ({said})") from None
    return ray, True
