"""The gradient of an output, split into what the native backward takes and what is added along the vectors.

For each pair with the gains L and D, and for ∂/∂w and ∂/∂x:

    turned = D∘g                                    goes through the native backward
    sums   = Σ (L − D)·cos θ·g·‖other vector‖       one number a vector, added along it

This is plain torch, in some ten passes over memory; autograd, torch.func and torch.compile see through them. On the CPU
in eager mode the compiled kernel (`passes.py`) does the same in one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from prproduct.kernels.pairs import Pairs, measure, weight_and_input_gains
from prproduct.products import Gains, Pair, Product


class Half(NamedTuple):
    """A gradient's share for ∂/∂w, or for ∂/∂x. None stands for zero."""

    turned: Tensor | None  # shaped as the pairs
    sums: Tensor | None  # shaped as the norms of the vectors along which they are to be added


def split(product: Product, pairs: Pairs, grad: Tensor) -> tuple[Half, Half]:
    """The halves for ∂/∂w and ∂/∂x."""
    pair = measure(pairs)
    weight_gains, input_gains = weight_and_input_gains(product, pair)
    radial = _radial(weight_gains, pair, grad)
    turned, sums = _times(grad, weight_gains.direction), _sums(radial, pairs.input.value, pairs.weight.norms.value)
    for_weight = Half(turned, sums)
    if input_gains is not weight_gains:
        radial, turned = _radial(input_gains, pair, grad), _times(grad, input_gains.direction)
    return for_weight, Half(turned, _sums(radial, pairs.weight.length, pairs.input.value))


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
