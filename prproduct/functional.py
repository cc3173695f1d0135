r"""Products as operations: torch's `linear` and convolutions with another backward.

Forward, for `p`, `pr`, `no-*` and `tempered`: torch's own op, bit for bit. `r` has its own value.

Backward, for a gradient g of the output and the gains L (length) and D (direction) that the product gives each pair of a weight
vector w_j and a data vector x_n (`products.py`; D = 1/|sin θ|, L = 1 for the paper's PR, Equation 11):

    dW = (D∘g)ᵀ X  +  Σ_n (L − D)·cos θ·g · ‖x_n‖ · w_j/‖w_j‖        (out, in)
    dX = (D∘g) W   +  Σ_j (L − D)·cos θ·g · ‖w_j‖ · x_n/‖x_n‖        (rows, in)

The first term of each is the native backward run on D∘g; the second is a correction along the vector itself, one number a vector.
For a convolution the rows of X are its windows, and ‖x_n‖² are sums of x² over them: nothing is unfolded.

θ → 0, π: where the angle cannot be resolved in the dtype, `pr` does what `p` does; nothing is ever NaN or Inf (docs/numerics.md).
Zero vectors count as orthogonal to everything: at x = 0, `pr` gives ∂/∂x = w, `r` and `no-direction` give 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from prproduct.kernels.contractions import NATIVE_CONVOLUTIONS, Contraction, Convolution, Linear
from prproduct.kernels.pairs import (
    Norms,
    apply_gains,
    forward_factor,
    measure,
    power_of_two_above,
    weight_and_input_gains,
    working_dtype,
)
from prproduct.products import P, Product, resolve

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear"]


class ProductFn(torch.autograd.Function):
    """A contraction under a product. With `keep_output`, backward reads p off the output instead of computing it again."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        input: Tensor, weight: Tensor, bias: Tensor | None, contraction: Contraction, product: Product, keep_output: bool
    ) -> Tensor:
        if product.has_native_forward:
            return contraction.native(input, weight, bias)
        output = contraction.native(input, weight, None)
        p = _pairs(contraction, output)
        factor = forward_factor(product, measure(p, *_norms(contraction, input, weight, output), stored=output.dtype))
        output = (p * factor).reshape(output.shape).to(output.dtype)
        return output if bias is None else output + contraction.bias_like(bias, output)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        input, weight, bias, ctx.contraction, ctx.product, keep_output = inputs
        ctx.witness = kept = None
        if keep_output and torch.compiler.is_compiling():
            kept = output  # traced code is functional: a later in-place write makes a new tensor
        elif keep_output and type(output) is Tensor:
            # `.data` shares the memory but not the version counter, so autograd does not object when the user writes into the
            # output (relu_, +=). The witness shares the counter but not the memory, and tells backward that it happened.
            kept = output.data
            ctx.witness = output.detach()
            ctx.witness.data = output.new_empty(0)
            ctx.version = ctx.witness._version
        ctx.save_for_backward(input, weight, bias, kept)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, bias, output = ctx.saved_tensors
        wants_input, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        contraction: Contraction = ctx.contraction
        grad_input = grad_weight = grad_bias = None
        if ctx.witness is not None and ctx.witness._version != ctx.version:
            output = None  # somebody wrote into it
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            output = None  # create_graph=True: p has to hang on input and weight
        with _without_autocast(grad.device.type):
            if wants_bias:
                grad_bias = contraction.grad_bias(grad, bias)
            if wants_input or wants_weight:
                weight_norms, input_norms = norms = _norms(contraction, input, weight, grad)
                p, offset = _inner_product(contraction, input, weight, bias, output, norms)
                pair = measure(p, *norms, stored=grad.dtype, offset=offset)
                weight_gains, input_gains = weight_and_input_gains(ctx.product, pair)
                weight_parts = apply_gains(_pairs(contraction, grad), weight_gains, pair.cos)
                input_parts = weight_parts
                if input_gains is not weight_gains:
                    input_parts = apply_gains(_pairs(contraction, grad), input_gains, pair.cos)
            if wants_weight:
                grad_weight = _recombine(
                    weight_parts,
                    grad,
                    weight,
                    native=lambda turned: contraction.native_grad_weight(turned, input, weight),
                    along=lambda radial: contraction.along_weight(radial, weight, weight_norms, input_norms),
                )
            if wants_input:
                grad_input = _recombine(
                    input_parts,
                    grad,
                    input,
                    native=lambda turned: contraction.native_grad_input(turned, input, weight),
                    along=lambda radial: contraction.along_input(radial, input, weight, weight_norms, input_norms),
                )
        return grad_input, grad_weight, grad_bias, None, None, None


