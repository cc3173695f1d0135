"""Products as operations: torch's `linear` and convolutions, with the backward of a product (`ops/autograd.py`).

Each takes torch's own arguments plus `product=`, a name or an object from `products.py`. The forward of `p`, `pr`,
`tempered` and `no-*` is torch's, bit for bit, for every dtype, device and option; `r` has its own.

Backward needs p = w·x. With `memory="save"` it takes p from the output, which is saved for it: no new memory where the
next layer saves it too, as BatchNorm and GELU do. With `memory="recompute"` p is computed again from input and weight.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from prproduct.ops.autograd import Memory, apply
from prproduct.ops.contractions import NATIVE_CONVOLUTIONS, Convolution, Linear
from prproduct.products import Product

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear"]


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    product: str | Product = "pr",
    memory: Memory = "save",
) -> Tensor:
    """`torch.nn.functional.linear` under a product (the paper's PR-FC, Equation 12).

    X has the rows x_n of the input, (rows, in); W the rows w_j of the weight, (out, in). For a gradient g of the
    output, (rows, out), and the product's gains L and D for each pair (`pr`: 1 and 1/|sin θ|):

        dW = (D∘g)ᵀ X  +  Σ_n (L − D)·cos θ·g · ‖x_n‖ · w_j/‖w_j‖        (out, in)
        dX = (D∘g) W   +  Σ_j (L − D)·cos θ·g · ‖w_j‖ · x_n/‖x_n‖        (rows, in)

    θ → 0, π: where the angle cannot be resolved in the dtype, 1/|sin θ| counts as 1. Zero vectors count as orthogonal
    to everything. A product that changes ∂/∂w alone, such as `pr-w`, has L = D = 1 in dX.

    >>> import torch, prproduct as pr
    >>> w = torch.tensor([[1.0, 0.0]], requires_grad=True)
    >>> x = torch.tensor([[4.0, 3.0]])
    >>> y = pr.functional.linear(x, w)
    >>> y.item()
    4.0
    >>> y.backward()
    >>> w.grad  # the length gradient (4, 0) is the inner product's; the direction gradient (0, 3) grew to ‖x‖ = 5
    tensor([[4., 5.]])
    """
    if not (isinstance(input, Tensor) and isinstance(weight, Tensor)):
        _refuse(F.linear, input, weight, bias)
    return apply(_LINEAR if weight.dim() > 1 else _SINGLE, input, weight, bias, product, memory)


_LINEAR, _SINGLE = Linear(), Linear(single_weight=True)


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    product: str | Product = "pr",
    memory: Memory = "save",
) -> Tensor:
    """`torch.nn.functional.conv1d` under a product: every window with every kernel of its group.

    >>> import torch, prproduct as pr
    >>> pr.functional.conv1d(torch.ones(1, 2, 5), torch.ones(3, 2, 3), padding="same").shape
    torch.Size([1, 3, 5])
    """
    return _convolve(1, input, weight, bias, stride, padding, dilation, groups, product, memory)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    product: str | Product = "pr",
    memory: Memory = "save",
) -> Tensor:
    """`torch.nn.functional.conv2d` under a product (the paper's PR-CNN, Equation 13).

    >>> import torch, prproduct as pr
    >>> x, w = torch.randn(2, 4, 8, 8), torch.randn(6, 2, 3, 3, requires_grad=True)
    >>> y = pr.functional.conv2d(x, w, stride=2, padding=1, groups=2)
    >>> torch.equal(y, torch.nn.functional.conv2d(x, w, stride=2, padding=1, groups=2))
    True
    """
    return _convolve(2, input, weight, bias, stride, padding, dilation, groups, product, memory)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    product: str | Product = "pr",
    memory: Memory = "save",
) -> Tensor:
    """`torch.nn.functional.conv3d` under a product.

    >>> import torch, prproduct as pr
    >>> pr.functional.conv3d(torch.ones(1, 2, 4, 4, 4), torch.ones(3, 2, 2, 2, 2), stride=2).shape
    torch.Size([1, 3, 2, 2, 2])
    """
    return _convolve(3, input, weight, bias, stride, padding, dilation, groups, product, memory)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    product: str | Product = "pr",
    memory: Memory = "save",
) -> Tensor:
    """`torch.nn.functional.conv_transpose1d` under a product: a convolution over the zero-stuffed input.

    >>> import torch, prproduct as pr
    >>> pr.functional.conv_transpose1d(torch.ones(1, 2, 5), torch.ones(2, 3, 4), stride=2, padding=1).shape
    torch.Size([1, 3, 10])
    """
    return _convolve_transposed(
        1, input, weight, bias, stride, padding, output_padding, groups, dilation, product, memory
    )


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    product: str | Product = "pr",
    memory: Memory = "save",
) -> Tensor:
    """`torch.nn.functional.conv_transpose2d` under a product: a convolution over the zero-stuffed input.

    >>> import torch, prproduct as pr
    >>> pr.functional.conv_transpose2d(torch.ones(1, 2, 5, 5), torch.ones(2, 3, 4, 4), stride=2, padding=1).shape
    torch.Size([1, 3, 10, 10])
    """
    return _convolve_transposed(
        2, input, weight, bias, stride, padding, output_padding, groups, dilation, product, memory
    )


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    product: str | Product = "pr",
    memory: Memory = "save",
) -> Tensor:
    """`torch.nn.functional.conv_transpose3d` under a product: a convolution over the zero-stuffed input.

    >>> import torch, prproduct as pr
    >>> pr.functional.conv_transpose3d(torch.ones(1, 2, 3, 3, 3), torch.ones(2, 1, 2, 2, 2), stride=2).shape
    torch.Size([1, 1, 6, 6, 6])
    """
    return _convolve_transposed(
        3, input, weight, bias, stride, padding, output_padding, groups, dilation, product, memory
    )


def _convolve(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int | Sequence[int],
    padding: str | int | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
    product: str | Product,
    memory: Memory,
) -> Tensor:
    native = NATIVE_CONVOLUTIONS[dims, False]
    strides, dilations = _per_axis(stride, dims), _per_axis(dilation, dims)
    if strides is None or dilations is None or not _fit(dims, input, weight):
        return _refuse(native, input, weight, bias, stride, padding, dilation, groups)
    if isinstance(padding, str) and padding == "same" and all(step == 1 for step in strides):
        # As torch does it: half of the zeros on each side, and an odd one, explicitly, at the end.
        totals = [step * (size - 1) for step, size in zip(dilations, weight.shape[2:], strict=True)]
        if any(total % 2 for total in totals):
            input = F.pad(input, [side for total in reversed(totals) for side in (0, total % 2)])
        padding = [total // 2 for total in totals]
    paddings = _per_axis(0 if isinstance(padding, str) and padding == "valid" else padding, dims)
    if paddings is None:
        return _refuse(native, input, weight, bias, stride, padding, dilation, groups)
    return _apply_batched(Convolution(strides, paddings, dilations, groups), input, weight, bias, product, memory)


def _convolve_transposed(
    dims: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    output_padding: int | Sequence[int],
    groups: int,
    dilation: int | Sequence[int],
    product: str | Product,
    memory: Memory,
) -> Tensor:
    strides, paddings, dilations = _per_axis(stride, dims), _per_axis(padding, dims), _per_axis(dilation, dims)
    extra = _per_axis(output_padding, dims)
    if strides is None or paddings is None or dilations is None or extra is None or not _fit(dims, input, weight):
        native = NATIVE_CONVOLUTIONS[dims, True]
        return _refuse(native, input, weight, bias, stride, padding, output_padding, groups, dilation)
    contraction = Convolution(strides, paddings, dilations, groups, extra, transposed=True)
    return _apply_batched(contraction, input, weight, bias, product, memory)


def _apply_batched(
    contraction: Convolution,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    product: str | Product,
    memory: Memory,
) -> Tensor:
    """The convolution of a batch, or of a single image without a batch dimension."""
    if input.dim() < weight.dim():
        return apply(contraction, input.unsqueeze(0), weight, bias, product, memory).squeeze(0)
    return apply(contraction, input, weight, bias, product, memory)


def _per_axis(setting: Any, dims: int) -> tuple[int, ...] | None:
    """One integer for each spatial axis, or None if `setting` is not an integer or a sequence of `dims` or 1."""
    if type(setting) is tuple and list(map(type, setting)) == [int] * dims:  # what layers pass, without a slow loop
        return setting
    values = setting if isinstance(setting, Sequence) and not isinstance(setting, str) else (setting,)
    try:
        numbers: tuple[Any, ...] = tuple(v if isinstance(v, (int, torch.SymInt)) else operator.index(v) for v in values)
    except TypeError:
        return None
    numbers = numbers * dims if len(numbers) == 1 else numbers
    return numbers if len(numbers) == dims else None


def _fit(dims: int, input: Any, weight: Any) -> bool:
    """True if input and weight are tensors with the dimensions of a convolution with `dims` spatial axes."""
    tensors = isinstance(input, Tensor) and isinstance(weight, Tensor)
    return tensors and input.dim() in (dims + 1, dims + 2) and weight.dim() == dims + 2


def _refuse(native: Callable[..., Tensor], *arguments: Any) -> NoReturn:
    """Raise the error that torch's own op has for these arguments."""
    native(*arguments)
    raise TypeError(f"prproduct cannot take arguments like these for {native.__name__}, though torch can")


for _name in __all__:  # torch.fx records these as calls, and does not trace into them
    torch.fx.wrap(_name)
