"""Products as operations: torch's `linear` and convolutions, with the backward of a product (`ops/autograd.py`).

Each takes torch's own arguments plus `product=`, a name or an object from `products.py`. The forward of `p`, `pr`,
`tempered` and `no-*` is torch's, bit for bit, for every dtype, device and option; `r` has its own.

Backward reads p off the output, which is kept for it: no new memory where the next layer keeps it too, as BatchNorm and
GELU do. With `memory="recompute"` the output is not kept, and p is computed again.
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
    steps, gaps = _per_axis(stride, dims), _per_axis(dilation, dims)
    if steps is None or gaps is None or not _fit(dims, input, weight):
        return _refuse(native, input, weight, bias, stride, padding, dilation, groups)
    if input.dim() == dims + 1:  # unbatched
        return _convolve(dims, input.unsqueeze(0), weight, bias, steps, padding, gaps, groups, product, memory).squeeze(
            0
        )
    if isinstance(padding, str) and padding == "same" and all(step == 1 for step in steps):
        # As torch does it: half on each side, and what is odd of it as an explicit zero at the far end.
        reach = [gap * (size - 1) for gap, size in zip(gaps, weight.shape[2:], strict=True)]
        if any(width % 2 for width in reach):
            input = F.pad(input, [side for width in reversed(reach) for side in (0, width % 2)])
        padding = [width // 2 for width in reach]
    margins = _per_axis(0 if isinstance(padding, str) and padding == "valid" else padding, dims)
    if margins is None:
        return _refuse(native, input, weight, bias, stride, padding, dilation, groups)
    return apply(Convolution(steps, margins, gaps, groups), input, weight, bias, product, memory)


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
    geometry = (stride, padding, output_padding, dilation)
    steps, margins, extra, gaps = (_per_axis(setting, dims) for setting in geometry)
    if steps is None or margins is None or extra is None or gaps is None or not _fit(dims, input, weight):
        native = NATIVE_CONVOLUTIONS[dims, True]
        return _refuse(native, input, weight, bias, stride, padding, output_padding, groups, dilation)
    contraction = Convolution(steps, margins, gaps, groups, extra, transposed=True)
    if input.dim() == dims + 1:  # unbatched
        return apply(contraction, input.unsqueeze(0), weight, bias, product, memory).squeeze(0)
    return apply(contraction, input, weight, bias, product, memory)


def _per_axis(setting: Any, dims: int) -> tuple[int, ...] | None:
    """One whole number for each axis, or None if that is not what `setting` says."""
    if type(setting) is tuple and list(map(type, setting)) == [int] * dims:  # as layers give it
        return setting
    values = setting if isinstance(setting, Sequence) and not isinstance(setting, str) else (setting,)
    try:
        numbers: tuple[Any, ...] = tuple(v if isinstance(v, (int, torch.SymInt)) else operator.index(v) for v in values)
    except TypeError:
        return None
    numbers = numbers * dims if len(numbers) == 1 else numbers
    return numbers if len(numbers) == dims else None


def _fit(dims: int, input: Any, weight: Any) -> bool:
    tensors = isinstance(input, Tensor) and isinstance(weight, Tensor)
    return tensors and input.dim() in (dims + 1, dims + 2) and weight.dim() == dims + 2


def _refuse(native: Callable[..., Tensor], *arguments: Any) -> NoReturn:
    """The error of torch's op for these arguments."""
    native(*arguments)
    raise TypeError(f"prproduct cannot take arguments like these for {native.__name__}, though torch can")


for _name in __all__:  # torch.fx records these as calls, and does not trace into them
    torch.fx.wrap(_name)
