"""Angles of vectors that are zero, tiny, huge, not finite or not there, of one feature, and in few bits."""

import copy
import math
import warnings

import pytest
import torch
from expected_angles import assert_found, pixels, probed, rows
from torch import nn

import prproduct as pr


def test_zero_vectors_count_as_orthogonal_and_are_counted():
    layer = nn.Linear(3, 4)
    x = torch.randn(5, 3)
    x[:2] = 0
    with torch.no_grad():
        layer.weight[1] = 0
    record = probed(layer, x)["Linear"]
    assert (record.pairs, record.zero_pairs, record.max_sin) == (20, 2 * 4 + 3, 1.0)
    assert_found(record, rows(layer.weight, x), 1e-6)


@pytest.mark.parametrize("scale", [1e-22, 1e-20, 1e-19, 1e-17, 1e-14, 1e-10, 1e15, 1e25])
def test_vectors_too_short_or_too_long_to_square_are_zero_pairs_and_all_others_are_right(scale):
    layer, conv, x = nn.Linear(4, 3, bias=False), nn.Conv2d(4, 3, 1, bias=False), torch.randn(6, 4)
    with torch.no_grad():
        conv.weight.copy_(layer.weight[..., None, None])
    x[:2] *= scale
    expected = rows(layer.weight, x[2:] if not 1e-15 < scale < 1e16 else x)
    image = x.t()[None, :, :, None]
    for record in (probed(layer, x)["Linear"], probed(conv, image)["Conv2d"]):
        assert record.zero_pairs == 18 - expected["pairs"]
        assert (record.min_sin, record.max_cos) == pytest.approx((expected["min_sin"], expected["max_cos"]), abs=1e-5)
        total = expected["mean_sin"] * expected["pairs"] + record.zero_pairs
        assert record.mean_sin == pytest.approx(total / 18, abs=1e-5)


def test_data_that_are_not_finite_spoil_no_other_angle():
    layer, x = nn.Linear(3, 4), torch.randn(5, 3)
    clean = probed(layer, x[2:])["Linear"]
    x[0, 1], x[1, 2] = math.nan, math.inf
    record = probed(layer, x)["Linear"]
    assert (record.min_sin, record.zero_pairs) == (clean.min_sin, 2 * 4)


def test_one_feature_is_always_parallel():
    record = probed(nn.Linear(1, 3, bias=False).double(), torch.randn(8, 1).double())["Linear"]
    assert record.max_sin < 1e-7
    assert (record.max_cos, record.histogram[0]) == (pytest.approx(1.0), 24)


@pytest.mark.parametrize("layer", [nn.Linear(3, 4), nn.Conv2d(3, 4, 1), nn.LSTM(3, 4, batch_first=True)], ids=str)
def test_an_empty_batch_has_no_angles(layer):
    x = torch.empty(0, 3) if isinstance(layer, nn.Linear) else torch.empty(0, 3, 3, 3)
    x = x[:, 0] if isinstance(layer, nn.LSTM) else x
    for record in probed(layer, x).values():
        assert (record.pairs, record.min_sin, record.mean_sin, record.sample_min_sin) == (0, None, None, None)
        assert sum(record.histogram) == 0


def test_a_large_bias_and_a_half_type_do_not_blur_the_angles():
    layer, x = nn.Linear(16, 8), torch.randn(32, 16)
    with torch.no_grad():
        layer.bias.fill_(1e5)
        x[0] = layer.weight[0] * 3 + 0.01 * x[0]
    assert_found(probed(layer, x)["Linear"], rows(layer.weight, x), 1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        assert_found(probed(layer, x)["Linear"], rows(layer.weight, x), 1e-4)
    conv, image = nn.Conv2d(16, 8, 1), x.view(2, 16, 4, 4)
    with torch.no_grad():
        conv.bias.fill_(1e5)
    assert_found(probed(conv, image)["Conv2d"], pixels(conv.weight, image), 1e-4)
    half, x = copy.deepcopy(layer).bfloat16(), x.bfloat16()
    assert_found(probed(half, x)["Linear"], rows(half.weight, x), 1e-4)


def sparse(layer):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR")
        layer.weight = nn.Parameter(layer.weight.detach().to_sparse_csr())
    return layer


@pytest.mark.parametrize(
    ("layer", "x", "reason"),
    [
        (lambda: sparse(nn.Linear(4, 3)), torch.randn(5, 4), "sparse_csr tensors are not measured"),
        (lambda: nn.Linear(4, 3, bias=False), torch.randn(5, 4).to_sparse(), "sparse_coo tensors are not measured"),
        (
            lambda: nn.Linear(4, 3, dtype=torch.complex64),
            torch.randn(5, 4).cfloat(),
            "complex64 tensors are not measured",
        ),
        (lambda: nn.Linear(4, 3, device="meta"), torch.randn(5, 4, device="meta"), "meta tensors are not measured"),
    ],
    ids=["sparse weight", "sparse input", "complex", "meta"],
)
def test_tensors_without_such_angles_are_skipped_with_a_reason_and_the_model_runs(layer, x, reason):
    layer = layer()
    expected = layer(x)
    probe = pr.AngleProbe(layer)
    output = layer(x)
    with pytest.warns(UserWarning, match=rf"measured no layer of Linear; probe.skipped\['Linear'\]: {reason}"):
        probe.close()
    assert probe.skipped == {"Linear": reason}
    assert expected.is_meta or torch.equal(output, expected)
