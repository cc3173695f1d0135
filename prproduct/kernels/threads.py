"""On which threads passes run: torch's own, or ours, and on how many of them.

Passes release the GIL. They run on torch's own threads, asked for through its OpenMP: these are awake, and no more than
the user allowed. Where that is not found, and in forked children, a small pool of ours serves.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

_SMALL = 2**16  # numbers below which another thread costs more than it saves, and
_SMALL_FOR_OURS = 2**19  # those below which a thread of our own does
_LONG = 2**23  # numbers that take longer than torch's threads wait for more work


def threads_for(numbers: int, pieces: int) -> int:
    """As many as torch uses, where there are numbers enough, and no more than there are pieces to share out.

    Torch's threads go on spinning for a while after each operation. They take work at once; threads of our own would
    wait for their cores: two took as long as one (4.0 and 4.2 ms for 2²¹ pairs). So only as many as have cores left.
    """
    if numbers < _SMALL:
        return 1
    threads = torch.get_num_threads()
    if openmp() is None and numbers < _LONG:
        threads = 1 if numbers < _SMALL_FOR_OURS else min(threads, 1 + max(0, _cores() - threads))
    return max(1, min(threads, pieces))


def team() -> tuple[int, bool]:
    """All that `threads_for` goes by, beside numbers and pieces: how many torch uses, and whether
    this is a forked child."""
    return torch.get_num_threads(), _forked


def openmp() -> tuple[Any, int, int, int] | None:
    """What runs a function on the threads of torch's own OpenMP, and where a thread finds its number, their count, and
    a barrier at which it waits for the others.

    None where it cannot be found, and in a forked child.
    """
    return None if _forked else _addresses_of_openmp()


@functools.cache
def _addresses_of_openmp() -> tuple[Any, int, int, int] | None:
    folder = Path(torch.__file__).parent
    patterns = [f"{place}/lib{name}*" for place in ("lib", "../torch.libs") for name in ("gomp", "iomp5", "omp")]
    for path in itertools.chain.from_iterable(folder.glob(pattern) for pattern in patterns):
        try:
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)  # if torch has loaded it
            parallel = library.GOMP_parallel
            others = (library.omp_get_thread_num, library.omp_get_num_threads, library.GOMP_barrier)
        except (OSError, AttributeError):
            continue
        parallel.argtypes, parallel.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint), None
        number, count, barrier = (int(ctypes.cast(f, ctypes.c_void_p).value or 0) for f in others)
        return parallel, number, count, barrier
    return None


@functools.cache
def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_pool: ThreadPoolExecutor | None = None
_forked = False


def pool() -> ThreadPoolExecutor:
    """Threads of our own, for where OpenMP's are not to be had; started when first needed."""
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max_workers=os.cpu_count(), thread_name_prefix="prproduct")
    return _pool


def _forget_threads() -> None:
    """A forked child has the pool and OpenMP's team, but not their threads."""
    global _pool, _forked
    _pool, _forked = None, True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
