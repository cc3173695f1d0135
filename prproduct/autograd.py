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
from typing import Any, Literal, get_args

import torch
from torch import Tensor, is_grad_enabled, is_inference_mode_enabled
from torch._C import _are_functorch_transforms_active, _has_storage, _is_any_autocast_enabled
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from prproduct.kernels.choice import gradients, value_of
from prproduct.kernels.contractions import Contraction
from prproduct.kernels.outputs import Habit, Remembered, hold_what_is_left, not_held
from prproduct.kernels.rules import ThreeGradients, Wanted
from prproduct.kernels.sums import NOTHING, Found
from prproduct.products import P, Product, resolve

_NO_JVP = "prproduct changes gradients, and has no forward-mode AD (jvp, jacfwd): use backward, vjp or jacrev"
_NO_COMPILED_TRANSFORMS = (
    "torch.compile around torch.func would drop prproduct's gradient: compile the function inside, or do without"
)


Memory = Literal["auto", "save", "recompute"]  # of a layer
Keeping = Literal["save", "recompute"] | Habit  # of an operation: a layer whose memory is "auto" has a habit
_NOTHING = torch.empty(0, device="cpu")


def apply(
    contraction: Contraction,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    product: str | Product,
    memory: Keeping = "save",
) -> Tensor:
    """The contraction of input and weight under a product, plus the bias; the native op where no gradient is asked."""
    if not isinstance(product, Product):
        product = resolve(product)
    if memory != "save" and not isinstance(memory, Habit):
        check_memory(memory, ("save", "recompute"))
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
            raise RuntimeError(_NO_JVP)
        if product.has_native_forward:
            return contraction.native(input, weight, bias)
    if _is_any_autocast_enabled() and _autocasts(input.device.type):
        input, weight, bias = (cast_for_autocast(t) for t in (input, weight, bias))
    if inference:
        return value_of(contraction, input, weight, bias, product)
    if compiling:
        keep_output = product.has_native_forward and memory != "recompute"
        return ProductFn.apply(input, weight, bias, contraction, product, keep_output)
    if transformed:
        return TransformedProductFn.apply(input, weight, bias, contraction, product, False)
    return _apply_eagerly(input, weight, bias, (contraction, product, memory))


_REAL = {torch.float32, torch.float64, torch.float16, torch.bfloat16}


def _refuse_types(input: Tensor, weight: Tensor, product: Product) -> None:
    """Unless torch's own op is to say what it takes."""
    if input.is_complex() or weight.is_complex() or not (product.has_native_forward or input.is_floating_point()):
        raise TypeError(f"product {product} needs real floating-point tensors, got {input.dtype}: convert, or use 'p'")
    if input.is_nested:
        raise TypeError(f"product {product} takes no nested tensors: apply the layer to their .values()")


def check_memory(memory: Memory, known: tuple[Memory, ...] = get_args(Memory)) -> Memory:
    """The same, or a refusal."""
    if memory not in known:
        *others, last = map(repr, known)
        raise ValueError(f"memory={memory!r}: use {', '.join(others)} or {last}")
    return memory


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
        if not product.has_native_forward:
            return value_of(contraction, input, weight, bias, product)
        output = contraction.native(input, weight, bias)
        return _no_view(output) if is_compiling() or output._is_view() else output

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        input, weight, bias, ctx.contraction, ctx.product, keep_output = inputs
        # Traced code is functional: when somebody writes into the output, that makes a new tensor.
        ctx.save_for_backward(input, weight, bias, output if keep_output else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, bias, output = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        wanted = _backward(ctx.contraction, ctx.product, input, weight, bias, output, grad, wanted)
        return *wanted, None, None, None


class TransformedProductFn(ProductFn):
    """`ProductFn` with a clear refusal of forward mode; apart from it, as torch.compile traces no function with jvp."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        raise RuntimeError(_NO_JVP)


class EagerProductFn(TransformedProductFn):
    """The same in torch's older style, which torch.func does not take, and which costs half as much for a small layer.

    A function with a `setup_context` has its arguments bound by their names at every call; and each argument, and each
    attribute of `ctx`, takes 1 µs and more in a small layer: so all that is no tensor is one.
    """

    setup_context = torch.autograd.Function.setup_context

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, call: tuple[Contraction, Product, Keeping]
    ) -> Tensor:
        contraction, product, memory = call
        kept = witness = None
        version = 0
        if product.has_native_forward:
            output = contraction.native(input, weight, bias)
            output = _no_view(output) if output._is_view() else output
            if type(output) is Tensor:
                # `.data` shares the memory but not the version counter, so autograd does not object when the user
                # writes into the output (relu_, +=). The witness shares the counter but not the memory: it tells that
                # it happened.
                witness = output.detach()
                witness.data = _NOTHING if output.is_cpu else output.new_empty(0)
                version = witness._version
                habit = memory if isinstance(memory, Habit) else None
                if memory == "save" or (habit is not None and habit.keeps(output, contraction.is_convolution)):
                    kept = output.data
                elif _has_storage(output):
                    ctx.remembered_output = Remembered(output, witness)
        else:
            output = value_of(contraction, input, weight, bias, product)
        ctx.save_for_backward(input, weight, bias, kept)
        ctx.call = (contraction, product, memory, witness, version)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, bias, output = ctx.saved_tensors
        contraction, product, _, witness, version = ctx.call
        addend, wanted = None, ctx.needs_input_grad[:3]
        if not_held:  # by the layers before this one, which will need them soon
            hold_what_is_left(ctx)
        if output is None:
            output, addend, _ = _find_again(ctx, input, weight, bias, grad)
        elif is_grad_enabled() or witness._version != version:
            output = None  # create_graph=True: p has to hang on input and weight; or somebody wrote into the output
        return *_backward(contraction, product, input, weight, bias, output, grad, wanted, addend), None


def _find_again(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, grad: Tensor) -> Found:
    """The output of a layer that has not kept it; computed again, with the very same result, if nobody else has."""
    remembered = getattr(ctx, "remembered_output", None)
    if remembered is None or is_compiling():
        return NOTHING
    found: Found = remembered.find()  # in any case: it is held no longer
    partner, remembered.partner = remembered.partner, None
    if type(grad) is not Tensor or is_grad_enabled():  # create_graph=True: as above
        return NOTHING
    if not (ctx.needs_input_grad[0] or ctx.needs_input_grad[1]):  # a bias needs nothing
        return NOTHING
    contraction, _, memory, _, _ = ctx.call
    if type(memory) is Habit:  # what is written into, or told by another, is not worth keeping
        memory.learn(found, worth_keeping=partner is None and not remembered.writes)
    if found.output is None:
        with without_autocast(grad):
            found = Found(contraction.native(input, weight, bias))
        if partner is not None:
            partner.tell(found.output)
    return found


# `Function.apply` itself looks through all arguments for what torch.func may have left behind.
_apply_eagerly: Callable[..., Tensor] = super(torch.autograd.Function, EagerProductFn).apply


def _no_view(output: Tensor) -> Tensor:
    """Torch's linear returns a view for some inputs, and autograd forbids writing into a view made by a function."""
    return torch.ops.aten._unsafe_view(output, output.shape)


def _backward(
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
    if _is_any_autocast_enabled():
        with without_autocast(grad):
            return gradients(contraction, product, input, weight, bias, output, grad, wanted, addend)
    return gradients(contraction, product, input, weight, bias, output, grad, wanted, addend)


def without_autocast(grad: Tensor) -> AbstractContextManager[Any]:
    """Casts were made in forward: backward computes in the dtypes it is given."""
    device_type = grad.device.type
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
