r"""The gradients of a product in closed form, in plain torch: the specification of all that is faster.

For a gradient g of the output and the gains L (length) and D (direction) that the product gives to each pair of a
weight vector w_j and a data vector x_n (`products.py`; for the paper's PR, Equation 11, L = 1 and D = 1/|sin θ|):

    dW = (D∘g)ᵀ X  +  Σ_n (L − D)·cos θ·g · ‖x_n‖ · w_j/‖w_j‖        (out, in)
    dX = (D∘g) W   +  Σ_j (L − D)·cos θ·g · ‖w_j‖ · x_n/‖x_n‖        (rows, in)

The first term of each is the native backward, run on D∘g. The second is a correction along the vector itself: one
number a vector. For a convolution the rows of X are its windows, and ‖x_n‖² sums of x² over them: nothing is unfolded.

θ → 0, π: where the angle cannot be resolved in the dtype, `pr` does what `p` does, and nothing is ever NaN or Inf.
Zero vectors count as orthogonal to everything: at x = 0, `pr` gives ∂/∂x = w, `r` and `no-direction` give 0.

This serves every device, dtype, product and transform; it is what torch.compile traces. In eager mode it makes some ten
passes over memory, where the C++ kernels (`kernels.py`) make one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from prproduct.ops.angles import (
    Norms,
    Pairs,
    WeightVectors,
    forward_factor,
    measure,
    weight_and_input_gains,
    working_dtype,
)
from prproduct.ops.contractions import Contraction
from prproduct.products import Gains, Product

Gradients = tuple[Tensor | None, Tensor | None]  # of input and weight; None where it is not wanted


class Operands(NamedTuple):
    """The tensors of a layer's forward. If `output` is None, backward computes p again from input and weight."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None
    output: Tensor | None


class GradientTerm(NamedTuple):
    """What the two terms of dW, or of dX, are computed from. None stands for zero."""

    scaled_grad: Tensor | None  # D∘g, shaped as g
    sums: Tensor | None  # Σ (L − D)·cos θ·g·‖other vector‖, shaped as the norms of the vectors it is added along


def gradients(
    contraction: Contraction,
    product: Product,
    operands: Operands,
    grad: Tensor,
    wants_input: bool,
    wants_weight: bool,
) -> Gradients:
    """dX and dW of the module's docstring."""
    input, weight = operands.input, operands.weight
    pairs = _pairs(contraction, operands, grad)
    for_weight, for_input = split(product, pairs, grad.to(working_dtype(grad.dtype)))
    if for_weight.scaled_grad is for_input.scaled_grad:  # one call, so that Inductor chooses one layout for D∘g
        grad_input, grad_weight = _native(contraction, for_input.scaled_grad, operands, grad, wants_input, wants_weight)
    else:
        grad_input, _ = _native(contraction, for_input.scaled_grad, operands, grad, wants_input, False)
        _, grad_weight = _native(contraction, for_weight.scaled_grad, operands, grad, False, wants_weight)
    if grad_input is not None and for_input.sums is not None:
        grad_input = contraction.add_along_input(grad_input, for_input.sums, input, weight, pairs)
    if grad_weight is not None and for_weight.sums is not None:
        grad_weight = contraction.add_along_weight(grad_weight, for_weight.sums, weight, pairs)
    return _as(grad_input, input.dtype), _as(grad_weight, weight.dtype)


def value(contraction: Contraction, product: Product, input: Tensor, weight: Tensor) -> Tensor:
    """The forward of a product that has its own, without the bias."""
    p = contraction.native(input, weight, None)
    weight_norms = Norms.of(contraction.weight_square(weight, p.dtype))
    input_norms = Norms.of(contraction.input_square(input, weight, p, p.dtype))
    weights = WeightVectors(weight_norms, p.dtype, contraction.is_convolution)
    pairs = Pairs(contraction.as_pairs(p), weights, input_norms)
    return (pairs.output * forward_factor(product, measure(pairs))).reshape(p.shape)


def _pairs(contraction: Contraction, operands: Operands, grad: Tensor) -> Pairs:
    """All pairs of a layer; of `grad`, only the shape and the dtype are used."""
    input, weight, bias, output = operands
    dtype = working_dtype(grad.dtype)
    weight_norms = Norms.of(contraction.weight_square(weight, dtype))
    input_norms = Norms.of(contraction.input_square(input, weight, grad, dtype))
    bias = None if output is None or bias is None else contraction.bias_of_pairs(bias, output).to(dtype)
    if bias is not None and _bias_dominates(bias, weight_norms, input_norms):
        output = bias = None
    p = contraction.native(input, weight, None) if output is None else output
    weights = WeightVectors(weight_norms, grad.dtype, contraction.is_convolution, bias)
    return Pairs(contraction.as_pairs(p).to(dtype), weights, input_norms)


