"""What a probe must find, over all pairs at once, and what it must leave as it was."""

import pytest
import torch
from torch import Tensor, nn

import prproduct as pr

BINS = 20


def brute_force(weight: Tensor, data: Tensor) -> dict:
    """The statistics of weight vectors (groups, n, d) with data vectors (samples, groups, m, d), all at once."""
    weight, data = weight.double(), data.double()
    norms = weight.norm(dim=-1)[None, :, :, None] * data.norm(dim=-1)[:, :, None]
    p = torch.einsum("gnd,sgmd->sgnm", weight, data)
    cos = torch.where(norms > 0, p / norms, 0.0).abs().clamp(max=1)
    sin = (1 - cos.square()).sqrt()
    return {
        "pairs": sin.numel(),
        "zero_pairs": int((norms == 0).sum()),
        "min_sin": sin.min().item(),
        "mean_sin": sin.mean().item(),
        "max_sin": sin.max().item(),
        "max_cos": cos.max().item(),
        "sample_min_sin": sin.flatten(1).amin(1).mean().item(),
        "histogram": sin.histc(BINS, 0, 1).int().tolist(),
    }


def rows(weight: Tensor, data: Tensor) -> dict:
    """Brute force for a linear product: each row is a sample."""
    return brute_force(weight[None], data.reshape(-1, 1, 1, data.shape[-1]))


def pixels(weight: Tensor, image: Tensor) -> dict:
    """Brute force for a convolution whose kernels are one pixel wide: each image is a sample."""
    return brute_force(weight.flatten(1)[None], image.flatten(2).transpose(1, 2)[:, None])


def parts_of(grad: Tensor, weight: Tensor) -> tuple[float, float]:
    """Norms of the parts along and across each row."""
    along = (grad * weight).sum(1, keepdim=True) / weight.square().sum(1, keepdim=True) * weight
    return along.norm().item(), (grad - along).norm().item()


def probed(module: nn.Module, *args, **kwargs) -> dict:
    """The records of one call, by part or by name."""
    with pr.AngleProbe(module) as probe:
        module(*args, **kwargs)
    return {record.part or record.layer: record for record in probe.records}


def assert_found(record: pr.probe.AngleRecord, expected: dict, tolerance: float = 1e-9) -> None:
    counts = (record.pairs, record.zero_pairs, sum(record.histogram))
    expected_counts = (expected["pairs"], expected["zero_pairs"], expected["pairs"])
    assert counts == expected_counts, f"pairs, zero pairs, pairs in bins: {counts}, not {expected_counts}"
    moved = sum(abs(a - b) for a, b in zip(record.histogram, expected["histogram"], strict=True)) / 2
    assert moved <= record.pairs * 1e-3, "pairs on the edge of a bin aside, the histograms are equal"
    for name in ("min_sin", "mean_sin", "max_sin", "max_cos", "sample_min_sin"):
        got = getattr(record, name)
        assert got == pytest.approx(expected[name], abs=tolerance), f"{name}: {got}, not {expected[name]}"


def count_hooks(net: nn.Module) -> int:
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules())
    return hooks + sum(len(p._backward_hooks or {}) for p in net.parameters())


def assert_same_bits(got: list[Tensor], expected: list[Tensor]) -> None:
    for position, (one, other) in enumerate(zip(got, expected, strict=True)):
        assert torch.equal(one, other), f"tensor {position}"
