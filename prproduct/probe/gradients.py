"""The two parts of a weight's gradient: along each weight vector, which stretches it, and across, which turns it."""

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
    """Norms over all weight vectors: length² + direction² is the squared norm of the whole gradient."""

    length: float
    direction: float


def split(grad: Tensor, weight: Tensor, contraction: Contraction) -> GradientParts:
    """For each weight vector w with gradient g: (g·w)w/‖w‖² and the rest. At w = 0 all of g turns.

    ‖rest‖² is ‖g‖² − (g·w)²/‖w‖²: its error is one of rounding beside ‖g‖², also where hardly anything turns.
    """
    dtype = working_dtype(torch.promote_types(grad.dtype, weight.dtype))
    grads, weights = (as_vectors(t.detach(), contraction) for t in (grad, weight))
    scale = max(abs(number) for number in torch.stack(grads.aminmax()).tolist()) if grads.numel() else 0.0
    if not 0.0 < scale < math.inf:
        return GradientParts(scale, scale)
    scale = 1.0 if 1e-9 < scale < 1e9 else scale  # squares of very small ones would vanish
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
