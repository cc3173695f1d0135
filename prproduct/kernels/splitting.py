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


def split(
    product: Product, pairs: Pairs, weight_length: Tensor, grad: Tensor, turned: Tensor | None = None
) -> tuple[Half, Half]:
    """The halves for ∂/∂w and ∂/∂x.

    `weight_length` is what stands for ‖w‖ in the sums for ∂/∂x, and `turned` memory that may be used for D∘g.
    """
    one_offset_a_weight = pairs.offset is None or pairs.offset.dim() <= pairs.weight.value.dim()
    if one_offset_a_weight and compiled.serves(grad, pairs.output, pairs.input.value):
        program = program_of(product)
        if program is not None:
            of_weight, of_input = compiled.split(program, pairs, weight_length, grad, turned)
            return Half(*of_weight), Half(*of_input)
    pair = measure(pairs)
    weight_gains, input_gains = weight_and_input_gains(product, pair)
    radial = _radial(weight_gains, pair, grad)
    for_weight = Half(_times(grad, weight_gains.direction), _sums(radial, pairs.input.value, pairs.weight.value))
    if input_gains is weight_gains:
        return for_weight, Half(for_weight.turned, _sums(radial, weight_length, pairs.input.value))
    radial = _radial(input_gains, pair, grad)
    return for_weight, Half(_times(grad, input_gains.direction), _sums(radial, weight_length, pairs.input.value))


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
