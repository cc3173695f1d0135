"""The machine and the device on which a run was measured."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from prproduct.lab.environment import commit
from prproduct.lab.errors import InputError


@dataclass(frozen=True)
class Machine:
    """What a reader must know to compare two runs: torch, processor, load and commit."""

    torch: str
    cpu: str
    cores: int
    load: float | None  # the load average of the last minute; None where the system has none
    commit: str | None  # with + if files were changed since; None for an installed package
    gpu: str | None = None  # name, capability and memory; None if the device is the CPU

    @classmethod
    def here(cls, device: str = "cpu") -> Machine:
        """Return this machine with its current load, and the GPU if `device` is one."""
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        return cls(torch.__version__, _cpu(), os.cpu_count() or 1, load, commit(), _gpu(torch.device(device)))

    def __str__(self) -> str:
        load = "" if self.load is None else f", load average {self.load:.1f}"
        at_commit = "" if self.commit is None else f", commit {self.commit[:7]}{self.commit[40:]}"
        gpu = "" if self.gpu is None else f"{self.gpu}, "
        return f"torch {self.torch}, {gpu}{self.cpu}, {self.cores} cores{load}{at_commit}"


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


def check_device(name: str) -> torch.device:
    """Return the device of this name; InputError if it is unknown or not on this machine.

    >>> check_device("cpu")
    device(type='cpu')
    >>> check_device("gpu")
    Traceback (most recent call last):
    prproduct.lab.errors.InputError: --device gpu: unknown; there are cpu, cuda, cuda:1, …
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"--device {name}: unknown; there are cpu, cuda, cuda:1, …") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device {name}: times are taken on cpu and cuda only")
    if device.type == "cuda" and not (device.index or 0) < torch.cuda.device_count():
        raise InputError(f"--device {name}: torch finds {torch.cuda.device_count()} CUDA devices here")
    return device
