"""Which implementation a backward really ran by: read off the profiler, not off what should serve."""

from __future__ import annotations

import os
from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

NATIVE_OPS, PLAIN, INDUCTOR = "C++", "plain torch", "inductor"


def path_of(step: Callable[[], object], compiled: bool = False) -> str:
    """The implementation that one step's backward ran by; `compiled` if the step is torch.compile's.

    >>> import torch, prproduct as pr
    >>> layer, x = pr.nn.Linear(3, 2), torch.ones(4, 3)
    >>> path_of(lambda: layer(x).sum().backward())
    'C++'
    """
    if compiled:
        step()
        return INDUCTOR
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or it writes to stderr that it starts and stops
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    return NATIVE_OPS if any(event.name.startswith("prproduct::") for event in profiler.events()) else PLAIN
