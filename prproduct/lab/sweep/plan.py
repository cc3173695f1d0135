"""Options of a sweep: how many runs at once, with how many threads and GPUs each, on this machine or on Ray."""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass

import torch

from prproduct.lab.checks import check_least
from prproduct.lab.errors import InputError
from prproduct.lab.hardware import check_threads, cores
from prproduct.lab.options import option
from prproduct.lab.sweep.jobs import Workers
from prproduct.lab.sweep.pool import Pool

CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class Plan:
    """How many runs at once, and the resources of each.

    >>> Plan(workers=0)
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: workers is 0, it must be at least 1
    """

    workers: int | None = option(
        None, "runs at once; as many as there are cores or GPUs, or as the cluster has room for"
    )
    threads: int | None = option(None, "CPU threads of a run; the cores are divided among the workers, on Ray 1")
    gpus_per_run: float | None = option(None, "1, or a share of one, or 0; a GPU for each if there are any")
    retries: int = option(2, "how often a run whose worker died is tried again")
    ray: bool = option(False, "on a Ray cluster: that of ADDRESS, or of $RAY_ADDRESS, or one started here")

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("retries", 0)):
            check_least(name, getattr(self, name), least)
        check_threads(self.threads)
        if self.gpus_per_run is not None and not 0 <= self.gpus_per_run <= 1:
            raise InputError(f"gpus_per_run is {self.gpus_per_run}, it must be from 0 to 1: a run has one device")

    def check(self, address: str | None = None) -> None:
        """Refuse an address without --ray, and an address where nothing answers: Ray itself would wait for minutes."""
        if address and not self.ray:
            raise InputError(f"{address}: is taken for the address of a Ray cluster, which --ray asks for")
        place = re.fullmatch(r"(?:ray://)?(.+):(\d{1,5})/?", address or os.environ.get("RAY_ADDRESS", ""))
        if not self.ray or not place:
            return
        try:
            socket.create_connection((place[1], int(place[2])), timeout=CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            said = getattr(error, "strerror", None) or str(error)
            remedy = "start a cluster there, or leave out the address to start one on this machine"
            raise InputError(f"Ray at {place[0]}: cannot be reached ({said}); {remedy}") from None

    def open(self, jobs: int, address: str | None = None) -> Workers:
        """Return workers for `jobs` jobs. Finished jobs count, so that a restarted command divides the cores alike."""
        self.check(address)
        if self.ray:
            from prproduct.lab.sweep.cluster import Cluster

            return Cluster(address, threads=self.threads or 1, gpus=self.gpus_per_run, places=self.workers)
        gpus = self._gpus()
        places = self.workers or max(1, min(jobs, cores() // (self.threads or 1), *([len(gpus)] if gpus else [])))
        return Pool(places, self.threads or max(1, cores() // places), gpus)

    def _gpus(self) -> list[str]:
        """Return the GPU of each worker, as CUDA_VISIBLE_DEVICES names it; empty to use none."""
        there = torch.cuda.device_count()
        share = min(there, 1) if self.gpus_per_run is None else self.gpus_per_run
        if share > there:
            raise InputError(f"gpus_per_run is {share:g}, but there is no GPU here")
        names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(there)))).split(",")
        return [name.strip() for name in names[:there]] * int(1 / share) if share else []
