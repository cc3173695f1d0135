"""The autograd function of every layer: the native forward, and the backward of a product.

    forward    output = torch's own op of input, weight and bias; `r` alone has a value of its own
    backward   dX, dW = the equations in `rule.py`, computed there or by kernels (`kernels.py`); the bias's is torch's

Backward needs p = output − bias. With memory="save" the output is saved for it, which takes no new memory where the
next layer saves it too (BatchNorm, GELU, a following linear layer); with memory="recompute" p is computed again from
input and weight.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, get_args

import torch
from torch import Tensor, is_grad_enabled, is_inference_mode_enabled
from torch._C import _are_functorch_transforms_active  # private: torch has no public one
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.overrides import handle_torch_function, has_torch_function

from prproduct.ops import kernels, rule
from prproduct.ops.angles import working_dtype
from prproduct.ops.contractions import Contraction, is_one_a_weight_vector
from prproduct.ops.rule import Gradients, Operands
from prproduct.products import P, Product, resolve

NO_JVP = "prproduct changes gradients, and has no forward-mode AD (jvp, jacfwd): use backward, vjp or jacrev"
_NO_COMPILED_TRANSFORMS = (
    "torch.compile around torch.func would drop prproduct's gradient: compile the function inside, or do without"
)

Memory = Literal["save", "recompute"]


def apply(
    contraction: Contraction,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    product: str | Product,
    memory: Memory = "save",
) -> Tensor:
    """The contraction of input and weight under a product, plus the bias.

    This chooses among the functions below: the native op where no gradient is wanted, `ProductFn` under torch.compile,
    `TransformedProductFn` under torch.func, and else `EagerProductFn`.
    """
    if has_torch_function((input, weight, bias)):
        return handle_torch_function(apply, (input, weight, bias), contraction, input, weight, bias, product, memory)
    if not isinstance(product, Product):
        product = resolve(product)
    check_memory(memory)
    if type(product) is P:
        return contraction.native(input, weight, bias)
    if not (input.dtype in _REAL and weight.dtype in _REAL) or input.is_nested:
        _refuse_types(input, weight, product)
    compiling, transformed = is_compiling(), _are_functorch_transforms_active()
    if compiling and transformed:
        raise RuntimeError(_NO_COMPILED_TRANSFORMS)
    inference = not compiling and is_inference_mode_enabled()
    wants_gradient = is_grad_enabled() and (weight.requires_grad or input.requires_grad)
    if inference or not (transformed or wants_gradient):
        if not compiling and _has_tangent(input, weight, bias):
            raise RuntimeError(NO_JVP)
        if product.has_native_forward:
            return contraction.native(input, weight, bias)
    if not (input.layout == weight.layout == torch.strided):
        raise TypeError(f"product {product} has no gradient for sparse tensors: use .to_dense(), or product 'p'")
    if _autocasts(input.device.type):
        input, weight, bias = (cast_for_autocast(t) for t in (input, weight, bias))
    if inference:
        return value_of(contraction, product, input, weight, bias)
    if compiling:
        keep_output = product.has_native_forward and memory == "save"
        return ProductFn.apply(input, weight, bias, contraction, product, keep_output)
    if transformed:
        return TransformedProductFn.apply(input, weight, bias, contraction, product, False)
    return EagerProductFn.apply(input, weight, bias, (contraction, product, memory))


_REAL = {torch.float32, torch.float64, torch.float16, torch.bfloat16}


def _refuse_types(input: Tensor, weight: Tensor, product: Product) -> None:
    """Raise an error for complex and nested tensors; all others are left to torch's own op, which has its error."""
    if input.is_complex() or weight.is_complex() or not (product.has_native_forward or input.is_floating_point()):
        raise TypeError(f"product {product} needs real floating-point tensors, got {input.dtype}: convert, or use 'p'")
    if input.is_nested:
        raise TypeError(f"product {product} takes no nested tensors: apply the layer to their .values()")


def check_memory(memory: Memory) -> Memory:
    """Return `memory`, or raise an error that names the possible values."""
    if memory not in get_args(Memory):
        raise ValueError(f"memory={memory!r}: use 'save' or 'recompute'")
    return memory


