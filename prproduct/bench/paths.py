"""Which implementation a backward really ran by: read off the profiler, not off what should serve."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

NATIVE_OPS, TRITON, PLAIN, INDUCTOR = "C++", "Triton", "plain torch", "inductor"


def path_of(step: Callable[[], object], compiled: bool = False) -> str:
    """The implementation that one step's backward ran by; `compiled` if the step is torch.compile's.

    >>> import prproduct as pr
    >>> layer, x = pr.nn.Linear(3, 2), torch.ones(4, 3)
    >>> path_of(lambda: layer(x).sum().backward())
    'C++'
    """
    if compiled:
        step()
        return INDUCTOR
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or it writes to stderr that it starts and stops
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities) as profiler:
        step()
    names = [event.name for event in profiler.events()]
    if any(name.startswith("prproduct_") for name in names):  # kernels of triton_kernels.py
        return TRITON
    return NATIVE_OPS if any(name.startswith("prproduct::") for name in names) else PLAIN
