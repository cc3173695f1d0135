"""The gradient of an output, split into what the native backward takes and what is added along the vectors.

For each pair with the gains L and D, and for ∂/∂w and ∂/∂x:

    turned = D∘g                                    goes through the native backward
    sums   = Σ (L − D)·cos θ·g·‖other vector‖       one number a vector, added along it

This is plain torch, in some ten passes over memory; autograd, torch.func and torch.compile see through them. On the CPU
in eager mode the compiled kernel (`passes.py`) does the same in one.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from prproduct.kernels.pairs import Pairs, measure, weight_and_input_gains
from prproduct.products import Gains, Product


class Half(NamedTuple):
    """A gradient's share for ∂/∂w, or for ∂/∂x. None stands for zero."""

    turned: Tensor | None  # shaped as the gradient
    sums: Tensor | None  # shaped as the norms of the vectors along which they are to be added


def split(product: Product, pairs: Pairs, grad: Tensor) -> tuple[Half, Half]:
    """The halves for ∂/∂w and ∂/∂x, of a gradient in the shape of the output or of the pairs."""
    pair = measure(pairs)
    weight_gains, input_gains = weight_and_input_gains(product, pair)
    turned = _turned(weight_gains, grad)
    along = _along(weight_gains, pairs, pair.cos, grad, turned)
    for_weight = Half(turned, _sums(along, pairs.input.value, pairs.weight.norms.value))
    if input_gains is not weight_gains:
        turned = _turned(input_gains, grad)
        along = _along(input_gains, pairs, pair.cos, grad, turned)
    return for_weight, Half(turned, _sums(along, pairs.weight.length, pairs.input.value))


def _turned(gains: Gains, grad: Tensor) -> Tensor | None:
    """D∘g, in the shape of g: Inductor lays it out for the convolution that takes it, and no view of it."""
    direction = gains.direction
    return _times(grad, _shaped(direction, grad) if isinstance(direction, Tensor) else direction)


def _along(gains: Gains, pairs: Pairs, cos: Tensor, grad: Tensor, turned: Tensor | None) -> Tensor | None:
    """(L − D)·cos θ∘g, in the shape of the pairs.

    Inductor keeps it in memory, as both sums read it, and in the layout of cos θ, which comes first: a gradient may lie
    otherwise than the output. Computed again for the weights' sums from g, D∘g and p, it took 60 to 300 µs longer.
    """
    length, direction = gains
    if not isinstance(length, Tensor) and not isinstance(direction, Tensor) and length == direction:
        return None
    excess = _times(_shaped(grad, pairs.output), length)
    if turned is not None:
        turned = _shaped(turned, pairs.output)
        excess = -turned if excess is None else excess - turned
    return None if excess is None else cos * excess


def _sums(along: Tensor | None, norm: Tensor, like: Tensor) -> Tensor | None:
    """Σ (L − D)·cos θ·g·‖other vector‖"""
    if along is None:
        return None
    along = along * norm
    return (_per_image(along, like) if torch.compiler.is_compiling() else along).sum_to_size(like.shape)


def _per_image(t: Tensor, like: Tensor) -> Tensor:
    """t, summed over its last axes as far as `like` has but one number there: a convolution's space, if not its batch.

    Inductor's code for a sum of more than 4096 numbers goes through memory at every step, and through all images for
    some of the channels before it turns to the next. In two steps, sums over 32 images of 32² took half as long.
    """
    single = itertools.takewhile(lambda axis: like.shape[axis] == 1, range(-1, -like.dim(), -1))
    axes = tuple(single)
    return t.sum(axes, keepdim=True) if axes else t


def _times(t: Tensor, factor: Tensor | float) -> Tensor | None:
    if isinstance(factor, Tensor):
        return factor * t  # the first one's layout counts, and gains lie as the output does
    if factor == 0.0:
        return None
    return t if factor == 1.0 else t * factor


def _shaped(t: Tensor, like: Tensor) -> Tensor:
    return t if t.dim() == 0 or t.shape == like.shape else t.reshape(like.shape)
