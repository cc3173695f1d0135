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
    turned = _times(grad, weight_gains.direction)
    excess = _excess(weight_gains, grad, turned)
    for_weight = Half(turned, _sums(excess, pair.cos, pairs.input.value, pairs.weight.norms.value))
    if input_gains is not weight_gains:
        turned = _times(grad, input_gains.direction)
        excess = _excess(input_gains, grad, turned)
    return for_weight, Half(turned, _sums(excess, pair.cos, pairs.weight.length, pairs.input.value))


def _excess(gains: Gains, grad: Tensor, turned: Tensor | None) -> Tensor | None:
    """(L − D)∘g"""
    length, direction = gains
    if not isinstance(length, Tensor) and not isinstance(direction, Tensor) and length == direction:
        return None
    stretched = _times(grad, length)
    if stretched is None or turned is None:
        return stretched if turned is None else -turned
    return stretched - turned


def _sums(excess: Tensor | None, cos: Tensor, factor: Tensor, like: Tensor) -> Tensor | None:
    """Σ (L − D)·cos θ·g·‖other vector‖

    In this order: Inductor keeps what two sums share and read from more than four places in memory, and lays it out
    for neither. (L − D)∘g and cos θ are below that each, their product is not.
    """
    return None if excess is None else (excess * (cos * factor)).sum_to_size(like.shape)


def _times(t: Tensor, factor: Tensor | float) -> Tensor | None:
    if isinstance(factor, Tensor):
        return t * factor
    if factor == 0.0:
        return None
    return t if factor == 1.0 else t * factor
