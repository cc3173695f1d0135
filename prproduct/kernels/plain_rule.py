"""The gradients of a product in plain torch: on every device, in every number format, under every transform.

The compiled rules (`linear_rule.py`, `convolution_rule.py`) equal it to rounding, and are tested against it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from prproduct.kernels import fusion
from prproduct.kernels.contractions import Contraction
from prproduct.kernels.pairs import Norms, Pairs, WeightVectors, overflow_scale, working_dtype
from prproduct.kernels.rules import Gradients
from prproduct.kernels.splitting import Half, split
from prproduct.products import Product


@dataclass(frozen=True)
class PlainRule:
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
        addend: Tensor | None = None,
    ) -> PlainRule:
        """The rule where input and weight are; p is read off the output, or computed again if there is none.

        If there is an addend, it was added to the output.
        """
        dtype = working_dtype(grad.dtype)
        weight_norms = Norms.of(contraction.weight_square(weight, dtype))
        norms = weight_norms, Norms.of(contraction.input_square(input, weight, grad, dtype))
        stored, offset = grad.dtype, None
        if not product.has_native_forward:
            p = wide_product(contraction, input, weight)
            stored = p.dtype
        else:
            if output is not None:
                offsets = [] if bias is None else [contraction.bias_of_pairs(bias, output).to(dtype)]
                offsets += [] if addend is None else [_pairs(contraction, addend)]
                offset = sum(offsets[1:], offsets[0]) if offsets else None
                if offset is not None and _drowns(offset, *norms):
                    output = offset = None
            p = contraction.native(input, weight, None) if output is None else output
        weights = WeightVectors(norms[0], stored, contraction.is_convolution, offset)
        return cls(contraction, product, input, weight, Pairs(_pairs(contraction, p), weights, norms[1]))

    def rows(self, rows: slice) -> PlainRule:
        """The rule for some rows of the input of a linear contraction."""
        return replace(self, input=self.input[rows], pairs=self.pairs.rows(rows))

    def gradients(self, grad: Tensor, wants_input: bool, wants_weight: bool) -> Gradients:
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

    def __init__(self, rule: PlainRule, grad: Tensor) -> None:
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


def wide_product(contraction: Contraction, input: Tensor, weight: Tensor) -> Tensor:
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
    return not bool(abs(offset).mean() <= 2.0 * weight_norms.value.mean() * input_norms.value.mean())  # nor for NaN
