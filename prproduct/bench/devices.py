"""The device of a bench: how a step is timed there, and how much memory it takes at most."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from prproduct.bench.timing import Step
from prproduct.lab.errors import InputError

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
