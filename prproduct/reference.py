"""The paper's equations, literally, under autograd: what they hold constant is detached, the rest is differentiated.

Slow, memory-hungry, undefined at parallel vectors and inexact near them: in float64, against 50 digits, the literal
formula errs by 3e-11 at |sin θ| = 1e-3 and by 5e-5 at 1e-6. It is the oracle for everything else, and shares no
code with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "linear",
    "lstm_cell",
]


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, product: str = "pr") -> Tensor:
    """PR-FC, Equation 12: every data vector (a row of `input`) with every weight vector (a row of `weight`).

    >>> w = torch.tensor([[1.0, 0.0]], requires_grad=True)
    >>> linear(torch.tensor([[4.0, 3.0]]), w).backward()
    >>> w.grad.round(decimals=4)
    tensor([[4., 5.]])
    """
    # A zero vector has no angle, and the literal formula is NaN there: it is computed with a dummy in place of the zero
    # vector, and the pair then gets the inner product, or 0 for a product whose gradient is 0 at orthogonal vectors.
    dummy = torch.linspace(1, 2, input.shape[-1], dtype=input.dtype, device=input.device)
    x = torch.where(input.norm(dim=-1, keepdim=True) > 0, input, dummy)
    w = torch.where(weight.norm(dim=-1, keepdim=True) > 0, weight, dummy.flip(0))
    name, _, power = product.partition(":")
    literal = _tempered(x, w, float(power or 0.5)) if name == "tempered" else _PRODUCTS[name](x, w)
    at_zero = _inner(input, weight) * (name not in _FLAT_AT_ZERO)
    output = torch.where(_lengths(input, weight) > 0, literal, at_zero)
    return output if bias is None else output + bias


def _inner(x: Tensor, w: Tensor) -> Tensor:
    """P, Equation 1."""
    return x @ w.mT


def _lengths(x: Tensor, w: Tensor) -> Tensor:
    """‖w‖‖x‖ of every pair."""
    return x.norm(dim=-1, keepdim=True) * w.norm(dim=-1)


def _rejection(x: Tensor, w: Tensor) -> Tensor:
    """‖w‖‖R_x‖ of every pair, by Pythagoras from Equations 4 and 5."""
    return (_lengths(x, w).square() - _inner(x, w).square()).sqrt()


def _r(x: Tensor, w: Tensor) -> Tensor:
    """R: sign(cos θ)‖w‖(‖x‖ − ‖R_x‖)."""
    return _inner(x, w).sign() * (_lengths(x, w) - _rejection(x, w))


def _pr(x: Tensor, w: Tensor) -> Tensor:
    """PR, Equation 7: |sin θ| and cos θ in front of the brackets are held constant."""
    sin = (_rejection(x, w) / _lengths(x, w)).detach()
    cos = (_inner(x, w) / _lengths(x, w)).detach()
    return sin * _inner(x, w) + cos * (_lengths(x, w) - _rejection(x, w))


def _no_length(x: Tensor, w: Tensor) -> Tensor:
    """The weight's length held constant."""
    length = w.norm(dim=-1)
    return _inner(x, w / length[:, None]) * length.detach()


def _no_direction(x: Tensor, w: Tensor) -> Tensor:
    """cos θ held constant."""
    return _lengths(x, w) * (_inner(x, w) / _lengths(x, w)).detach()


def _no_direction_w(x: Tensor, w: Tensor) -> Tensor:
    """The weight's direction held constant."""
    length = w.norm(dim=-1)
    return _inner(x, (w / length[:, None]).detach()) * length


