"""The rule compiled by itself: one fused pass where eager mode would make ten, on devices without a kernel of ours.

On a GPU in eager mode each of the rule's operations would go through memory. So `splitting.split` alone is handed to
torch.compile, once for each product; the model around it stays as it is. On the CPU the compiled passes serve, and the
rule is compiled only inside `on_any_device`, to test as much of this as a CPU can show.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from prproduct.kernels import splitting
from prproduct.kernels.pairs import Norms, Pairs, WeightVectors
from prproduct.kernels.splitting import Half
from prproduct.products import Product

_devices = ["cuda"]
_broken = False


@contextlib.contextmanager
def on_any_device() -> Iterator[None]:
    """Also where plain torch or the compiled passes would serve."""
    _devices.append("cpu")
    try:
        yield
    finally:
        _devices.remove("cpu")


def serves(product: Product, grad: Tensor) -> bool:
    """Whether the rule may be compiled: for products that promise to be elementwise, in eager mode, without a graph."""
    return (
        grad.device.type in _devices
        and product.elementwise
        and not _broken
        and not torch.compiler.is_compiling()
        and not torch.is_grad_enabled()
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
        and type(grad) is Tensor
        and grad.numel() > 0
    )


def split(product: Product, pairs: Pairs, grad: Tensor) -> tuple[Half, Half]:
    """`splitting.split`, fused; in plain torch, with one warning, where torch.compile cannot do it."""
    global _broken
    weight = pairs.weight
    numbers = (pairs.output, weight.offset, *weight.norms, *pairs.input, grad)
    try:
        return _fused(product, weight.stored, weight.convolution)(*numbers)
    except Exception as error:  # whatever a missing or broken compiler raises
        _broken = True
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        warnings.warn(f"prproduct's rule could not be compiled ({reason}): plain torch serves, slower", stacklevel=2)
        return splitting.split(product, pairs, grad)


@functools.lru_cache(maxsize=64)
def _fused(product: Product, stored: torch.dtype, convolution: bool) -> Callable[..., tuple[Half, Half]]:
    def rule(
        output: Tensor,
        offset: Tensor | None,
        weight_norm: Tensor,
        weight_inverse: Tensor,
        input_norm: Tensor,
        input_inverse: Tensor,
        grad: Tensor,
    ) -> tuple[Half, Half]:
        weight = WeightVectors(Norms(weight_norm, weight_inverse), stored, convolution, offset)
        return splitting.split(product, Pairs(output, weight, Norms(input_norm, input_inverse)), grad)

    fused: Any = torch.compile(rule, dynamic=True, fullgraph=True)
    return fused
