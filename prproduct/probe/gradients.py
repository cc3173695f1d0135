"""The two parts of a weight's gradient: along each weight vector (length) and orthogonal to it (direction)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from prproduct.ops.angles import working_dtype
from prproduct.ops.contractions import Contraction
from prproduct.probe.angles import as_vectors, norms, shortest

NUMBERS_PER_BLOCK = 2**17  # as many as stay in the processor's cache


class GradientParts(NamedTuple):
    """Norms of the two parts over all weight vectors; length² + direction² = ‖gradient‖²."""

    length: float
    direction: float


def split(grad: Tensor, weight: Tensor, contraction: Contraction) -> GradientParts:
    """Return the norms of (g·w)w/‖w‖² and of g minus that, over all weight vectors w with gradients g.

    The squared norm of the direction part is ‖g‖² − (g·w)²/‖w‖², with an absolute error of about eps · ‖g‖². The
    length part at w = 0 is 0.
    """
    dtype = working_dtype(torch.promote_types(grad.dtype, weight.dtype))
    grads, weights = (as_vectors(t.detach(), contraction) for t in (grad, weight))
    scale = max(abs(number) for number in torch.stack(grads.aminmax()).tolist()) if grads.numel() else 0.0
    if not 0.0 < scale < math.inf:
        return GradientParts(scale, scale)
    scale = 1.0 if 1e-9 < scale < 1e9 else scale  # else squares underflow or overflow
    length = direction = 0.0
    rows = max(1, NUMBERS_PER_BLOCK // weights.shape[1])
    for g, w in zip(grads.split(rows), weights.split(rows), strict=True):
        g, w = g.to(dtype), w.to(dtype)
        g = g if scale == 1.0 else g / scale
        norm = norms(w)
        along = (g * w).sum(1).div_(torch.where(norm >= shortest(dtype), norm, math.inf)).square_()
        length += along.sum().item()
        direction += (norms(g).square_() - along).clamp_(min=0.0).sum().item()
    return GradientParts(scale * math.sqrt(length), scale * math.sqrt(direction))