class ProductFn(torch.autograd.Function):
    """A contraction under a product. With `keep_output`, backward takes p from the output instead of computing it."""

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
        return _forward(contraction, product, input, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        input, weight, bias, ctx.contraction, ctx.product, keep_output = inputs
        # A copy, as users write into a layer's output. Inductor removes it.
        ctx.save_for_backward(input, weight, bias, output.clone() if keep_output else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        operands = Operands(*ctx.saved_tensors)
        # At the first stride that a backward reads, as `materialized` does, Dynamo begins to trace it anew. Inside of
        # `without_autocast`, autocast would then stay disabled, and Dynamo stops with an error.
        grad.stride()
        return *backward(ctx.contraction, ctx.product, operands, grad, ctx.needs_input_grad), None, None, None


class TransformedProductFn(ProductFn):
    """`ProductFn` with a clear error for forward mode. It is a class of its own: torch.compile traces none with jvp."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        raise RuntimeError(NO_JVP)


class EagerProductFn(torch.autograd.Function):
    """`ProductFn` for eager mode, in torch's older style without `setup_context`: half the overhead for a small layer.

    torch.func does not take this style. With `setup_context`, arguments are bound by their names at every call; and
    each argument, and each attribute of `ctx`, takes 1 µs or more: so all that are not tensors are one tuple.
    """

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, settings: tuple[Contraction, Product, Memory]
    ) -> Tensor:
        contraction, product, memory = settings
        saved = counter = None
        version = 0
        # ATen's matmul chooses its kernel by whether weight.T requires a gradient. Inside an autograd function the
        # transpose of a leaf view does not, and the output would differ from the native layer's in its last bits.
        leaf = weight.data.requires_grad_() if weight.requires_grad and weight._is_view() else weight
        output = _forward(contraction, product, input, leaf, bias)
        if product.has_native_forward and memory == "save" and type(output) is Tensor:
            # Users write into a layer's output (relu_, +=), and autograd refuses to unpack a saved tensor after that.
            # `.data` shares the memory but not the version counter, so that autograd unpacks it always; `counter`
            # shares the version counter but not the memory, and shows in backward whether the output was written into.
            saved = output.data
            counter = output.detach()
            counter.data = _NO_DATA if output.is_cpu else output.new_empty(0)
            version = counter._version
        ctx.save_for_backward(input, weight, bias, saved)
        ctx.kept = (contraction, product, counter, version)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, bias, output = ctx.saved_tensors
        contraction, product, counter, version = ctx.kept
        # p is recomputed under create_graph=True, where it must depend on input and weight; if the output was written
        # into; and under compiled autograd, whose tracing shows no version counters.
        if output is not None and (is_grad_enabled() or is_compiling() or counter._version != version):
            output = None
        operands = Operands(input, weight, bias, output)
        return *backward(contraction, product, operands, grad, ctx.needs_input_grad), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        raise RuntimeError(NO_JVP)


_NO_DATA = torch.empty(0, device="cpu")


def _forward(contraction: Contraction, product: Product, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if product.has_native_forward:
        output = contraction.native(input, weight, bias)
    else:
        output = value_of(contraction, product, input, weight, bias)
    return _no_view(output) if is_compiling() or output._is_view() else output


def _no_view(output: Tensor) -> Tensor:
    """The output, not as a view.

    Torch's linear returns a view for some inputs, and autograd forbids in-place writes into one from a function.
    """
    return torch.ops.aten._unsafe_view(output, output.shape)


def value_of(contraction: Contraction, product: Product, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The forward of a product that has its own, computed in the working dtype."""
    dtype = input.dtype
    if bias is not None and bias.dtype != dtype:
        raise TypeError(f"product {product}: the bias is {bias.dtype} and the input {dtype}: convert one of them")
    implementation = kernels if kernels.serves(product, input, weight) else rule
    with without_autocast(input):
        if weight.dtype == dtype:  # torch refuses a mixture, and so do we
            input, weight = _widened(input), _widened(weight)
        output = implementation.value(contraction, product, input, weight).to(dtype)
        return output if bias is None else contraction.add_bias(output, bias)


def backward(
    contraction: Contraction, product: Product, operands: Operands, grad: Tensor, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of input, weight and bias, or None where they are not wanted."""
    wants_input, wants_weight, wants_bias = wanted[:3]
    grad_bias = contraction.grad_bias(grad, operands.bias) if wants_bias and operands.bias is not None else None
    if not (wants_input or wants_weight):
        return None, None, grad_bias
    with without_autocast(grad):
        return *gradients(contraction, product, operands, grad, wants_input, wants_weight), grad_bias


def gradients(
    contraction: Contraction,
    product: Product,
    operands: Operands,
    grad: Tensor,
    wants_input: bool,
    wants_weight: bool,
) -> Gradients:
    """dX and dW, by kernels where `kernels.serves`, and else by the rule in plain torch."""
    input, weight, bias, _ = operands
    usual_bias = bias is None or is_one_a_weight_vector(bias, weight.dim() == 1)  # the rule takes all that torch takes
    implementation = kernels if usual_bias and kernels.serves(product, grad, *operands) else rule
    if product.has_native_forward:
        return implementation.gradients(contraction, product, operands, grad, wants_input, wants_weight)
    # The output is not p. Computed again, in the working dtype, p resolves smaller angles than half types do, at which
    # D∘g, rounded to a half type, would lose what the correction along the vectors leaves of it.
    wide = Operands(_widened(input), _widened(weight), None, None)
    results = implementation.gradients(contraction, product, wide, _widened(grad), wants_input, wants_weight)
    grad_input, grad_weight = (
        None if result is None else result.to(of.dtype) for result, of in zip(results, (input, weight), strict=True)
    )
    return grad_input, grad_weight


def _widened(t: Tensor) -> Tensor:
    """t in the working dtype."""
    return t.to(working_dtype(t.dtype))


def without_autocast(t: Tensor) -> AbstractContextManager[Any]:
    """A context for what computes in the dtypes that autocast chose, or in wider ones: autocast casts nothing there."""
    device_type = t.device.type
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
