"""|sin θ| over all (weight vector, data vector) pairs of a product, in blocks that are measured and thrown away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from prproduct.kernels.contractions import Contraction, Convolution
from prproduct.kernels.pairs import Norms, working_dtype

# About half a megabyte in float32: a dozen elementwise passes over a block stay in the processor's cache.
PAIRS_PER_BLOCK = 2**17
# Fewer rows would read a large weight, such as that of a vocabulary, from memory again for next to nothing.
ROWS_PER_BLOCK = 32


@dataclass
class AngleStatistics:
    """What is kept of the pairs seen so far: a few numbers and `bins` counts, whatever their number."""

    bins: int
    pairs: int = 0
    zero_pairs: int = 0
    samples: int = 0
    min_sin: float = 1.0
    max_sin: float = 0.0
    max_cos: float = 0.0
    sum_of_sin: float = 0.0
    sum_of_sample_min: float = 0.0
    histogram: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.histogram = [0] * self.bins

    def add(self, cos: Tensor, zero_pairs: int) -> None:
        """Count a block of |cos θ|, which is used up: one sample along the first axis, its pairs along the others."""
        largest = cos.amax(tuple(range(1, cos.dim())))  # (samples,)
        if not largest.sum().isfinite():  # a NaN or an Inf among the data has no angle
            cos.nan_to_num_(nan=0.0, posinf=0.0)
            largest = cos.amax(tuple(range(1, cos.dim())))
        largest.clamp_(max=1.0)
        sample_min = ((1.0 - largest) * (1.0 + largest)).sqrt()
        sin = torch.addcmul(cos.new_ones(()), cos, cos, value=-1.0).clamp_(min=0.0).sqrt_()
        numbers = [largest.max(), sample_min.min(), sample_min.sum(), sin.max(), sin.sum()]
        max_cos, min_sin, sum_of_sample_min, max_sin, sum_of_sin = torch.stack(numbers).tolist()
        # torch.histc took 12 ns a pair on a CPU, this takes 2; |sin θ| = 1 itself falls behind the last bin.
        *counts, ones = torch.bincount(sin.mul_(self.bins).flatten().long(), minlength=self.bins + 1).tolist()
        counts[-1] += ones
        self.pairs += cos.numel()
        self.zero_pairs += zero_pairs
        self.samples += len(cos)
        self.min_sin = min(self.min_sin, min_sin)
        self.max_sin = max(self.max_sin, max_sin)
        self.max_cos = max(self.max_cos, max_cos)
        self.sum_of_sin += sum_of_sin
        self.sum_of_sample_min += sum_of_sample_min
        self.histogram = [before + now for before, now in zip(self.histogram, counts, strict=True)]


def measure(statistics: AngleStatistics, contraction: Contraction, input: Tensor, weight: Tensor) -> None:
    """Add every pair of `input` and `weight` to the statistics.

    p is computed again, without bias and never in a half type: output − bias would carry the rounding of the bias, and
    one rounding to bfloat16 is all there is of an angle below 10°.
    """
    dtype = working_dtype(torch.promote_types(input.dtype, weight.dtype))
    if input.numel() == 0 or weight.numel() == 0:
        return
    with torch.no_grad(), torch.autocast(input.device.type, enabled=False):
        weight = weight.detach().to(dtype)
        weight_inverse = Norms.of(contraction.weight_square(weight, dtype)).inverse
        for block in _blocks(contraction, input.detach(), weight):
            block = block.to(dtype)
            p = contraction.native(block, weight, None)
            input_inverse = Norms.of(contraction.input_square(block, weight, p, dtype)).inverse
            cos = contraction.as_pairs(p).mul_(input_inverse).mul_(weight_inverse).abs_()
            statistics.add(cos, cos.numel() - _count_nonzero_pairs(contraction, input_inverse, weight_inverse))


def _blocks(contraction: Contraction, input: Tensor, weight: Tensor) -> Iterator[Tensor]:
    """Some rows, or some elements of the batch, at a time."""
    if isinstance(contraction, Convolution):
        one = torch.empty((1, *input.shape[1:]), device="meta", dtype=weight.dtype)
        pairs = contraction.native(one, weight.to("meta"), None).numel()
        yield from input.split(max(1, PAIRS_PER_BLOCK // pairs))
    else:
        rows = input.reshape(-1, input.shape[-1])
        yield from rows.split(max(ROWS_PER_BLOCK, PAIRS_PER_BLOCK // len(weight)))


def _count_nonzero_pairs(contraction: Contraction, input_inverse: Tensor, weight_inverse: Tensor) -> int:
    """The pairs of which neither vector is zero; a group's windows meet the kernels of their own group alone."""
    windows, kernels = input_inverse > 0, weight_inverse > 0
    if isinstance(contraction, Convolution):
        per_group = windows.transpose(0, 1).flatten(1).sum(1) * kernels.flatten(1).sum(1)  # (groups,)
        return int(per_group.sum())
    return int(windows.sum() * kernels.sum())
