"""What the profiler tells of a step: how many bytes its forward keeps, and by which implementation its backward ran.

Bytes are counted where memory is handed out: the profiler sees every allocation of torch and every release. What is
still there after forward, when all is dropped but the graph, is what the graph keeps; a tensor that hides from
saved-tensor hooks is counted like any other, and memory that two nodes share is counted once. Parameters and
buffers were there before.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile


def kept_bytes(forward: Callable[[Tensor], Tensor], inputs: Tensor) -> int:
    """Bytes that stay allocated for backward, the input's among them if they are kept.

    >>> import torch
    >>> layer = torch.nn.Linear(3, 2, bias=False)
    >>> kept_bytes(layer, torch.ones(5, 3))  # the input: 5·3 numbers of 4 bytes
    60
    >>> kept_bytes(lambda x: x * layer.weight[0, 0].detach(), torch.ones(5, 3, requires_grad=True))
    0
    """
    forward(inputs.clone()).sum().backward()  # once: what that allocates may stay
    gc.collect()
    if inputs.is_cuda:  # where torch counts every byte itself
        before = torch.cuda.memory_allocated(inputs.device)
        graph = _run(forward, inputs)
        gc.collect()
        return torch.cuda.memory_allocated(inputs.device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or it writes to stderr that it starts and stops
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        graph = _run(forward, inputs)
        gc.collect()
    del graph
    return sum(event.self_cpu_memory_usage for event in profiler.events())


def _run(forward: Callable[[Tensor], Tensor], inputs: Tensor) -> object:
    # The forward gets a copy that nobody else holds: a leaf would be kept by its own accumulated gradient.
    return forward(inputs.clone()).grad_fn


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