class EagerProductFn(ProductFn):
    """The same, with a clear refusal of forward-mode AD; apart, because torch.compile does not trace functions that define jvp."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        raise RuntimeError(_NO_JVP)


_NO_JVP = "prproduct defines gradients, not derivatives: forward-mode AD (jvp) does not exist for it; use backward or vjp"


def _pairs(contraction: Contraction, output: Tensor) -> Tensor:
    return contraction.as_pairs(output).to(working_dtype(output.dtype))


def _norms(contraction: Contraction, input: Tensor, weight: Tensor, output: Tensor) -> tuple[Norms, Norms]:
    dtype = working_dtype(output.dtype)
    return Norms.of(contraction.weight_square(weight, dtype)), Norms.of(contraction.input_square(input, weight, output, dtype))


def _inner_product(
    contraction: Contraction, input: Tensor, weight: Tensor, bias: Tensor | None, output: Tensor | None, norms: tuple[Norms, Norms]
) -> tuple[Tensor, Tensor | None]:
    """p of every pair, off the output if there is one, and the bias that was taken off it."""
    if output is not None and bias is None:
        return _pairs(contraction, output), None
    if output is not None and bias is not None:
        offset = _pairs(contraction, contraction.bias_like(bias, output))
        if not _drowns(offset, *norms):
            return _pairs(contraction, output) - offset, offset
    return _pairs(contraction, contraction.native(input, weight, None)), None


def _drowns(offset: Tensor, weight_norms: Norms, input_norms: Norms) -> bool:
    """Whether the bias is so large that output − bias has lost p: then computing p again is worth a third of a forward.

    Asked on the CPU only: elsewhere the answer would stall the device, and the raised floor of `measure` alone has to serve.
    """
    if offset.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    largest_p = weight_norms.value.mean() * input_norms.value.mean()
    return bool(abs(offset).mean() > 2.0 * largest_p)


def _recombine(
    parts: tuple[Tensor | None, Tensor | None],
    grad: Tensor,
    like: Tensor,
    native: Callable[[Tensor], Tensor],
    along: Callable[[Tensor], Tensor],
) -> Tensor:
    """The native backward of the one part plus the correction of the other; either may be missing."""
    turned, radial = parts
    correction = None if radial is None else along(radial)
    if turned is None:
        return torch.zeros_like(like) if correction is None else correction.to(like.dtype)
    if grad.dtype == torch.float16:
        # Near-parallel vectors make D∘g large before the correction takes most of it back: fp16 must not overflow in between.
        scale = power_of_two_above(turned, grad)
        result = native((turned / scale).reshape(grad.shape).to(grad.dtype)).to(turned.dtype) * scale
    else:
        result = native(turned.reshape(grad.shape).to(grad.dtype))
    return (result if correction is None else result + correction).to(like.dtype)


def _without_autocast(device_type: str) -> AbstractContextManager[Any]:
    """Casts were made in forward; backward computes in the dtypes it is given."""
    return torch.autocast(device_type, enabled=False) if torch.is_autocast_enabled(device_type) else nullcontext()


def _apply(contraction: Contraction, input: Tensor, weight: Tensor, bias: Tensor | None, product: str | Product) -> Tensor:
    product = resolve(product)
    if type(product) is P:
        return contraction.native(input, weight, bias)
    if input.is_complex() or weight.is_complex() or not (product.has_native_forward or input.is_floating_point()):
        raise TypeError(
            f"product {product} needs real floating-point tensors, got {input.dtype}: convert the input, or use product='p'"
        )
    transformed = torch._C._are_functorch_transforms_active()
    if not (torch.is_grad_enabled() or transformed):
        if _has_tangent(input, weight, bias):
            raise RuntimeError(_NO_JVP)
        if product.has_native_forward:
            return contraction.native(input, weight, bias)
    input, weight, bias = (_cast_for_autocast(t) for t in (input, weight, bias))
    fn = ProductFn if torch.compiler.is_compiling() else EagerProductFn
    return fn.apply(input, weight, bias, contraction, product, product.has_native_forward and not transformed)


def _has_tangent(*tensors: Tensor | None) -> bool:
    if torch.compiler.is_compiling():
        return False
    return any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def _cast_for_autocast(t: Tensor | None) -> Tensor | None:
    """What autocast does to the operands of torch's op; here, ahead of it, so that backward sees the tensors that were multiplied."""
    if t is None or not torch.is_autocast_enabled(t.device.type) or t.dtype == torch.float64 or not t.is_floating_point():
        return t
    return t.to(torch.get_autocast_dtype(t.device.type))


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, product: str | Product = "pr") -> Tensor:
    """`torch.nn.functional.linear` under a product (the paper's PR-FC, Equation 12).

    >>> import torch, prproduct as pr
    >>> w = torch.tensor([[1.0, 0.0]], requires_grad=True)
    >>> x = torch.tensor([[4.0, 3.0]])
    >>> y = pr.functional.linear(x, w)
    >>> y.item()
    4.0
    >>> y.backward()
    >>> w.grad  # the length gradient, (4, 0), is the inner product's; the direction gradient (0, 3) has grown to ‖x‖ = 5
    tensor([[4., 5.]])
    """
    return _apply(Linear(single_weight=weight.dim() == 1), input, weight, bias, product)


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
        return NATIVE_CONVOLUTIONS[dims, False](input, weight, bias, stride, padding, dilation, groups)  # torch says what is wrong
    return _apply(Convolution(stride, _per_axis(padding, dims), dilation, groups), input, weight, bias, product)


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
        return _convolve_transposed(dims, batch, weight, bias, stride, padding, output_padding, groups, dilation, product).squeeze(
            0
        )
    stride, padding, dilation, output_padding = (_per_axis(v, dims) for v in (stride, padding, dilation, output_padding))
    contraction = Convolution(stride, padding, dilation, groups, output_padding, transposed=True)
    return _apply(contraction, input, weight, bias, product)


def _per_axis(setting: int | Sequence[int], dims: int) -> tuple[int, ...]:
    values = (setting,) if isinstance(setting, int) else tuple(setting)
    return values * dims if len(values) == 1 else values
