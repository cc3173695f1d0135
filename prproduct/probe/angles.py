"""Statistics of |sin θ| over all (weight vector, data vector) pairs of a product, computed block by block."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from prproduct.ops.angles import working_dtype
from prproduct.ops.contractions import Contraction, Convolution

# Half a megabyte in float32: a dozen elementwise passes over a block stay in the cache.
PAIRS_PER_BLOCK = 2**17
# With fewer rows, reading a large weight (a vocabulary's) from memory would dominate.
ROWS_PER_BLOCK = 32


@dataclass
class AngleStatistics:
    """Running statistics of all pairs so far: a few numbers and `bins` counts.

    A sample is a row of a linear layer's input, or an element of a convolution's batch.
    """

    bins: int
    pairs: int = 0
    zero_pairs: int = 0  # as in AngleRecord
    samples: int = 0
    min_sin: float = 1.0
    max_sin: float = 0.0
    max_cos: float = 0.0
    sum_of_sin: float = 0.0
    sum_of_sample_min: float = 0.0  # of the smallest |sin θ| of each sample
    histogram: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.histogram = [0] * self.bins

    def add(self, cos: Tensor, zero_pairs: int) -> Tensor:
        """Add a block of |cos θ| (samples, …) and return the largest of each sample (samples,). Overwrites `cos`."""
        largest = cos.amax(tuple(range(1, cos.dim())))  # (samples,)
        if not largest.sum().isfinite():  # NaN and Inf in the data have no angle
            cos.nan_to_num_(nan=0.0, posinf=0.0)
            largest = cos.amax(tuple(range(1, cos.dim())))
        sin = cos.square_().neg_().add_(1.0).clamp_(min=0.0).sqrt_()  # in place: an allocation costs more than a pass
        max_sin, sum_of_sin = torch.stack([sin.max(), sin.sum()]).tolist()
        # 2 ns a pair on a CPU; torch.histc took 12. |sin θ| = 1 falls into an extra last bin.
        *counts, ones = torch.bincount(sin.mul_(self.bins).flatten().int(), minlength=self.bins + 1).tolist()
        counts[-1] += ones
        self.pairs += sin.numel()
        self.zero_pairs += zero_pairs
        self.max_sin = max(self.max_sin, max_sin)
        self.sum_of_sin += sum_of_sin
        self.histogram = [before + now for before, now in zip(self.histogram, counts, strict=True)]
        return largest

    def add_samples(self, largest: Tensor) -> None:
        """Add samples, given the largest |cos θ| among all pairs of each (samples,)."""
        largest = largest.clamp(max=1.0)
        sample_min = ((1.0 - largest) * (1.0 + largest)).sqrt()
        max_cos, min_sin, sum_of_sample_min = torch.stack([largest.max(), sample_min.min(), sample_min.sum()]).tolist()
        self.samples += len(largest)
        self.min_sin = min(self.min_sin, min_sin)
        self.max_cos = max(self.max_cos, max_cos)
        self.sum_of_sample_min += sum_of_sample_min


def why_unmeasurable(*tensors: Any) -> str:
    """Return why no angles between these tensors can be measured, or ""."""
    if torch._C._are_functorch_transforms_active():  # private: torch has no public one
        return "tensors inside of torch.func transforms are not measured"
    for tensor in tensors:
        if not isinstance(tensor, Tensor):  # the argument of a forward that was replaced
            return f"an argument of type {type(tensor).__name__} is not measured"
        if tensor.is_nested or tensor.is_meta:
            return f"{'nested' if tensor.is_nested else 'meta'} tensors are not measured"
        if tensor.layout is not torch.strided or not tensor.is_floating_point():
            kind = tensor.dtype if tensor.layout is torch.strided else tensor.layout
            return f"{str(kind).removeprefix('torch.')} tensors are not measured"
    return ""


def measure(
    statistics: AngleStatistics,
    contraction: Contraction,
    input: Tensor,
    weight: Tensor,
    output: Tensor | None = None,
    bias: Tensor | None = None,
) -> None:
    """Add every pair of `input` and `weight` to the statistics.

    p = w·x is `output` − `bias` where that is given and exact enough; otherwise it is computed again. It is not exact
    in half types (rounding to bfloat16 hides angles below 10°), nor if the bias is much larger than p.
    """
    dtype = working_dtype(torch.promote_types(input.dtype, weight.dtype))
    if input.numel() == 0 or weight.numel() == 0:
        return
    if output is not None and output.dtype != dtype:
        output = None
    with torch.no_grad(), torch.autocast(input.device.type, enabled=False):
        weight = weight.detach().to(dtype)
        weight_inverse = _inverse(norms(as_vectors(weight, contraction)))  # (out,)
        bias = weight.new_zeros(()) if bias is None else bias.detach()
        largest_bias = float((abs(bias) * weight_inverse).max())  # max |b_j| / ‖w_j‖
        if isinstance(contraction, Convolution):
            spatial = (1,) * len(contraction.stride)
            weight_inverse = weight_inverse.view(contraction.groups, -1, *spatial)  # (groups, out/groups, 1, …)
            bias = bias.view(-1, *spatial)
            _measure_windows(
                statistics, contraction, input.detach(), weight, weight_inverse, output, bias, largest_bias
            )
        else:
            _measure_rows(statistics, contraction, input.detach(), weight, weight_inverse, output, bias, largest_bias)


def _measure_rows(
    statistics: AngleStatistics,
    linear: Contraction,
    input: Tensor,
    weight: Tensor,
    weight_inverse: Tensor,
    output: Tensor | None,
    bias: Tensor,
    largest_bias: float,
) -> None:
    """Measure a linear layer, some rows of the input and some rows of the weight at a time."""
    rows = max(ROWS_PER_BLOCK, PAIRS_PER_BLOCK // len(weight))
    columns = max(1, PAIRS_PER_BLOCK // rows)
    inputs = input.reshape(-1, input.shape[-1]).split(rows)
    outputs = [None] * len(inputs) if output is None else output.detach().reshape(-1, len(weight)).split(rows)
    bias = bias.expand(len(weight))
    for x, y in zip(inputs, outputs, strict=True):
        x = x.to(weight.dtype)
        input_inverse = _inverse(norms(x)).unsqueeze(1)  # (rows, 1)
        nonzero_rows = torch.count_nonzero(input_inverse)
        largest = torch.zeros_like(input_inverse).squeeze(1)
        if y is not None and not _is_exact(largest_bias, input_inverse):
            y = None
        for start in range(0, len(weight), columns):
            part = slice(start, start + columns)
            p = linear.native(x, weight[part], None) if y is None else y[:, part] - bias[part]
            cos = p.mul_(input_inverse).mul_(weight_inverse[part]).abs_()  # (rows, columns)
            zero_pairs = cos.numel() - int(nonzero_rows * torch.count_nonzero(weight_inverse[part]))
            largest = torch.maximum(largest, statistics.add(cos, zero_pairs))
        statistics.add_samples(largest)


def _measure_windows(
    statistics: AngleStatistics,
    convolution: Convolution,
    input: Tensor,
    weight: Tensor,
    weight_inverse: Tensor,
    output: Tensor | None,
    bias: Tensor,
    largest_bias: float,
) -> None:
    """Measure a convolution, some elements of the batch at a time."""
    nonzero_kernels = torch.count_nonzero(weight_inverse.flatten(1), dim=1)  # (groups,)
    sample = torch.empty((1, *input.shape[1:]), device="meta", dtype=weight.dtype)
    pairs_per_sample = convolution.native(sample, weight.to("meta"), None).numel()
    samples = max(1, PAIRS_PER_BLOCK // pairs_per_sample)
    inputs = input.split(samples)
    outputs = [None] * len(inputs) if output is None else output.detach().split(samples)
    for x, y in zip(inputs, outputs, strict=True):
        x = x.to(weight.dtype)
        p = convolution.native(x, weight, None) if y is None else y - bias
        input_inverse = _inverse(convolution.input_square(x, weight, p, weight.dtype).sqrt_())
        if y is not None and not _is_exact(largest_bias, input_inverse):
            p = convolution.native(x, weight, None)
        nonzero_windows = torch.count_nonzero(input_inverse, dim=(0, *range(2, input_inverse.dim())))  # (groups,)
        cos = convolution.as_pairs(p).mul_(input_inverse).mul_(weight_inverse).abs_()
        zero_pairs = cos.numel() - int((nonzero_windows * nonzero_kernels).sum())
        statistics.add_samples(statistics.add(cos, zero_pairs))


def _is_exact(largest_bias: float, input_inverse: Tensor) -> bool:
    """Return True if |bias| ≤ ‖w‖‖x‖ for all pairs: then output − bias is as exact as p itself."""
    return largest_bias == 0.0 or largest_bias * float(input_inverse.max()) <= 1.0


def as_vectors(weight: Tensor, contraction: Contraction) -> Tensor:
    """Return the weight vectors as rows (out, length of a vector)."""
    if isinstance(contraction, Convolution) and contraction.transposed:
        kernels = weight.unflatten(0, (contraction.groups, -1)).transpose(1, 2)  # (groups, out/groups, in/groups, …)
        return kernels.flatten(0, 1).flatten(1)
    return weight.flatten(1)


def norms(vectors: Tensor) -> Tensor:
    """Return the norms of the rows (rows,); squaring and summing a large weight took 20 times as long."""
    return torch.linalg.vector_norm(vectors, dim=1)


def shortest(dtype: torch.dtype) -> float:
    """Return the norm below which squares underflow: 3e-16 in float32, 1e-146 in float64."""
    return math.sqrt(torch.finfo(dtype).tiny / torch.finfo(dtype).eps)


def _inverse(norm: Tensor) -> Tensor:
    """Return 1/norm, or 0 for norms that are 0, below `shortest`, or not finite; overwrites `norm`."""
    return norm.masked_fill_(norm < shortest(norm.dtype), 0.0).reciprocal_().nan_to_num_(nan=0.0, posinf=0.0)