def _native(
    contraction: Contraction,
    scaled_grad: Tensor | None,
    operands: Operands,
    grad: Tensor,
    wants_input: bool,
    wants_weight: bool,
) -> Gradients:
    """The native backward of D∘g."""
    tensors, wanted = (operands.input, operands.weight), (wants_input, wants_weight)
    if scaled_grad is None:
        zeros = [torch.zeros_like(t) if asked else None for t, asked in zip(tensors, wanted, strict=True)]
        return zeros[0], zeros[1]
    if grad.dtype != torch.float16:
        return contraction.native_backward(scaled_grad.to(grad.dtype), *tensors, *wanted)
    # For near-parallel vectors D∘g is large, and the correction cancels most of it: scaled, it does not overflow.
    scale = _overflow_scale(scaled_grad, grad)
    results = contraction.native_backward((scaled_grad / scale).to(grad.dtype), *tensors, *wanted)
    grad_input, grad_weight = (None if t is None else t.to(scaled_grad.dtype) * scale for t in results)
    return grad_input, grad_weight


def _as(gradient: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if gradient is None else gradient.to(dtype)


def split(product: Product, pairs: Pairs, grad: Tensor) -> tuple[GradientTerm, GradientTerm]:
    """The terms for dW and for dX; `grad` has the shape of the output or of the pairs."""
    pair = measure(pairs)
    weight_gains, input_gains = weight_and_input_gains(product, pair)
    scaled_grad = _scaled(weight_gains, grad)
    along = _along(weight_gains, pairs, pair.cos, grad, scaled_grad)
    for_weight = GradientTerm(scaled_grad, _sums(along, pairs.input.value, pairs.weight.norms.value))
    if input_gains is not weight_gains:
        scaled_grad = _scaled(input_gains, grad)
        along = _along(input_gains, pairs, pair.cos, grad, scaled_grad)
    return for_weight, GradientTerm(scaled_grad, _sums(along, pairs.weight.norms.value, pairs.input.value))


def _scaled(gains: Gains, grad: Tensor) -> Tensor | None:
    """D∘g, in the shape of g: Inductor chooses its layout for the convolution that takes it, and not for a view."""
    direction = gains.direction
    return _times(grad, _shaped(direction, grad) if isinstance(direction, Tensor) else direction)


def _along(gains: Gains, pairs: Pairs, cos: Tensor, grad: Tensor, scaled_grad: Tensor | None) -> Tensor | None:
    """(L − D)·cos θ∘g, in the shape of the pairs.

    Inductor keeps it in memory, as both sums read it, in the layout of cos θ, which comes first: a gradient may have
    another layout than the output. Recomputing it for the weights' sums took 60 to 300 µs longer.
    """
    length, direction = gains
    if not isinstance(length, Tensor) and not isinstance(direction, Tensor) and length == direction:
        return None
    difference = _times(_shaped(grad, pairs.output), length)
    if scaled_grad is not None:
        scaled_grad = _shaped(scaled_grad, pairs.output)
        difference = -scaled_grad if difference is None else difference - scaled_grad
    return None if difference is None else cos * difference


def _sums(along: Tensor | None, norm: Tensor, like: Tensor) -> Tensor | None:
    """Σ (L − D)·cos θ·g·‖other vector‖, summed to the shape of `like`."""
    return None if along is None else (along * norm).sum_to_size(like.shape)


def _times(t: Tensor, factor: Tensor | float) -> Tensor | None:
    """t·factor, without a multiplication by 1; None for a factor of 0."""
    if isinstance(factor, Tensor):
        return factor * t  # the result takes the layout of the first, and gains have that of the output
    if factor == 0.0:
        return None
    return t if factor == 1.0 else t * factor


def _shaped(t: Tensor, like: Tensor) -> Tensor:
    """t in the shape of `like`; a scalar stays one."""
    return t if t.dim() == 0 or t.shape == like.shape else t.reshape(like.shape)


def _bias_dominates(bias: Tensor, weight_norms: Norms, input_norms: Norms) -> bool:
    """True if the bias is so large that output − bias has lost p, and p is worth computing again.

    Always False on other devices than the CPU, where the answer would synchronize with the device. There `measure`
    raises its floor instead (`WeightVectors.excess`).
    """
    ordinary = type(bias) in (Tensor, torch.nn.Parameter)  # a fake tensor has no numbers to look at
    if bias.device.type != "cpu" or torch.compiler.is_compiling() or not ordinary:
        return False
    return not bool(abs(bias).mean() <= 2.0 * weight_norms.value.mean() * input_norms.value.mean())  # True for NaN


def _overflow_scale(scaled_grad: Tensor, grad: Tensor) -> Tensor:
    """The power of two by which D∘g is divided to have the size of g, so that it does not overflow before g would.

    It is 1 while D∘g is below 2⁻⁸, where only a sum of very many overflows and division makes small numbers subnormal.
    """
    if grad.numel() == 0:
        return scaled_grad.new_ones(())
    harmless = abs(grad).amax().to(scaled_grad.dtype).clamp_min(2.0**-8)
    growth = abs(scaled_grad).amax() / harmless
    growth = torch.where(growth.isfinite(), growth, 1.0)  # one Inf in the gradient must not spoil the rest
    return growth.clamp(1.0, 2.0**16).log2().ceil().exp2()