def _weight_only(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The product's gradient for w, the inner product's for x."""
    return lambda x, w: product(x.detach(), w) + _inner(x, w.detach()) - _inner(x, w).detach()


def _tempered(x: Tensor, w: Tensor, power: float) -> Tensor:
    """‖w‖‖x‖·cos θ with the gradient of cos θ divided by |sin θ|^power."""
    cos = _inner(x, w) / _lengths(x, w)
    sin = (_rejection(x, w) / _lengths(x, w)).detach()
    turning = _lengths(x, w).detach() * (cos - cos.detach()) / sin**power
    return _lengths(x, w) * cos.detach() + turning


_PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "p": _inner,
    "r": _r,
    "pr": _pr,
    "no-length": _no_length,
    "no-direction": _no_direction,
    "no-direction-w": _no_direction_w,
    "pr-w": _weight_only(_pr),
}
_FLAT_AT_ZERO = ("r", "no-direction")  # both gradients are 0 where cos θ is


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    product: str = "pr",
) -> Tensor:
    """PR-CNN, Equation 13: the product of every flattened window with every flattened kernel of its group.

    >>> conv2d(torch.randn(1, 4, 8, 8), torch.randn(6, 2, 3, 3), stride=2, padding=1, groups=2).shape
    torch.Size([1, 6, 4, 4])
    """
    dims = weight.dim() - 2
    stride, padding, dilation = (_per_axis(setting, dims) for setting in (stride, padding, dilation))
    windows = F.pad(input, [side for width in reversed(padding) for side in (width, width)])
    for axis in range(dims):
        span = dilation[axis] * (weight.shape[2 + axis] - 1) + 1
        windows = windows.unfold(2 + axis, span, stride[axis])[..., :: dilation[axis]]  # (N, C, *out, *kernel)
    outputs = []
    for group, kernels in zip(windows.chunk(groups, dim=1), weight.chunk(groups), strict=True):
        vectors = group.movedim(1, 1 + dims).flatten(1 + dims)  # (N, *out, C/groups · kernel)
        outputs.append(linear(vectors, kernels.flatten(1), product=product).movedim(-1, 1))
    output = torch.cat(outputs, dim=1)
    return output if bias is None else output + bias.view(-1, *(1,) * dims)


def _convolution_transposed(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    product: str = "pr",
) -> Tensor:
    """A transposed convolution, as the convolution of the zero-stuffed input with the flipped kernels.

    >>> conv_transpose2d(torch.randn(1, 4, 5, 5), torch.randn(4, 3, 4, 4), stride=2, padding=1).shape
    torch.Size([1, 3, 10, 10])
    """
    dims = weight.dim() - 2
    stride, padding, output_padding, dilation = (
        _per_axis(v, dims) for v in (stride, padding, output_padding, dilation)
    )
    stuffed = input.new_zeros(
        *input.shape[:2], *((size - 1) * step + 1 for size, step in zip(input.shape[2:], stride, strict=True))
    )
    every = [slice(None, None, step) for step in (1, 1, *stride)]
    stuffed[tuple(every)] = input
    reaches = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
    margins = [
        side
        for reach, cut, extra in reversed(list(zip(reaches, padding, output_padding, strict=True)))
        for side in (reach - cut, reach - cut + extra)
    ]
    # Widen before cutting: what is cut off at one end may be longer than all that is there.
    stuffed = F.pad(F.pad(stuffed, [max(side, 0) for side in margins]), [min(side, 0) for side in margins])
    kernels = torch.cat([kernel.transpose(0, 1) for kernel in weight.chunk(groups)]).flip(*range(2, 2 + dims))
    return _convolution(stuffed, kernels, bias, dilation=dilation, groups=groups, product=product)


conv1d = conv2d = conv3d = _convolution
conv_transpose1d = conv_transpose2d = conv_transpose3d = _convolution_transposed


def _per_axis(setting: int | Sequence[int], dims: int) -> Sequence[int]:
    return (setting,) * dims if isinstance(setting, int) else setting


def lstm_cell(
    input: Tensor,
    state: tuple[Tensor, Tensor],
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None,
    *,
    product: str = "pr",
) -> tuple[Tensor, Tensor]:
    """PR-LSTM, Equation 14: in each gate a PR-FC of the input and one of the hidden state; returns (h, c).

    >>> state = torch.randn(2, 4), torch.randn(2, 4)
    >>> h, c = lstm_cell(torch.randn(2, 3), state, torch.randn(16, 3), torch.randn(16, 4))
    >>> h.shape
    torch.Size([2, 4])
    """
    hidden, cell = state
    gates = linear(input, weight_ih, bias_ih, product=product) + linear(hidden, weight_hh, bias_hh, product=product)
    i, f, g, o = gates.chunk(4, dim=-1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell
