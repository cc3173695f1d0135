"""Which rule computes a product's gradients, and its value if it has one of its own: a compiled one, or plain torch."""

from __future__ import annotations

from typing import overload

from torch import Tensor

from prproduct.kernels.compiled import serves
from prproduct.kernels.contractions import Contraction, Convolution, Linear
from prproduct.kernels.convolution_rule import ConvolutionRule
from prproduct.kernels.depthwise.rule import DepthwiseRule, is_depthwise
from prproduct.kernels.linear_rule import LinearRule
from prproduct.kernels.pairs import Norms, Pairs, WeightVectors, forward_factor, measure
from prproduct.kernels.plain_rule import PlainRule, wide_product
from prproduct.kernels.programs import Forward, Program, program_of
from prproduct.kernels.rules import Rule, ThreeGradients, Wanted
from prproduct.kernels.small_linear import small_backward
from prproduct.kernels.usual_convolution import usual_backward
from prproduct.products import Product

OTHER_SHAPES = "saved tensors came back from a hook with other shapes: let it return what it was given"


@overload
def gradient_rule(
    contraction: Linear,
    product: Product,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output: Tensor | None,
    grad: Tensor,
) -> PlainRule | LinearRule: ...
@overload
def gradient_rule(
    contraction: Contraction,
    product: Product,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output: Tensor | None,
    grad: Tensor,
) -> Rule: ...
def gradient_rule(
    contraction: Contraction,
    product: Product,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output: Tensor | None,
    grad: Tensor,
) -> Rule:
    """What maps a gradient of the output to dX and dW, where input and weight are.

    p is read off the output, or computed again if there is none. `grad` says of what shape and type gradients will be.
    """
    served = (bias is None or bias.dim() <= 1) and serves(grad, input, weight, bias, output)
    program = program_of(product) if served else None
    return _rule(program, contraction, product, input, weight, bias, output, grad)


def _rule(
    program: Program | None,
    contraction: Contraction,
    product: Product,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output: Tensor | None,
    grad: Tensor,
    addend: Tensor | None = None,
) -> Rule:
    if program is None:
        return PlainRule.at(contraction, product, input, weight, bias, output, grad, addend)
    if not product.has_native_forward:
        output = addend = None
    return _compiled_rule(contraction, program, input, weight, bias, output, grad, addend)


def _compiled_rule(
    contraction: Contraction,
    program: Program,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output: Tensor | None,
    grad: Tensor,
    addend: Tensor | None = None,
) -> LinearRule | ConvolutionRule | DepthwiseRule:
    shape = contraction.output_shape(input.shape, weight.shape)
    biases = (1, weight.shape[0]) if isinstance(contraction, Linear) else grad.shape[1:2]
    if any(t is not None and t.shape != shape for t in (grad, output, addend)):
        raise RuntimeError(OTHER_SHAPES)
    if bias is not None and bias.numel() not in biases:
        raise RuntimeError(OTHER_SHAPES)
    if isinstance(contraction, Linear):
        return LinearRule(contraction, program, input, weight, bias, output, addend)
    assert isinstance(contraction, Convolution)
    if is_depthwise(contraction, input, weight, grad if output is None else output):
        known = output if addend is None else None  # computed again: that costs little, and is rare
        return DepthwiseRule(contraction, program, input, weight, bias, known, grad)
    return ConvolutionRule(contraction, program, input, weight, bias, output, addend, grad)


def gradients(
    contraction: Contraction,
    product: Product,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output: Tensor | None,
    grad: Tensor,
    wanted: Wanted,
    addend: Tensor | None = None,
) -> ThreeGradients:
    """Those of input, weight and bias that are wanted. If there is an addend, it was added to the output."""
    wants_input, wants_weight, wants_bias = wanted
    dx = dw = None
    if wants_input or wants_weight:
        served = (bias is None or bias.dim() <= 1) and serves(grad, input, weight, bias, output, addend)
        program, offset = program_of(product) if served else None, bias
        if program is not None and type(contraction) is Convolution and contraction.is_pointwise(weight.shape):  # noqa: SIM102
            if all(t is None or t.movedim(1, -1).is_contiguous() for t in (grad, input, output, addend)):
                return _of_places(product, input, weight, bias, output, grad, wanted, addend)
        if program is not None and type(contraction) is Linear and product.has_native_forward:
            if output is None:
                output, offset = contraction.native(input, weight, None), None
            of_bias = wants_bias and offset is not None
            asked = (wants_input, wants_weight, of_bias)
            found = small_backward(program, input, weight, offset, output, addend, grad, asked)
            if found is not None:
                dx, dw, db = found
                return dx, dw, _bias_gradient(contraction, grad, bias, wants_bias) if db is None else db
        if program is not None and type(contraction) is Convolution and product.has_native_forward:
            if output is None:
                output, offset = contraction.native(input, weight, None), None
            both = (wants_input, wants_weight)
            usual = usual_backward(program, contraction, input, weight, offset, output, addend, grad, both)
            if usual is not None:
                return *usual, _bias_gradient(contraction, grad, bias, wants_bias)
        rule = _rule(program, contraction, product, input, weight, offset, output, grad, addend)
        dx, dw = rule.gradients(grad, wants_input, wants_weight)
    return dx, dw, _bias_gradient(contraction, grad, bias, wants_bias)


def _of_places(
    product: Product,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output: Tensor | None,
    grad: Tensor,
    wanted: Wanted,
    addend: Tensor | None,
) -> ThreeGradients:
    """The gradients of a convolution of single places with channels last: they are a linear layer's rows."""
    y, r = (None if t is None else t.movedim(1, -1) for t in (output, addend))
    x, g = input.movedim(1, -1), grad.movedim(1, -1)
    dx, dw, db = gradients(_LINEAR, product, x, weight.flatten(1), bias, y, g, wanted, r)
    return None if dx is None else dx.movedim(-1, 1), None if dw is None else dw.view(weight.shape), db


_LINEAR = Linear()


def _bias_gradient(contraction: Contraction, grad: Tensor, bias: Tensor | None, wanted: bool) -> Tensor | None:
    return contraction.grad_bias(grad, bias) if wanted and bias is not None else None


def value_of(contraction: Contraction, input: Tensor, weight: Tensor, bias: Tensor | None, product: Product) -> Tensor:
    """The forward of a product that has its own."""
    p = wide_product(contraction, input, weight)
    program = program_of(Forward(product)) if serves(p, input, weight) else None
    if program is not None and program.weight.turn is None:
        output = _compiled_rule(contraction, program, input, weight, None, p, p).turned(p)
    else:
        weight_norms = Norms.of(contraction.weight_square(weight, p.dtype))
        input_norms = Norms.of(contraction.input_square(input, weight, p, p.dtype))
        weights = WeightVectors(weight_norms, p.dtype, contraction.is_convolution)
        pairs = Pairs(contraction.as_pairs(p), weights, input_norms)
        output = (pairs.output * forward_factor(product, measure(pairs))).reshape(p.shape).to(input.dtype)
    return output if bias is None else contraction.add_bias(output, bias)
