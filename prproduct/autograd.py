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
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, overload

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from prproduct.kernels import fusion
from prproduct.kernels.compiled import serves
from prproduct.kernels.contractions import Contraction, Convolution, Linear
from prproduct.kernels.convolution_rule import ConvolutionRule
from prproduct.kernels.linear_rule import LinearRule
from prproduct.kernels.pairs import Norms, Pairs, WeightVectors, forward_factor, measure, overflow_scale, working_dtype
from prproduct.kernels.programs import Forward, Program, program_of
from prproduct.kernels.rules import Gradients, Rule
from prproduct.kernels.splitting import Half, split
from prproduct.products import P, Product, resolve

_NO_JVP = "prproduct changes gradients, and has no forward-mode AD (jvp, jacfwd): use backward, vjp or jacrev"
_NO_COMPILED_TRANSFORMS = (
    "torch.compile around torch.func would drop prproduct's gradient: compile the function inside, or do without"
)


Memory = Literal["save", "recompute"]
_NOTHING = torch.empty(0, device="cpu")


def apply(
    contraction: Contraction,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    product: str | Product,
    memory: Memory = "save",
) -> Tensor:
    """The contraction of input and weight under a product, plus the bias; the native op where no gradient is asked."""
    if not isinstance(product, Product):
        product = resolve(product)
    if memory != "save":
        check_memory(memory)
    if type(product) is P:
        return contraction.native(input, weight, bias)
    if not (input.dtype in _REAL and weight.dtype in _REAL) or input.is_nested:
        _refuse_types(input, weight, product)
    compiling, transformed = torch.compiler.is_compiling(), torch._C._are_functorch_transforms_active()
    if compiling and transformed:
        raise RuntimeError(_NO_COMPILED_TRANSFORMS)
    inference = not compiling and torch.is_inference_mode_enabled()
    if inference or not (transformed or _wants_gradient(input, weight)):
        if not compiling and _has_tangent(input, weight, bias):
            raise RuntimeError(_NO_JVP)
        if product.has_native_forward:
            return contraction.native(input, weight, bias)
    if _autocasts(input.device.type):
        input, weight, bias = (cast_for_autocast(t) for t in (input, weight, bias))
    if inference:
        return _value(contraction, input, weight, bias, product)
    keep_output = product.has_native_forward and not transformed and memory == "save"
    if compiling:
        return ProductFn.apply(input, weight, bias, contraction, product, keep_output)
    if transformed:
        return TransformedProductFn.apply(input, weight, bias, contraction, product, keep_output)
    return _apply_eagerly(input, weight, bias, contraction, product, keep_output)


_REAL = {torch.float32, torch.float64, torch.float16, torch.bfloat16}


def _refuse_types(input: Tensor, weight: Tensor, product: Product) -> None:
    """Unless torch's own op is to say what it takes."""
    if input.is_complex() or weight.is_complex() or not (product.has_native_forward or input.is_floating_point()):
        raise TypeError(f"product {product} needs real floating-point tensors, got {input.dtype}: convert, or use 'p'")
    if input.is_nested:
        raise TypeError(f"product {product} takes no nested tensors: apply the layer to their .values()")


def check_memory(memory: Memory) -> Memory:
    """The same, or a refusal."""
    if memory not in ("save", "recompute"):
        raise ValueError(f"memory={memory!r}: use 'save' or 'recompute'")
    return memory


