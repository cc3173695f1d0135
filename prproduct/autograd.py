r"""The backward of every product, in closed form: one function for all layers.

Forward: torch's own op, bit for bit, unless the product has a value of its own (`r`).

Backward, for a gradient g of the output and the gains L (length) and D (direction) which the product gives to each pair
of a weight vector w_j and a data vector x_n (`products.py`; for the paper's PR, Equation 11, L = 1 and D = 1/|sin θ|):

    dW = (D∘g)ᵀ X  +  Σ_n (L − D)·cos θ·g · ‖x_n‖ · w_j/‖w_j‖        (out, in)
    dX = (D∘g) W   +  Σ_j (L − D)·cos θ·g · ‖w_j‖ · x_n/‖x_n‖        (rows, in)

The first term of each is the native backward, run on D∘g. The second is a correction along the vector itself: one
number a vector. For a convolution the rows of X are its windows, and ‖x_n‖² sums of x² over them: nothing is unfolded.

θ → 0, π: where the angle cannot be resolved in the dtype, `pr` does what `p` does, and nothing is ever NaN or Inf.
Zero vectors count as orthogonal to everything: at x = 0, `pr` gives ∂/∂x = w, `r` and `no-direction` give 0.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from prproduct.kernels.contractions import Contraction
from prproduct.kernels.pairs import (
    Norms,
    apply_gains,
    forward_factor,
    measure,
    overflow_scale,
    weight_and_input_gains,
    working_dtype,
)
from prproduct.products import P, Product, resolve

_NO_JVP = "prproduct changes gradients, and has no forward-mode AD (jvp, jacfwd): use backward, vjp or jacrev"


def apply(
    contraction: Contraction, input: Tensor, weight: Tensor, bias: Tensor | None, product: str | Product
) -> Tensor:
    """The contraction of input and weight under a product, plus the bias."""
    product = resolve(product)
    if type(product) is P:
        return contraction.native(input, weight, bias)
    if input.is_complex() or weight.is_complex() or not (product.has_native_forward or input.is_floating_point()):
        raise TypeError(f"product {product} needs real floating-point tensors, got {input.dtype}: convert, or use 'p'")
    transformed = torch._C._are_functorch_transforms_active()
    if not (torch.is_grad_enabled() or transformed):
        if _has_tangent(input, weight, bias):
            raise RuntimeError(_NO_JVP)
        if product.has_native_forward:
            return contraction.native(input, weight, bias)
    input, weight, bias = (_cast_for_autocast(t) for t in (input, weight, bias))
    fn = ProductFn if torch.compiler.is_compiling() else EagerProductFn
    return fn.apply(input, weight, bias, contraction, product, product.has_native_forward and not transformed)


class ProductFn(torch.autograd.Function):
    """A contraction under a product. With `keep_output`, backward reads p off the output and need not compute it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        contraction: Contraction,
        product: Product,
        keep_output: bool,
    ) -> Tensor:
        if product.has_native_forward:
            return contraction.native(input, weight, bias)
        output = contraction.native(input, weight, None)
        p = _pairs(contraction, output)
        factor = forward_factor(product, measure(p, *_norms(contraction, input, weight, output), stored=output.dtype))
        output = (p * factor).reshape(output.shape).to(output.dtype)
        return output if bias is None else contraction.add_bias(output, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        input, weight, bias, ctx.contraction, ctx.product, keep_output = inputs
        ctx.witness = kept = None
        if keep_output and torch.compiler.is_compiling():
            kept = output  # traced code is functional: a later in-place write makes a new tensor
        elif keep_output and type(output) is Tensor:
            # `.data` shares the memory but not the version counter, so autograd does not object when the user writes
            # into the output (relu_, +=). The witness shares the counter but not the memory: it tells that it happened.
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
                norms = _norms(contraction, input, weight, grad)
                p, offset = _inner_product(contraction, input, weight, bias, output, norms)
                pair = measure(p, *norms, stored=grad.dtype, offset=offset)
                weight_gains, input_gains = weight_and_input_gains(ctx.product, pair)
                weight_parts = input_parts = apply_gains(_pairs(contraction, grad), weight_gains, pair.cos)
                if input_gains is not weight_gains:
                    input_parts = apply_gains(_pairs(contraction, grad), input_gains, pair.cos)
            if wants_weight:
                grad_weight = _recombine(
                    weight_parts,
                    grad,
                    weight,
                    native=lambda turned: contraction.native_grad_weight(turned, input, weight),
                    along=lambda radial: contraction.along_weight(radial, weight, *norms),
                )
            if wants_input:
                grad_input = _recombine(
                    input_parts,
                    grad,
                    input,
                    native=lambda turned: contraction.native_grad_input(turned, input, weight),
                    along=lambda radial: contraction.along_input(radial, input, weight, *norms),
                )
        return grad_input, grad_weight, grad_bias, None, None, None


class EagerProductFn(ProductFn):
    """`ProductFn` with a clear refusal of forward mode; apart from it, as torch.compile traces no function with jvp."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        raise RuntimeError(_NO_JVP)


def _pairs(contraction: Contraction, output: Tensor) -> Tensor:
    return contraction.as_pairs(output).to(working_dtype(output.dtype))


def _norms(contraction: Contraction, input: Tensor, weight: Tensor, output: Tensor) -> tuple[Norms, Norms]:
    """‖w‖ of the weight vectors and ‖x‖ of the data vectors."""
    dtype = working_dtype(output.dtype)
    weight_square = contraction.weight_square(weight, dtype)
    return Norms.of(weight_square), Norms.of(contraction.input_square(input, weight, output, dtype))


def _inner_product(
    contraction: Contraction,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output: Tensor | None,
    norms: tuple[Norms, Norms],
) -> tuple[Tensor, Tensor | None]:
    """p of every pair, off the output if there is one, and the bias that was taken off it."""
    if output is not None and bias is None:
        return _pairs(contraction, output), None
    if output is not None and bias is not None:
        offset = contraction.bias_of_pairs(bias, output).to(working_dtype(output.dtype))
        if not _drowns(offset, *norms):
            return _pairs(contraction, output) - offset, offset
    return _pairs(contraction, contraction.native(input, weight, None)), None


def _drowns(offset: Tensor, weight_norms: Norms, input_norms: Norms) -> bool:
    """Whether the bias is so large that output − bias has lost p, and p is worth computing again.

    Asked on the CPU only: elsewhere the answer would stall the device, and the raised floor of `measure` has to serve.
    """
    if offset.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    return bool(abs(offset).mean() > 2.0 * weight_norms.value.mean() * input_norms.value.mean())


def _recombine(
    parts: tuple[Tensor | None, Tensor | None],
    grad: Tensor,
    like: Tensor,
    native: Callable[[Tensor], Tensor],
    along: Callable[[Tensor], Tensor],
) -> Tensor:
    """The native backward of D∘g plus the correction; either may be absent."""
    turned, radial = parts
    correction = None if radial is None else along(radial)
    if turned is None:
        return torch.zeros_like(like) if correction is None else correction.to(like.dtype)
    if grad.dtype == torch.float16:
        # Near-parallel vectors make D∘g large before the correction takes most of it back: no overflow in between.
        scale = overflow_scale(turned, grad)
        result = native((turned / scale).reshape(grad.shape).to(grad.dtype)).to(turned.dtype) * scale
    else:
        result = native(turned.reshape(grad.shape).to(grad.dtype))
    return (result if correction is None else result + correction).to(like.dtype)


def _without_autocast(device_type: str) -> AbstractContextManager[Any]:
    """Casts were made in forward: backward computes in the dtypes it is given."""
    return torch.autocast(device_type, enabled=False) if torch.is_autocast_enabled(device_type) else nullcontext()


def _cast_for_autocast(t: Tensor | None) -> Tensor | None:
    """Autocast's own cast of an operand, ahead of the op, so that backward sees the tensors that were multiplied."""
    if t is None or not t.is_floating_point() or t.dtype == torch.float64:
        return t
    device_type = t.device.type
    return t.to(torch.get_autocast_dtype(device_type)) if torch.is_autocast_enabled(device_type) else t


def _has_tangent(*tensors: Tensor | None) -> bool:
    if torch.compiler.is_compiling():
        return False
    return any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors)
