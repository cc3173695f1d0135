"""The gradient of an output, split into what the native backward takes and what is added along the vectors.

For each pair with the gains L and D, and for ∂/∂w and ∂/∂x:

    turned = D∘g                                    goes through the native backward
    sums   = Σ (L − D)·cos θ·g·‖other vector‖       one number a vector, added along it

Plain torch does this in some ten passes over memory, and autograd, torch.func and torch.compile see through them; the
compiled kernel does it in one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from prproduct.kernels import compiled
from prproduct.kernels.pairs import Pairs, measure, weight_and_input_gains
from prproduct.kernels.programs import program_of
from prproduct.products import Gains, Pair, Product


class Half(NamedTuple):
    """A gradient's share for ∂/∂w, or for ∂/∂x. None stands for zero."""

    turned: Tensor | None  # shaped as the pairs
    sums: Tensor | None  # shaped as the norms of the vectors along which they are to be added


def split(product: Product, pairs: Pairs, grad: Tensor, turned: Tensor | None = None) -> tuple[Half, Half]:
    """The halves for ∂/∂w and ∂/∂x; `turned` is memory that may be used for D∘g, also grad itself."""
    program = program_of(product) if compiled.serves_pairs(pairs, grad) else None
    if program is not None:
        whole = compiled.Split(program, pairs, grad, turned)
        whole.run()
        return Half(*whole.for_weight()), Half(*whole.for_input())
    pair = measure(pairs)
    weight_gains, input_gains = weight_and_input_gains(product, pair)
    radial = _radial(weight_gains, pair, grad)
    turned, sums = _times(grad, weight_gains.direction), _sums(radial, pairs.input.value, pairs.weight.norms.value)
    for_weight = Half(turned, sums)
    if input_gains is not weight_gains:
        radial, turned = _radial(input_gains, pair, grad), _times(grad, input_gains.direction)
    return for_weight, Half(turned, _sums(radial, pairs.weight.length, pairs.input.value))


class StepwiseSplit:
    """`split` for some rows of a linear layer at a time, as their gradients become known.

    What ∂/∂x needs of these rows is there at once; what ∂/∂w needs of all of them, at the end.
    """

    def __init__(self, product: Product, pairs: Pairs, grad: Tensor) -> None:
        """`grad` will be filled in, step by step."""
        self.product, self.pairs, self.grad = product, pairs, grad
        self.turned = torch.empty_like(grad, dtype=pairs.output.dtype, memory_format=torch.contiguous_format)
        self.sums: Tensor | None = None
        program = program_of(product) if compiled.serves_pairs(pairs, grad) else None
        self.whole = None if program is None else compiled.Split(program, pairs, grad, self.turned)

    def rows(self, rows: slice) -> Half:
        """The half for ∂/∂x of these rows, whose gradients are there now."""
        if self.whole is not None:
            self.whole.run(rows)
            turned, sums = self.whole.for_input()
            return Half(None if turned is None else turned[rows], None if sums is None else sums[rows])
        for_weight, for_input = split(self.product, self.pairs.rows(rows), self.grad[rows].to(self.turned.dtype))
        self.turned[rows] = 0.0 if for_weight.turned is None else for_weight.turned
        if for_weight.sums is not None:
            self.sums = for_weight.sums if self.sums is None else self.sums + for_weight.sums
        return for_input

    def for_weight(self) -> Half:
        """The half for ∂/∂w of all rows."""
        return Half(self.turned, self.sums) if self.whole is None else Half(*self.whole.for_weight())


def _radial(gains: Gains, pair: Pair, grad: Tensor) -> Tensor | None:
    """(L − D)·cos θ·g"""
    length, direction = gains
    if isinstance(direction, Tensor) and not isinstance(length, Tensor):
        return torch.addcmul(length * pair.cos, direction, pair.cos, value=-1.0) * grad
    excess = length - direction
    return excess * pair.cos * grad if isinstance(excess, Tensor) or excess else None


def _sums(radial: Tensor | None, factor: Tensor, like: Tensor) -> Tensor | None:
    return None if radial is None else (radial * factor).sum_to_size(like.shape)


def _times(t: Tensor, factor: Tensor | float) -> Tensor | None:
    if isinstance(factor, Tensor):
        return t * factor
    if factor == 0.0:
        return None
    return t if factor == 1.0 else t * factor
