"""Memory of a step, and the implementation by which its backward ran.

Saved bytes are counted by torch's profiler, which sees every allocation and release: what is still allocated after
forward, when everything but the graph is dropped, is what the graph keeps. So memory that two nodes share counts once,
and a tensor that saved-tensor hooks do not see counts, too. Parameters and buffers are allocated before.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from prproduct.bench.timing import Step

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # torch's profiler logs its start and stop to stderr otherwise


def kept_bytes(forward: Callable[[Tensor], Tensor], inputs: Tensor) -> int:
    """Return the bytes that stay allocated for backward after `forward(inputs)`, including a saved input.

    >>> import torch
    >>> layer = torch.nn.Linear(3, 2, bias=False)
    >>> kept_bytes(layer, torch.ones(5, 3))  # the input: 5·3 numbers of 4 bytes
    60
    >>> kept_bytes(lambda x: x * layer.weight[0, 0].detach(), torch.ones(5, 3, requires_grad=True))
    0
    """
    forward(inputs.clone()).sum().backward()  # what the first call allocates for good does not count
    gc.collect()
    if inputs.is_cuda:  # its allocator counts bytes
        before = torch.cuda.memory_allocated(inputs.device)
        graph = _run(forward, inputs)
        gc.collect()
        return torch.cuda.memory_allocated(inputs.device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        graph = _run(forward, inputs)
        gc.collect()
    del graph
    return sum(event.self_cpu_memory_usage for event in profiler.events())


def _run(forward: Callable[[Tensor], Tensor], inputs: Tensor) -> object:
    # A copy is freed unless the graph saves it; the leaf itself is always held, by its AccumulateGrad node.
    return forward(inputs.clone()).grad_fn


def peak_bytes(step: Step, device: torch.device) -> int | None:
    """Run a step and return the most bytes it had allocated at once; None on the CPU, where torch counts none."""
    if device.type != "cuda":
        return None
    step.prepare()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


CPP, TRITON, PLAIN, INDUCTOR = "C++", "Triton", "plain torch", "inductor"


def path_of(step: Callable[[], object], compiled: bool = False) -> str:
    """Run a step and return the implementation of its backward; `compiled` if the step is compiled.

    >>> import prproduct as pr
    >>> layer, x = pr.nn.Linear(3, 2), torch.ones(4, 3)
    >>> path_of(lambda: layer(x).sum().backward())
    'C++'
    """
    if compiled:
        step()
        return INDUCTOR
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities) as profiler:
        step()
    names = [event.name for event in profiler.events()]
    if any(name.startswith("prproduct_") for name in names):  # kernels of triton_kernels.py
        return TRITON
    return CPP if any(name.startswith("prproduct::") for name in names) else PLAIN
