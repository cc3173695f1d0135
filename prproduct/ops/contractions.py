"""Which weight vector meets which data vector: the two ways in which a layer pairs them.

A contraction has the native op, its native backward, and views of outputs, biases and norms as pairs, in which the axis
of the weight vectors and those of the data vectors are separate. `rule.py` states the backward of every product once,
in these terms.

| contraction | a weight vector     | a data vector                            | pairs                                 |
| ----------- | ------------------- | ---------------------------------------- | ------------------------------------- |
| Linear      | a row of the weight | a row of the input                       | (rows, out)                           |
| Convolution | an output channel's | a group's window (of the zero-stuffed    | (batch, out, *spatial), with groups   |
|             | kernel              | input, if transposed)                    | (batch, groups, out/groups, *spatial) |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from prproduct.ops.angles import Pairs, materialized
from prproduct.ops.windows import Windows, gather, scatter


class Contraction(Protocol):
    """How a layer pairs vectors; the same methods for every kind of layer."""

    is_convolution: ClassVar[bool]

    def native(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Torch's own op."""

    def native_backward(
        self, grad: Tensor, input: Tensor, weight: Tensor, wants_input: bool, wants_weight: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """The native dX and dW; None where they are not wanted."""

    def add_bias(self, output: Tensor, bias: Tensor) -> Tensor:
        """output + bias."""

    def grad_bias(self, grad: Tensor, bias: Tensor) -> Tensor:
        """The gradient of the bias, in its shape."""

    def as_pairs(self, output: Tensor) -> Tensor:
        """An output, or its gradient, in the shape of the pairs (see the table above)."""

    def bias_of_pairs(self, bias: Tensor, output: Tensor) -> Tensor:
        """The bias, in a shape that broadcasts against the pairs."""

    def weight_square(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """‖w‖² of every weight vector, in a shape that broadcasts against the pairs."""

    def input_square(self, input: Tensor, weight: Tensor, output: Tensor, dtype: torch.dtype) -> Tensor:
        """‖x‖² of every data vector, in a shape that broadcasts against the pairs; `output` gives its shape alone."""

    def add_along_weight(self, grad: Tensor, sums: Tensor, weight: Tensor, pairs: Pairs) -> Tensor:
        """grad + sums·w/‖w‖; grad may be overwritten."""

    def add_along_input(self, grad: Tensor, sums: Tensor, input: Tensor, weight: Tensor, pairs: Pairs) -> Tensor:
        """grad + sums·x/‖x‖, for a convolution over all windows of which x is part; grad may be overwritten."""


@dataclass(frozen=True)
class Linear:
    """Every row of the input with every row of the weight; with `single_weight`, the weight is one vector."""

    is_convolution: ClassVar[bool] = False
    single_weight: bool = False

    def native(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(input, weight, bias)

    def native_backward(
        self, grad: Tensor, input: Tensor, weight: Tensor, wants_input: bool, wants_weight: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        grad, grad_input, grad_weight = self.as_pairs(grad), None, None
        if wants_input:
            grad_input = (grad @ torch.atleast_2d(weight)).view(input.shape)  # (rows, out) @ (out, in)
        if wants_weight:
            grad_weight = (grad.mT @ as_rows(input)).view(weight.shape)  # (out, rows) @ (rows, in)
        return grad_input, grad_weight

    def add_bias(self, output: Tensor, bias: Tensor) -> Tensor:
        return output + bias.expand(output.shape)

    def grad_bias(self, grad: Tensor, bias: Tensor) -> Tensor:
        if bias.dim() == 1 and grad.dim() == 2 and bias.shape[0] == grad.shape[1]:
            return grad.sum(0)
        if bias.shape == grad.shape:
            return grad  # itself: autograd copies a tensor that it has seen elsewhere, but not a view of it
        return grad.sum_to_size(bias.shape[-grad.dim() :]).view(bias.shape) if bias.dim() else grad.sum()

    def as_pairs(self, output: Tensor) -> Tensor:
        output = output.unsqueeze(-1) if self.single_weight else output
        return output if output.dim() == 2 else as_rows(output)

    def bias_of_pairs(self, bias: Tensor, output: Tensor) -> Tensor:
        if is_one_a_weight_vector(bias, self.single_weight):
            return bias
        return self.as_pairs(bias.view(bias.shape[-output.dim() :]).expand(output.shape))

    def weight_square(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        return torch.atleast_2d(weight).to(dtype).square().sum(-1)  # (out,)

    def input_square(self, input: Tensor, weight: Tensor, output: Tensor, dtype: torch.dtype) -> Tensor:
        return as_rows(input).to(dtype).square().sum(-1, keepdim=True)  # (rows, 1)

    def add_along_weight(self, grad: Tensor, sums: Tensor, weight: Tensor, pairs: Pairs) -> Tensor:
        along = torch.atleast_2d(weight) * pairs.weight.norms.inverse.unsqueeze(-1) * sums.unsqueeze(-1)
        return _apart(grad) + along.view(grad.shape)

    def add_along_input(self, grad: Tensor, sums: Tensor, input: Tensor, weight: Tensor, pairs: Pairs) -> Tensor:
        return _apart(grad) + (as_rows(input) * pairs.input.inverse * sums).view(grad.shape)


def is_one_a_weight_vector(bias: Tensor, single_weight: bool) -> bool:
    """Return False for a bias that torch's linear broadcasts to the output otherwise."""
    return bias.dim() <= 1 and (bias.numel() == 1 or not single_weight)


def as_rows(t: Tensor) -> Tensor:
    """t as a matrix: all axes but the last become one."""
    return t if t.dim() == 2 else t.reshape(t.shape[:-1].numel(), t.shape[-1])


def _apart(product: Tensor) -> Tensor:
    """The product itself, which Inductor then does not fuse with a following addition into `addmm`.

    On the CPU, `addmm` would want the other summand in memory, and copy it, instead of adding it in one pass.
    """
    return materialized(product) if product.is_cpu else product


NATIVE_CONVOLUTIONS: dict[tuple[int, bool], Callable[..., Tensor]] = {
    (1, False): F.conv1d,
    (2, False): F.conv2d,
    (3, False): F.conv3d,
    (1, True): F.conv_transpose1d,
    (2, True): F.conv_transpose2d,
    (3, True): F.conv_transpose3d,
}


@dataclass(frozen=True)
class Convolution:
    """Every window of the input with every kernel of its group."""

    is_convolution: ClassVar[bool] = True
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    output_padding: tuple[int, ...] = ()
    transposed: bool = False

    def native(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        convolve = NATIVE_CONVOLUTIONS[len(self.stride), self.transposed]
        if self.transposed:
            return convolve(
                input, weight, bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation
            )
        return convolve(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def native_backward(
        self, grad: Tensor, input: Tensor, weight: Tensor, wants_input: bool, wants_weight: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        wanted = [wants_input, wants_weight, False]
        return torch.ops.aten.convolution_backward(grad, input, weight, None, *self.geometry, wanted)[:2]

    def add_bias(self, output: Tensor, bias: Tensor) -> Tensor:
        return output + bias.view(output.shape[1], *(1,) * len(self.stride))

    def grad_bias(self, grad: Tensor, bias: Tensor) -> Tensor:
        return grad.sum((0, *range(2, grad.dim())))

    def as_pairs(self, output: Tensor) -> Tensor:
        if self.groups == 1:
            return output  # not a view, for which Inductor would choose a layout that does not suit convolutions
        batch, channels, *spatial = output.shape
        return output.reshape(batch, self.groups, channels // self.groups, *spatial)

    def bias_of_pairs(self, bias: Tensor, output: Tensor) -> Tensor:
        return bias.view(self.groups, -1, *(1,) * len(self.stride))

    def weight_square(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        square = self._kernels(weight).to(dtype).square()
        square = square.sum(tuple(range(2, square.dim())))  # (groups, out/groups)
        return square.view(*square.shape, *(1,) * len(self.stride))

    def input_square(self, input: Tensor, weight: Tensor, output: Tensor, dtype: torch.dtype) -> Tensor:
        to_windows = scatter if self.transposed else gather
        square = self.as_pairs(input.to(dtype)).square()
        square = square.sum(1, keepdim=True) if self.groups == 1 else square.sum(2)  # (batch, groups, *in)
        square = to_windows(square, output.shape[2:], self._windows(weight))
        return square if self.groups == 1 else square.unsqueeze(2)  # (batch, groups, 1, *out), or (batch, 1, *out)

    def add_along_weight(self, grad: Tensor, sums: Tensor, weight: Tensor, pairs: Pairs) -> Tensor:
        along = self._kernels(weight) * pairs.weight.norms.inverse.unsqueeze(-1) * sums.unsqueeze(-1)
        return grad + (along.transpose(1, 2) if self.transposed else along).reshape(weight.shape)

    def add_along_input(self, grad: Tensor, sums: Tensor, input: Tensor, weight: Tensor, pairs: Pairs) -> Tensor:
        if sums.numel() == 0:
            return grad
        from_windows = gather if self.transposed else scatter
        # The sum of sums/‖x‖ over windows may overflow where its product with x does not: divided by the largest, it
        # does not.
        axes = tuple(range(1, sums.dim())) if self.groups == 1 else tuple(range(2, sums.dim()))
        with torch.no_grad():
            largest = abs(sums).amax(axes, keepdim=True)
            largest = torch.where(largest < math.inf, largest, 1.0).clamp_min(torch.finfo(sums.dtype).tiny)
        per_window = sums / largest * pairs.input.inverse
        per_window = per_window if self.groups == 1 else per_window.squeeze(2)  # (batch, groups, *out)
        coefficient = from_windows(per_window, input.shape[2:], self._windows(weight))  # (batch, groups, *in)
        coefficient = materialized(coefficient)
        if self.groups == 1:
            return grad + input * coefficient * largest
        return grad + (self.as_pairs(input) * coefficient.unsqueeze(2) * largest).reshape(input.shape)

    @property
    def geometry(self) -> tuple[Any, ...]:
        """The arguments from `stride` to `groups` of the convolution operators, torch's and this package's."""
        output_padding = self.output_padding or (0,) * len(self.stride)
        return self.stride, self.padding, self.dilation, self.transposed, output_padding, self.groups

    def _kernels(self, weight: Tensor) -> Tensor:
        """(groups, out/groups, in/groups, *kernel)"""
        kernels = weight.reshape(self.groups, weight.shape[0] // self.groups, *weight.shape[1:])
        return kernels.transpose(1, 2) if self.transposed else kernels

    def _windows(self, weight: Tensor) -> Windows:
        return Windows(weight.shape[2:], self.stride, self.padding, self.dilation)
