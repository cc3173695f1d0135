"""On what is measured: the machine of a figure, the device, how a step is timed there and what memory it takes."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from prproduct.bench.timing import Step
from prproduct.lab.errors import InputError


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


_CACHE = 2**28  # bytes, more than the second-level cache of any GPU so far


def checked(name: str) -> torch.device:
    """The device of this name, if it is there.

    >>> checked("cpu")
    device(type='cpu')
    >>> checked("gpu")
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


def made_on(device: torch.device) -> AbstractContextManager[object]:
    """Tensors and modules made inside lie on this device."""
    return nullcontext() if device.type == "cpu" else device


class CudaTimer:
    """Times steps by CUDA's events, with the second-level cache overwritten before each."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cache = torch.empty(_CACHE, dtype=torch.int8, device=device)

    def __call__(self, step: Step) -> float:
        """Seconds of a step, kernels and the gaps between them that Python's work leaves."""
        with torch.cuda.device(self.device):
            step.prepare()
            self.cache.zero_()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            step()
            end.record()
            end.synchronize()
        return start.elapsed_time(end) / 1e3


def timer_of(device: torch.device) -> Callable[[Step], float] | None:
    """The timer of a GPU; None on a CPU, where `take_turns` has its clock."""
    return CudaTimer(device) if device.type == "cuda" else None


def peak_bytes(step: Step, device: torch.device) -> int | None:
    """Bytes that one step allocates at most beside those that were there before; None where torch does not tell."""
    if device.type != "cuda":
        return None
    step.prepare()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
