"""When the compiled passes serve, and where they are, loaded when first needed.

They take float32 and float64 on the CPU, in eager mode, while no graph is built; elsewhere plain torch does the same.
Their modules need LLVM, which importing the package must not load, and which some platforms do not have.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _are_functorch_transforms_active, _is_tracing, _len_torch_dispatch_stack
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

_switched_on = True
_DTYPES = {torch.float32, torch.float64}
_ORDINARY = (Tensor, torch.nn.Parameter)
_STRIDED = torch.strided


@contextlib.contextmanager
def switched_off() -> Iterator[None]:
    """Plain torch everywhere, to compare with."""
    global _switched_on
    _switched_on = False
    try:
        yield
    finally:
        _switched_on = True


def serves(*tensors: Tensor | None) -> bool:
    """Whether these are what the kernels take, here and now; None stands for a tensor that is not there."""
    first = tensors[0]
    if (
        first is None
        or not _switched_on
        or is_grad_enabled()
        or is_compiling()
        or _are_functorch_transforms_active()
        or _len_torch_dispatch_stack()  # somebody records the operations
        or forward_ad._current_level >= 0
        or is_legacy_batchedtensor(first)  # is_grads_batched=True
        or _is_tracing()  # torch.jit.trace: sizes are tensors
    ):
        return False
    dtype = first.dtype
    if dtype not in _DTYPES:
        return False
    try:
        for t in tensors:  # in one loop: it runs before every small layer's backward, and its names are few for that
            if t is not None and not (
                t.dtype is dtype
                and type(t) in _ORDINARY
                and t.is_cpu
                and t.layout is _STRIDED
                and not t.is_neg()
                and not t._is_zerotensor()  # a view of one has an address, if not that of memory
                and not t.is_nested
                and t.data_ptr()  # nothing is there if it is empty
            ):
                return False
    except RuntimeError:  # what torch.func has left behind has no memory of its own
        return False
    return passes() is not None


@functools.cache
def passes() -> Any:
    """The kernels, loaded when first needed; None on platforms that have no LLVM."""
    try:
        from prproduct.kernels import passes
    except ImportError:
        return None
    return passes


@functools.cache
def program_passes() -> Any:
    """What performs a product's program."""
    from prproduct.kernels import program_passes

    return program_passes


@functools.cache
def convolution_passes() -> Any:
    """Those of convolutions."""
    from prproduct.kernels import convolution_passes

    return convolution_passes


@functools.cache
def pointwise_passes() -> Any:
    """Those of convolutions of single places."""
    from prproduct.kernels import pointwise_passes

    return pointwise_passes


@functools.cache
def channels_last_passes() -> Any:
    """Those of convolutions with channels last."""
    from prproduct.kernels import channels_last_passes

    return channels_last_passes


@functools.cache
def depthwise_passes() -> Any:
    """Those of depthwise convolutions."""
    from prproduct.kernels.depthwise import passes

    return passes


@functools.cache
def depthwise_split() -> Any:
    """What these call for a plane's pairs."""
    from prproduct.kernels.depthwise import split

    return split


@functools.cache
def depthwise_moves() -> Any:
    """What they call to move numbers and to add them up."""
    from prproduct.kernels.depthwise import moves

    return moves


@functools.cache
def lstm() -> Any:
    """The kernels of LSTM's step."""
    from prproduct.kernels import lstm

    return lstm


@functools.cache
def gru() -> Any:
    """Those of GRU's and RNN's."""
    from prproduct.kernels import gru

    return gru
