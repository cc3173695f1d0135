"""Products as operations: torch's `linear` and convolutions, with the backward of a product (`autograd.py`).

Each takes torch's own arguments plus `product=`, a name or an object from `products.py`. The forward of `p`, `pr`,
`tempered` and `no-*` is torch's, bit for bit, for every dtype, device and option; `r` has its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from prproduct.autograd import apply
from prproduct.kernels.contractions import NATIVE_CONVOLUTIONS, Convolution, Linear
from prproduct.products import Product

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear"]


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, product: str | Product = "pr") -> Tensor:
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
    return apply(Linear(single_weight=weight.dim() == 1), input, weight, bias, product)


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
) -> Tensor:
    """`torch.nn.functional.conv1d` under a product: every window with every kernel of its group.

    >>> import torch, prproduct as pr
    >>> pr.functional.conv1d(torch.ones(1, 2, 5), torch.ones(3, 2, 3), padding="same").shape
    torch.Size([1, 3, 5])
    """
    return _convolve(1, input, weight, bias, stride, padding, dilation, groups, product)


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
) -> Tensor:
    """`torch.nn.functional.conv2d` under a product (the paper's PR-CNN, Equation 13).

    >>> import torch, prproduct as pr
    >>> x, w = torch.randn(2, 4, 8, 8), torch.randn(6, 2, 3, 3, requires_grad=True)
    >>> y = pr.functional.conv2d(x, w, stride=2, padding=1, groups=2)
    >>> torch.equal(y, torch.nn.functional.conv2d(x, w, stride=2, padding=1, groups=2))
    True
    """
    return _convolve(2, input, weight, bias, stride, padding, dilation, groups, product)


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
) -> Tensor:
    """`torch.nn.functional.conv3d` under a product.

    >>> import torch, prproduct as pr
    >>> pr.functional.conv3d(torch.ones(1, 2, 4, 4, 4), torch.ones(3, 2, 2, 2, 2), stride=2).shape
    torch.Size([1, 3, 2, 2, 2])
    """
    return _convolve(3, input, weight, bias, stride, padding, dilation, groups, product)


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
) -> Tensor:
    """`torch.nn.functional.conv_transpose1d` under a product: a convolution over the zero-stuffed input.

    >>> import torch, prproduct as pr
    >>> pr.functional.conv_transpose1d(torch.ones(1, 2, 5), torch.ones(2, 3, 4), stride=2, padding=1).shape
    torch.Size([1, 3, 10])
    """
    return _convolve_transposed(1, input, weight, bias, stride, padding, output_padding, groups, dilation, product)


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
) -> Tensor:
    """`torch.nn.functional.conv_transpose2d` under a product: a convolution over the zero-stuffed input.

    >>> import torch, prproduct as pr
    >>> pr.functional.conv_transpose2d(torch.ones(1, 2, 5, 5), torch.ones(2, 3, 4, 4), stride=2, padding=1).shape
    torch.Size([1, 3, 10, 10])
    """
    return _convolve_transposed(2, input, weight, bias, stride, padding, output_padding, groups, dilation, product)


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
) -> Tensor:
    """`torch.nn.functional.conv_transpose3d` under a product: a convolution over the zero-stuffed input.

    >>> import torch, prproduct as pr
    >>> pr.functional.conv_transpose3d(torch.ones(1, 2, 3, 3, 3), torch.ones(2, 1, 2, 2, 2), stride=2).shape
    torch.Size([1, 1, 6, 6, 6])
    """
    return _convolve_transposed(3, input, weight, bias, stride, padding, output_padding, groups, dilation, product)


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
) -> Tensor:
    if input.dim() == dims + 1:  # unbatched
        return _convolve(dims, input.unsqueeze(0), weight, bias, stride, padding, dilation, groups, product).squeeze(0)
    stride, dilation = _per_axis(stride, dims), _per_axis(dilation, dims)
    if padding == "same" and all(step == 1 for step in stride):
        # As torch does it: half on each side, and what is odd of it as an explicit zero at the far end.
        reach = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=False)]
        if any(width % 2 for width in reach):
            input = F.pad(input, [side for width in reversed(reach) for side in (0, width % 2)])
        padding = [width // 2 for width in reach]
    elif padding == "valid":
        padding = 0
    elif isinstance(padding, str):
        return NATIVE_CONVOLUTIONS[dims, False](
            input, weight, bias, stride, padding, dilation, groups
        )  # torch says what is wrong
    return apply(Convolution(stride, _per_axis(padding, dims), dilation, groups), input, weight, bias, product)


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
) -> Tensor:
    if input.dim() == dims + 1:  # unbatched
        batch = input.unsqueeze(0)
        return _convolve_transposed(
            dims, batch, weight, bias, stride, padding, output_padding, groups, dilation, product
        ).squeeze(0)
    stride, padding, dilation, output_padding = (
        _per_axis(v, dims) for v in (stride, padding, dilation, output_padding)
    )
    contraction = Convolution(stride, padding, dilation, groups, output_padding, transposed=True)
    return apply(contraction, input, weight, bias, product)


def _per_axis(setting: int | Sequence[int], dims: int) -> tuple[int, ...]:
    values = (setting,) if isinstance(setting, int) else tuple(setting)
    return values * dims if len(values) == 1 else values
