"""Where torch's own matrix product is, for passes to call: BLAS's gemm in the library that torch has loaded.

Called by each thread of a team for its share, it runs on that thread alone: MKL sees that it is inside a team.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Any

import torch

_NAMES = {4: "sgemm_", 8: "dgemm_"}
_REALS = {4: ctypes.c_float, 8: ctypes.c_double}


@functools.cache
def gemm(size: int) -> int:
    """Its address for numbers of so many bytes; 0 where it is not to be had, or is not what it should be."""
    if not torch.backends.mkl.is_available():
        return 0
    for path in (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"):
        try:
            function = getattr(ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW), _NAMES[size])
        except (OSError, AttributeError):
            continue
        if _multiplies(function, _REALS[size]):
            return int(ctypes.cast(function, ctypes.c_void_p).value or 0)
    return 0


def _multiplies(function: Any, real: Any) -> bool:
    """(1 2 3)·(4 5 6)ᵀ = 32"""
    a, b, c = (real * 3)(1, 2, 3), (real * 3)(4, 5, 6), real(0)
    one, three, factor = ctypes.c_int64(1), ctypes.c_int64(3), real(1)
    arguments = (b"N", b"N", one, one, three, factor, a, one, b, three, factor, c, one)
    function(*(n if isinstance(n, bytes) else ctypes.byref(n) for n in arguments))
    return bool(c.value == 32)
