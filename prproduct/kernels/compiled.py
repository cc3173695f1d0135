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
from torch import Tensor
from torch.autograd import forward_ad

_switched_on = True
_DTYPES = {torch.float32, torch.float64}
_ORDINARY = (Tensor, torch.nn.Parameter)


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
        or first.dtype not in _DTYPES
        or not _switched_on
        or torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()  # somebody records the operations
        or forward_ad._current_level >= 0
    ):
        return False
    dtype, plain, keys_of = first.dtype, _plain_keys(), torch._C._dispatch_keys
    for t in tensors:  # in one loop: it runs before every small layer's backward
        if t is not None and (
            t.dtype is not dtype or type(t) not in _ORDINARY or keys_of(t).raw_repr() != plain or t.numel() == 0
        ):
            return False
    return passes() is not None


@functools.cache
def _plain_keys() -> int:
    """Of a tensor whose memory is what it says: on the CPU, dense, neither negated nor zero by a flag, nor wrapped."""
    with torch.inference_mode(False):
        return torch._C._dispatch_keys(torch.empty(0, device="cpu")).raw_repr()


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
