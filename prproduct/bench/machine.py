"""On what a figure was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Machine:
    """What a reader needs to know in order to compare."""

    torch: str
    cpu: str
    cores: int
    load: float | None  # processes that wanted to run in the last minute, where the system tells
    commit: str | None  # None if this is no checkout
    gpu: str | None = None  # its name, capability and memory, where it was measured on one

    @classmethod
    def here(cls, device: str = "cpu") -> Machine:
        """This one, now, and the GPU that the device is."""
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        return cls(torch.__version__, _cpu(), os.cpu_count() or 1, load, _commit(), _gpu(torch.device(device)))

    def __str__(self) -> str:
        load = "" if self.load is None else f", load average {self.load:.1f}"
        commit = "" if self.commit is None else f", commit {self.commit}"
        gpu = "" if self.gpu is None else f"{self.gpu}, "
        return f"torch {self.torch}, {gpu}{self.cpu}, {self.cores} cores{load}{commit}"


def waiting_seconds() -> float | None:
    """How long this process's threads, all together, have been ready to run without a core; None off Linux."""
    statistics = [path.read_text().split() for path in Path("/proc/self/task").glob("*/schedstat")]
    return sum(int(nanoseconds) for _, nanoseconds, _ in statistics) / 1e9 if statistics else None


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _gpu(device: torch.device) -> str | None:
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    capability = f"{properties.major}.{properties.minor}"
    return f"{properties.name} (capability {capability}, {properties.total_memory / 2**30:.0f} GiB)"


def _commit() -> str | None:
    """Of the checkout that this file belongs to; an installed package may lie inside somebody else's."""
    here = Path(__file__)
    commands = [["ls-files", "--error-unmatch", here.name], ["describe", "--always", "--dirty", "--exclude=*"]]
    try:
        results = [subprocess.run(["git", *c], cwd=here.parent, capture_output=True, text=True) for c in commands]
    except OSError:  # no git
        return None
    return None if any(result.returncode for result in results) else results[-1].stdout.strip()
