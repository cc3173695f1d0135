"""The gradients of `rule.py` by kernels, and when they are used: C++ (`csrc/`) on CPUs, Triton on GPUs.

    is the product built in?                    no  → the rule in plain torch (`rule.py`)
    is this eager mode, without create_graph?   no  → the rule: torch.compile fuses it, autograd and torch.func trace it
    are all tensors ordinary ones on a CPU,     no  → the rule
    or on one GPU and not float64?
    can the library, or Triton, be loaded?      no  → the rule, with one warning that says how to get it
                                                yes → the kernels: one pass over the pairs beside the native backward

The function `serves` makes this decision, for all layers.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _len_torch_dispatch_stack  # private: torch has no public ones
from torch._C._functorch import is_legacy_batchedtensor  # private: no public test for the tensors of is_grads_batched
from torch.compiler import is_compiling

from prproduct.ops import triton_operators
from prproduct.ops.angles import floor_of_sin_square
from prproduct.ops.contractions import Contraction, Convolution, Linear, as_rows
from prproduct.ops.rule import Gradients, Operands
from prproduct.products import BUILT_IN, Product, Tempered

_CPU_DTYPES = {torch.float32, torch.float64, torch.bfloat16, torch.float16}
_GPU_DTYPES = {torch.float32, torch.bfloat16, torch.float16}
_TRITON_DEVICES = ("cuda", "xpu")  # ROCm's devices are called cuda, too
_ORDINARY = (Tensor, torch.nn.Parameter)
_enabled = True


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """A context in which the rule in plain torch computes everything, to compare with."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before


def serves(product: Product, *tensors: Tensor | None) -> bool:
    """True if the kernels compute the gradients of these tensors in the current mode; None is an absent tensor."""
    if (
        not _enabled
        or type(product) not in BUILT_IN  # nor a subclass, which may have gains of its own
        or is_compiling()
        or torch.is_grad_enabled()  # create_graph=True
        or _are_functorch_transforms_active()
        or _len_torch_dispatch_stack()  # a mode wants to see the operations, as FlopCounterMode does
    ):
        return False
    present = [t for t in tensors if t is not None]
    dtype, on_cpu = present[0].dtype, present[0].is_cpu
    for t in present:
        if type(t) not in _ORDINARY or t.is_cpu is not on_cpu or t.dtype is not dtype or t.layout is not torch.strided:
            return False
        if not on_cpu and t.is_neg():  # Triton reads memory, where such a tensor has the negative of its values
            return False
    if any(map(is_legacy_batchedtensor, present)):
        return False
    if on_cpu:
        return dtype in _CPU_DTYPES and library()
    devices = {t.device for t in present}
    return dtype in _GPU_DTYPES and len(devices) == 1 and triton_serves(devices.pop())


@functools.cache
def library() -> bool:
    """True if `torch.ops.prproduct` can be used. The first call loads it, or warns why it cannot."""
    given = os.environ.get("PRPRODUCT_LIBRARY")  # another build, such as that of `make sanitize`
    found = [Path(given)] if given else sorted(Path(__file__).parents[1].glob("_C*.so"))
    try:
        if not found:
            raise OSError("it was not built")
        torch.ops.load_library(found[0])
        missing = {product.name for product in BUILT_IN} - {"p", *torch.ops.prproduct.product_names()}
        if missing:
            raise OSError(f"it has no {', '.join(sorted(missing))}: built from another version")
    except (OSError, RuntimeError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0]
        warnings.warn(
            f"prproduct's C++ kernels cannot be used ({reason}): plain torch serves, slower. To get them, install with "
            "a C++20 compiler: pip install --no-build-isolation prproduct",
            stacklevel=2,
        )
        return False
    return True


@functools.cache
def triton_serves(device: torch.device) -> bool:
    """True if Triton's kernels run on this device. The first call launches one, or warns why it cannot."""
    if device.type not in _TRITON_DEVICES:
        return False
    try:
        triton_operators.try_on(device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton has errors of many kinds for a GPU or a driver that it does not know
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        warnings.warn(
            f"prproduct's Triton kernels cannot be used on {device} ({reason}): plain torch serves, slower. They "
            "need a GPU that Triton supports, and: pip install triton",
            stacklevel=2,
        )
        return False
    return True


def operators_for(t: Tensor) -> Any:
    """The operators (linear_backward, convolution_backward, …) for the device of t."""
    return torch.ops.prproduct if t.is_cpu else triton_operators


def implementation(device: torch.device | str = "cpu") -> str:
    """What computes gradients of built-in products in eager mode: 'C++ kernels', 'Triton kernels' or 'plain torch'."""
    device = torch.device(device)
    if device.type == "cpu":
        return "C++ kernels" if library() else "plain torch"
    return "Triton kernels" if triton_serves(device) else "plain torch"


def gradients(
    contraction: Contraction,
    product: Product,
    operands: Operands,
    grad: Tensor,
    wants_input: bool,
    wants_weight: bool,
) -> Gradients:
    """dX and dW, as `rule.gradients`."""
    input, weight, bias, output = operands
    if output is None:
        output, bias = contraction.native(input, weight, None), None
    operators = operators_for(grad)
    arguments = (*product_arguments(product, grad, contraction.is_convolution), wants_input, wants_weight)
    if isinstance(contraction, Linear):
        rows, vectors = as_rows(input), weight if weight.dim() == 2 else weight.unsqueeze(0)
        bias = bias if bias is None or bias.shape == vectors.shape[:1] else bias.expand(len(vectors))
        tensors = (contraction.as_pairs(grad), rows, vectors, bias, contraction.as_pairs(output))
        results = operators.linear_backward(*tensors, *arguments)
    else:
        geometry = cast(Convolution, contraction).geometry
        results = operators.convolution_backward(grad, input, weight, bias, output, *geometry, *arguments)
    grad_input = results[0].view(input.shape) if wants_input else None
    grad_weight = results[1].view(weight.shape) if wants_weight else None
    return grad_input, grad_weight


def value(contraction: Contraction, product: Product, input: Tensor, weight: Tensor) -> Tensor:
    """The forward of a product that has its own, without the bias, as `rule.value`."""
    p = contraction.native(input, weight, None)
    operators, arguments = operators_for(p), product_arguments(product, p, contraction.is_convolution)
    if isinstance(contraction, Linear):
        tensors = (contraction.as_pairs(p), as_rows(input), torch.atleast_2d(weight))
        return operators.linear_value(*tensors, *arguments).view(p.shape)
    geometry = cast(Convolution, contraction).geometry
    value = operators.convolution_value(p, input, weight, *geometry, *arguments)
    return value if value.stride() == p.stride() else torch.empty_like(p).copy_(value)  # in the native op's layout


def product_arguments(product: Product, output: Tensor, convolution: bool) -> tuple[str, float, float]:
    """The arguments product, parameter and floor of all operators, for p stored in the dtype of `output`."""
    parameter = product.power if isinstance(product, Tempered) else 0.0
    device_type = "cpu" if output.is_cpu else output.device.type
    return product.name, parameter, floor_of_sin_square(output.dtype, device_type, convolution)