def _wants_gradient(input: Tensor, weight: Tensor) -> bool:
    return torch.is_grad_enabled() and (input.requires_grad or weight.requires_grad)


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
            return _no_view(contraction.native(input, weight, bias))
        return _value(contraction, input, weight, bias, product)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        input, weight, bias, ctx.contraction, ctx.product, keep_output = inputs
        # Traced code is functional: when somebody writes into the output, that makes a new tensor.
        ctx.save_for_backward(input, weight, bias, output if keep_output else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _backward(ctx, grad, *ctx.saved_tensors)


class TransformedProductFn(ProductFn):
    """`ProductFn` with a clear refusal of forward mode; apart from it, as torch.compile traces no function with jvp."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        raise RuntimeError(_NO_JVP)


class EagerProductFn(TransformedProductFn):
    """The same in torch's older style, which torch.func does not take, and which costs half as much for a small layer.

    A function with a `setup_context` has its arguments bound by their names at every call.
    """

    setup_context = torch.autograd.Function.setup_context

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        contraction: Contraction,
        product: Product,
        keep_output: bool,
    ) -> Tensor:
        ctx.contraction, ctx.product, ctx.witness, kept = contraction, product, None, None
        output = ProductFn.forward(input, weight, bias, contraction, product, keep_output)
        if keep_output and type(output) is Tensor:
            # `.data` shares the memory but not the version counter, so autograd does not object when the user writes
            # into the output (relu_, +=). The witness shares the counter but not the memory: it tells that it happened.
            kept = output.data
            ctx.witness = witness = output.detach()
            witness.data = _NOTHING if output.is_cpu else output.new_empty(0)
            ctx.version = witness._version
        ctx.save_for_backward(input, weight, bias, kept)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, bias, output = ctx.saved_tensors
        if ctx.witness is not None and ctx.witness._version != ctx.version:
            output = None  # somebody wrote into it
        if torch.is_grad_enabled():
            output = None  # create_graph=True: p has to hang on input and weight
        return _backward(ctx, grad, input, weight, bias, output)


# `Function.apply` itself looks through all arguments for what torch.func may have left behind.
_apply_eagerly: Callable[..., Tensor] = super(torch.autograd.Function, EagerProductFn).apply


def _no_view(output: Tensor) -> Tensor:
    """Torch's linear returns a view for some inputs, and autograd forbids writing into a view made by a function."""
    is_view = torch.compiler.is_compiling() or output._is_view()
    return torch.ops.aten._unsafe_view(output, output.shape) if is_view else output


def _backward(
    ctx: Any, grad: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None, output: Tensor | None
) -> tuple[Tensor | None, ...]:
    wants_input, wants_weight, wants_bias = ctx.needs_input_grad[:3]
    grad_input = grad_weight = None
    with without_autocast(grad.device.type):
        grad_bias = ctx.contraction.grad_bias(grad, bias) if wants_bias else None
        if wants_input or wants_weight:
            rule = gradient_rule(ctx.contraction, ctx.product, input, weight, bias, output, grad)
            grad_input, grad_weight = rule.gradients(grad, wants_input, wants_weight)
    return grad_input, grad_weight, grad_bias, None, None, None


@overload
def gradient_rule(
    contraction: Linear,
    product: Product,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output: Tensor | None,
    grad: Tensor,
) -> GradientRule | LinearRule: ...
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
    one_offset_a_weight = bias is None or bias.dim() <= 1
    program = program_of(product) if one_offset_a_weight and serves(grad, input, weight, bias, output) else None
    if program is None:
        return GradientRule.at(contraction, product, input, weight, bias, output, grad)
    return _compiled_rule(
        contraction, program, input, weight, bias, output if product.has_native_forward else None, grad
    )


def _compiled_rule(
    contraction: Contraction,
    program: Program,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    output: Tensor | None,
    grad: Tensor,
) -> LinearRule | ConvolutionRule:
    if isinstance(contraction, Linear):
        return LinearRule(contraction, program, input, weight, bias, output)
    assert isinstance(contraction, Convolution)
    return ConvolutionRule(contraction, program, input, weight, bias, output, grad)


@dataclass(frozen=True)
class GradientRule:
    """The rule in plain torch."""

    contraction: Contraction
    product: Product
    input: Tensor
    weight: Tensor
    pairs: Pairs

    @classmethod
    def at(
        cls,
        contraction: Contraction,
        product: Product,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        output: Tensor | None,
        grad: Tensor,
    ) -> GradientRule:
        """The rule of `gradient_rule`."""
        dtype = working_dtype(grad.dtype)
        weight_norms = Norms.of(contraction.weight_square(weight, dtype))
        norms = weight_norms, Norms.of(contraction.input_square(input, weight, grad, dtype))
        stored, offset = grad.dtype, None
        if not product.has_native_forward:
            p = _wide_product(contraction, input, weight)
            stored = p.dtype
        else:
            if bias is not None and output is not None:
                offset = contraction.bias_of_pairs(bias, output).to(dtype)
                if _drowns(offset, *norms):
                    output = offset = None
            p = contraction.native(input, weight, None) if output is None else output
        weights = WeightVectors(norms[0], stored, contraction.is_convolution, offset)
        return cls(contraction, product, input, weight, Pairs(_pairs(contraction, p), weights, norms[1]))

    def rows(self, rows: slice) -> GradientRule:
        """The rule for some rows of the input of a linear contraction."""
        return replace(self, input=self.input[rows], pairs=self.pairs.rows(rows))

    def gradients(self, grad: Tensor, wants_input: bool, wants_weight: bool, overwrite: bool = False) -> Gradients:
        for_weight, for_input = self.split(grad)
        if for_weight.turned is for_input.turned:  # one call, so that a compiler lays D∘g out for it once
            of_input, of_weight = self._native(for_input.turned, grad, wants_input, wants_weight)
        else:
            of_input = self._native(for_input.turned, grad, wants_input, False)[0]
            of_weight = self._native(for_weight.turned, grad, False, wants_weight)[1]
        return self._along_input(of_input, for_input.sums), self._along_weight(of_weight, for_weight.sums)

    def stepwise(self, grad: Tensor) -> PlainSteps:
        """For rows of a linear contraction's gradient, as they become known."""
        return PlainSteps(self, grad)

    def split(self, grad: Tensor) -> tuple[Half, Half]:
        """D∘g and the sums of (L − D)·cos θ∘g, for dW and for dX."""
        grad = grad.to(working_dtype(grad.dtype))
        fused = fusion.serves(self.product, grad)
        return (fusion.split if fused else split)(self.product, self.pairs, grad)

    def weight_gradient(self, half: Half, grad: Tensor) -> Tensor:
        """dW of the module's docstring."""
        return cast(Tensor, self._along_weight(self._native(half.turned, grad, False, True)[1], half.sums))

    def input_gradient(self, half: Half, grad: Tensor) -> Tensor:
        """dX of the module's docstring."""
        return cast(Tensor, self._along_input(self._native(half.turned, grad, True, False)[0], half.sums))

    def _native(self, turned: Tensor | None, grad: Tensor, wants_input: bool, wants_weight: bool) -> Gradients:
        """The native backward of D∘g."""
        operands, wanted = (self.input, self.weight), (wants_input, wants_weight)
        if turned is None:
            of_input, of_weight = (
                torch.zeros_like(t) if asked else None for t, asked in zip(operands, wanted, strict=True)
            )
            return of_input, of_weight
        if grad.dtype != torch.float16:
            return self.contraction.native_backward(turned.to(grad.dtype), *operands, *wanted)
        # Near-parallel vectors make D∘g large before the correction takes most of it back: no overflow in between.
        scale = overflow_scale(turned, grad)
        scaled = (turned / scale).to(grad.dtype)
        results = self.contraction.native_backward(scaled, *operands, *wanted)
        of_input, of_weight = (None if t is None else t.to(turned.dtype) * scale for t in results)
        return of_input, of_weight

    def _along_weight(self, result: Tensor | None, sums: Tensor | None) -> Tensor | None:
        if result is not None and sums is not None:
            result = self.contraction.add_along_weight(result, sums, self.weight, self.pairs)
        return None if result is None else result.to(self.weight.dtype)

    def _along_input(self, result: Tensor | None, sums: Tensor | None) -> Tensor | None:
        if result is not None and sums is not None:
            result = self.contraction.add_along_input(result, sums, self.input, self.weight, self.pairs)
        return None if result is None else result.to(self.input.dtype)


class PlainSteps:
    """`Steps` in plain torch."""

    def __init__(self, rule: GradientRule, grad: Tensor) -> None:
        self.rule, self.grad = rule, grad
        self.turned = torch.empty_like(grad, dtype=rule.pairs.output.dtype, memory_format=torch.contiguous_format)
        self.sums: Tensor | None = None
        self.for_input = Half(None, None)

    def split(self, rows: slice) -> None:
        for_weight, self.for_input = self.rule.rows(rows).split(self.grad[rows])
        self.turned[rows] = 0.0 if for_weight.turned is None else for_weight.turned
        if for_weight.sums is not None:
            self.sums = for_weight.sums if self.sums is None else self.sums + for_weight.sums

    def input_gradient(self, rows: slice) -> Tensor:
        return self.rule.rows(rows).input_gradient(self.for_input, self.grad[rows])

    def weight_gradient(self) -> Tensor:
        return self.rule.weight_gradient(Half(self.turned, self.sums), self.grad)


def _pairs(contraction: Contraction, output: Tensor) -> Tensor:
    return contraction.as_pairs(output).to(working_dtype(output.dtype))


def _value(contraction: Contraction, input: Tensor, weight: Tensor, bias: Tensor | None, product: Product) -> Tensor:
    """The forward of a product that has its own."""
    p = _wide_product(contraction, input, weight)
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


def _wide_product(contraction: Contraction, input: Tensor, weight: Tensor) -> Tensor:
    """p in the working dtype: a product with a value of its own need not take it from a rounded output."""
    if input.dtype == weight.dtype:  # torch refuses a mixture, and so do we
        input, weight = (t.to(working_dtype(t.dtype)) for t in (input, weight))
    return contraction.native(input, weight, None)


def _drowns(offset: Tensor, weight_norms: Norms, input_norms: Norms) -> bool:
    """Whether the bias is so large that output − bias has lost p, and p is worth computing again.

    Asked on the CPU only: elsewhere the answer would stall the device, and the raised floor of `measure` has to serve.
    """
    if offset.device.type != "cpu" or torch.compiler.is_compiling() or type(offset) is FakeTensor:
        return False
    return bool(abs(offset).mean() > 2.0 * weight_norms.value.mean() * input_norms.value.mean())


def without_autocast(device_type: str) -> AbstractContextManager[Any]:
    """Casts were made in forward: backward computes in the dtypes it is given."""
    return torch.autocast(device_type, enabled=False) if _autocasts(device_type) else nullcontext()


def cast_for_autocast(t: Tensor | None) -> Any:
    """Autocast's own cast of an operand, ahead of the op, so that backward sees the tensors that were multiplied."""
    if t is None or not t.is_floating_point() or t.dtype == torch.float64:
        return t
    return t.to(torch.get_autocast_dtype(t.device.type)) if _autocasts(t.device.type) else t


def _autocasts(device_type: str) -> bool:
    known = device_type == "cpu" or torch.amp.is_autocast_available(device_type)
    return known and torch.is_autocast_enabled(device_type)


def _has_tangent(*tensors: Tensor | None) -> bool:
    return any(t is not None and forward_ad.unpack_dual(t).tangent is not None for t in tensors)
