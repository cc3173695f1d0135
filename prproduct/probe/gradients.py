"""The two parts of a weight's gradient: along each weight vector, which stretches it, and across, which turns it."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from prproduct.kernels.contractions import Contraction, Convolution

NUMBERS_PER_BLOCK = 2**18


class GradientParts(NamedTuple):
    """Norms over all weight vectors: length² + direction² is the squared norm of the whole gradient."""

    length: float
    direction: float


def split(grad: Tensor, weight: Tensor, contraction: Contraction) -> GradientParts:
    """For each weight vector w with gradient g: (g·w)w/‖w‖² and the rest. At w = 0 all of g turns."""
    grads, weights = (as_vectors(t.detach(), contraction) for t in (grad, weight))
    # Squares of float32 gradients may fall below its smallest number; Apple's devices have nothing wider.
    dtype = torch.float32 if grad.device.type == "mps" else torch.float64
    length = direction = 0.0
    rows = max(1, NUMBERS_PER_BLOCK // max(1, weights.shape[1]))
    for g, w in zip(grads.split(rows), weights.split(rows), strict=True):
        g, w = g.to(dtype), w.to(dtype)
        norm = torch.linalg.vector_norm(w, dim=1, keepdim=True)
        unit = w / torch.where(norm > 0, norm, 1.0)
        along = (g * unit).sum(1, keepdim=True)
        length += float(along.square().sum())
        direction += float(torch.addcmul(g, along, unit, value=-1.0).square().sum())
    return GradientParts(math.sqrt(length), math.sqrt(direction))


def as_vectors(weight: Tensor, contraction: Contraction) -> Tensor:
    """The weight vectors as rows."""
    if isinstance(contraction, Convolution) and contraction.transposed:
        kernels = weight.unflatten(0, (contraction.groups, -1)).transpose(1, 2)  # (groups, out/groups, in/groups, …)
        return kernels.flatten(0, 1).flatten(1)
    return weight.flatten(1)
